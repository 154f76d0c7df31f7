//! Assigns the operations between two kernels to one of them, such that fewer bytes are stored.
//!
//! A backward walk lets cheap operations join the kernel that reads them. If that kernel cannot compute their expensive
//! operand, they become its prologue and the expensive result is stored, although a value in between may be narrower:
//!
//! ```text
//!   c = s32[n] convolution(x, w)        the root of k1, stored: 4n bytes
//!   s = s32[n] shift(c, 7)              prologue of k2
//!   q = s8[n]  convert(clamp(s))        prologue of k2      =>  the root of k1, stored instead: n bytes
//!   d = s32[n] convolution(q, v)        the hero of k2
//! ```
//!
//! So the narrowest value on every path from the stored one becomes the root of the first kernel, if the target has
//! such an epilogue. Fewer bytes are live and moved, and no tile recomputes anything.

use std::collections::BTreeSet;

use memplan_ir::InstructionId;
use memplan_memory::{Bytes, FusionGoal};
use memplan_rewriter::cost::{self, CostClass, Hero};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::super::report::{FusionEdge, Verdict};
use super::{Grouper, Kernel, KernelId, Usage};

/// How many operations a value may be away from inputs.
pub(super) const DEPTH: usize = 6;

/// Members of one kernel that another one can compute.
struct Epilogue {
    /// The stored value before.
    stored: InstructionId,
    /// The stored value after.
    instead: InstructionId,
    /// The instructions in between, from `instead` up the text.
    members: Vec<InstructionId>,
    /// Those of the members that the one kernel still needs itself: numbers that it makes from nothing.
    stays: FxHashSet<InstructionId>,
}

impl Grouper<'_> {
    /// Stores the narrowest value between each two kernels. Steps: operands of kernels times members.
    pub(super) fn store_narrow(&mut self) {
        let mut verdicts: FxHashMap<InstructionId, Verdict> = FxHashMap::default();
        for reader in self.grouping.kernels.keys().collect::<Vec<_>>() {
            let mut operands: Vec<InstructionId> =
                self.grouping.kernels[reader].operands.iter().copied().collect();
            operands.sort_unstable();
            for stored in operands {
                let Some(&writer) = self.grouping.rooted.get(&stored) else { continue };
                if self.goal() != FusionGoal::Memory && !self.goes_on_if_asked(writer, reader) {
                    continue;
                }
                let Some(epilogue) = self.epilogue(stored, reader) else { continue };
                let Some(kernel) = self.with_epilogue(writer, &epilogue) else { continue };
                let bytes = |id| Bytes(self.bytes[id]);
                let narrower = Verdict::Narrower { bytes: bytes(epilogue.instead), than: bytes(stored) };
                verdicts.insert(stored, Verdict::Fused { kernels: 1 });
                verdicts.insert(epilogue.instead, narrower);
                self.move_epilogue(&epilogue, reader, writer, kernel);
            }
        }
        for FusionEdge { producer, verdict, .. } in &mut self.grouping.decisions {
            *verdict = verdicts.get(producer).copied().unwrap_or(*verdict);
        }
    }

    /// Whether a kernel goes on with its result also where time is all that counts: that of a product, or of a sum of which a
    /// slice is then only written.
    fn goes_on_if_asked(&self, writer: KernelId, reader: KernelId) -> bool {
        let hero = |kernel: KernelId| self.grouping.kernels[kernel].hero.map(|(_, hero)| hero);
        match hero(writer) {
            Some(Hero::Dot) => self.target.fusion.dot.nested,
            Some(Hero::Reduction) => hero(reader) == Some(Hero::Update),
            _ => false,
        }
    }

    /// The instructions that the kernel of a stored array could compute for its only reader, so that fewer bytes are
    /// stored.
    fn epilogue(&self, stored: InstructionId, reader: KernelId) -> Option<Epilogue> {
        let instead = self.narrowest(stored, reader)?;
        let kernel = &self.grouping.kernels[reader];
        let mut seen = FxHashSet::from_iter([instead]);
        let mut members = vec![instead];
        let mut n_followed = 0;
        while let Some(&id) = members.get(n_followed) {
            n_followed += 1;
            for &operand in &self.module.instructions[id].operands {
                match kernel.usages.contains_key(&operand) {
                    true if seen.insert(operand) => members.push(operand),
                    false if !self.is_there_for(operand, stored, instead) => return None,
                    _ => {}
                }
            }
        }
        members.sort_unstable_by_key(|&id| std::cmp::Reverse(self.positions[id]));
        let mut stays: FxHashSet<InstructionId> = FxHashSet::default();
        for &id in members.iter().filter(|&&id| id != instead) {
            let is_needed =
                |user| kernel.usages.contains_key(user) && (!seen.contains(user) || stays.contains(user));
            if self.users.of(id).iter().any(is_needed) {
                stays.insert(id);
            }
        }
        let is_cheap = |id| self.classes[id] == CostClass::Cheap;
        let reads_none = |id| self.arrays_read(id).all(|operand| seen.contains(&operand));
        let is_twice_for_free = |id| !self.is_expensive(id) && reads_none(id);
        let is_movable =
            |&id: &InstructionId| is_cheap(id) && (!stays.contains(&id) || is_twice_for_free(id));
        members.iter().all(is_movable).then_some(Epilogue { stored, instead, members, stays })
    }

    /// The narrowest member of a kernel that is narrower than an operand and that everything made from it passes through,
    /// one element for each; of several the last. The operand must be read in this kernel alone.
    fn narrowest(&self, operand: InstructionId, reader: KernelId) -> Option<InstructionId> {
        let kernel = &self.grouping.kernels[reader];
        if self.users.of(operand).iter().any(|&user| self.kernels_of[user][..] != [reader]) {
            return None;
        }
        let bytes = |id| self.bytes[id];
        let in_text = |&id: &InstructionId| (self.positions[id], id);
        // Reached instructions not visited yet: if there is only one, everything passes through it.
        let mut open: BTreeSet<(u32, InstructionId)> = self.users.of(operand).iter().map(in_text).collect();
        let mut narrowest = (bytes(operand), None);
        while let Some((_, id)) = open.pop_first() {
            if self.kernels_of[id][..] != [reader]
                || kernel.roots.contains(&id)
                || !cost::is_bijective(self.module, id)
            {
                break;
            }
            let is_narrower = bytes(id) < narrowest.0 || bytes(id) == narrowest.0 && narrowest.1.is_some();
            if open.is_empty() && is_narrower {
                narrowest = (bytes(id), Some(id));
            }
            open.extend(self.users.of(id).iter().map(in_text));
        }
        narrowest.1
    }

    /// Whether something is in memory when a kernel computes `stored`, so that reading it then keeps it no longer; or can
    /// be, in fewer bytes than storing `instead` saves.
    fn is_there_for(&self, id: InstructionId, stored: InstructionId, instead: InstructionId) -> bool {
        let saved = self.bytes[stored] - self.bytes[instead];
        let bytes = if cost::moves_no_bytes(self.module, id) { 0 } else { self.bytes[id] };
        id == stored
            || self.positions[id] < self.positions[stored]
            || self.is_of_inputs(id, DEPTH) && bytes <= saved
    }

    /// Whether cheap operations, this many deep at most, make a value of inputs and constants alone: numbers for each
    /// channel, say.
    pub(super) fn is_of_inputs(&self, id: InstructionId, depth: usize) -> bool {
        let instruction = &self.module.instructions[id];
        let kernel = self.grouping.rooted.get(&id).map(|&kernel| &self.grouping.kernels[kernel]);
        let is_alone = kernel.is_none_or(|kernel| kernel.roots.len() == 1);
        instruction.op.is_input()
            || depth > 0
                && is_alone
                && matches!(self.classes[id], CostClass::Cheap | CostClass::Free)
                && instruction.operands.iter().all(|&operand| self.is_of_inputs(operand, depth - 1))
    }

    /// A kernel with an epilogue; `None` where the target has no such kernel.
    fn with_epilogue(&self, writer: KernelId, epilogue: &Epilogue) -> Option<Kernel> {
        let rules = &self.target.fusion;
        let old = &self.grouping.kernels[writer];
        let goes_on = |(id, hero)| hero != Hero::Update && self.has_epilogue(hero, id);
        let keeps_rows = || epilogue.members.iter().all(|&id| cost::is_pointwise(self.module, id));
        if old.roots.len() > 1 || !old.hero.is_none_or(goes_on) || !(old.held.is_empty() || keeps_rows()) {
            return None;
        }
        let kernel = self.kernel_around(old, epilogue);
        let of_stored = &kernel.usages[&epilogue.stored];
        let fits = of_stored.bijective
            && of_stored.evaluations == 1
            && kernel.members.len() <= rules.max_instructions
            && kernel.operands.len() <= rules.max_operands;
        fits.then_some(kernel)
    }

    fn kernel_around(&self, old: &Kernel, epilogue: &Epilogue) -> Kernel {
        let mut members: Vec<InstructionId> = epilogue.members.iter().chain(&old.members).copied().collect();
        members.sort_unstable_by_key(|&member| std::cmp::Reverse(self.positions[member]));
        members.dedup();
        let roots = SmallVec::from_iter([epilogue.instead]);
        let mut kernel = Kernel { roots, held: old.held.clone(), hero: old.hero, ..Kernel::default() };
        for &id in &members {
            let usage = match () {
                () if id == epilogue.instead => Usage::of_root(id),
                () if old.held.contains(&id) => Usage::of_held(id),
                () => self.usage_in(id, &kernel),
            };
            kernel.usages.insert(id, usage);
        }
        kernel.members = members;
        kernel.operands = self.operands_of(&kernel);
        kernel
    }

    /// The members' operands in memory.
    fn operands_of(&self, kernel: &Kernel) -> FxHashSet<InstructionId> {
        let reads = kernel.members.iter().flat_map(|&id| self.arrays_read(id));
        reads.filter(|operand| !kernel.usages.contains_key(operand)).collect()
    }

    /// Lets the kernel that stores an array compute more, and its reader less.
    fn move_epilogue(&mut self, epilogue: &Epilogue, reader: KernelId, writer: KernelId, kernel: Kernel) {
        let Epilogue { stored, instead, members, stays } = epilogue;
        for id in members.iter().filter(|id| !stays.contains(id)) {
            self.grouping.kernels[reader].usages.remove(id);
            self.kernels_of[*id].retain(|at| *at != reader);
        }
        for &id in members {
            let of = &mut self.kernels_of[id];
            of.push(writer);
            of.sort_unstable();
            of.dedup();
        }
        let rest = &mut self.grouping.kernels[reader];
        rest.members.retain(|id| rest.usages.contains_key(id));
        self.grouping.kernels[reader].operands = self.operands_of(&self.grouping.kernels[reader]);
        self.ranks[*instead] = self.ranks[*stored];
        self.last_read[*instead] = self.ranks[self.grouping.kernels[reader].roots[0]];
        self.grouping.kernels[writer] = kernel;
        self.grouping.rooted.remove(stored);
        self.grouping.rooted.insert(*instead, writer);
        self.grouping.inside.insert(*stored);
        self.grouping.inside.remove(instead);
    }
}
