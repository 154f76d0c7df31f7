//! Builds modules in code: infers shapes, names instructions, and reports mistakes where they are made.

use smallvec::SmallVec;

use crate::infer::{Agreement, brief, compatible, infer_shape_given};
use crate::{
    BinaryOp, BufferDonor, ComputationId, ElementType, InferError, Insert, Instruction, InstructionId,
    Literal, Module, ModuleConfig, Names, Op, Opcode, Operands, Shape, ShapeIndex, VerifyErrors, infer_shape,
    verify,
};

/// Why something cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum BuildError {
    #[error("cannot add {opcode} to {computation}")]
    Instruction { opcode: Opcode, computation: Box<str>, source: InferError },
    #[error("{instruction} is not an instruction of {computation}")]
    Foreign { instruction: InstructionId, computation: Box<str> },
    #[error("{computation} has another instruction named {name}")]
    DuplicateName { name: Box<str>, computation: Box<str> },
    #[error("the module is invalid")]
    Module(#[from] VerifyErrors),
}

/// Builds a module, computation by computation.
///
/// Computations are built one at a time, callees before their callers, so the order in the module is
/// always right. A loop, for instance:
///
/// ```
/// use memplan_ir::{ElementType::{F32, S32}, Literal, ModuleBuilder, Shape, *};
///
/// # fn main() -> Result<(), BuildError> {
/// let mut module = ModuleBuilder::new("power");
/// let state = Shape::tuple([Shape::scalar(S32), Shape::array(F32, [64, 64])]);
///
/// let mut body = module.computation("body");
/// let s = body.parameter("state", state.clone());
/// let (i, x) = (body.get_tuple_element(s, 0)?, body.get_tuple_element(s, 1)?);
/// let one = body.constant(Literal::s32(1));
/// let next = body.binary(BinaryOp::Add, i, one)?;
/// let squared = body.matmul(x, x)?;
/// let result = body.tuple([next, squared])?;
/// let body = body.finish(result)?;
///
/// let mut condition = module.computation("condition");
/// let s = condition.parameter("state", state);
/// let i = condition.get_tuple_element(s, 0)?;
/// let ten = condition.constant(Literal::s32(10));
/// let go_on = condition.compare(ComparisonDirection::Lt, i, ten)?;
/// let condition = condition.finish(go_on)?;
///
/// let mut main = module.computation("main");
/// let x = main.parameter("x", Shape::array(F32, [64, 64]));
/// let zero = main.constant(Literal::s32(0));
/// let start = main.tuple([zero, x])?;
/// let end = main.while_loop(start, condition, body)?;
/// let result = main.get_tuple_element(end, 1)?;
/// let main = main.finish(result)?;
///
/// module.alias(ShapeIndex::root(), 0, ShapeIndex::root());
/// let module = module.finish(main)?;
/// assert_eq!(module.instruction_count(), 16);
/// # Ok(())
/// # }
/// ```
///
/// A mistake names the operation and the cause:
///
/// ```
/// # use memplan_ir::{ElementType::F32, ModuleBuilder, Shape, Insert};
/// let mut module = ModuleBuilder::new("wrong");
/// let mut main = module.computation("main");
/// let x = main.parameter("x", Shape::array(F32, [2, 3]));
/// let error = main.matmul(x, x).unwrap_err();
/// assert_eq!(error.to_string(), "cannot add dot to main");
/// let cause = std::error::Error::source(&error).unwrap();
/// assert_eq!(
///     cause.to_string(),
///     "operands 0 and 1 must have the same extents in contracting dimensions, are f32[2,3] and f32[2,3]",
/// );
/// ```
#[derive(Debug)]
pub struct ModuleBuilder {
    module: Module,
    computation_names: Names,
}

/// Builds one computation. Every method that adds an instruction ([`Insert`]) infers its shape and makes up a name for it.
///
/// # Errors
/// Those methods fail with [`BuildError::Foreign`] for an operand of another computation, and with
/// [`BuildError::Instruction`] when the operation is not valid; then nothing was added.
#[derive(Debug)]
pub struct ComputationBuilder<'m> {
    module: &'m mut Module,
    id: ComputationId,
    names: Names,
}

impl ModuleBuilder {
    /// An empty module.
    pub fn new(name: impl Into<Box<str>>) -> ModuleBuilder {
        ModuleBuilder { module: Module::new(name), computation_names: Names::default() }
    }

    /// Begins a computation. When the name is taken, a number is appended to it.
    pub fn computation(&mut self, name: &str) -> ComputationBuilder<'_> {
        let name = self.computation_names.unique(name);
        let id = self.module.add_computation(name);
        ComputationBuilder { module: &mut self.module, id, names: Names::default() }
    }

    /// A computation of two scalars, as reductions, scatters and collectives call them.
    pub fn combiner(&mut self, op: BinaryOp, element_type: ElementType) -> Result<ComputationId, BuildError> {
        let mut combiner = self.computation(&format!("{}_{element_type}", op.opcode()));
        let a = combiner.parameter("a", Shape::scalar(element_type));
        let b = combiner.parameter("b", Shape::scalar(element_type));
        let root = combiner.binary(op, a, b)?;
        combiner.finish(root)
    }

    /// Lets a part of the result live in the memory of a part of a parameter, when the caller agrees. That is what JAX
    /// makes of an argument that is donated, where a result has its shape.
    pub fn alias(&mut self, output_index: ShapeIndex, parameter: u32, parameter_index: ShapeIndex) {
        self.module.config.alias(output_index, parameter, parameter_index);
    }

    /// Gives the memory of a part of a parameter to the program once the part is dead, without saying for what. Values
    /// inside of the program may take it, a result does not, unless the pass `donation` finds one of that size and makes
    /// an [`alias`](Self::alias) of the two.
    pub fn donate(&mut self, parameter: u32, index: ShapeIndex) {
        self.module.config.buffer_donors.push(BufferDonor { parameter, index });
    }

    /// Settings of the module as a whole.
    pub fn config_mut(&mut self) -> &mut ModuleConfig {
        &mut self.module.config
    }

    /// The module as far as it is built.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// The module, with its entry set, after verification.
    ///
    /// # Errors
    /// Everything that the verifier finds: a computation without a root, an alias that leads nowhere, ...
    pub fn finish(mut self, entry: ComputationId) -> Result<Module, BuildError> {
        self.module.entry = entry;
        verify(&self.module)?;
        Ok(self.module)
    }
}

/// Instructions of any kind.
impl ComputationBuilder<'_> {
    /// The next parameter.
    pub fn parameter(&mut self, name: &str, shape: Shape) -> InstructionId {
        let name = self.names.unique(name);
        self.module.add_parameter(self.id, name, shape)
    }

    /// A constant.
    pub fn constant(&mut self, literal: Literal) -> InstructionId {
        self.insert_instruction(Op::Constant(literal), [], [], None)
            .expect("a constant has no operands that could be wrong")
    }

    /// Gives an instruction another name.
    ///
    /// # Errors
    /// When the name is taken, or the instruction is of another computation.
    pub fn rename(&mut self, instruction: InstructionId, name: &str) -> Result<(), BuildError> {
        self.check_ours(instruction)?;
        if !self.names.take(name) {
            return Err(BuildError::DuplicateName { name: name.into(), computation: self.name() });
        }
        let old = std::mem::replace(&mut self.module.instructions[instruction].name, name.into());
        self.names.give_back(&old);
        Ok(())
    }

    /// The shape of an instruction.
    pub fn shape(&self, instruction: InstructionId) -> &Shape {
        self.module.shape(instruction)
    }

    /// An instruction, to add metadata, a sharding, control predecessors and the like. The verifier looks at the
    /// result when the module is finished.
    pub fn instruction_mut(&mut self, instruction: InstructionId) -> &mut Instruction {
        &mut self.module.instructions[instruction]
    }

    /// Makes `root` the result and ends the computation.
    ///
    /// # Errors
    /// When the root is of another computation.
    pub fn finish(self, root: InstructionId) -> Result<ComputationId, BuildError> {
        self.check_ours(root)?;
        self.module.computations[self.id].root = root;
        Ok(self.id)
    }

    fn check_ours(&self, instruction: InstructionId) -> Result<(), BuildError> {
        match self.module.instructions.get(instruction) {
            Some(found) if found.parent == self.id => Ok(()),
            _ => Err(BuildError::Foreign { instruction, computation: self.name() }),
        }
    }

    fn name(&self) -> Box<str> {
        self.module.computations[self.id].name.clone()
    }
}

impl Insert for ComputationBuilder<'_> {
    type Inserted = Result<InstructionId, BuildError>;

    fn module(&self) -> &Module {
        self.module
    }

    /// Adds an operation at the end. A shape that is given must agree with what can be inferred.
    fn insert_instruction(
        &mut self,
        op: Op,
        operands: impl IntoIterator<Item = InstructionId>,
        called: impl IntoIterator<Item = ComputationId>,
        shape: Option<Shape>,
    ) -> Result<InstructionId, BuildError> {
        let operands: Operands = operands.into_iter().collect();
        let called: SmallVec<[ComputationId; 1]> = called.into_iter().collect();
        operands.iter().try_for_each(|&operand| self.check_ours(operand))?;
        let opcode = op.opcode();
        let shape = checked_shape(self.module, &op, &operands, &called, shape)
            .map_err(|source| BuildError::Instruction { opcode, computation: self.name(), source })?;
        let name = self.names.unique(<&str>::from(opcode));
        let shape = self.module.intern(shape);
        let instruction = Instruction { called, ..Instruction::new(name, shape, op, operands, self.id) };
        Ok(self.module.add_instruction(instruction))
    }
}

/// The shape of a new instruction: the inferred one, or the given one, which must agree with it.
pub(crate) fn checked_shape(
    module: &Module,
    op: &Op,
    operands: &[InstructionId],
    called: &[ComputationId],
    given: Option<Shape>,
) -> Result<Shape, InferError> {
    let shapes: SmallVec<[&Shape; 4]> = operands.iter().map(|&operand| module.shape(operand)).collect();
    let Some(given) = given else { return infer_shape(module, op, &shapes, called) };
    let inferred = infer_shape_given(module, op, &shapes, called, &given)?;
    if compatible(&given, &inferred, Agreement::IgnoringPrecision) {
        return Ok(given);
    }
    let [expected, found] = [&inferred, &given].map(brief);
    Err(InferError::Given { expected, found })
}
