//! Editing: new instructions are queued at an old one, and inserted into the schedule together at the end.

use memplan_ir::{
    ArrayShape, Cursor, ElementType, EntitySet, Insert, InstructionId, Layout, Module, Names, Op, Shape,
    ShapeIndex, Use,
};
use memplan_memory::FastMemory;
use rustc_hash::FxHashMap;

/// The positions of new instructions, relative to an old one; in this order before the next old one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Slot {
    /// Right after an instruction: copies of its result start.
    After,
    /// Before an instruction: copies to main memory are done.
    Evicted,
    /// Then copies into fast memory start.
    Started,
    /// Then those are done that the instruction needs.
    Fetched,
}

/// An old instruction and the place beside it.
pub(super) type At = (InstructionId, Slot);

/// A module that gets new instructions.
pub(super) struct Edits<'m> {
    pub(super) module: &'m mut Module,
    pub(super) fast: FastMemory,
    pub(super) names: Names,
    /// Instructions that start transfers of slices.
    pub(super) slice_starts: EntitySet<InstructionId>,
    slots: FxHashMap<At, Vec<InstructionId>>,
}

impl<'m> Edits<'m> {
    pub(super) fn new(module: &'m mut Module, fast: FastMemory, names: Names) -> Edits<'m> {
        Edits { module, fast, names, slice_starts: EntitySet::new(), slots: FxHashMap::default() }
    }

    /// An element of a tuple, however deep, or the array itself.
    pub(super) fn element(&mut self, id: InstructionId, index: &ShapeIndex, at: At) -> InstructionId {
        index.0.iter().fold(id, |tuple, &index| {
            let part =
                self.module.shape(tuple).subshape(&[index].into()).expect("positions are parts").clone();
            self.push("get-tuple-element", part, Op::GetTupleElement { index }, tuple, at)
        })
    }

    /// Starts a copy of an array from one memory to another.
    pub(super) fn start(
        &mut self,
        op: Op,
        source: InstructionId,
        [to, from]: [u32; 2],
        at: At,
    ) -> InstructionId {
        let Shape::Array(array) = self.module.shape(source).clone() else {
            unreachable!("only arrays are copied");
        };
        let [to, from] = [to, from].map(|space| Shape::Array(in_space(&array, space)));
        let flag = flag(ElementType::U32, self.fast);
        self.push("copy-start", Shape::tuple([to, from, flag]), op, source, at)
    }

    /// Ends a copy: what arrived.
    pub(super) fn done(&mut self, start: InstructionId, at: At) -> InstructionId {
        let to = self.module.shape(start).as_tuple().expect("a transfer has two ends and a flag")[0].clone();
        self.push("copy-done", to, Op::CopyDone, start, at)
    }

    /// Replaces an operand by another instruction's result, in the shape that the operand had.
    pub(super) fn exchange(&mut self, it: Use, by: InstructionId) {
        let old = self.module.instructions[it.user].operands[it.operand as usize];
        let (Shape::Array(wanted), Shape::Array(given)) = (self.module.shape(old), self.module.shape(by))
        else {
            unreachable!("only arrays are copied");
        };
        let space = u32::try_from(given.memory_space()).expect("it is that of a target");
        let (wanted, given) = (in_space(wanted, space), given.clone());
        let new = if wanted == given {
            by
        } else {
            self.push("bitcast", wanted.into(), Op::Bitcast, by, (it.user, Slot::Fetched))
        };
        self.module.instructions[it.user].operands[it.operand as usize] = new;
    }

    /// Adds an instruction with one operand at a place.
    pub(super) fn push(
        &mut self,
        name: &str,
        shape: Shape,
        op: Op,
        operand: InstructionId,
        at: At,
    ) -> InstructionId {
        self.cursor(at).named(&format!("{name}.fast")).insert_shaped(op, [operand], shape)
    }

    /// A cursor at a position.
    pub(super) fn cursor(&mut self, at: At) -> Cursor<'_> {
        let computation = self.module.instructions[at.0].parent;
        Cursor::into_list(self.module, &mut self.names, computation, self.slots.entry(at).or_default())
    }

    /// Puts the new instructions into the schedule.
    pub(super) fn finish(&mut self) {
        for computation in self.module.computations.values_mut() {
            let old = std::mem::take(&mut computation.instructions);
            for id in old {
                for slot in [Slot::Evicted, Slot::Started, Slot::Fetched] {
                    computation.instructions.extend(self.slots.remove(&(id, slot)).unwrap_or_default());
                }
                computation.instructions.push(id);
                computation.instructions.extend(self.slots.remove(&(id, Slot::After)).unwrap_or_default());
            }
        }
    }
}

/// The flag that a copy sets when it is done.
pub(super) fn flag(element_type: ElementType, fast: FastMemory) -> Shape {
    let layout = Layout { memory_space: i64::from(fast.flags.0), ..Layout::default() };
    ArrayShape { layout: Some(layout), ..ArrayShape::new(element_type, []) }.into()
}

/// An array in another memory space.
pub(super) fn in_space(array: &ArrayShape, space: u32) -> ArrayShape {
    let mut array = array.clone();
    array.layout.iter_mut().for_each(|layout| layout.memory_space = i64::from(space));
    array
}
