//! Building modules in code: shapes are inferred, instructions named, mistakes reported where they are made.

use crate::infer::infer_shape_given;
use crate::{
    ArrayShape, BinaryOp, BufferDonor, ComparisonDirection, ComputationId, CustomCall, Dot, DotDimensions,
    ElementType, InferError, Instruction, InstructionId, Layout, Literal, Module, ModuleConfig, Names, Op,
    Opcode, PaddingDimension, Shape, ShapeIndex, SliceDimension, UnaryOp, VerifyErrors, infer_shape, verify,
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
/// A mistake names the operation and what it is about:
///
/// ```
/// # use memplan_ir::{ElementType::F32, ModuleBuilder, Shape};
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

/// Builds one computation. Every method that adds an instruction infers its shape and makes up a name for it.
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
        let number = self.module.computations[self.id].parameters.len() as u32;
        let name = self.names.unique(name);
        let id = self.add(name, shape, Op::Parameter { number }, &[], &[]);
        self.module.computations[self.id].parameters.push(id);
        id
    }

    /// An operation that calls nothing, with the shape that its operands determine.
    #[allow(clippy::missing_errors_doc, reason = "see the type")]
    pub fn op(
        &mut self,
        op: Op,
        operands: impl IntoIterator<Item = InstructionId>,
    ) -> Result<InstructionId, BuildError> {
        self.op_calling(op, operands, [])
    }

    /// An operation that calls computations.
    #[allow(clippy::missing_errors_doc, reason = "see the type")]
    pub fn op_calling(
        &mut self,
        op: Op,
        operands: impl IntoIterator<Item = InstructionId>,
        called: impl IntoIterator<Item = ComputationId>,
    ) -> Result<InstructionId, BuildError> {
        self.try_add(op, operands, called, None)
    }

    /// An operation whose operands leave a part of its shape open, or whose layout matters: the shape is as given,
    /// once it agrees with what can be inferred.
    #[allow(clippy::missing_errors_doc, reason = "see the type")]
    pub fn op_shaped(
        &mut self,
        op: Op,
        operands: impl IntoIterator<Item = InstructionId>,
        called: impl IntoIterator<Item = ComputationId>,
        shape: Shape,
    ) -> Result<InstructionId, BuildError> {
        self.try_add(op, operands, called, Some(shape))
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

    fn try_add(
        &mut self,
        op: Op,
        operands: impl IntoIterator<Item = InstructionId>,
        called: impl IntoIterator<Item = ComputationId>,
        given: Option<Shape>,
    ) -> Result<InstructionId, BuildError> {
        let operands: Vec<InstructionId> = operands.into_iter().collect();
        let called: Vec<ComputationId> = called.into_iter().collect();
        operands.iter().try_for_each(|&operand| self.check_ours(operand))?;
        let shapes: Vec<&Shape> = operands.iter().map(|&operand| self.module.shape(operand)).collect();
        let inferred = match &given {
            None => infer_shape(self.module, &op, &shapes, &called),
            Some(given) => {
                infer_shape_given(self.module, &op, &shapes, &called, given).and_then(|inferred| {
                    if crate::infer::compatible(given, &inferred, crate::infer::Agreement::IgnoringPrecision)
                    {
                        return Ok(given.clone());
                    }
                    let [expected, found] = [&inferred, given].map(crate::infer::brief);
                    Err(InferError::Given { expected, found })
                })
            }
        };
        let computation = || self.module.computations[self.id].name.clone();
        let opcode = op.opcode();
        let shape = inferred.map_err(|source| BuildError::Instruction {
            opcode,
            computation: computation(),
            source,
        })?;
        let name = self.names.unique(<&str>::from(opcode));
        Ok(self.add(name, shape, op, &operands, &called))
    }

    fn add(
        &mut self,
        name: Box<str>,
        shape: Shape,
        op: Op,
        operands: &[InstructionId],
        called: &[ComputationId],
    ) -> InstructionId {
        let shape = self.module.intern(shape);
        let mut instruction = Instruction::new(name, shape, op, operands.iter().copied(), self.id);
        instruction.called.extend_from_slice(called);
        self.module.add_instruction(instruction)
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

    /// The array shape of an operand; a placeholder for anything else, which inference then rejects.
    fn array(&self, instruction: InstructionId) -> ArrayShape {
        let shape = self.module.instructions.get(instruction).map(|i| self.module.shape_of(i.shape));
        shape.and_then(Shape::as_array).cloned().unwrap_or_else(|| ArrayShape::new(ElementType::F32, []))
    }
}

/// The common operations.
#[allow(clippy::missing_errors_doc, reason = "see the type")]
impl ComputationBuilder<'_> {
    /// A constant.
    pub fn constant(&mut self, literal: Literal) -> InstructionId {
        self.op(Op::Constant(literal), []).expect("a constant has no operands that could be wrong")
    }

    /// Counts 0, 1, 2, ... along one dimension.
    pub fn iota(&mut self, shape: Shape, dimension: i64) -> Result<InstructionId, BuildError> {
        self.op_shaped(Op::Iota { dimension }, [], [], shape)
    }

    /// An elementwise operation of one operand.
    pub fn unary(&mut self, op: UnaryOp, x: InstructionId) -> Result<InstructionId, BuildError> {
        self.op(Op::Unary(op), [x])
    }

    /// An elementwise operation of two operands of equal extents.
    pub fn binary(
        &mut self,
        op: BinaryOp,
        lhs: InstructionId,
        rhs: InstructionId,
    ) -> Result<InstructionId, BuildError> {
        self.op(Op::Binary(op), [lhs, rhs])
    }

    /// An elementwise comparison.
    pub fn compare(
        &mut self,
        direction: ComparisonDirection,
        lhs: InstructionId,
        rhs: InstructionId,
    ) -> Result<InstructionId, BuildError> {
        self.op(Op::Compare { direction, comparison_type: None }, [lhs, rhs])
    }

    /// Elements of `on_true` where the predicate holds, of `on_false` elsewhere.
    pub fn select(
        &mut self,
        predicate: InstructionId,
        on_true: InstructionId,
        on_false: InstructionId,
    ) -> Result<InstructionId, BuildError> {
        self.op(Op::Select, [predicate, on_true, on_false])
    }

    /// The same numbers in another type.
    pub fn convert(&mut self, x: InstructionId, to: ElementType) -> Result<InstructionId, BuildError> {
        let shape = ArrayShape { element_type: to, ..self.array(x) };
        self.op_shaped(Op::Convert, [x], [], shape.into())
    }

    /// Repeats `x` to fill an array of these extents; dimension `i` of `x` becomes `dimensions[i]`.
    pub fn broadcast(
        &mut self,
        x: InstructionId,
        extents: impl IntoIterator<Item = i64>,
        dimensions: impl IntoIterator<Item = i64>,
    ) -> Result<InstructionId, BuildError> {
        let shape = Shape::array(self.array(x).element_type, extents);
        self.op_shaped(Op::Broadcast { dimensions: dimensions.into_iter().collect() }, [x], [], shape)
    }

    /// The same elements in the same row-major order with other extents.
    pub fn reshape(
        &mut self,
        x: InstructionId,
        extents: impl IntoIterator<Item = i64>,
    ) -> Result<InstructionId, BuildError> {
        let shape = Shape::array(self.array(x).element_type, extents);
        self.op_shaped(Op::Reshape { inferred_dimension: None }, [x], [], shape)
    }

    /// Dimension `i` of the result is `permutation[i]` of `x`. The result is row-major.
    pub fn transpose(
        &mut self,
        x: InstructionId,
        permutation: impl IntoIterator<Item = i64>,
    ) -> Result<InstructionId, BuildError> {
        let id = self.op(Op::Transpose { dimensions: permutation.into_iter().collect() }, [x])?;
        let mut shape = self.array(id);
        shape.layout = Some(Layout::row_major(shape.rank()));
        self.module.instructions[id].shape = self.module.intern(shape.into());
        Ok(id)
    }

    /// The part of `x` from `start` up to `limit` in steps of `stride`, for each dimension.
    pub fn slice(
        &mut self,
        x: InstructionId,
        dimensions: impl IntoIterator<Item = SliceDimension>,
    ) -> Result<InstructionId, BuildError> {
        self.op(Op::Slice { dimensions: dimensions.into_iter().collect() }, [x])
    }

    /// The part of `x` of these extents that begins at computed indices, one scalar per dimension.
    pub fn dynamic_slice(
        &mut self,
        x: InstructionId,
        starts: impl IntoIterator<Item = InstructionId>,
        sizes: impl IntoIterator<Item = i64>,
    ) -> Result<InstructionId, BuildError> {
        let slice_sizes = sizes.into_iter().collect();
        self.op(Op::DynamicSlice { slice_sizes }, [x].into_iter().chain(starts))
    }

    /// `x` with `update` written over the part that begins at computed indices, one scalar per dimension.
    pub fn dynamic_update_slice(
        &mut self,
        x: InstructionId,
        update: InstructionId,
        starts: impl IntoIterator<Item = InstructionId>,
    ) -> Result<InstructionId, BuildError> {
        self.op(Op::DynamicUpdateSlice, [x, update].into_iter().chain(starts))
    }

    /// Arrays one after the other along a dimension.
    pub fn concatenate(
        &mut self,
        operands: impl IntoIterator<Item = InstructionId>,
        dimension: i64,
    ) -> Result<InstructionId, BuildError> {
        self.op(Op::Concatenate { dimension }, operands)
    }

    /// `x` surrounded by, and interspersed with, a scalar.
    pub fn pad(
        &mut self,
        x: InstructionId,
        value: InstructionId,
        dimensions: impl IntoIterator<Item = PaddingDimension>,
    ) -> Result<InstructionId, BuildError> {
        self.op(Op::Pad { dimensions: dimensions.into_iter().collect() }, [x, value])
    }

    /// Contracts two arrays.
    pub fn dot(
        &mut self,
        lhs: InstructionId,
        rhs: InstructionId,
        dimensions: DotDimensions,
    ) -> Result<InstructionId, BuildError> {
        self.op(Op::Dot(Box::new(Dot { dimensions, ..Dot::default() })), [lhs, rhs])
    }

    /// The matrix product: contracts the last dimension of `lhs` with the first of `rhs`.
    pub fn matmul(&mut self, lhs: InstructionId, rhs: InstructionId) -> Result<InstructionId, BuildError> {
        let last = self.array(lhs).rank() as i64 - 1;
        self.dot(lhs, rhs, DotDimensions::new([last], [0]))
    }

    /// Folds some dimensions of an array into a scalar each, starting from `initial`.
    pub fn reduce(
        &mut self,
        x: InstructionId,
        initial: InstructionId,
        dimensions: impl IntoIterator<Item = i64>,
        reducer: ComputationId,
    ) -> Result<InstructionId, BuildError> {
        self.op_calling(Op::Reduce { dimensions: dimensions.into_iter().collect() }, [x, initial], [reducer])
    }

    /// A tuple.
    pub fn tuple(
        &mut self,
        elements: impl IntoIterator<Item = InstructionId>,
    ) -> Result<InstructionId, BuildError> {
        self.op(Op::Tuple, elements)
    }

    /// One element of a tuple.
    pub fn get_tuple_element(
        &mut self,
        tuple: InstructionId,
        index: u32,
    ) -> Result<InstructionId, BuildError> {
        self.op(Op::GetTupleElement { index }, [tuple])
    }

    /// Calls a computation.
    pub fn call(
        &mut self,
        computation: ComputationId,
        operands: impl IntoIterator<Item = InstructionId>,
    ) -> Result<InstructionId, BuildError> {
        self.op_calling(Op::Call { is_composite: false }, operands, [computation])
    }

    /// Applies `body` to a state as long as `condition` holds of it.
    pub fn while_loop(
        &mut self,
        initial: InstructionId,
        condition: ComputationId,
        body: ComputationId,
    ) -> Result<InstructionId, BuildError> {
        self.op_calling(Op::While, [initial], [body, condition])
    }

    /// Calls one of several branches with its operand. A `pred` selector takes the first branch when it is true; an
    /// `s32` selects by number.
    pub fn conditional(
        &mut self,
        selector: InstructionId,
        branches: &[(ComputationId, InstructionId)],
    ) -> Result<InstructionId, BuildError> {
        let operands = branches.iter().map(|&(_, operand)| operand);
        let called = branches.iter().map(|&(branch, _)| branch);
        self.op_calling(Op::Conditional, [selector].into_iter().chain(operands), called)
    }

    /// Calls code that only the target knows.
    pub fn custom_call(
        &mut self,
        target: &str,
        operands: impl IntoIterator<Item = InstructionId>,
        shape: Shape,
    ) -> Result<InstructionId, BuildError> {
        let call = CustomCall { target: target.into(), ..CustomCall::default() };
        self.op_shaped(Op::CustomCall(Box::new(call)), operands, [], shape)
    }
}
