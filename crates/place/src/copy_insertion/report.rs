//! The copies that were inserted, and why.

use memplan_ir::ShapeIndex;
use memplan_memory::Bytes;

/// The copies that `copy-insertion` added to a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// The copies, callees before callers: the first [`CopyReport::MAX_LISTED`].
    pub copies: Vec<InsertedCopy>,
    /// How many copies are not listed.
    pub unlisted: usize,
}

impl CopyReport {
    /// Most copies that are listed, each of which takes some 200 bytes of memory.
    pub const MAX_LISTED: usize = 10_000;

    pub(super) fn push(&mut self, copy: impl FnOnce() -> InsertedCopy) {
        match self.copies.len() < CopyReport::MAX_LISTED {
            true => self.copies.push(copy()),
            false => self.unlisted += 1,
        }
    }
}

/// One inserted copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InsertedCopy {
    /// Name of the computation.
    pub computation: Box<str>,
    /// Name of the copy.
    pub copy: Box<str>,
    /// Name of the instruction that is copied.
    pub source: Box<str>,
    /// Bytes of the copy.
    pub bytes: Bytes,
    /// Why the source and something else would have had to share a buffer, and why they cannot.
    pub because: Because,
}

/// Why a copy was inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Because {
    /// Why two values would have had to share a buffer.
    pub sharing: MustShare,
    /// Why they cannot.
    pub conflict: Conflict,
}

/// Why two values must share a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MustShare {
    /// An instruction overwrites an operand.
    Update {
        /// Name of the instruction.
        by: Box<str>,
        /// The number of the operand.
        operand: u32,
    },
    /// A loop overwrites an element of its initial state.
    LoopState {
        /// Name of the loop.
        of: Box<str>,
        /// The element.
        index: ShapeIndex,
    },
    /// The buffer of a result is decided by the loop, the conditional or the caller that runs the computation.
    Result {
        /// The element of the result.
        index: ShapeIndex,
    },
    /// A receive writes where the receive of the iteration before has written.
    Receive {
        /// Name of the receive.
        by: Box<str>,
    },
}

/// Why two values cannot share a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Conflict {
    /// The older one must not be overwritten: it is a constant, or the caller keeps it.
    ReadOnly,
    /// The older one is also a result of the computation.
    Returned,
    /// The older one is also read by other computations.
    ReadElsewhere,
    /// The newer one is not computed in this computation.
    ComputedElsewhere,
    /// The instruction that computes the newer one reads elements of the older one after it has overwritten them.
    ReadWhileOverwritten,
    /// The older one is read after it would be overwritten, under every order.
    ReadLater {
        /// Name of a reader.
        by: Box<str>,
    },
    /// Nothing says that the older one is read before it would be overwritten, and the compiler does not say so itself.
    ReadInAnyOrder {
        /// Name of a reader.
        by: Box<str>,
    },
    /// The same value would have to be in two buffers: it is in several results, operands, or elements of a loop's state.
    InTwoPlaces,
    /// The caller of the computation has promised the buffer to another result.
    Promised,
    /// The search for an order took too many steps.
    SearchLimit,
}
