//! XLA's walk over a program, by which it orders buffers of one size.

use cranelift_entity::SecondaryMap;
use memplan_analysis::CallGraph;
use memplan_ir::{InstructionId, Module, Users};

/// When the walk comes to each instruction: to callees before callers, to operands before their users, to the first operand
/// first (`HloComputation::MakeInstructionPostOrder`). Linear.
pub(crate) fn walk(module: &Module, graph: &CallGraph) -> SecondaryMap<InstructionId, u32> {
    let users = Users::new(module);
    let mut turns = SecondaryMap::new();
    let mut is_seen: SecondaryMap<InstructionId, bool> = SecondaryMap::new();
    let mut n_seen = 0;
    let mut open = Vec::new();
    for &computation in graph.sequential() {
        let listed = &module.computations[computation].instructions;
        for &end in listed.iter().filter(|id| users.of(**id).is_empty()) {
            open.push((end, false));
            while let Some((id, are_operands_done)) = open.pop() {
                if are_operands_done {
                    turns[id] = n_seen;
                    n_seen += 1;
                } else if !std::mem::replace(&mut is_seen[id], true) {
                    open.push((id, true));
                    let instruction = &module.instructions[id];
                    let before = instruction.operands.iter().chain(&instruction.control_predecessors);
                    open.extend(before.rev().map(|&before| (before, false)));
                }
            }
        }
    }
    turns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_come_before_users_and_the_first_operand_first() {
        let module = memplan_hlo::parse(
            "HloModule m
             body {
               s = (f32[2]) parameter(0)
               e = f32[2] get-tuple-element(s), index=0
               n = f32[2] sine(e)
               ROOT t = (f32[2]) tuple(n)
             }
             condition { u = (f32[2]) parameter(0)  ROOT c = pred[] constant(false) }
             ENTRY main {
               p = f32[2] parameter(0)
               q = f32[2] parameter(1)
               late = f32[2] negate(q)
               early = f32[2] negate(p)
               first = f32[2] add(early, late)
               init = (f32[2]) tuple(first)
               loop = (f32[2]) while(init), condition=condition, body=body
               second = f32[2] get-tuple-element(loop), index=0
               ROOT both = (f32[2], f32[2]) tuple(second, late)
             }",
        )
        .unwrap();
        let graph = CallGraph::new(&module).unwrap();
        let turns = walk(&module, &graph);
        let mut names: Vec<(u32, &str)> =
            module.instructions.iter().map(|(id, instruction)| (turns[id], &*instruction.name)).collect();
        names.sort_unstable();
        let names: Vec<&str> = names.into_iter().map(|(_, name)| name).collect();
        assert_eq!(
            names,
            [
                "u", "c", "s", "e", "n", "t", "p", "early", "q", "late", "first", "init", "loop", "second",
                "both"
            ]
        );
    }
}
