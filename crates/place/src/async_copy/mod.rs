//! Asynchronous copies: turns decisions about fast memory into instructions and layouts.
//!
//! A copy into fast memory (`copy-start`) starts before one instruction and ends (`copy-done`) before the first that
//! needs it; its uses read its result. A value that is written to fast memory needs no other instruction; if it is
//! evicted, a copy to main memory starts right after the write. Slices are copied by asynchronous slices
//! (`slice_prefetch`). At the end, every value in fast memory gets `S(n)` wherever it appears (`memory_spaces`).
//!
//! ```text
//!   before                                    after: a is pinned, w prefetched for two uses
//!   a = f32[1024]{0} exponential(p)           a = f32[1024]{0:S(1)} exponential(p)
//!   b = f32[1024]{0} dot(w, a)                s = (f32[1024,1024]{1,0:S(1)}, ...) copy-start(w)
//!   c = f32[1024]{0} add(a, b)                d = f32[1024,1024]{1,0:S(1)} copy-done(s)
//!   r = f32[1024]{0} dot(w, c)                b = f32[1024]{0} dot(d, a)
//!                                             c = f32[1024]{0} add(a, b)
//!                                             r = f32[1024]{0} dot(d, c)
//! ```

mod edits;
mod memory_spaces;
mod order;
mod slice_prefetch;

use memplan_analysis::{CallGraphError, Facts, ValueId};
use memplan_ir::{ComputationId, InstructionId, Module, Names, Op, Position, ShapeIndex, Use, Users};
use memplan_memory::{FastMemory, FastMemoryDecision, Prefetch, SlicePrefetch};
use rustc_hash::FxHashMap;

use edits::{At, Edits, Slot};
pub use order::order_for_async_copies;
use slice_prefetch::SlicePrefetcher;

/// A value that is in fast memory now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The number of the decision that placed it.
    pub decision: usize,
    /// The definition of the value, in the rewritten module.
    pub position: Position,
}

/// Applies decisions about the fast memory of a scheduled module, in time linear in the module. Instructions keep their
/// ids, new ones are numbered after them. Returns the contents of fast memory.
///
/// # Errors
/// When the call graph is not one that memory can be planned for.
///
/// # Panics
/// When the facts or the decisions are about another module.
///
/// ```
/// use memplan_analysis::Facts;
/// use memplan_ir::{Position, Schedule, ShapeIndex};
/// use memplan_memory::{FastMemoryDecision, Target};
/// use memplan_place::insert_async_copies;
///
/// let mut module = memplan_hlo::parse(
///     "HloModule pin, is_scheduled=true
///      ENTRY main {
///        p = f32[8]{0} parameter(0)
///        a = f32[8]{0} negate(p)
///        ROOT r = f32[8]{0} add(a, p)
///      }",
/// )?;
/// let facts = Facts::new(&module, &Schedule::in_textual_order(&module))?;
/// let a = module.entry_computation().instructions[1];
/// let value = Position { instruction: a, index: ShapeIndex::root() };
/// let fast = Target::find("tpu-v5e")?.fast_memory.expect("it has fast memory");
/// insert_async_copies(&mut module, &facts, fast, &[FastMemoryDecision::Pin { value }])?;
/// assert!(memplan_hlo::print(&module).contains("%a = f32[8]{0:S(1)} negate(%p)"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn insert_async_copies(
    module: &mut Module,
    facts: &Facts,
    fast: FastMemory,
    decisions: &[FastMemoryDecision],
) -> Result<Vec<Placed>, CallGraphError> {
    let mut names = Names::new(module);
    let numbered = decisions.iter().enumerate();
    let slices: Vec<(usize, &SlicePrefetch)> = numbered
        .filter_map(|(number, decision)| match decision {
            FastMemoryDecision::PrefetchSlice(slice) => Some((number, slice)),
            _ => None,
        })
        .collect();
    slice_prefetch::unshare_kernels(module, &slices, &mut names);
    let mut inserter = Inserter {
        edits: Edits::new(module, fast, names),
        facts,
        decision: 0,
        evicted: FxHashMap::default(),
        placed: Vec::new(),
    };
    // Slices are found in kernels before any change.
    inserter.prefetch_slices(&slices);
    for (number, decision) in decisions.iter().enumerate() {
        inserter.decision = number;
        inserter.carry_out(decision);
    }
    let Inserter { mut edits, placed, .. } = inserter;
    edits.finish();
    slice_prefetch::name_wrapped(&mut edits);
    memory_spaces::set_memory_spaces(module, fast, &placed)?;
    Ok(placed)
}

struct Inserter<'a> {
    edits: Edits<'a>,
    facts: &'a Facts,
    /// The decision that is carried out.
    decision: usize,
    /// The `copy-done` of each value that is evicted.
    evicted: FxHashMap<ValueId, InstructionId>,
    placed: Vec<Placed>,
}

impl Inserter<'_> {
    fn prefetch_slices(&mut self, slices: &[(usize, &SlicePrefetch)]) {
        if slices.is_empty() {
            return;
        }
        let users = Users::new(self.edits.module);
        let mut prefetcher = SlicePrefetcher::new(self, &users);
        for &(number, slice) in slices {
            prefetcher.prefetch(number, slice);
        }
    }

    fn carry_out(&mut self, decision: &FastMemoryDecision) {
        match decision {
            FastMemoryDecision::Pin { value } => self.place(value.clone()),
            FastMemoryDecision::Evict { value, done_before } => self.evict(value, *done_before),
            FastMemoryDecision::Prefetch(prefetch) => self.prefetch(prefetch),
            FastMemoryDecision::ReadOriginal { value, computation, uses } => {
                let (id, index) = self.origin(self.value(value), *computation);
                uses.iter().for_each(|&it| self.read_original(id, &index, it));
            }
            FastMemoryDecision::ReadEvicted { value, uses } => {
                let copy = self.evicted[&self.value(value)];
                uses.iter().for_each(|&it| self.edits.exchange(it, copy));
            }
            FastMemoryDecision::PrefetchSlice(_) => {}
        }
    }

    /// Copies a value into fast memory for some uses.
    fn prefetch(&mut self, prefetch: &Prefetch) {
        let Prefetch { value, computation, start_before, uses, resident } = prefetch;
        let at = (*start_before, Slot::Started);
        let source = self.in_main_memory(self.value(value), *computation, at);
        let users = uses.iter().map(|it| it.user);
        let first = users.min_by_key(|&user| self.facts.line.time(user)).expect("a prefetch has uses");
        let index = resident.map(|index| i32::try_from(index).expect("there are few residents"));
        let op = Op::CopyStart { cross_program_prefetch_index: index };
        let start = self.edits.start(op, source, [self.edits.fast.space.0, 0], at);
        self.place(Position { instruction: start, index: [0].into() });
        let done = self.edits.done(start, (first, Slot::Fetched));
        uses.iter().for_each(|&it| self.edits.exchange(it, done));
    }

    /// Copies a value that is written to fast memory to main memory.
    fn evict(&mut self, value: &Position, done_before: Option<InstructionId>) {
        let id = value.instruction;
        let source = self.edits.element(id, &value.index, (id, Slot::After));
        let op = Op::CopyStart { cross_program_prefetch_index: None };
        let start = self.edits.start(op, source, [0, self.edits.fast.space.0], (id, Slot::After));
        let at = match done_before {
            Some(before) => (before, Slot::Evicted),
            None => {
                let module = &*self.edits.module;
                let sequence = &module.computations[module.instructions[id].parent].instructions;
                (*sequence.last().expect("a definition is in its computation"), Slot::After)
            }
        };
        let done = self.edits.done(start, at);
        self.evicted.insert(self.value(value), done);
    }

    /// Lets an operand show a value as it comes into a computation, as a part of an instruction's result, unless it does.
    fn read_original(&mut self, id: InstructionId, index: &ShapeIndex, it: Use) {
        let module = &*self.edits.module;
        let mut shown = module.instructions[it.user].operands[it.operand as usize];
        while module.instructions[shown].op == Op::Bitcast {
            shown = module.instructions[shown].operands[0];
        }
        let base = &module.instructions[shown];
        let is_element = matches!(base.op, Op::GetTupleElement { .. }) && base.operands[0] == id;
        if shown != id && !is_element {
            let original = self.edits.element(id, index, (it.user, Slot::Fetched));
            self.edits.exchange(it, original);
        }
    }

    /// An instruction whose result is the version of a value that is in main memory.
    fn in_main_memory(&mut self, value: ValueId, computation: ComputationId, at: At) -> InstructionId {
        if let Some(&copy) = self.evicted.get(&value)
            && self.edits.module.instructions[copy].parent == computation
        {
            return copy;
        }
        let (id, index) = self.origin(value, computation);
        self.edits.element(id, &index, at)
    }

    /// The definition of a value in a computation, or where it enters, as a parameter or as a call's result: an
    /// instruction and a part of its result.
    fn origin(&self, value: ValueId, computation: ComputationId) -> (InstructionId, ShapeIndex) {
        let flow = &self.facts.flow;
        let positions = &flow.positions;
        let definition = flow.values[value].definition;
        let id = positions.instruction(definition);
        if self.edits.module.instructions[id].parent == computation {
            return (id, positions.shape_index(definition).clone());
        }
        let shown = flow.positions_of(value).iter().copied();
        let here =
            shown.filter(|&p| self.edits.module.instructions[positions.instruction(p)].parent == computation);
        let position = here.min_by_key(|&p| self.facts.line.time(positions.instruction(p))).expect(
            "a computation that reads a value defines it, has it as a parameter, or gets it from a call",
        );
        (positions.instruction(position), positions.shape_index(position).clone())
    }

    /// The value that is defined at a position.
    fn value(&self, definition: &Position) -> ValueId {
        let value = self.facts.flow.find(definition.instruction, &definition.index);
        value.expect("decisions are about values of sequential computations")
    }

    /// Notes that a value is in fast memory.
    fn place(&mut self, position: Position) {
        self.placed.push(Placed { decision: self.decision, position });
    }
}
