//! What the computation of a reduction combines by.

use memplan_ir::{BinaryOp, ComputationId, Module, Op, Operands};

/// The operation of a reducer that combines its two parameters by nothing else, in any order.
pub fn plain_combiner(module: &Module, reducer: ComputationId) -> Option<BinaryOp> {
    let reducer = &module.computations[reducer];
    let root = &module.instructions[reducer.root];
    let mut operands: Operands = root.operands.clone();
    operands.sort_unstable();
    let mut parameters = reducer.parameters.clone();
    parameters.sort_unstable();
    match root.op {
        Op::Binary(
            op @ (BinaryOp::Add
            | BinaryOp::Multiply
            | BinaryOp::Maximum
            | BinaryOp::Minimum
            | BinaryOp::And
            | BinaryOp::Or),
        ) if operands[..] == parameters[..] => Some(op),
        _ => None,
    }
}
