//! XLA's walk over a program, by which it orders buffers of one size.

use cranelift_entity::SecondaryMap;
use memplan_analysis::CallGraph;
use memplan_ir::{InstructionId, Module};

/// When the walk comes to each instruction: to callees before callers, and in each to operands before their users
/// ([`Module::post_order`]). Linear.
pub(crate) fn walk(module: &Module, graph: &CallGraph) -> SecondaryMap<InstructionId, u32> {
    let mut turns = SecondaryMap::with_capacity(module.instructions.len());
    let walked = graph.sequential().iter().flat_map(|&computation| module.post_order(computation));
    (0..).zip(walked).for_each(|(turn, id)| turns[id] = turn);
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
