//! What the usual compiler will make of a program that no compiler has worked on yet.

use memplan_driver::{Estimate, estimate};
use memplan_ir::Module;
use memplan_memory::{Bytes, Compiler, Target};
use memplan_plan_hlo::ProgramCost;
use serde::Serialize;

use super::Subject;
use super::copies::{CopyNote, copies};

/// What the usual compiler for a machine is expected to make of a program.
#[derive(Debug)]
pub struct Expected {
    /// The compiler.
    pub compiler: Compiler,
    /// The program as it will be, and what that needs.
    pub estimate: Estimate,
}

/// What a compiler will need, as a report has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExpectedTotal {
    /// Whose figure it is.
    pub compiler: String,
    /// Arguments, outputs that are not aliased, and temporaries.
    pub total: Bytes,
}

impl Expected {
    /// Estimates the compiler that people have for the machine. `None` where a compiler has scheduled the module already,
    /// where none is known for the machine, where the module is so large that the answer takes seconds, and where there is
    /// no estimate.
    pub fn new(module: &Module, target: &Target) -> Option<Expected> {
        /// An estimate takes about a second for so many.
        const MOST_INSTRUCTIONS: usize = 50_000;
        if module.is_scheduled || module.instructions.len() > MOST_INSTRUCTIONS {
            return None;
        }
        let compiler = Compiler::usual_for(target)?;
        let estimate = estimate(module, &compiler, target).ok()?;
        Some(Expected { compiler, estimate })
    }

    /// What it will need.
    pub fn total(&self) -> ExpectedTotal {
        ExpectedTotal { compiler: self.compiler.name.clone(), total: self.estimate.total }
    }

    /// The copies that it will make. Linear in the module.
    pub(super) fn copies(&self, target: &Target) -> Vec<CopyNote> {
        let Estimate { module, planned, copies: inserted, .. } = &self.estimate;
        let machine = self.compiler.on(target);
        let cost = ProgramCost::new(module, &planned.facts, &machine);
        copies(&Subject::new(module, &machine, planned, inserted), &cost)
    }
}
