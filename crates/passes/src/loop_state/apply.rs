//! Two elements of a loop's state become one.

use memplan_ir::{
    ElementType, Instruction, InstructionId, Module, Names, Op, Shape, ShapeId, Sharding, SliceDimension,
};

use super::find::Match;
use crate::loops::Loop;
use crate::scalar::Scalar;

/// Lets the array that is read be the one that is written, for each pair. Linear in the computations concerned.
pub(super) fn apply(module: &mut Module, of: &Loop, matches: &[Match], names: &mut Names) {
    for matching in matches {
        let start = start_with_unwritten(module, of, matching, names);
        module.instructions[of.init].operands[matching.read as usize] = start;
        let update = module.instructions[of.next].operands[matching.written as usize];
        module.instructions[of.next].operands[matching.read as usize] = update;
        let [taken, results] = [&of.taken, &of.results].map(|sites| sites.get(&matching.written));
        for &site in taken.into_iter().chain(results).flatten() {
            module.instructions[site].op = Op::GetTupleElement { index: matching.read };
        }
    }
    let is_gone = |element: u32| matches.iter().any(|matching| matching.written == element);
    let n_elements = module.instructions[of.init].operands.len() as u32;
    drop_elements(module, of, &(0..n_elements).map(is_gone).collect::<Vec<_>>());
}

/// What the loop starts with: the array that is read, but for rows that it never writes.
fn start_with_unwritten(
    module: &mut Module,
    of: &Loop,
    matching: &Match,
    names: &mut Names,
) -> InstructionId {
    let [array, left] = [matching.read, matching.written]
        .map(|element| module.instructions[of.init].operands[element as usize]);
    let whole = module.shape(array).as_array().expect("rows are of arrays").clone();
    let mut site = Site { module, names, parent: of.id, new: Vec::new() };
    let mut start = array;
    for &(from, to) in &matching.unwritten {
        let dimensions = whole.dimensions.iter().enumerate().map(|(d, &extent)| {
            let (start, limit) = if d == matching.dimension { (from, to) } else { (0, extent) };
            SliceDimension { start, limit, stride: 1 }
        });
        let dimensions = dimensions.collect();
        let mut part = whole.clone();
        part.dimensions[matching.dimension] = to - from;
        let part = site.module.intern(Shape::Array(part));
        let rows = site.emit(Op::Slice { dimensions }, &[left], part);
        let mut operands = vec![start, rows];
        for d in 0..whole.dimensions.len() {
            operands.push(site.index(if d == matching.dimension { from } else { 0 }));
        }
        start = site.emit(Op::DynamicUpdateSlice, &operands, site.module.instructions[array].shape);
    }
    site.finish(of.init);
    start
}

/// New instructions beside one whose metadata they take.
struct Site<'a> {
    module: &'a mut Module,
    names: &'a mut Names,
    parent: InstructionId,
    new: Vec<InstructionId>,
}

impl Site<'_> {
    fn index(&mut self, value: i64) -> InstructionId {
        let shape = self.module.intern(Shape::scalar(ElementType::S32));
        self.emit(Op::Constant(Scalar::integer(ElementType::S32, value).literal()), &[], shape)
    }

    fn emit(&mut self, op: Op, operands: &[InstructionId], shape: ShapeId) -> InstructionId {
        let beside = &self.module.instructions[self.parent];
        let (parent, metadata) = (beside.parent, beside.metadata.clone());
        let name = self.names.fresh(op.opcode().into());
        let mut instruction = Instruction::new(name, shape, op, operands.iter().copied(), parent);
        instruction.metadata = metadata;
        let id = self.module.instructions.push(instruction);
        self.new.push(id);
        id
    }

    /// Lists them before an instruction.
    fn finish(self, before: InstructionId) {
        let list = &mut self.module.computations[self.module.instructions[before].parent].instructions;
        let at = list.iter().position(|&id| id == before).expect("an instruction stands in its computation");
        list.splice(at..at, self.new);
    }
}

/// Takes elements that nothing uses any more out of the state.
fn drop_elements(module: &mut Module, of: &Loop, is_gone: &[bool]) {
    let mut new_index = Vec::with_capacity(is_gone.len());
    let mut n_kept = 0;
    for &is_gone in is_gone {
        new_index.push(n_kept);
        n_kept += u32::from(!is_gone);
    }
    let states = [of.id, of.state, of.condition_state(module)];
    for computation in [module.instructions[of.id].parent, of.body, of.condition] {
        let mut list = std::mem::take(&mut module.computations[computation].instructions);
        list.retain(|&id| {
            let instruction = &mut module.instructions[id];
            let taken = match &mut instruction.op {
                Op::GetTupleElement { index } if states.contains(&instruction.operands[0]) => index,
                _ => return true,
            };
            let is_kept = !is_gone[*taken as usize];
            *taken = new_index[*taken as usize];
            is_kept
        });
        module.computations[computation].instructions = list;
    }
    for tuple in [of.init, of.next] {
        let mut i = 0..is_gone.len();
        let operands = &mut module.instructions[tuple].operands;
        operands.retain(|_| i.next().is_some_and(|i| !is_gone[i]));
    }
    let elements = module.instructions[of.init].operands.iter();
    let shape = Shape::Tuple(elements.map(|&element| module.shape(element).clone()).collect());
    let shape = module.intern(shape);
    for id in of.tuples(module) {
        let instruction = &mut module.instructions[id];
        instruction.shape = shape;
        if let Some(extras) = &mut instruction.extras {
            // It says where all of the state comes from, which this no longer is.
            extras.origin = None;
            if let Some(Sharding::Tuple(leaves)) = &mut extras.sharding {
                let mut i = 0..is_gone.len();
                leaves.retain(|_| i.next().is_some_and(|i| !is_gone[i]));
            }
        }
    }
}
