//! Unary and binary operations by opcode.

use std::sync::LazyLock;

use memplan_ir::{BinaryOp, Op, Opcode, UnaryOp};
use strum::IntoEnumIterator;

/// The operation of a unary or binary opcode.
pub(super) fn elementwise(opcode: Opcode) -> Option<Op> {
    match elementwise_kind(opcode)? {
        Elementwise::Unary(op) => Some(Op::Unary(op)),
        Elementwise::Binary(op) => Some(Op::Binary(op)),
    }
}

#[derive(Clone, Copy)]
pub(super) enum Elementwise {
    Unary(UnaryOp),
    Binary(BinaryOp),
}

pub(super) fn elementwise_kind(opcode: Opcode) -> Option<Elementwise> {
    /// By opcode, for most instructions are elementwise.
    static TABLE: LazyLock<Vec<Option<Elementwise>>> = LazyLock::new(|| {
        let mut table = vec![None; Opcode::iter().count()];
        UnaryOp::iter().for_each(|op| table[op.opcode() as usize] = Some(Elementwise::Unary(op)));
        BinaryOp::iter().for_each(|op| table[op.opcode() as usize] = Some(Elementwise::Binary(op)));
        table
    });
    TABLE[opcode as usize]
}
