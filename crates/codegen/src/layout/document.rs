//! The document: plain data, the same in memory and in JSON.

use memplan_ir::ShapeIndex;
use memplan_memory::{Alignment, Bytes, KindName, MemorySpaceId, RemedyKind, Totals};
use serde::{Deserialize, Serialize};

/// The layout of one program. All sizes and offsets are in bytes; launches, buffers and allocations are named by their
/// number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProgramLayout {
    /// Always `memplan.layout`.
    pub format: String,
    /// Always 1. Keys may be added within a version, never renamed.
    pub version: u32,
    /// Name of the module.
    pub module: String,
    /// Fingerprint of the module, in hexadecimal; that of its plan file.
    pub fingerprint: String,
    /// Name of the target.
    pub target: String,
    /// The plan's totals.
    pub totals: Totals,
    /// Number of launches; one past the last.
    pub launches: u32,
    /// Size of the file that `--emit constants=FILE` writes.
    pub constants_file: Bytes,
    /// Memory spaces in which the program has something.
    pub spaces: Vec<Space>,
    /// The allocations to make before the first run, by number.
    pub allocations: Vec<Allocation>,
    /// The parts of the parameters, by parameter and position.
    pub parameters: Vec<Port>,
    /// The parts of the result, by position.
    pub results: Vec<Port>,
    /// Values with an address, by number.
    pub buffers: Vec<Buffer>,
    /// The computations: the entry first, each other one once, in order of its first launch.
    pub computations: Vec<Computation>,
    /// Copies that run beside the launches, or between memory spaces, by the launch that starts them.
    pub transfers: Vec<Transfer>,
    /// The shapes that lose most bytes to padding, worst first.
    pub padding: Vec<Padding>,
}

/// A memory space.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Space {
    /// The number that layouts use.
    pub id: MemorySpaceId,
    /// The name people use.
    pub name: String,
    /// How much there is; none: no limit is modeled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Bytes>,
    /// Bytes of the capacity that programs cannot have.
    pub reserved: Bytes,
    /// Whether programs can only read it, so that its contents are part of the program's image.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// All allocations in it together.
    pub used: Bytes,
    /// The arena among them.
    pub temp: Bytes,
    /// Alignment of values within an allocation.
    pub alignment: Alignment,
    /// The granularity of mappings of this memory: allocations take whole multiples of it.
    pub granule: Alignment,
}

/// A contiguous region of one memory space, asked for once and held for the whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Allocation {
    /// Its number.
    pub index: u32,
    /// Its name for people: the instruction that it is for, or `temp`.
    pub name: String,
    /// Its purpose.
    pub kind: KindName,
    /// Its memory space.
    pub space: MemorySpaceId,
    /// How large it is.
    pub size: Bytes,
    /// The alignment of its address.
    pub alignment: Alignment,
    /// Whether a result of the program is in it at the end.
    pub live_out: bool,
    /// Of constants: where its bytes are in the file that `--emit constants=FILE` writes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_offset: Option<Bytes>,
}

/// Bytes of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Address {
    /// The allocation.
    pub allocation: u32,
    /// From its start.
    pub offset: Bytes,
    /// Padded size of its value.
    pub size: Bytes,
}

/// One part of a parameter or of the result: what the caller passes or gets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Port {
    /// Number of the parameter; results have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<u32>,
    /// Path into the parameter or the result.
    pub index: Vec<u32>,
    /// The instruction: the parameter, or the root of the entry.
    pub name: String,
    /// Shape with layout.
    pub shape: String,
    /// The buffer; none where the part takes no memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<u32>,
    /// Its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// Of parameters: whether the caller gives the memory up.
    #[serde(default, skip_serializing_if = "is_false")]
    pub donated: bool,
}

/// A value with an address.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Buffer {
    /// Its number.
    pub index: u32,
    /// The instruction that defines it.
    pub name: String,
    /// Path into that instruction's result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shape_index: Vec<u32>,
    /// The computation of the instruction.
    pub computation: String,
    /// Shape with layout, as HLO writes it: `f32[8,128]{1,0:T(8,128)S(1)}`.
    pub shape: String,
    /// Element type; none for tuple tables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub element_type: Option<String>,
    /// Extents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dimensions: Vec<i64>,
    /// Tiles, `(8,128)(2,1)`; empty: plain strides.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tiles: String,
    /// Its address; the size is the padded one.
    #[serde(flatten)]
    pub address: Address,
    /// In which memory space that is.
    pub space: MemorySpaceId,
    /// Size without padding.
    pub unpadded: Bytes,
    /// When its bytes are needed.
    pub live: Lifetime,
    /// Number of the parameter that it is a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameter: Option<u32>,
    /// Whether it is a part of a parameter that the caller gives up.
    #[serde(default, skip_serializing_if = "is_false")]
    pub donated: bool,
    /// Whether it is constant data.
    #[serde(default, skip_serializing_if = "is_false")]
    pub constant: bool,
    /// Whether it is a part of the result.
    #[serde(default, skip_serializing_if = "is_false")]
    pub result: bool,
}

/// Half-open range of launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Lifetime {
    /// The first launch that needs the bytes.
    pub from: u32,
    /// One past the last.
    pub to: u32,
}

/// The launches of one computation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Computation {
    /// Its name.
    pub name: String,
    /// The launch that runs it; the entry has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub called_by: Option<u32>,
    /// Loops and branches around it.
    pub depth: u32,
    /// Its launches, in order.
    pub launches: Vec<Launch>,
}

/// An instruction that has something to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Launch {
    /// Its number in the flattened schedule.
    pub index: u32,
    /// The instruction.
    pub name: String,
    /// The operation; `slice-start` and the like for asynchronous operations.
    pub opcode: String,
    /// Its kind.
    pub kind: LaunchKind,
    /// The computation that a fusion computes, or the target of a custom call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The computations that it runs, in order of execution.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Call>,
    /// How often a loop runs its body, where that is plain to see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trip_count: Option<u64>,
    /// Its reads: the parts of each operand.
    pub operands: Vec<Argument>,
    /// Its writes; for control flow and for the end of a transfer, the places of its results.
    pub results: Vec<Argument>,
    /// Working memory of its kernel, in each memory where it needs some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scratch: Vec<Address>,
}

/// The kind of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LaunchKind {
    /// A kernel reads the operands and writes the results.
    Kernel,
    /// Begins work that goes on beside the following launches; see [`ProgramLayout::transfers`].
    Start,
    /// Waits for such work.
    Done,
    /// Runs its condition and its body by turns.
    While,
    /// Runs one of its branches.
    Conditional,
    /// Runs a computation.
    Call,
    /// Writes the addresses of the elements of a tuple into a table.
    Table,
}

/// A computation that a launch runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Call {
    /// Its role.
    pub role: CallRole,
    /// Its name.
    pub computation: String,
}

/// The role of a called computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum CallRole {
    Condition,
    Body,
    Branch,
    Callee,
}

/// One array that a launch reads or writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Argument {
    /// The operand that it is a part of; of results 0.
    pub number: u32,
    /// Path into the operand or the result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub index: Vec<u32>,
    /// Its shape as this launch sees it, with layout.
    pub shape: String,
    /// The buffer; none for immediates and for arrays without elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<u32>,
    /// Its address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Address>,
    /// A constant that is a part of the code, as HLO writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub immediate: Option<String>,
}

/// Bytes on their way while launches run, or between memory spaces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Transfer {
    /// The instruction that starts it.
    pub name: String,
    /// The operation: `copy`, `slice`, `all-gather`, ...
    pub operation: String,
    /// Its computation.
    pub computation: String,
    /// The sources; not to be written before the transfer is done.
    pub sources: Vec<Address>,
    /// The destinations; not to be touched before the transfer is done.
    pub destinations: Vec<Address>,
    /// The memory space that it reads.
    pub from: MemorySpaceId,
    /// The memory space that it writes.
    pub to: MemorySpaceId,
    /// Bytes written, or read where nothing of this machine is written.
    pub bytes: Bytes,
    /// The launch that starts it.
    pub start: u32,
    /// The launch that waits for it: `start` itself for a plain copy, none where it is not in the same computation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<u32>,
    /// How often it runs, as far as trip counts are known: the product of the trip counts of the loops around it.
    pub runs: u64,
    /// Its number, if the fetched value should stay for the next run of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cross_program_prefetch: Option<i32>,
}

/// A shape that loses bytes to padding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Padding {
    /// The shape, with layout.
    pub shape: String,
    /// Buffers of this shape.
    pub buffers: Vec<u32>,
    /// Padded size of each.
    pub size: Bytes,
    /// Padding in each.
    pub lost: Bytes,
    /// Remedies, the smallest size first.
    pub remedies: Vec<Remedy>,
}

/// Another shape or layout for the same data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Remedy {
    /// The kind of change.
    pub kind: RemedyKind,
    /// The shape that it would be, with layout.
    pub shape: String,
    /// Its padded size.
    pub size: Bytes,
    /// Padding in it.
    pub lost: Bytes,
}

impl Address {
    /// One past the last byte.
    pub fn end(&self) -> Bytes {
        self.offset.saturating_add(self.size)
    }
}

impl Buffer {
    /// The instruction with the path into its result, `while.3{1}`.
    pub fn full_name(&self) -> String {
        match self.shape_index.as_slice() {
            [] => self.name.clone(),
            path => format!("{}{}", self.name, ShapeIndex::from(path.iter().copied())),
        }
    }
}

impl ProgramLayout {
    /// All launches by number.
    pub fn launches_in_order(&self) -> Vec<(&Computation, &Launch)> {
        let mut all: Vec<_> =
            self.computations.iter().flat_map(|c| c.launches.iter().map(move |launch| (c, launch))).collect();
        all.sort_by_key(|(_, launch)| launch.index);
        all
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(flag: &bool) -> bool {
    !*flag
}
