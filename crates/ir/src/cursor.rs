//! Adds instructions to an existing module: their position, names and metadata.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::builder::checked_shape;
use crate::{
    BinaryOp, ComputationId, Dimensions, ElementType, Insert, Instruction, InstructionId, Literal, Metadata,
    Module, Names, Op, Operands, Scalar, Shape,
};

/// A place in a computation, at which instructions are inserted one after the other.
///
/// New instructions get a name after their operation, or the one that [`Cursor::named`] says, and the metadata (framework's
/// operation and source line) of the instruction that the cursor was placed by. Shapes are inferred; one that is given is
/// taken as it is, since an edit may be halfway done, and [`verify`](crate::verify()) looks at the result.
///
/// ```
/// use memplan_ir::{BinaryOp, Cursor, ElementType::F32, Insert, ModuleBuilder, Names, Shape};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut module = ModuleBuilder::new("m");
/// let mut main = module.computation("main");
/// let x = main.parameter("x", Shape::array(F32, [8]));
/// let y = main.binary(BinaryOp::Add, x, x)?;
/// let main = main.finish(y)?;
/// let mut module = module.finish(main)?;
///
/// // y = (x * 2) + (x * 2)
/// let mut names = Names::new(&module);
/// let mut cursor = Cursor::before(&mut module, &mut names, y);
/// let two = cursor.integer(F32, 2);
/// let twos = cursor.broadcast(two, [8], []);
/// let doubled = cursor.binary(BinaryOp::Multiply, x, twos);
/// module.replace_operand(y, x, doubled);
///
/// memplan_ir::verify(&module)?;
/// assert_eq!(module.entry_computation().instructions, [x, two, twos, doubled, y]);
/// # Ok(())
/// # }
/// ```
///
/// # Panics
/// Inserting an operation that its operands do not allow is a mistake of the caller, and panics with the reason. So do
/// operands that the module does not have. [`ModuleBuilder`](crate::ModuleBuilder) has errors instead.
#[derive(Debug)]
pub struct Cursor<'m> {
    module: &'m mut Module,
    names: &'m mut Names,
    computation: ComputationId,
    place: Place<'m>,
    metadata: Option<Arc<Metadata>>,
    /// The name of the next instruction, where it is not after its operation.
    name: Option<Box<str>>,
}

/// Which list gets the next instruction.
#[derive(Debug)]
enum Place<'m> {
    /// That of the computation, at its end.
    End,
    /// That of the computation, before the instruction at this place.
    At(usize),
    /// One that the caller keeps.
    List(&'m mut Vec<InstructionId>),
    /// None yet.
    Unlisted,
}

/// Where to insert instructions.
impl<'m> Cursor<'m> {
    /// At the end of a computation.
    pub fn end(module: &'m mut Module, names: &'m mut Names, computation: ComputationId) -> Cursor<'m> {
        Cursor { module, names, computation, place: Place::End, metadata: None, name: None }
    }

    /// At the end of the computation of an instruction, for which the new ones do something. During
    /// [`Module::edit_in_order`] the end is right where the visit is.
    pub fn beside(module: &'m mut Module, names: &'m mut Names, id: InstructionId) -> Cursor<'m> {
        let computation = module.instructions[id].parent;
        Cursor::end(module, names, computation).with_metadata_of(id)
    }

    /// Before an instruction. Linear in its computation, and so is each insertion: to edit everywhere, visit the
    /// computation with [`Module::edit_in_order`].
    ///
    /// # Panics
    /// When the instruction is not listed in its computation.
    pub fn before(module: &'m mut Module, names: &'m mut Names, id: InstructionId) -> Cursor<'m> {
        let listed = &module.computations[module.instructions[id].parent].instructions;
        let at = listed.iter().position(|&other| other == id).expect("the instruction is listed");
        Cursor { place: Place::At(at), ..Cursor::beside(module, names, id) }
    }

    /// After an instruction. Linear, as [`Cursor::before`].
    ///
    /// # Panics
    /// When the instruction is not listed in its computation.
    pub fn after(module: &'m mut Module, names: &'m mut Names, id: InstructionId) -> Cursor<'m> {
        let mut cursor = Cursor::before(module, names, id);
        if let Place::At(at) = &mut cursor.place {
            *at += 1;
        }
        cursor
    }

    /// For a computation whose instructions the caller lists in an order of its own: new ones are added to `list`.
    pub fn into_list(
        module: &'m mut Module,
        names: &'m mut Names,
        computation: ComputationId,
        list: &'m mut Vec<InstructionId>,
    ) -> Cursor<'m> {
        Cursor { place: Place::List(list), ..Cursor::end(module, names, computation) }
    }

    /// In a computation, but in no list until somebody lists them.
    pub fn unlisted(module: &'m mut Module, names: &'m mut Names, computation: ComputationId) -> Cursor<'m> {
        Cursor { place: Place::Unlisted, ..Cursor::end(module, names, computation) }
    }

    /// Lets new instructions carry the metadata of another one.
    #[must_use]
    pub fn with_metadata_of(self, id: InstructionId) -> Cursor<'m> {
        let metadata = self.module.instructions[id].metadata.clone();
        self.with_metadata(metadata)
    }

    /// Lets new instructions carry this metadata.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Option<Arc<Metadata>>) -> Cursor<'m> {
        self.metadata = metadata;
        self
    }

    /// The computation that new instructions are in.
    pub fn computation(&self) -> ComputationId {
        self.computation
    }

    /// Names the next instruction after `stem`, with a number that makes it unique.
    pub fn named(&mut self, stem: &str) -> &mut Cursor<'m> {
        self.name = Some(self.names.fresh(stem));
        self
    }

    /// Gives the next instruction this name, with a number behind it where it is taken.
    pub fn named_unique(&mut self, name: &str) -> &mut Cursor<'m> {
        self.name = Some(self.names.unique(name));
        self
    }

    /// Gives the next instruction this name. The caller sees to it that the computation has no other of that name.
    pub fn named_exactly(&mut self, name: impl Into<Box<str>>) -> &mut Cursor<'m> {
        self.name = Some(name.into());
        self
    }
}

impl Insert for Cursor<'_> {
    type Inserted = InstructionId;

    fn module(&self) -> &Module {
        self.module
    }

    /// Inserts an operation. Constant, beside what inference and the place take.
    fn insert_instruction(
        &mut self,
        op: Op,
        operands: impl IntoIterator<Item = InstructionId>,
        called: impl IntoIterator<Item = ComputationId>,
        shape: Option<Shape>,
    ) -> InstructionId {
        let operands: Operands = operands.into_iter().collect();
        let called: SmallVec<[ComputationId; 1]> = called.into_iter().collect();
        let shape = shape.unwrap_or_else(|| {
            checked_shape(self.module, &op, &operands, &called, None)
                .unwrap_or_else(|error| panic!("cannot insert {}: {error}", op.opcode()))
        });
        let name = self.name.take().unwrap_or_else(|| self.names.fresh(op.opcode().into()));
        let shape = self.module.intern(shape);
        let metadata = self.metadata.clone();
        self.place(Instruction {
            called,
            metadata,
            ..Instruction::new(name, shape, op, operands, self.computation)
        })
    }
}

/// Instructions that need no shape, and computations.
impl Cursor<'_> {
    /// A constant.
    pub fn constant(&mut self, literal: Literal) -> InstructionId {
        self.insert(Op::Constant(literal), [])
    }

    /// A scalar constant: an integer as an element of any type, see [`Scalar::integer`].
    pub fn integer(&mut self, element_type: ElementType, value: i64) -> InstructionId {
        self.constant(Scalar::integer(element_type, value).literal())
    }

    /// The next parameter of the computation.
    pub fn parameter(&mut self, shape: impl Into<Shape>) -> InstructionId {
        let number = self.module.computations[self.computation].parameters.len() as u32;
        let id = self.insert_shaped(Op::Parameter { number }, [], shape);
        self.module.computations[self.computation].parameters.push(id);
        id
    }

    /// The elements of a tuple, as many as its shape has.
    pub fn elements(&mut self, tuple: InstructionId) -> Vec<InstructionId> {
        let n = self.module.shape(tuple).as_tuple().map_or(0, <[Shape]>::len) as u32;
        (0..n).map(|index| self.get_tuple_element(tuple, index)).collect()
    }

    /// An array whose elements are all one scalar; the scalar itself if the array has no dimensions.
    pub fn fill(&mut self, scalar: InstructionId, shape: impl Into<Shape>) -> InstructionId {
        let shape = shape.into();
        match shape.as_array().is_some_and(|array| array.rank() == 0) {
            true => scalar,
            false => self.insert_shaped(Op::Broadcast { dimensions: Dimensions::new() }, [scalar], shape),
        }
    }

    /// A copy of an instruction with other operands. It is named after the original, has its notes, and waits for nothing
    /// but its operands.
    pub fn copy_of(
        &mut self,
        original: InstructionId,
        operands: impl IntoIterator<Item = InstructionId>,
    ) -> InstructionId {
        let name = self.name.take();
        let name = name.unwrap_or_else(|| self.names.fresh(&self.module.instructions[original].name));
        self.copy_edited(original, |copy| {
            copy.name = name;
            copy.operands = operands.into_iter().collect();
            copy.control_predecessors.clear();
        })
    }

    /// A copy of an instruction that `edit` changes before it is inserted.
    pub fn copy_edited(
        &mut self,
        original: InstructionId,
        edit: impl FnOnce(&mut Instruction),
    ) -> InstructionId {
        let mut copy = self.module.instructions[original].clone();
        copy.parent = self.computation;
        edit(&mut copy);
        let is_parameter = matches!(copy.op, Op::Parameter { .. });
        let id = self.place(copy);
        if is_parameter {
            self.module.computations[self.computation].parameters.push(id);
        }
        id
    }

    /// A new computation on the same thread; `make` fills it and returns its root. Instructions in it carry the metadata of
    /// those at this cursor.
    pub fn new_computation(
        &mut self,
        stem: &str,
        make: impl FnOnce(&mut Cursor<'_>) -> InstructionId,
    ) -> ComputationId {
        let name = self.names.fresh(stem);
        let computation = self.module.add_computation(name);
        let thread = self.module.computations[self.computation].execution_thread.clone();
        self.module.computations[computation].execution_thread = thread;
        let metadata = self.metadata.clone();
        let root = make(&mut Cursor { metadata, ..Cursor::end(self.module, self.names, computation) });
        self.module.computations[computation].root = root;
        computation
    }

    /// A computation of two scalars, as reductions, scatters and collectives call them.
    pub fn combiner(&mut self, stem: &str, op: BinaryOp, element_type: ElementType) -> ComputationId {
        self.new_computation(stem, |combiner| {
            let [a, b] = [0, 1].map(|_| combiner.parameter(Shape::scalar(element_type)));
            combiner.binary(op, a, b)
        })
    }

    /// A loop whose state is several values. `condition` and `body` are given the elements of the state; the one says whether
    /// there is another step, the other what the state is after a step. Returns the elements of the last state.
    ///
    /// ```
    /// # use memplan_ir::*;
    /// use memplan_ir::{BinaryOp::Add, ComparisonDirection::Lt, ElementType::{F32, S32}};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let mut module = ModuleBuilder::new("m");
    /// # let mut main = module.computation("main");
    /// # let x = main.parameter("x", Shape::array(F32, [8, 8]));
    /// # let y = main.unary(UnaryOp::Negate, x)?;
    /// # let main = main.finish(y)?;
    /// # let mut module = module.finish(main)?;
    /// # let mut names = Names::new(&module);
    /// // y = -x  =>  y = -(x multiplied ten times by itself)
    /// let mut cursor = Cursor::before(&mut module, &mut names, y);
    /// let zero = cursor.integer(S32, 0);
    /// let state = cursor.loop_over(
    ///     "power",
    ///     &[zero, x, x],
    ///     |condition, state| {
    ///         let ten = condition.integer(S32, 10);
    ///         condition.compare(Lt, state[0], ten)
    ///     },
    ///     |body, state| {
    ///         let one = body.integer(S32, 1);
    ///         let next = body.binary(Add, state[0], one);
    ///         let product = body.matmul(state[1], state[2]);
    ///         vec![next, product, state[2]]
    ///     },
    /// );
    /// module.replace_operand(y, x, state[1]);
    /// module.compact(); // callees before callers
    /// memplan_ir::verify(&module)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn loop_over(
        &mut self,
        stem: &str,
        initial: &[InstructionId],
        condition: impl FnOnce(&mut Cursor<'_>, &[InstructionId]) -> InstructionId,
        body: impl FnOnce(&mut Cursor<'_>, &[InstructionId]) -> Vec<InstructionId>,
    ) -> Vec<InstructionId> {
        let initial = self.tuple(initial.iter().copied());
        let state = self.module.shape(initial).clone();
        let condition = self.new_computation(&format!("{stem}_condition"), |at| {
            let parameter = at.parameter(state.clone());
            let elements = at.elements(parameter);
            condition(at, &elements)
        });
        let body = self.new_computation(&format!("{stem}_body"), |at| {
            let parameter = at.parameter(state);
            let elements = at.elements(parameter);
            let next = body(at, &elements);
            at.tuple(next)
        });
        let last = self.while_loop(initial, condition, body);
        self.elements(last)
    }

    fn place(&mut self, instruction: Instruction) -> InstructionId {
        let id = self.module.instructions.push(instruction);
        let listed = &mut self.module.computations[self.computation].instructions;
        match &mut self.place {
            Place::End => listed.push(id),
            Place::At(at) => {
                listed.insert(*at, id);
                *at += 1;
            }
            Place::List(list) => list.push(id),
            Place::Unlisted => {}
        }
        id
    }
}
