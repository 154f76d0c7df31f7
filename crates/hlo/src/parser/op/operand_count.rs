//! How many operands opcodes take.

use super::{Operation, Parsed};
use crate::error::ParseErrorKind;

impl Operation<'_, '_> {
    /// XLA checks the number of operands while it parses, for it picks a constructor by it.
    pub(super) fn check_operand_count(&self) -> Parsed<()> {
        let (opcode, found) = (self.head.opcode, self.operands.len());
        let expected = opcode.traits().operands;
        if expected.allows(found) {
            return Ok(());
        }
        let kind = ParseErrorKind::OperandCount { opcode, expected, found };
        Err(self.parser.cursor.error_at(self.head.span.clone(), kind))
    }
}
