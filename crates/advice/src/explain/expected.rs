//! The estimate for a program that no compiler has changed yet, by the usual compiler of its target.

use memplan_driver::{Estimate, estimate};
use memplan_ir::Module;
use memplan_memory::{Bytes, Compiler, Target};
use memplan_plan_hlo::ProgramCost;
use serde::Serialize;

use super::Subject;
use super::copies::{CopyNote, copies};

/// The estimate of the usual compiler for a machine.
#[derive(Debug)]
pub struct Expected {
    /// The compiler.
    pub compiler: Compiler,
    /// The estimate.
    pub estimate: Estimate,
}

/// The estimate, as a report shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExpectedTotal {
    /// The compiler's name.
    pub compiler: String,
    /// Arguments, outputs that are not aliased, and temporaries.
    pub total: Bytes,
}

impl Expected {
    /// Estimates the usual compiler for the machine. `None` if a compiler has scheduled the module already, if no
    /// compiler is known for the machine, if the estimate would take seconds, or if it fails.
    pub fn new(module: &Module, target: &Target) -> Option<Expected> {
        /// An estimate of this many instructions takes about a second.
        const MOST_INSTRUCTIONS: usize = 50_000;
        if module.is_scheduled || module.instructions.len() > MOST_INSTRUCTIONS {
            return None;
        }
        let compiler = Compiler::usual_for(target)?;
        let estimate = estimate(module, &compiler, target).ok()?;
        Some(Expected { compiler, estimate })
    }

    /// The estimate.
    pub fn total(&self) -> ExpectedTotal {
        ExpectedTotal { compiler: self.compiler.name.clone(), total: self.estimate.total }
    }

    /// The copies that the compiler will make. Linear in the module.
    pub(super) fn copies(&self, target: &Target) -> Vec<CopyNote> {
        let Estimate { module, planned, copies: inserted, .. } = &self.estimate;
        let machine = self.compiler.on(target);
        let cost = ProgramCost::new(module, &planned.facts, &planned.plan, &machine);
        copies(&Subject::new(module, &machine, planned, inserted), &cost)
    }
}
