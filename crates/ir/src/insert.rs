//! The common operations, for every type that adds instructions to a computation.

use std::ops::Range;

use crate::{
    ArrayShape, BinaryOp, ComparisonDirection, ComputationId, CustomCall, Dot, DotDimensions, ElementType,
    InstructionId, Layout, Module, Op, PaddingDimension, Shape, SliceDimension, UnaryOp, infer_shape,
};

/// Adds instructions of any kind to a computation; shapes are inferred.
///
/// The implementer decides where instructions go and how a mistake is reported: as an error by a
/// [`ComputationBuilder`](crate::ComputationBuilder), as a panic by a [`Cursor`](crate::Cursor).
pub trait Insert {
    /// The result of adding an instruction: its id, or a `Result`.
    type Inserted;

    /// The module as it is so far.
    fn module(&self) -> &Module;

    /// Adds an operation that calls `called`. Its shape is the inferred one, or the given one.
    fn insert_instruction(
        &mut self,
        op: Op,
        operands: impl IntoIterator<Item = InstructionId>,
        called: impl IntoIterator<Item = ComputationId>,
        shape: Option<Shape>,
    ) -> Self::Inserted;

    /// An operation that calls nothing, with the shape that its operands determine.
    fn insert(&mut self, op: Op, operands: impl IntoIterator<Item = InstructionId>) -> Self::Inserted {
        self.insert_instruction(op, operands, [], None)
    }

    /// An operation that calls computations.
    fn insert_calling(
        &mut self,
        op: Op,
        operands: impl IntoIterator<Item = InstructionId>,
        called: impl IntoIterator<Item = ComputationId>,
    ) -> Self::Inserted {
        self.insert_instruction(op, operands, called, None)
    }

    /// An operation whose operands leave a part of its shape open, or whose layout matters: the shape is as given.
    fn insert_shaped(
        &mut self,
        op: Op,
        operands: impl IntoIterator<Item = InstructionId>,
        shape: impl Into<Shape>,
    ) -> Self::Inserted {
        self.insert_instruction(op, operands, [], Some(shape.into()))
    }

    /// Counts 0, 1, 2, ... along one dimension.
    fn iota(&mut self, shape: Shape, dimension: i64) -> Self::Inserted {
        self.insert_shaped(Op::Iota { dimension }, [], shape)
    }

    /// An elementwise operation of one operand.
    fn unary(&mut self, op: UnaryOp, x: InstructionId) -> Self::Inserted {
        self.insert(Op::Unary(op), [x])
    }

    /// An elementwise operation of two operands of equal extents.
    fn binary(&mut self, op: BinaryOp, lhs: InstructionId, rhs: InstructionId) -> Self::Inserted {
        self.insert(Op::Binary(op), [lhs, rhs])
    }

    /// An elementwise comparison.
    fn compare(
        &mut self,
        direction: ComparisonDirection,
        lhs: InstructionId,
        rhs: InstructionId,
    ) -> Self::Inserted {
        self.insert(Op::Compare { direction, comparison_type: None }, [lhs, rhs])
    }

    /// Elements of `on_true` where the predicate holds, of `on_false` elsewhere.
    fn select(
        &mut self,
        predicate: InstructionId,
        on_true: InstructionId,
        on_false: InstructionId,
    ) -> Self::Inserted {
        self.insert(Op::Select, [predicate, on_true, on_false])
    }

    /// The same numbers in another type.
    fn convert(&mut self, x: InstructionId, to: ElementType) -> Self::Inserted {
        let shape = ArrayShape { element_type: to, ..array(self.module(), x) };
        self.insert_shaped(Op::Convert, [x], shape)
    }

    /// Repeats `x` to fill an array of these extents; dimension `i` of `x` becomes `dimensions[i]`.
    fn broadcast(
        &mut self,
        x: InstructionId,
        extents: impl IntoIterator<Item = i64>,
        dimensions: impl IntoIterator<Item = i64>,
    ) -> Self::Inserted {
        let shape = Shape::array(array(self.module(), x).element_type, extents);
        self.insert_shaped(Op::Broadcast { dimensions: dimensions.into_iter().collect() }, [x], shape)
    }

    /// The same elements in the same row-major order with other extents.
    fn reshape(&mut self, x: InstructionId, extents: impl IntoIterator<Item = i64>) -> Self::Inserted {
        let shape = Shape::array(array(self.module(), x).element_type, extents);
        self.insert_shaped(Op::Reshape { inferred_dimension: None }, [x], shape)
    }

    /// Dimension `i` of the result is `permutation[i]` of `x`. The result is row-major.
    fn transpose(&mut self, x: InstructionId, permutation: impl IntoIterator<Item = i64>) -> Self::Inserted {
        let op = Op::Transpose { dimensions: permutation.into_iter().collect() };
        let shape = infer_shape(self.module(), &op, &[&array(self.module(), x).into()], &[]);
        // Insertion rejects an order that is not a permutation.
        let row_major = shape.ok().map(|mut shape| {
            let array = shape.as_array_mut().expect("a transposed array is one");
            array.layout = Some(Layout::row_major(array.rank()));
            shape
        });
        self.insert_instruction(op, [x], [], row_major)
    }

    /// The part of `x` from `start` up to `limit` in steps of `stride`, for each dimension.
    fn slice(
        &mut self,
        x: InstructionId,
        dimensions: impl IntoIterator<Item = SliceDimension>,
    ) -> Self::Inserted {
        self.insert(Op::Slice { dimensions: dimensions.into_iter().collect() }, [x])
    }

    /// The part of `x` whose indices in one dimension are in a range; the other dimensions are whole.
    fn slice_along(&mut self, x: InstructionId, dimension: usize, range: Range<i64>) -> Self::Inserted {
        let extents = array(self.module(), x).dimensions;
        let whole = extents.iter().map(|&limit| SliceDimension { start: 0, limit, stride: 1 });
        let part = SliceDimension { start: range.start, limit: range.end, stride: 1 };
        self.slice(x, whole.enumerate().map(|(d, whole)| if d == dimension { part } else { whole }))
    }

    /// The part of `x` of these extents that begins at computed indices, one scalar per dimension.
    fn dynamic_slice(
        &mut self,
        x: InstructionId,
        starts: impl IntoIterator<Item = InstructionId>,
        sizes: impl IntoIterator<Item = i64>,
    ) -> Self::Inserted {
        let slice_sizes = sizes.into_iter().collect();
        self.insert(Op::DynamicSlice { slice_sizes }, [x].into_iter().chain(starts))
    }

    /// `x` with `update` written over the part that begins at computed indices, one scalar per dimension.
    fn dynamic_update_slice(
        &mut self,
        x: InstructionId,
        update: InstructionId,
        starts: impl IntoIterator<Item = InstructionId>,
    ) -> Self::Inserted {
        self.insert(Op::DynamicUpdateSlice, [x, update].into_iter().chain(starts))
    }

    /// Arrays one after the other along a dimension.
    fn concatenate(
        &mut self,
        operands: impl IntoIterator<Item = InstructionId>,
        dimension: i64,
    ) -> Self::Inserted {
        self.insert(Op::Concatenate { dimension }, operands)
    }

    /// `x` surrounded by, and interspersed with, a scalar.
    fn pad(
        &mut self,
        x: InstructionId,
        value: InstructionId,
        dimensions: impl IntoIterator<Item = PaddingDimension>,
    ) -> Self::Inserted {
        self.insert(Op::Pad { dimensions: dimensions.into_iter().collect() }, [x, value])
    }

    /// Contracts two arrays.
    fn dot(&mut self, lhs: InstructionId, rhs: InstructionId, dimensions: DotDimensions) -> Self::Inserted {
        self.insert(Op::Dot(Box::new(Dot { dimensions, ..Dot::default() })), [lhs, rhs])
    }

    /// The matrix product: contracts the last dimension of `lhs` with the first of `rhs`.
    fn matmul(&mut self, lhs: InstructionId, rhs: InstructionId) -> Self::Inserted {
        let last = array(self.module(), lhs).rank() as i64 - 1;
        self.dot(lhs, rhs, DotDimensions::new([last], [0]))
    }

    /// Folds some dimensions of an array into a scalar each, starting from `initial`.
    fn reduce(
        &mut self,
        x: InstructionId,
        initial: InstructionId,
        dimensions: impl IntoIterator<Item = i64>,
        reducer: ComputationId,
    ) -> Self::Inserted {
        self.insert_calling(
            Op::Reduce { dimensions: dimensions.into_iter().collect() },
            [x, initial],
            [reducer],
        )
    }

    /// A tuple.
    fn tuple(&mut self, elements: impl IntoIterator<Item = InstructionId>) -> Self::Inserted {
        self.insert(Op::Tuple, elements)
    }

    /// One element of a tuple.
    fn get_tuple_element(&mut self, tuple: InstructionId, index: u32) -> Self::Inserted {
        self.insert(Op::GetTupleElement { index }, [tuple])
    }

    /// Calls a computation.
    fn call(
        &mut self,
        computation: ComputationId,
        operands: impl IntoIterator<Item = InstructionId>,
    ) -> Self::Inserted {
        self.insert_calling(Op::Call { is_composite: false }, operands, [computation])
    }

    /// Applies `body` to a state as long as `condition` holds of it.
    fn while_loop(
        &mut self,
        initial: InstructionId,
        condition: ComputationId,
        body: ComputationId,
    ) -> Self::Inserted {
        self.insert_calling(Op::While, [initial], [body, condition])
    }

    /// Calls one of several branches with its operand. A `pred` selector takes the first branch when it is true; an
    /// `s32` selects by number.
    fn conditional(
        &mut self,
        selector: InstructionId,
        branches: &[(ComputationId, InstructionId)],
    ) -> Self::Inserted {
        let operands = branches.iter().map(|&(_, operand)| operand);
        let called = branches.iter().map(|&(branch, _)| branch);
        self.insert_calling(Op::Conditional, [selector].into_iter().chain(operands), called)
    }

    /// Calls code that only the target knows.
    fn custom_call(
        &mut self,
        target: &str,
        operands: impl IntoIterator<Item = InstructionId>,
        shape: Shape,
    ) -> Self::Inserted {
        let call = CustomCall { target: target.into(), ..CustomCall::default() };
        self.insert_shaped(Op::CustomCall(Box::new(call)), operands, shape)
    }
}

/// The array shape of an operand; a placeholder for anything else, which inference then rejects.
fn array(module: &Module, instruction: InstructionId) -> ArrayShape {
    let shape = module.instructions.get(instruction).map(|i| module.shape_of(i.shape));
    shape.and_then(Shape::as_array).cloned().unwrap_or_else(|| ArrayShape::new(ElementType::F32, []))
}
