//! The search's interface to a caller that applies decisions: the price of a program with them.

use memplan_analysis::Facts;
use memplan_ir::{Module, Position};
use memplan_memory::{Bytes, FastMemoryDecision, MemoryPlan};

/// Carries decisions out, for [`assign`](crate::assign()), which itself changes no module and packs nothing.
pub trait Carrier {
    /// Why decisions could not be carried out.
    type Error;

    /// Carries decisions out on a copy of the program, and packs fast memory, so low as to fit its capacity if that is
    /// easily found.
    ///
    /// # Errors
    /// When the program is not one that memory can be planned for.
    fn carry_out(&self, decisions: &[FastMemoryDecision]) -> Result<Trial, Self::Error>;

    /// Bytes of temporaries at each instant of the program when all are in main memory.
    ///
    /// # Errors
    /// When the program is not one that memory can be planned for.
    fn temp_load(&self) -> Result<Vec<Bytes>, Self::Error>;
}

/// A program with decisions carried out.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The program.
    pub module: Module,
    /// Facts about it.
    pub facts: Facts,
    /// The contents of fast memory: the numbers of the decisions, and the definitions.
    pub placed: Vec<(usize, Position)>,
    /// The addresses in fast memory, including scratch of kernels.
    pub plan: MemoryPlan,
    /// Bytes of fast memory that the arena takes.
    pub height: Bytes,
    /// Bytes of main memory that the program takes, if they can be packed without loss.
    pub total: Bytes,
}
