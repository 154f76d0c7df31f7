//! Finds the candidates: the instructions that write and read each value, and the values that control flow passes on.
//!
//! One walk over the schedule lists the events of every value in every computation (`uses`). Then events that pass
//! values into computations get the views there (`views`), and values that must share memory become one candidate
//! (`values`). Slices of arrays are separate candidates ([`slices`](crate::slices)).

mod pinned;
mod uses;
mod values;
mod views;

use memplan_analysis::{Costs, Facts, ValueId};
use memplan_ir::{Effect, EntitySet, InstructionId, Module, Op, Users};
use memplan_memory::Target;

use crate::benefit::Benefit;
use crate::candidate::Candidate;
use crate::idle::IdleTime;
use crate::slices;
use crate::{FastMemoryOptions, Selection};
use uses::{Collector, Uses};
use views::views;

/// The facts about the program.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) module: &'a Module,
    pub(crate) facts: &'a Facts,
    pub(crate) costs: &'a Costs,
    pub(crate) target: &'a Target,
    pub(crate) options: &'a FastMemoryOptions,
    pub(crate) idle: &'a IdleTime<'a>,
    pub(crate) users: &'a Users,
    pub(crate) benefit: &'a Benefit<'a>,
}

impl Context<'_> {
    /// Whether an instruction is a kernel that reads its operands and writes its result in whichever memory they are.
    /// Collectives do, too, but those of several arrays, or of a large one, are between main memories.
    pub(crate) fn reaches_fast_memory(&self, id: InstructionId) -> bool {
        let op = &self.module.instructions[id].op;
        // A dynamic value is read and written with another extent than its buffer's.
        let is_dynamic = matches!(op, Op::SetDimensionSize { .. } | Op::DynamicReshape);
        let is_known = op.traits().effect == Effect::None || self.is_fast_collective(id);
        op.is_kernel() && is_known && !is_dynamic
    }

    /// Whether what a collective reads and writes may be in fast memory. XLA keeps arrays of any size there.
    fn is_fast_collective(&self, id: InstructionId) -> bool {
        let op = &self.module.instructions[id].op;
        let is_small = || {
            let bytes = self.module.shape(id).as_array().and_then(|array| array.dense_bytes());
            bytes.is_some_and(|bytes| bytes <= self.options.largest_collective)
        };
        op.is_whole_collective()
            && !matches!(op, Op::RaggedAllToAll(_))
            && (self.options.selection == Selection::AsXla || is_small())
    }
}

/// Lists candidates for fast memory, and slices of all arrays except those of `fast`; if that is `None`, no slices.
/// Close to linear in positions and operands.
pub(crate) fn candidates(
    module: &Module,
    facts: &Facts,
    costs: &Costs,
    target: &Target,
    options: &FastMemoryOptions,
    idle: &IdleTime<'_>,
    fast: Option<&EntitySet<ValueId>>,
) -> Vec<Candidate> {
    let users = &Users::new(module);
    let benefit = &Benefit::new(module, facts, costs, target, options);
    let context = Context { module, facts, costs, target, options, idle, users, benefit };
    let slices = fast.map(|fast| slices::find(context, fast)).unwrap_or_default();
    let mut uses = Uses::new(context, &slices.uses);
    let views = views(context, &mut uses);
    let collector = Collector { context, uses: &uses };
    let mut candidates = collector.candidates(views, &slices.arrays);
    candidates.extend(slices.candidates.into_iter().map(Candidate::Slice));
    candidates
}
