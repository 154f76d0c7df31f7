//! The plan file: a plan as JSON, with names instead of ids. `CONTRACT` for users: keys may be added, never renamed.

use memplan_ir::{ComputationId, InstructionId, Module, Position, Schedule, ShapeIndex, fingerprint};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::{
    Alignment, Allocation, AllocationId, AllocationKind, Bytes, MemoryPlan, MemorySpaceId, PeakEntry,
    Resident, Slice, SpaceTotals, TileReport, Totals,
};

const FORMAT: &str = "memplan.plan";
const VERSION: u32 = 1;

/// A plan file. All sizes and offsets are in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PlanFile {
    /// Always `memplan.plan`.
    pub format: String,
    /// Always 1.
    pub version: u32,
    /// Name of the module.
    pub module: String,
    /// Fingerprint of the module the plan is for, in hexadecimal.
    pub fingerprint: String,
    /// Name of the target.
    pub target: String,
    /// How many devices run the program, if it is more than one: all bytes are those of one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<u64>,
    /// Totals.
    pub totals: Totals,
    /// Memory spaces that are used.
    pub spaces: Vec<SpaceTotals>,
    /// The cost of one run, by the cost model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<CostEntry>,
    /// The moment with most bytes live in the target's main memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<PeakEntry>,
    /// The same for each of the other memories that are used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_peaks: Vec<PeakEntry>,
    /// Order of execution of every computation that has one.
    pub schedule: Vec<ComputationSchedule>,
    /// Allocations.
    pub allocations: Vec<AllocationEntry>,
    /// One entry for every position whose buffer lives in an allocation.
    pub values: Vec<ValueEntry>,
    /// Working memory of instructions whose kernels need some: one entry for each memory space where they do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scratch: Vec<ScratchEntry>,
    /// How full the tiles are, of machines that have tiles.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiles: Option<TileReport>,
    /// The programs of the dump folder that the module was in, or beside its buffer assignment; this one needs the most
    /// memory of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident: Option<Resident>,
}

/// The order of execution of one computation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[allow(missing_docs, reason = "the names say it")]
pub struct ComputationSchedule {
    pub computation: String,
    pub instructions: Vec<String>,
    /// How often it runs in one run of the program, by the cost model: ten times in a loop with an unknown number of
    /// steps. Absent for computations that are part of one kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<f64>,
}

/// The cost of one run of a program, by the cost model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CostEntry {
    /// From begin to end.
    pub seconds: f64,
    /// Bytes that move to and from main memory.
    pub main_memory_bytes: f64,
    /// Operations of matrix products and convolutions; a multiplication with its addition counts two.
    pub matrix_operations: f64,
    /// Other operations, each worth one addition.
    pub vector_operations: f64,
}

/// One allocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[allow(missing_docs, reason = "see Allocation")]
pub struct AllocationEntry {
    pub index: u32,
    pub kind: KindName,
    pub space: MemorySpaceId,
    pub size: Bytes,
    pub alignment: Alignment,
    /// Which parameter it is; arguments only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<ParameterEntry>,
    pub live_out: bool,
}

/// The kind of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "see AllocationKind")]
pub enum KindName {
    Argument,
    Output,
    Constant,
    Temp,
}

impl From<&AllocationKind> for KindName {
    fn from(kind: &AllocationKind) -> KindName {
        match kind {
            AllocationKind::Argument { .. } => KindName::Argument,
            AllocationKind::Output => KindName::Output,
            AllocationKind::Constant => KindName::Constant,
            AllocationKind::Temp => KindName::Temp,
        }
    }
}

/// As in the file: `argument`, `output`, `constant`, `temp`.
impl std::fmt::Display for KindName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            KindName::Argument => "argument",
            KindName::Output => "output",
            KindName::Constant => "constant",
            KindName::Temp => "temp",
        })
    }
}

/// A position within an entry parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[allow(missing_docs, reason = "the names say it")]
pub struct ParameterEntry {
    pub number: u32,
    pub index: Vec<u32>,
}

/// The place of one position's buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[allow(missing_docs, reason = "the names say it")]
pub struct ValueEntry {
    pub computation: String,
    pub instruction: String,
    pub index: Vec<u32>,
    pub allocation: u32,
    pub offset: Bytes,
    pub size: Bytes,
}

/// The place of one instruction's working memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[allow(missing_docs, reason = "the names say it")]
pub struct ScratchEntry {
    pub computation: String,
    pub instruction: String,
    pub allocation: u32,
    pub offset: Bytes,
    pub size: Bytes,
}

/// Why a plan file cannot be used with a module.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanFileError {
    /// It is some other file.
    #[error("this is not a plan file of version {VERSION} (format `{format}`, version {version})")]
    Format {
        /// Its format.
        format: String,
        /// Of which version.
        version: u32,
    },
    /// It is for another module.
    #[error(
        "the plan was made for module `{plan}` with fingerprint {expected}; this is `{module}` with fingerprint \
         {found}"
    )]
    OtherModule {
        /// Name in the plan.
        plan: String,
        /// Fingerprint in the plan.
        expected: String,
        /// Name of the module.
        module: String,
        /// Fingerprint of the module.
        found: String,
    },
    /// It names a computation that the module does not have.
    #[error("the plan names computation `{0}`, which the module does not have")]
    NoComputation(String),
    /// It names an instruction that the module does not have.
    #[error(
        "the plan names instruction `{instruction}` in computation `{computation}`, which the module does not have"
    )]
    NoInstruction {
        /// The computation.
        computation: String,
        /// The instruction.
        instruction: String,
    },
    /// Allocations are not numbered 0, 1, 2, ..., or one that does not exist is used.
    #[error("the plan uses allocation {0}, which is not there or out of order")]
    NoAllocation(u32),
    /// An argument allocation without a parameter.
    #[error("allocation {0} is an argument but names no parameter")]
    NoParameter(u32),
    /// A position is there twice.
    #[error("the plan places `{instruction}`{index} twice")]
    Duplicate {
        /// The instruction.
        instruction: String,
        /// The position in its result.
        index: ShapeIndex,
    },
}

impl PlanFile {
    /// The file form of a plan. Linear in the module.
    pub fn new(module: &Module, schedule: &Schedule, plan: &MemoryPlan) -> PlanFile {
        let name = |id: InstructionId| module.instructions[id].name.to_string();
        let computation_of =
            |id: InstructionId| module.computations[module.instructions[id].parent].name.to_string();
        let sequences = module.computations.iter().filter(|(id, _)| !schedule.sequence(*id).is_empty());
        PlanFile {
            format: FORMAT.into(),
            version: VERSION,
            module: module.name.to_string(),
            fingerprint: format!("{:016x}", plan.fingerprint),
            target: plan.target.clone(),
            devices: None,
            totals: plan.totals,
            spaces: plan.spaces.clone(),
            cost: None,
            peak: None,
            other_peaks: Vec::new(),
            schedule: sequences
                .map(|(id, computation)| ComputationSchedule {
                    computation: computation.name.to_string(),
                    instructions: schedule.sequence(id).iter().copied().map(name).collect(),
                    runs: None,
                })
                .collect(),
            allocations: plan
                .allocations
                .iter()
                .map(|(id, allocation)| AllocationEntry::new(id, allocation))
                .collect(),
            values: plan
                .slices
                .iter()
                .map(|(position, slice)| ValueEntry {
                    computation: computation_of(position.instruction),
                    instruction: name(position.instruction),
                    index: position.index.0.to_vec(),
                    allocation: slice.allocation.as_u32(),
                    offset: slice.offset,
                    size: slice.size,
                })
                .collect(),
            scratch: plan
                .scratch
                .iter()
                .flat_map(|(&instruction, slices)| slices.iter().map(move |slice| (instruction, slice)))
                .map(|(instruction, slice)| ScratchEntry {
                    computation: computation_of(instruction),
                    instruction: name(instruction),
                    allocation: slice.allocation.as_u32(),
                    offset: slice.offset,
                    size: slice.size,
                })
                .collect(),
            tiles: None,
            resident: None,
        }
    }

    /// Schedule and plan for `module`, names resolved to its ids. Nothing is proved here: that is the checker's part.
    ///
    /// # Errors
    /// When the file is for another module, or names what the module does not have.
    pub fn resolve(&self, module: &Module) -> Result<(Schedule, MemoryPlan), PlanFileError> {
        if self.format != FORMAT || self.version != VERSION {
            return Err(PlanFileError::Format { format: self.format.clone(), version: self.version });
        }
        let found = fingerprint(module);
        if self.fingerprint != format!("{found:016x}") {
            return Err(PlanFileError::OtherModule {
                plan: self.module.clone(),
                expected: self.fingerprint.clone(),
                module: module.name.to_string(),
                found: format!("{found:016x}"),
            });
        }
        let names = Names::new(module);
        let mut schedule = Schedule::default();
        for entry in &self.schedule {
            let computation = names.computation(&entry.computation)?;
            let find = |name: &String| names.instruction(module, computation, name);
            schedule.set(computation, entry.instructions.iter().map(find).collect::<Result<_, _>>()?);
        }
        let mut plan = MemoryPlan {
            target: self.target.clone(),
            fingerprint: found,
            totals: self.totals,
            spaces: self.spaces.clone(),
            ..MemoryPlan::default()
        };
        for entry in &self.allocations {
            let id = plan.allocations.push(entry.to_allocation()?);
            if id.as_u32() != entry.index {
                return Err(PlanFileError::NoAllocation(entry.index));
            }
        }
        let allocation = |index: u32| {
            let exists = (index as usize) < plan.allocations.len();
            exists.then(|| AllocationId::from_u32(index)).ok_or(PlanFileError::NoAllocation(index))
        };
        for entry in &self.values {
            let computation = names.computation(&entry.computation)?;
            let instruction = names.instruction(module, computation, &entry.instruction)?;
            let index = ShapeIndex::from(entry.index.iter().copied());
            let slice =
                Slice { allocation: allocation(entry.allocation)?, offset: entry.offset, size: entry.size };
            if plan.slices.insert(Position { instruction, index: index.clone() }, slice).is_some() {
                return Err(PlanFileError::Duplicate { instruction: entry.instruction.clone(), index });
            }
        }
        for entry in &self.scratch {
            let computation = names.computation(&entry.computation)?;
            let instruction = names.instruction(module, computation, &entry.instruction)?;
            let slice =
                Slice { allocation: allocation(entry.allocation)?, offset: entry.offset, size: entry.size };
            plan.scratch.entry(instruction).or_default().push(slice);
        }
        Ok((schedule, plan))
    }
}

impl AllocationEntry {
    fn new(id: AllocationId, allocation: &Allocation) -> AllocationEntry {
        let parameter = match &allocation.kind {
            AllocationKind::Argument { parameter, index } => {
                Some(ParameterEntry { number: *parameter, index: index.0.to_vec() })
            }
            AllocationKind::Output | AllocationKind::Constant | AllocationKind::Temp => None,
        };
        AllocationEntry {
            index: id.as_u32(),
            kind: KindName::from(&allocation.kind),
            space: allocation.space,
            size: allocation.size,
            alignment: allocation.alignment,
            parameter,
            live_out: allocation.live_out,
        }
    }

    fn to_allocation(&self) -> Result<Allocation, PlanFileError> {
        let kind = match (self.kind, &self.parameter) {
            (KindName::Argument, Some(parameter)) => AllocationKind::Argument {
                parameter: parameter.number,
                index: ShapeIndex::from(parameter.index.iter().copied()),
            },
            (KindName::Argument, None) => return Err(PlanFileError::NoParameter(self.index)),
            (KindName::Output, _) => AllocationKind::Output,
            (KindName::Constant, _) => AllocationKind::Constant,
            (KindName::Temp, _) => AllocationKind::Temp,
        };
        Ok(Allocation {
            kind,
            space: self.space,
            size: self.size,
            alignment: self.alignment,
            live_out: self.live_out,
        })
    }
}

/// Computations and instructions by name.
struct Names<'m> {
    computations: FxHashMap<&'m str, ComputationId>,
    instructions: FxHashMap<(ComputationId, &'m str), InstructionId>,
}

impl<'m> Names<'m> {
    fn new(module: &'m Module) -> Names<'m> {
        let computations =
            module.computations.iter().map(|(id, computation)| (&*computation.name, id)).collect();
        let mut instructions = FxHashMap::default();
        for (computation, contents) in module.computations.iter() {
            for &id in &contents.instructions {
                instructions.insert((computation, &*module.instructions[id].name), id);
            }
        }
        Names { computations, instructions }
    }

    fn computation(&self, name: &str) -> Result<ComputationId, PlanFileError> {
        self.computations.get(name).copied().ok_or_else(|| PlanFileError::NoComputation(name.to_string()))
    }

    fn instruction(
        &self,
        module: &Module,
        computation: ComputationId,
        name: &str,
    ) -> Result<InstructionId, PlanFileError> {
        self.instructions.get(&(computation, name)).copied().ok_or_else(|| PlanFileError::NoInstruction {
            computation: module.computations[computation].name.to_string(),
            instruction: name.to_string(),
        })
    }
}
