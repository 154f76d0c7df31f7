//! A table of the cost of each instruction.

use memplan::analysis::RunEstimate;

use super::PlannedModule;

/// A row for every instruction of every computation that runs in sequence.
pub(super) fn costs(program: &PlannedModule<'_>) -> String {
    let mut text = String::from(
        "computation\tinstruction\truns\tseconds\tmain_memory_bytes\tmatrix_operations\tvector_operations\n",
    );
    let (module, facts, cost) = (program.module, &program.planned.facts, program.cost());
    let kernels = cost.kernels(module, facts, program.target);
    for &computation in facts.graph.sequential() {
        let (name, runs) = (&module.computations[computation].name, cost.runs(computation));
        for (id, instruction) in module.instructions_of(computation) {
            let RunEstimate { seconds, main_memory_bytes, matrix_operations, vector_operations, .. } =
                kernels.of(id);
            text.push_str(&format!(
                "{name}\t{}\t{runs}\t{seconds:e}\t{main_memory_bytes}\t{matrix_operations}\t{vector_operations}\n",
                instruction.name
            ));
        }
    }
    text
}
