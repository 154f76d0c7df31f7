//! Modules: a whole program.

use cranelift_entity::{EntityRef, PrimaryMap};
use indexmap::IndexSet;
use rustc_hash::FxBuildHasher;

use crate::{
    ArrayShape, ComputationId, FrontendAttributes, Instruction, InstructionId, Op, OriginalArray, Shape,
    ShapeId, ShapeIndex, StackFrames,
};

/// A program: computations that call each other, one of which is the entry.
///
/// A module is plain data: nothing here checks it. [`verify`](crate::verify) does, and reports everything wrong.
#[derive(Clone, Debug)]
pub struct Module {
    /// Name.
    pub name: Box<str>,
    /// All instructions. A pass may leave unreachable ones behind; what counts is
    /// [`Computation::instructions`].
    pub instructions: PrimaryMap<InstructionId, Instruction>,
    /// All computations. Callees precede their callers.
    pub computations: PrimaryMap<ComputationId, Computation>,
    /// Shapes, each once.
    pub shapes: IndexSet<Shape, FxBuildHasher>,
    /// The computation that the caller runs.
    pub entry: ComputationId,
    /// Whether the order of instructions in each computation is the order of execution.
    pub is_scheduled: bool,
    /// Settings and annotations of the module as a whole.
    pub config: ModuleConfig,
}

/// Equal in everything, ids and unused entries of tables included.
impl PartialEq for Module {
    fn eq(&self, other: &Module) -> bool {
        let Module { name, instructions, computations, shapes, entry, is_scheduled, config } = self;
        *name == other.name
            && *entry == other.entry
            && *is_scheduled == other.is_scheduled
            && *config == other.config
            && *computations == other.computations
            && *instructions == other.instructions
            // As slices: equal ids are to be equal shapes.
            && shapes.as_slice() == other.shapes.as_slice()
    }
}

/// A list of instructions with parameters and a root.
#[derive(Clone, Debug, PartialEq)]
pub struct Computation {
    /// Unique in its module; without the `%` of the text.
    pub name: Box<str>,
    /// Operands precede their users. This is the schedule when [`Module::is_scheduled`].
    pub instructions: Vec<InstructionId>,
    /// The instruction whose value is the result.
    pub root: InstructionId,
    /// Parameters by number.
    pub parameters: Vec<InstructionId>,
    /// `execution_thread="..."`; empty is the main thread.
    pub execution_thread: Box<str>,
    /// Wire bytes of protobuf fields this version does not know, kept for the way back.
    pub unknown_fields: Box<[u8]>,
}

/// Settings and annotations of a module.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct ModuleConfig {
    pub replica_count: Option<i64>,
    pub num_partitions: Option<i64>,
    pub input_output_alias: Vec<InputOutputAlias>,
    pub buffer_donors: Vec<BufferDonor>,
    pub alias_passthrough_params: bool,
    /// The caller's layouts of parameters and result; `None`: those of the parameters and the root.
    pub entry_computation_layout: Option<ProgramShape>,
    pub frontend_attributes: FrontendAttributes,
    pub allow_spmd_sharding_propagation_to_parameters: Vec<bool>,
    pub allow_spmd_sharding_propagation_to_output: Vec<bool>,
    pub stack_frames: StackFrames,
    pub origin_recovery_table: Vec<OriginRecovery>,
    pub debug_attributes: Vec<DebugAttributes>,
    /// Wire bytes of protobuf fields this version does not keep elsewhere, for the way back.
    pub unknown_fields: Box<[u8]>,
}

impl ModuleConfig {
    /// Lets a part of the result live in the memory of a part of a parameter, when the caller agrees.
    pub fn alias(&mut self, output_index: ShapeIndex, parameter: u32, parameter_index: ShapeIndex) {
        let kind = AliasKind::MayAlias;
        self.input_output_alias.push(InputOutputAlias { output_index, parameter, parameter_index, kind });
    }

    /// How many replicas run the module, and how many devices each of them is partitioned over: one each where the module
    /// says nothing.
    pub fn replicas_and_partitions(&self) -> [i64; 2] {
        [self.replica_count, self.num_partitions].map(|count| count.unwrap_or(1).max(1))
    }

    /// The parts of parameters whose memory the caller gives up, by an alias or as a donation: number of the parameter,
    /// and index in it.
    pub fn given_up(&self) -> impl Iterator<Item = (u32, &ShapeIndex)> {
        let aliased = self.input_output_alias.iter().map(|alias| (alias.parameter, &alias.parameter_index));
        aliased.chain(self.buffer_donors.iter().map(|donor| (donor.parameter, &donor.index)))
    }
}

/// Shapes of parameters and result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub struct ProgramShape {
    pub parameters: Vec<Shape>,
    pub result: Shape,
}

/// An output that lives in the memory of a parameter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InputOutputAlias {
    /// Position in the result.
    pub output_index: ShapeIndex,
    /// Number of the parameter.
    pub parameter: u32,
    /// Position in the parameter.
    pub parameter_index: ShapeIndex,
    /// Whether the run time may decline.
    pub kind: AliasKind,
}

/// Whether aliasing is an offer or a demand.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "kebab-case")]
#[allow(missing_docs, reason = "XLA's names")]
pub enum AliasKind {
    MayAlias,
    MustAlias,
}

/// A parameter whose memory the program may use once it is dead.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub struct BufferDonor {
    pub parameter: u32,
    pub index: ShapeIndex,
}

/// One line of `origin_recovery_table`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginRecovery {
    /// The array that is gone.
    pub old: OriginalArray,
    /// The array it can be computed from.
    pub new: OriginalArray,
    /// How: a module in HLO text, empty when the two are equal.
    pub recovery_module: Box<str>,
}

/// One entry of `debug_attributes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DebugAttributes {
    /// The array they are about.
    pub array: OriginalArray,
    /// The attributes, each the text between its braces.
    pub attributes: Vec<Box<str>>,
    /// Whether they were written as a list in parentheses.
    pub is_list: bool,
}

impl Module {
    /// A module without computations. `entry` must be set before the module is used.
    pub fn new(name: impl Into<Box<str>>) -> Module {
        Module {
            name: name.into(),
            instructions: PrimaryMap::new(),
            computations: PrimaryMap::new(),
            shapes: IndexSet::default(),
            entry: ComputationId::new(0),
            is_scheduled: false,
            config: ModuleConfig::default(),
        }
    }

    /// The id of a shape, which is added when new.
    pub fn intern(&mut self, shape: Shape) -> ShapeId {
        ShapeId::new(self.shapes.insert_full(shape).0)
    }

    /// The result shape of an instruction.
    #[inline]
    pub fn shape(&self, instruction: InstructionId) -> &Shape {
        self.shape_of(self.instructions[instruction].shape)
    }

    /// The array that an instruction makes, if it has fixed extents and is in main memory.
    pub fn plain_array(&self, instruction: InstructionId) -> Option<&ArrayShape> {
        self.shape(instruction).as_array().filter(|array| array.is_plain())
    }

    /// The shape with an id.
    #[inline]
    pub fn shape_of(&self, id: ShapeId) -> &Shape {
        self.shapes.get_index(id.index()).expect("shape ids come from this module's interner")
    }

    /// The instruction that starts the asynchronous operation which `end` ends: its operand, through updates between.
    ///
    /// # Panics
    /// When `end` has no operand, which [`verify`](crate::verify()) refuses.
    pub fn start_of(&self, end: InstructionId) -> InstructionId {
        let mut start = self.instructions[end].operands[0];
        while matches!(self.instructions[start].op, Op::AsyncUpdate(_)) {
            start = self.instructions[start].operands[0];
        }
        start
    }

    /// Appends an empty computation. Its root is meaningless until set.
    pub fn add_computation(&mut self, name: impl Into<Box<str>>) -> ComputationId {
        self.computations.push(Computation {
            name: name.into(),
            instructions: Vec::new(),
            root: InstructionId::new(u32::MAX as usize - 1),
            parameters: Vec::new(),
            execution_thread: "".into(),
            unknown_fields: Box::default(),
        })
    }

    /// The entry computation.
    pub fn entry_computation(&self) -> &Computation {
        &self.computations[self.entry]
    }

    /// The instructions of a computation with their ids, in order.
    pub fn instructions_of(
        &self,
        computation: ComputationId,
    ) -> impl DoubleEndedIterator<Item = (InstructionId, &Instruction)> + ExactSizeIterator {
        self.computations[computation].instructions.iter().map(|&id| (id, &self.instructions[id]))
    }

    /// Number of instructions in all computations.
    pub fn instruction_count(&self) -> usize {
        self.computations.values().map(|c| c.instructions.len()).sum()
    }
}
