//! Values that one kernel would compute several times.
//!
//! A kernel that looks up elements of a value at several places computes the value for each place, with all operations
//! that lead to it. XLA's GPU compiler compares the time of such a kernel, by its model, with that of a separate kernel
//! that stores the value first; the numbers are those of [`ColumnRules`](memplan_memory::ColumnRules). The rule applies
//! to three and more places, for which it was compared with XLA; for two, the list of expensive operations decides.

use memplan_ir::InstructionId;

use super::Grouper;
use super::columns::cycles;

/// Fewest evaluations that are compared.
const FEWEST: usize = 3;

/// Most instructions that are looked at.
const MOST_INSTRUCTIONS: usize = 256;

impl Grouper<'_> {
    /// Whether the other evaluations of a value take longer than to store it and to load it for each.
    pub(super) fn is_slow_again(&self, id: InstructionId, evaluations: usize) -> bool {
        let Some(rules) = self.target.fusion.columns.as_ref().filter(|_| evaluations >= FEWEST) else {
            return false;
        };
        let (mut members, mut next, mut all_cycles) = (vec![id], 0, 0.0);
        while let Some(&at) = members.get(next) {
            next += 1;
            let instruction = &self.module.instructions[at];
            let Some(array) = self.module.shape(at).as_array() else { continue };
            let elements = array.element_count().unwrap_or(0) as f64;
            all_cycles += elements * cycles(rules, &instruction.op, array.element_type);
            for &operand in &instruction.operands {
                let is_elementwise = self.module.instructions[operand].op.is_elementwise();
                if is_elementwise && members.len() < MOST_INSTRUCTIONS && !members.contains(&operand) {
                    members.push(operand);
                }
            }
        }
        let again = rules.seconds((evaluations - 1) as f64 * all_cycles);
        let moved = (evaluations + 1) as f64 * self.bytes[id] as f64;
        again > rules.launch + moved / rules.bandwidth
    }
}
