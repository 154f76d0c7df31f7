//! Values that one kernel would compute several times.
//!
//! A kernel that uses a value at several places computes it for each place, with all operations that lead to it. XLA's GPU
//! compiler compares the time of such a kernel, by its model, with that of a separate kernel that stores the value first;
//! the numbers are those of [`ColumnRules`](memplan_memory::ColumnRules). What is read again is read from the cache if it
//! fits there. Pads, slices and the like are never stored: what they move is asked about, by the same count. The rule
//! applies to three and more places, for which it was compared with XLA; for two, the list of expensive operations decides.
//! Windows that overlap read elements several times at one place; there the times of all kernels that read the value are
//! added up, and it is computed in all of them or in none.
//!
//! ```text
//!   s = f32[n] select(m, a, b)
//!   p = f32[n+2] pad(s, zero)                       s is needed three times for each element of r, and stored
//!   r = f32[n] add(add(slice(p), slice(p)), s)      if computing it takes longer; p never is
//! ```

use std::collections::BTreeMap;

use memplan_ir::{InstructionId, Op};
use memplan_memory::ColumnRules;
use memplan_rewriter::cost;
use rustc_hash::FxHashMap;

use super::kernel::{elements, read_for};
use super::limits::updated_operands;
use super::{Grouper, Usage};

/// Fewest evaluations that are compared.
const FEWEST: usize = 3;

/// Most instructions that are looked at.
const MOST_INSTRUCTIONS: usize = 256;

impl Grouper<'_> {
    /// Whether the other evaluations of a value take longer than to store it and to load it for each.
    pub(super) fn is_slow_again(&self, id: InstructionId, usage: &Usage) -> bool {
        // What moves elements is computed as often as they are, which is asked about what makes them.
        let op = &self.module.instructions[id].op;
        let is_computed = op.is_elementwise() || matches!(op, Op::Concatenate { .. });
        let is_asked = usage.evaluations >= FEWEST && is_computed;
        let Some(rules) = self.target.fusion.columns.as_ref().filter(|_| is_asked) else { return false };
        let own = elements(self.module, id);
        let times = usage.elements / own;
        let bytes = self.bytes[id] as f64;
        let stored =
            rules.launch + 2.0 * bytes / rules.bandwidth + (times - 1.0) * rules.seconds_again(bytes);
        let again = self.seconds_of_chain(id, own, rules, |bytes| rules.seconds_again(bytes));
        (times - 1.0) * again > stored
    }

    /// Whether kernels that read a value through windows that overlap take longer if each computes it as often as its
    /// windows read it than if another one writes it for them.
    pub(super) fn is_slower_in_windows(&self, id: InstructionId, usages: &[Usage]) -> bool {
        let own = elements(self.module, id);
        let is_window = |&of: &InstructionId| matches!(self.module.instructions[of].op, Op::ReduceWindow(_));
        let overlaps = |usage: &Usage| usage.elements > own && usage.indexers.iter().any(is_window);
        let is_asked = self.module.instructions[id].op.is_elementwise() && usages.iter().any(overlaps);
        let Some(rules) = self.target.fusion.columns.as_ref().filter(|_| is_asked) else { return false };
        let bytes = self.bytes[id] as f64;
        let read = |bytes: f64| bytes / rules.bandwidth;
        let first = self.seconds_of_chain(id, own, rules, read);
        let again = self.seconds_of_chain(id, own, rules, |bytes| rules.seconds_again(bytes));
        let for_all = |first: f64, again: f64| -> f64 {
            usages.iter().map(|usage| first + (usage.elements / own - 1.0).max(0.0) * again).sum()
        };
        let stored = rules.launch + first + read(bytes) + for_all(read(bytes), rules.seconds_again(bytes));
        for_all(first, again) > stored
    }

    /// Whether an operation overwrites a value, which is in memory for that reason.
    fn is_overwritten(&self, id: InstructionId) -> bool {
        self.users.of(id).iter().any(|&user| updated_operands(&self.module.instructions[user]).contains(&id))
    }

    /// Seconds to compute so many elements of a value from what is in memory, where `seconds` is the time to read an array
    /// of so many bytes.
    fn seconds_of_chain(
        &self,
        id: InstructionId,
        count: f64,
        rules: &ColumnRules,
        seconds: impl Fn(f64) -> f64,
    ) -> f64 {
        let position = |id| self.positions[id];
        // The instructions whose elements are asked for, and at which indices: those of these instructions, so often.
        let mut open: BTreeMap<u32, (InstructionId, Vec<InstructionId>)> = BTreeMap::new();
        let mut counts: FxHashMap<InstructionId, f64> = FxHashMap::default();
        let (mut cycles, mut read) = (0.0, 0.0);
        counts.insert(id, count);
        open.insert(position(id), (id, Vec::new()));
        while let Some((_, (at, indexers))) = open.pop_last() {
            let of = |indexer: &InstructionId| read_for(self.module, *indexer, at, counts[indexer]);
            let n = if at == id { count } else { indexers.iter().map(of).sum() };
            let op = &self.module.instructions[at].op;
            if matches!(op, Op::Broadcast { .. } | Op::Iota { .. }) && !self.is_overwritten(at) {
                continue;
            }
            let passes = op.is_elementwise() || matches!(op, Op::Concatenate { .. });
            if !passes || counts.len() >= MOST_INSTRUCTIONS {
                let Some(array) = self.module.shape(at).as_array() else { continue };
                let width = f64::from(array.element_type.byte_width());
                read += n * width * seconds(self.bytes[at] as f64) / self.bytes[at].max(1) as f64;
                continue;
            }
            cycles += n * self.cycles_of_element(at, rules);
            let is_pointwise = at != id && cost::is_pointwise(self.module, at);
            let indexers = if is_pointwise { indexers } else { vec![at] };
            counts.insert(at, n);
            for operand in self.distinct_arrays_read(at) {
                let (_, of) = open.entry(position(operand)).or_insert_with(|| (operand, Vec::new()));
                indexers.iter().for_each(|&indexer| {
                    if !of.contains(&indexer) {
                        of.push(indexer)
                    }
                });
            }
        }
        rules.seconds(cycles).max(read)
    }
}
