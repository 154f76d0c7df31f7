//! Live bytes over a computation as it will be after fusion, in the order of the text.
//!
//! A one-pass estimate: a result is live from its definition to its last reader, even if it could be overwritten in
//! place. The planner is exact, but runs later.

use cranelift_entity::SecondaryMap;
use memplan_fusion::Grouping;
use memplan_ir::{Access, ComputationId, InstructionId, Module, Op};
use memplan_memory::Target;
use memplan_rewriter::cost::{self, CostClass, Hero};

/// Profiles of computations, callees before callers.
pub(super) struct LiveBytes<'a> {
    module: &'a Module,
    target: &'a Target,
    /// Bytes at the peak of each computation profiled so far.
    peaks: SecondaryMap<ComputationId, u64>,
    /// The place of each instruction in the text of its computation.
    positions: SecondaryMap<InstructionId, u32>,
    /// The place of the last reader of each instruction.
    ends: SecondaryMap<InstructionId, u32>,
}

/// The peak of one computation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile {
    /// Bytes at the peak.
    pub(crate) peak: u64,
    /// The first position in the text at which they are all live.
    pub(crate) time: usize,
}

impl<'a> LiveBytes<'a> {
    pub(super) fn new(module: &'a Module, target: &'a Target) -> LiveBytes<'a> {
        LiveBytes {
            module,
            target,
            peaks: SecondaryMap::new(),
            positions: SecondaryMap::new(),
            ends: SecondaryMap::new(),
        }
    }

    /// The peak of a computation whose callees have been profiled.
    pub(super) fn profile(&mut self, computation: ComputationId, grouping: &Grouping) -> Profile {
        let instructions = &self.module.computations[computation].instructions;
        for (i, &id) in instructions.iter().enumerate() {
            (self.positions[id], self.ends[id]) = (i as u32, i as u32);
        }
        self.extend_to_readers(computation, grouping);
        // Bytes that begin and cease to be live at each position.
        let mut rise = vec![0u64; instructions.len() + 2];
        let mut fall = rise.clone();
        for (i, &id) in instructions.iter().enumerate() {
            let bytes = if grouping.is_materialized(id) { self.bytes(id) } else { 0 };
            // The result of an update in place takes the bytes of the operand, which is counted until then.
            let start = if self.is_in_place(id) { i + 1 } else { i };
            let end = self.ends[id] as usize + 1;
            if start < end {
                rise[start] += bytes;
                fall[end] += bytes;
            }
        }
        let mut profile = Profile { peak: 0, time: 0 };
        let mut load: u64 = 0;
        for (i, &id) in instructions.iter().enumerate() {
            load = (load + rise[i]).saturating_sub(fall[i]);
            let now = load.saturating_add(self.inside(id));
            if now > profile.peak {
                profile = Profile { peak: now, time: i };
            }
        }
        self.peaks[computation] = profile.peak;
        profile
    }

    /// Visits readers from the last to the first, so that the last reader of a view is known before that of its operand.
    fn extend_to_readers(&mut self, computation: ComputationId, grouping: &Grouping) {
        let body = &self.module.computations[computation];
        self.ends[body.root] = body.instructions.len() as u32;
        for &id in body.instructions.iter().rev() {
            let is_view = cost::is_free(&self.module.instructions[id].op) || grouping.is_view(id);
            let end = if is_view { self.ends[id] } else { self.positions[id] };
            match grouping.kernel_rooted_at(id) {
                Some(kernel) => {
                    for &operand in
                        kernel.members.iter().flat_map(|&member| &self.module.instructions[member].operands)
                    {
                        if grouping.is_materialized(operand) || grouping.is_view(operand) {
                            self.ends[operand] = self.ends[operand].max(end);
                        }
                    }
                }
                None if is_view || grouping.is_materialized(id) => {
                    for &operand in &self.module.instructions[id].operands {
                        self.ends[operand] = self.ends[operand].max(end);
                    }
                }
                None => {}
            }
        }
    }

    fn bytes(&self, id: InstructionId) -> u64 {
        match self.module.instructions[id].op.is_free() {
            true => 0,
            // The limit keeps sums over a program from overflowing.
            false => cost::result_bytes(self.module, self.target, id).min(1 << 48),
        }
    }

    fn is_in_place(&self, id: InstructionId) -> bool {
        let op = &self.module.instructions[id].op;
        let is_update = || cost::class_of(self.module, id) == CostClass::Hero(Hero::Update);
        matches!(op, Op::While) || op.traits().access == Access::Update && is_update()
    }

    /// Bytes live in the computations that an instruction runs.
    fn inside(&self, id: InstructionId) -> u64 {
        let instruction = &self.module.instructions[id];
        match instruction.op.runs_callees() {
            true => instruction.called.iter().map(|&callee| self.peaks[callee]).max().unwrap_or(0),
            false => 0,
        }
    }
}
