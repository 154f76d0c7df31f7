//! Unary and binary operations by opcode.

use std::sync::LazyLock;

use memplan_ir::{BinaryOp, Op, Opcode, UnaryOp};
use strum::IntoEnumIterator;

/// The operation of a unary or binary opcode.
pub(super) fn elementwise(opcode: Opcode) -> Option<Op> {
    /// By opcode, for most instructions are elementwise.
    static TABLE: LazyLock<Vec<Option<Op>>> = LazyLock::new(|| {
        let mut table = vec![None; Opcode::iter().count()];
        UnaryOp::iter().for_each(|op| table[op.opcode() as usize] = Some(Op::Unary(op)));
        BinaryOp::iter().for_each(|op| table[op.opcode() as usize] = Some(Op::Binary(op)));
        table
    });
    TABLE[opcode as usize].clone()
}
