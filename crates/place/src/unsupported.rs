//! Modules that the passes of this crate do not support.

/// A feature of a module that a pass does not support, in [`PassError::Failed`](memplan_rewriter::PassError::Failed).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// Two receives of one loop would have to write one buffer.
    #[error("`{0}` cannot be kept apart from the receive of the iteration before")]
    Receive(Box<str>),
    /// A result would have to be where something is that is still needed.
    #[error("the value returned as `{0}` cannot be kept apart from the value that it replaces")]
    Returned(Box<str>),
    /// Two results of an instruction say that they live in one operand.
    #[error("`{instruction}` declares that two of its results live in its operand {operand}")]
    SharedOperand {
        /// The instruction.
        instruction: Box<str>,
        /// The number of the operand.
        operand: u32,
    },
    /// Copies of called computations would be too many.
    #[error("calls of calls would grow the program beyond {0} instructions")]
    Growth(usize),
}
