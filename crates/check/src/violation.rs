//! The violations of a plan, each with the culprit's name.

use std::fmt;
use std::ops::Deref;

use memplan_ir::{InstructionId, ShapeIndex};
use memplan_memory::{Alignment, AllocationId, Bytes, MemorySpaceId, Slice};

/// A place where a value appears, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The instruction.
    pub id: InstructionId,
    /// Its name.
    pub instruction: Box<str>,
    /// The name of its computation.
    pub computation: Box<str>,
    /// Path into its result.
    pub index: ShapeIndex,
}

/// The contents found in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Nothing that this computation has put there.
    Nothing,
    /// Another value.
    Value(Place),
    /// A tuple's table with other entries.
    Table,
    /// Data that an instruction's kernel left in its scratch memory.
    Scratch(Place),
    /// Whatever a called computation left there.
    LeftBy(Box<str>),
}

/// One reason why a plan is wrong. Slices are given as planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum Violation {
    /// The plan is for another machine.
    #[error("the plan is for target `{plan}`, not `{target}`")]
    OtherTarget { plan: Box<str>, target: Box<str> },
    /// Only module trees that the verifier accepts can be checked.
    #[error("{at}: the module is not well formed: {reason}")]
    Malformed { at: Place, reason: &'static str },
    /// A computation reaches itself.
    #[error("computation `{computation}` calls itself")]
    Recursion { computation: Box<str> },
    /// The schedule lacks an instruction.
    #[error("the schedule lacks {instruction}")]
    NotScheduled { instruction: Place },
    /// The schedule has an instruction twice.
    #[error("the schedule of `{computation}` has {instruction} twice")]
    ScheduledTwice { computation: Box<str>, instruction: Place },
    /// The schedule has an instruction of another computation.
    #[error("the schedule of `{computation}` has {instruction}, which is not part of it")]
    ScheduledElsewhere { computation: Box<str>, instruction: Place },
    /// An instruction runs before one of its dependencies.
    #[error("{instruction} is scheduled before its dependency {dependency}")]
    OutOfOrder { instruction: Place, dependency: Place },

    /// The plan places what does not exist.
    #[error("the plan places {at}, but the result has no such part")]
    NoSuchPart { at: Place },
    /// A value that needs bytes has none.
    #[error("{at} needs {size:#} bytes but has no slice")]
    Unplaced { at: Place, size: Bytes },
    /// A slice of an allocation that does not exist.
    #[error("{at} is in {allocation}, which does not exist")]
    NoSuchAllocation { at: Place, allocation: AllocationId },
    /// A slice is smaller than its value.
    #[error("{at} needs {needed:#} bytes; {} has {:#}", span(.slice), .slice.size)]
    TooSmall { at: Place, slice: Slice, needed: Bytes },
    /// A slice claims to be larger than its value.
    #[error("{at} needs {needed:#} bytes, but the plan says that it has {:#}", .slice.size)]
    TooLarge { at: Place, slice: Slice, needed: Bytes },
    /// A value inside a kernel is placed.
    #[error("{at} is computed inside a kernel, where nothing has memory of its own, but the plan places it")]
    InsideKernel { at: Place },
    /// A slice reaches beyond its allocation.
    #[error("{at} is at {}, beyond the end of the allocation ({size:#} bytes)", span(.slice))]
    OutOfBounds { at: Place, slice: Slice, size: Bytes },
    /// An offset is not a multiple of the alignment.
    #[error("{at} is at {}, which is not a multiple of {alignment}", span(.slice))]
    Misaligned { at: Place, slice: Slice, alignment: Alignment },
    /// An allocation promises less alignment than its values need.
    #[error("{allocation} is aligned to {found}; its values need {needed}")]
    UnderAligned { allocation: AllocationId, found: Alignment, needed: Alignment },
    /// An allocation promises more alignment than the machine gives.
    #[error("{allocation} claims an alignment of {found}; the target gives {given}")]
    OverAligned { allocation: AllocationId, found: Alignment, given: Alignment },
    /// A slice is in another memory than the layout says.
    #[error("{at} belongs in {layout} but {} is in {found}", span(.slice))]
    WrongSpace { at: Place, slice: Slice, layout: MemorySpaceId, found: MemorySpaceId },
    /// An argument is not where the caller passes it.
    #[error("the caller passes {at} in an allocation of its own; the plan has it at {}", span(.slice))]
    ArgumentElsewhere { at: Place, slice: Slice },
    /// An argument allocation that is no part of a parameter, or there twice.
    #[error("{allocation} is for parameter {parameter}{index}, which {reason}")]
    StrayArgument { allocation: AllocationId, parameter: u32, index: ShapeIndex, reason: &'static str },
    /// A constant is not in memory that holds constants.
    #[error("{at} is a constant but {} is not constant memory", span(.slice))]
    ConstantElsewhere { at: Place, slice: Slice },
    /// A kernel has less scratch than it reserves.
    #[error(
        "the kernel of {at} reserves {needed:#} bytes of {space} while it runs; the plan gives it {found:#}"
    )]
    TooLittleScratch { at: Place, space: MemorySpaceId, needed: Bytes, found: Bytes },
    /// Two constants share bytes.
    #[error("constants {at} and {other} differ but share bytes at {}", span(.slice))]
    ConstantsOverlap { at: Place, other: Place, slice: Slice },

    /// A value is gone when it is read.
    #[error("{reader} reads {value} at {}, but {} {found}", span(.slice), span(.bytes))]
    Lost { reader: Place, value: Place, slice: Slice, bytes: Slice, found: Contents },
    /// A result of the program is gone at its end.
    #[error("at the end {value} should be at {}, but {} {found}", span(.slice), span(.bytes))]
    ResultLost { value: Place, slice: Slice, bytes: Slice, found: Contents },
    /// A result overwrites an operand that is still being read.
    #[error("{at} at {} overwrites operand {operand} at {} while it is being read", span(.slice), span(.read))]
    OverwritesOperand { at: Place, slice: Slice, operand: Place, read: Slice },
    /// Two results of one instruction share bytes.
    #[error("{at} and {other} of one instruction share bytes at {}", span(.slice))]
    OutputsOverlap { at: Place, other: Place, slice: Slice },
    /// Scratch memory shares bytes with an operand or a result.
    #[error("the scratch memory of {at} at {} shares bytes with {other}", span(.slice))]
    ScratchOverlaps { at: Place, slice: Slice, other: Place },
    /// Something is written that must not be.
    #[error("{at} is written to {}, which is {what}", span(.slice))]
    ReadOnly { at: Place, slice: Slice, what: &'static str },
    /// A value that nothing moves is planned in two places.
    #[error("{at} is the same value as {source_place}, which is at {}, but is planned at {}", place_of(.source_slice), place_of(.slice))]
    Moved { at: Place, slice: Option<Slice>, source_place: Place, source_slice: Option<Slice> },
    /// A value that nothing moves is read with its elements at other positions.
    #[error("{at} is the same value as {source_place}, but in another layout, and nothing moves it")]
    Relaid { at: Place, source_place: Place },
    /// Declared in-place operands must share memory with their result.
    #[error("{at} is declared to update operand {operand} in place, but is at {}, not {}", place_of(.slice), place_of(.operand_slice))]
    AliasBroken { at: Place, slice: Option<Slice>, operand: Place, operand_slice: Option<Slice> },

    /// Something reads the destination of an operation in flight.
    #[error("{reader} reads {} while {start} is still writing there", span(.slice))]
    ReadInFlight { reader: Place, slice: Slice, start: Place },
    /// Something writes what an operation in flight reads or writes.
    #[error("{writer} writes {} while {start} is still using it", span(.slice))]
    WrittenInFlight { writer: Place, slice: Slice, start: Place },
    /// An asynchronous operation never ends.
    #[error("{start} is never done")]
    NeverDone { start: Place },
    /// The value that the previous call may have left is overwritten before its use.
    #[error("the previous call may have left the value of {start} at {}, but something is written there first", span(.slice))]
    ResidentLate { start: Place, slice: Slice },
    /// The value that the next call may use is lost at the end.
    #[error("at the end the value that {start} fetched should still be at {}, but {} {found}", span(.slice), span(.bytes))]
    ResidentLost { start: Place, slice: Slice, bytes: Slice, found: Contents },

    /// A result is not in memory that outlives the program.
    #[error("result {value} is at {}, which {reason}", span(.slice))]
    ResultNotLiveOut { value: Place, slice: Slice, reason: &'static str },
    /// An output is not in the parameter it is aliased with.
    #[error("output {output_index} is aliased with parameter {parameter}{parameter_index} but is at {}", place_of(.slice))]
    OutputElsewhere {
        output_index: ShapeIndex,
        parameter: u32,
        parameter_index: ShapeIndex,
        slice: Option<Slice>,
    },
    /// An allocation says that it holds a result but does not.
    #[error("{allocation} is marked live out but holds no result")]
    NotLiveOut { allocation: AllocationId },
    /// A total is not what allocations and shapes add up to.
    #[error("the plan says {name} is {claimed:#}; it is {found:#}")]
    WrongTotal { name: Box<str>, claimed: Bytes, found: Bytes },

    /// The plan claims more live bytes than there are: a smaller arena might suffice.
    #[error("the plan claims a peak of at least {claimed:#} live bytes in {space}; it is {found:#}")]
    BoundTooHigh { space: MemorySpaceId, claimed: Bytes, found: Bytes },
    /// The plan claims fewer live bytes than there are: the arena would look further above its bound than it is.
    #[error("the plan claims a peak of only {claimed:#} live bytes in {space}; it is {found:#}")]
    BoundTooLow { space: MemorySpaceId, claimed: Bytes, found: Bytes },
    /// An arena that is claimed to be minimal has an unused end.
    #[error(
        "the plan claims that {claimed:#} bytes is the smallest arena of {space}, but uses only {used:#} of them"
    )]
    NotMinimal { space: MemorySpaceId, claimed: Bytes, used: Bytes },
    /// The plan claims more live bytes at the peak than there are.
    #[error("the plan says that {claimed:#} bytes are live at its peak; it is {found:#}")]
    PeakTooHigh { claimed: Bytes, found: Bytes },
    /// The plan claims fewer live bytes at the peak than there are.
    #[error("the plan says that only {claimed:#} bytes are live at its peak; it is {found:#}")]
    PeakTooLow { claimed: Bytes, found: Bytes },
    /// A memory space that is used has no figures, or has them twice.
    #[error("the plan lists {space} {found} times")]
    SpaceListed { space: MemorySpaceId, found: usize },
    /// A memory space is not described as the target describes it.
    #[error("the plan says that the {what} of {space} is {claimed}; it is {found}")]
    OtherSpace { space: MemorySpaceId, what: &'static str, claimed: Box<str>, found: Box<str> },

    /// The plan is in so many small pieces that proving it would take too long.
    #[error("gave up at {at}: too many scattered pieces of memory are written by called computations")]
    TooComplex { at: Place },
    /// Only the first violations are listed.
    #[error("and {0} more")]
    More(usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.instruction)?;
        if !self.index.is_root() {
            write!(f, "{}", self.index)?;
        }
        write!(f, " in `{}`", self.computation)
    }
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Contents::Nothing => f.write_str("hold nothing"),
            Contents::Value(place) => write!(f, "hold {place}"),
            Contents::Table => f.write_str("hold another tuple's table"),
            Contents::Scratch(place) => write!(f, "were scratch memory of {place}"),
            Contents::LeftBy(computation) => write!(f, "were written inside `{computation}`"),
        }
    }
}

/// `alloc3[128..640)`.
fn span(slice: &Slice) -> String {
    format!("{}[{}..{})", slice.allocation, slice.offset.0, slice.offset.0.saturating_add(slice.size.0))
}

fn place_of(slice: &Option<Slice>) -> String {
    slice.as_ref().map_or_else(|| "no slice at all".to_string(), span)
}

/// Everything that was found wrong with a plan, at least one thing, up to a limit; the first is most often the cause of
/// the others. Shows a line each.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct Violations(pub(crate) Vec<Violation>);

impl Deref for Violations {
    type Target = [Violation];

    fn deref(&self) -> &[Violation] {
        &self.0
    }
}

impl IntoIterator for Violations {
    type Item = Violation;
    type IntoIter = std::vec::IntoIter<Violation>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, violation) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "\n" };
            write!(f, "{separator}{violation}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Violations {}
