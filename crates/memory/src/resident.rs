//! Several programs loaded by one process, as in a folder of dumps, and their total memory.

use serde::{Deserialize, Serialize};

use crate::{Bytes, Totals};

/// Programs that are loaded at once. All sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Resident {
    /// Each program, in order of names.
    pub programs: Vec<ResidentProgram>,
    /// All of them running at the same time: the sum of their totals.
    pub all_running: Bytes,
    /// One of them running at a time: arguments, outputs and constants of all, and the largest temp. Arrays that programs
    /// share, as weights are, count for each of them, since the programs do not say which these are.
    pub one_running: Bytes,
}

/// One of several programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ResidentProgram {
    /// The common part of the names of its files.
    pub name: String,
    /// The file that was read.
    pub file: String,
    /// The totals of its plan; absent if it cannot be read or planned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub totals: Option<Totals>,
    /// The totals of the buffer assignment beside it, by the compiler that wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assigned: Option<Assigned>,
    /// Why it has no plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The totals of another compiler's buffer assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Assigned {
    /// All its allocations, without thread-local ones.
    pub total: Bytes,
    /// Its arena.
    pub temp: Bytes,
}

impl Resident {
    /// Sums programs up.
    pub fn new(programs: Vec<ResidentProgram>) -> Resident {
        let totals = || programs.iter().filter_map(|program| program.totals.as_ref());
        let sum = |bytes: fn(&Totals) -> Bytes| totals().map(bytes).fold(Bytes::ZERO, Bytes::saturating_add);
        let all_running = sum(|totals| totals.total);
        let arrays = sum(|totals| totals.total.saturating_sub(totals.temp));
        let temp = totals().map(|totals| totals.temp).max().unwrap_or_default();
        Resident { all_running, one_running: arrays.saturating_add(temp), programs }
    }

    /// The program that needs most; the first of those. Nothing where none has a plan.
    pub fn largest(&self) -> Option<usize> {
        let totals = |i: &usize| self.programs[*i].totals.as_ref().map(|totals| totals.total);
        (0..self.programs.len()).rev().filter(|i| totals(i).is_some()).max_by_key(totals)
    }
}
