//! Explains a program's memory: the peak, every copy, every argument that is or could be donated, memory reserved by
//! kernels, and each value.

mod constants;
mod copies;
mod donation;
mod expected;
mod find;
mod reserved;
mod value;

use memplan_analysis::Facts;
use memplan_ir::{InstructionId, Module, Position};
use memplan_memory::{Bytes, MemoryPlan, PeakEntry, Target, Totals};
use memplan_passes::InsertedCopy;
use memplan_plan_hlo::{Planned, ProgramCost};
use serde::Serialize;

pub use constants::ConstantNote;
pub(crate) use copies::why_copied;
pub use copies::{CopyCause, CopyNote, why_inserted};
pub use donation::{ArgumentNote, Donation, DonationTotals};
pub use expected::{Expected, ExpectedTotal};
pub use find::{NamedItem, UnknownName, find};
pub use reserved::{Reserved, ReservedFor};
pub use value::{SharedBytes, ValueNote};

use crate::{Words, peak_entries};

/// A planned program to explain.
#[derive(Debug)]
pub struct Subject<'a> {
    /// The program, as it is planned.
    pub module: &'a Module,
    /// The machine.
    pub target: &'a Target,
    /// Its plan.
    pub planned: &'a Planned,
    /// Its values, in words.
    pub words: Words<'a>,
    /// The copies that memplan inserted; the program had the others.
    pub inserted: &'a [InsertedCopy],
}

/// Everything about the whole program.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Overview {
    /// Name of the module.
    pub module: String,
    /// Name of the target.
    pub target: String,
    /// Bytes of each kind.
    pub totals: Totals,
    /// The peak of each memory, the main memory first.
    pub peaks: Vec<PeakEntry>,
    /// The estimate of the target's usual compiler, if no compiler has changed the program yet. The figures above are
    /// then of the program as written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<ExpectedTotal>,
    /// Every copy, the largest first: those that the estimated compiler will make, if there is an estimate; else those
    /// of the planned program.
    pub copies: Vec<CopyNote>,
    /// Every array argument, by number.
    pub arguments: Vec<ArgumentNote>,
    /// Bytes of donated arguments, and of those that could be donated.
    pub donation: DonationTotals,
    /// Memory that kernels, collectives and transfers reserve in addition to results, the largest first.
    pub reserved: Vec<Reserved>,
    /// Constants of the program, the largest first.
    pub constants: Vec<ConstantNote>,
}

impl<'a> Subject<'a> {
    /// Takes time close to linear in the module.
    pub fn new(
        module: &'a Module,
        target: &'a Target,
        planned: &'a Planned,
        inserted: &'a [InsertedCopy],
    ) -> Subject<'a> {
        Subject { module, target, planned, words: Words::new(module, &planned.facts), inserted }
    }

    /// The whole program, with the estimate of its usual compiler. Takes time close to linear in the module.
    pub fn overview(&self, expected: Option<&Expected>) -> Overview {
        let arguments = donation::arguments(self);
        Overview {
            module: self.module.name.to_string(),
            target: self.target.name.clone(),
            totals: self.plan().totals,
            peaks: peak_entries(&self.words, self.planned),
            expected: expected.map(Expected::total),
            copies: match expected {
                Some(expected) => expected.copies(self.target),
                None => copies::copies(
                    self,
                    &ProgramCost::new(self.module, self.facts(), self.plan(), self.target),
                ),
            },
            donation: DonationTotals::of(&arguments),
            arguments,
            reserved: reserved::reserved(self),
            constants: constants::constants(self),
        }
    }

    fn facts(&self) -> &'a Facts {
        &self.planned.facts
    }

    fn plan(&self) -> &'a MemoryPlan {
        &self.planned.plan
    }

    fn name(&self, id: InstructionId) -> String {
        self.module.instructions[id].name.to_string()
    }

    /// An instruction, and where in its result.
    pub(crate) fn name_at(&self, position: &Position) -> String {
        let name = &self.module.instructions[position.instruction].name;
        if position.index.is_root() { name.to_string() } else { format!("{name}{}", position.index) }
    }

    fn bytes(&self, id: InstructionId) -> Bytes {
        self.target.size_of(self.module.shape(id))
    }
}
