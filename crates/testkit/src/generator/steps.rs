//! Steps that combine arrays of the pool.

use memplan_ir::ElementType::{F32, Pred, S32};
use memplan_ir::{
    Async, BinaryOp, BuildError, ComparisonDirection, DotDimensions, Insert, InstructionId, Literal, Op,
    OutputOperandAlias, PaddingDimension, ScatterDimensions, ShapeIndex, SliceDimension, UnaryOp,
};

use super::Body;

impl Body<'_, '_> {
    /// One operation, or a few that belong together. Sometimes none, when the pool has nothing that fits.
    pub(super) fn step(&mut self) -> Result<(), BuildError> {
        let added = match self.random.below(20) {
            0..=4 => self.binary(),
            5..=6 => self.unary(),
            7 => self.dot(),
            8 => self.reduce(),
            9 => self.broadcast(),
            10 => self.transpose(),
            11 => self.slice(),
            12 => self.pad(),
            13 => self.concatenate(),
            14 => self.dynamic_slice(),
            15 => self.dynamic_update_slice(),
            16 => self.select(),
            17 => self.sort(),
            18 => self.scatter(),
            _ => self.copy(),
        }?;
        self.pool.extend(added);
        Ok(())
    }

    fn unary(&mut self) -> Result<Option<InstructionId>, BuildError> {
        let x = self.any();
        let op = match self.array(x).element_type {
            F32 => self.random.pick(&[UnaryOp::Negate, UnaryOp::Tanh, UnaryOp::Abs, UnaryOp::Cosine]),
            Pred => UnaryOp::Not,
            _ => self.random.pick(&[UnaryOp::Negate, UnaryOp::Abs]),
        };
        self.computation.unary(op, x).map(Some)
    }

    fn binary(&mut self) -> Result<Option<InstructionId>, BuildError> {
        use BinaryOp::{Add, And, Maximum, Minimum, Multiply, Subtract, Xor};
        let x = self.any();
        let kind = self.kind(x);
        let mut y = self.of_kind(&kind)?;
        let op = match kind.0 {
            F32 => self.random.pick(&[Add, Subtract, Multiply, Maximum]),
            Pred => self.random.pick(&[And, Xor]),
            _ => self.random.pick(&[Add, Subtract, Multiply, Minimum]),
        };
        if op == Multiply && kind.0 == F32 {
            y = self.bounded(y)?;
        }
        let (x, y) = if self.random.one_in(2) { (x, y) } else { (y, x) };
        self.computation.binary(op, x, y).map(Some)
    }

    /// Between -1 and 1.
    pub(super) fn bounded(&mut self, x: InstructionId) -> Result<InstructionId, BuildError> {
        self.computation.unary(UnaryOp::Tanh, x)
    }

    fn dot(&mut self) -> Result<Option<InstructionId>, BuildError> {
        let matrix = |x: &memplan_ir::ArrayShape| x.element_type == F32 && x.rank() == 2;
        let Some(x) = self.any_where(matrix) else { return Ok(None) };
        let shared = self.array(x).dimensions[1];
        let with_extent = |y: &memplan_ir::ArrayShape| {
            y.element_type == F32 && (1..=2).contains(&y.rank()) && y.dimensions.contains(&shared)
        };
        let Some(y) = self.any_where(with_extent) else { return Ok(None) };
        let along = self.array(y).dimensions.iter().position(|&d| d == shared).expect("it has the extent");
        let product = self.computation.dot(x, y, DotDimensions::new([1], [along as i64]))?;
        self.bounded(product).map(Some)
    }

    fn reduce(&mut self) -> Result<Option<InstructionId>, BuildError> {
        let Some(x) = self.any_where(|x| x.rank() > 0 && x.element_type != Pred) else { return Ok(None) };
        let rank = self.array(x).rank();
        let dimensions: Vec<i64> = match self.random.below(rank + 1) {
            all if all == rank => (0..rank as i64).collect(),
            one => vec![one as i64],
        };
        if self.array(x).element_type == S32 {
            let zero = self.computation.constant(Literal::s32(0));
            return self.computation.reduce(x, zero, dimensions, self.combiners.sum_s32).map(Some);
        }
        if self.random.one_in(2) {
            let least = self.computation.constant(Literal::f32(f32::NEG_INFINITY));
            return self.computation.reduce(x, least, dimensions, self.combiners.maximum_f32).map(Some);
        }
        let zero = self.computation.constant(Literal::f32(0.0));
        let sum = self.computation.reduce(x, zero, dimensions, self.combiners.sum_f32)?;
        self.bounded(sum).map(Some)
    }

    fn broadcast(&mut self) -> Result<Option<InstructionId>, BuildError> {
        let Some(x) = self.any_where(|x| x.rank() <= 1) else { return Ok(None) };
        let extent = self.random.pick(&[4, 8]);
        match self.array(x).dimensions.first().copied() {
            None => self.computation.broadcast(x, [extent, 4], []),
            Some(n) if self.random.one_in(2) => self.computation.broadcast(x, [n, extent], [0]),
            Some(n) => self.computation.broadcast(x, [extent, n], [1]),
        }
        .map(Some)
    }

    fn transpose(&mut self) -> Result<Option<InstructionId>, BuildError> {
        let Some(x) = self.any_where(|x| x.rank() >= 2) else { return Ok(None) };
        let array = self.array(x);
        let (rank, extents) = (array.rank() as i64, array.dimensions.to_vec());
        match self.random.below(3) {
            0 => self.computation.reshape(x, [extents.iter().product::<i64>()]),
            1 => self.computation.insert(Op::Reverse { dimensions: [0].into_iter().collect() }, [x]),
            _ => self.computation.transpose(x, (0..rank).rev()),
        }
        .map(Some)
    }

    fn slice(&mut self) -> Result<Option<InstructionId>, BuildError> {
        let Some(x) = self.any_where(|x| x.rank() > 0 && x.dimensions[0] >= 4) else { return Ok(None) };
        let extents = self.array(x).dimensions.to_vec();
        let first =
            self.random.pick(&[(0, extents[0] / 2, 1), (0, extents[0], 2), (extents[0] / 2, extents[0], 1)]);
        let dimensions = extents.iter().enumerate().map(|(d, &extent)| {
            let (start, limit, stride) = if d == 0 { first } else { (0, extent, 1) };
            SliceDimension { start, limit, stride }
        });
        self.computation.slice(x, dimensions).map(Some)
    }

    fn pad(&mut self) -> Result<Option<InstructionId>, BuildError> {
        let Some(x) = self.any_where(|x| x.rank() > 0 && x.dimensions[0] <= 4) else { return Ok(None) };
        let (element_type, extents) = self.kind(x);
        let value = self.splat(&(element_type, Vec::new()))?;
        let n = extents[0];
        let first = self.random.pick(&[(n, 0), (0, n), (n / 2, n - n / 2)]);
        let dimensions = (0..extents.len()).map(|d| {
            let (low, high) = if d == 0 { first } else { (0, 0) };
            PaddingDimension { low, high, interior: 0 }
        });
        self.computation.pad(x, value, dimensions).map(Some)
    }

    fn concatenate(&mut self) -> Result<Option<InstructionId>, BuildError> {
        let Some(x) = self.any_where(|x| x.rank() > 0 && x.dimensions[0] <= 4) else { return Ok(None) };
        let kind = self.kind(x);
        let y = self.of_kind(&kind)?;
        self.computation.concatenate([x, y], 0).map(Some)
    }

    /// A start index for each dimension: a scalar of the pool along the first, 0 along the others.
    fn starts(&mut self, rank: usize) -> Result<Vec<InstructionId>, BuildError> {
        let index = self.of_kind(&(S32, Vec::new()))?;
        let zero = self.computation.constant(Literal::s32(0));
        Ok((0..rank).map(|d| if d == 0 { index } else { zero }).collect())
    }

    fn dynamic_slice(&mut self) -> Result<Option<InstructionId>, BuildError> {
        let Some(x) = self.any_where(|x| x.rank() > 0 && x.dimensions[0] >= 2) else { return Ok(None) };
        let mut sizes = self.array(x).dimensions.to_vec();
        sizes[0] /= 2;
        let starts = self.starts(sizes.len())?;
        self.computation.dynamic_slice(x, starts, sizes).map(Some)
    }

    pub(super) fn dynamic_update_slice(&mut self) -> Result<Option<InstructionId>, BuildError> {
        let Some(x) = self.any_where(|x| x.rank() > 0 && x.dimensions[0] >= 2) else { return Ok(None) };
        let (element_type, mut sizes) = self.kind(x);
        sizes[0] /= 2;
        let rank = sizes.len();
        let update = self.of_kind(&(element_type, sizes))?;
        let starts = self.starts(rank)?;
        self.computation.dynamic_update_slice(x, update, starts).map(Some)
    }

    fn select(&mut self) -> Result<Option<InstructionId>, BuildError> {
        let x = self.any();
        let (element_type, extents) = self.kind(x);
        let y = self.of_kind(&(element_type, extents.clone()))?;
        let [a, b] = [self.of_kind(&(S32, extents.clone()))?, self.of_kind(&(S32, extents))?];
        let direction = self.random.pick(&[ComparisonDirection::Lt, ComparisonDirection::Eq]);
        let predicate = self.computation.compare(direction, a, b)?;
        if self.random.one_in(3) {
            self.pool.push(predicate);
        }
        self.computation.select(predicate, x, y).map(Some)
    }

    fn sort(&mut self) -> Result<Option<InstructionId>, BuildError> {
        let Some(x) = self.any_where(|x| x.rank() == 1 && x.element_type == S32) else { return Ok(None) };
        let op = Op::Sort { dimension: 0, is_stable: true };
        self.computation.insert_calling(op, [x], [self.combiners.less_s32]).map(Some)
    }

    /// Adds rows to an array at computed places.
    fn scatter(&mut self) -> Result<Option<InstructionId>, BuildError> {
        let Some(x) = self.any_where(|x| x.rank() == 2 && x.element_type == F32) else { return Ok(None) };
        let columns = self.array(x).dimensions[1];
        let indices = self.of_kind(&(S32, vec![4]))?;
        let updates = self.of_kind(&(F32, vec![4, columns]))?;
        let updates = self.bounded(updates)?;
        self.add_at_rows(x, indices, updates).map(Some)
    }

    /// Adds rows to those rows of a matrix that places name.
    pub(super) fn add_at_rows(
        &mut self,
        x: InstructionId,
        places: InstructionId,
        rows: InstructionId,
    ) -> Result<InstructionId, BuildError> {
        let dimensions = ScatterDimensions {
            update_window_dims: [1].into_iter().collect(),
            inserted_window_dims: [0].into_iter().collect(),
            scatter_dims_to_operand_dims: [0].into_iter().collect(),
            index_vector_dim: 1,
            ..ScatterDimensions::default()
        };
        let op = Op::Scatter(Box::new(dimensions));
        self.computation.insert_calling(op, [x, places, rows], [self.combiners.sum_f32])
    }

    /// A copy, at once or started here and done a few steps later.
    fn copy(&mut self) -> Result<Option<InstructionId>, BuildError> {
        let x = self.any();
        if !self.asynchronous || self.random.one_in(2) {
            return self.computation.insert(Op::Copy, [x]).map(Some);
        }
        let start = self.computation.insert(Op::CopyStart { cross_program_prefetch_index: None }, [x])?;
        for _ in 0..self.random.below(3) {
            let added = self.binary()?;
            self.pool.extend(added);
        }
        self.computation.insert(Op::CopyDone, [start]).map(Some)
    }

    /// A call that is started here and done a few steps later. It may be one that overwrites its first operand.
    pub(super) fn call_asynchronously(
        &mut self,
        callee: memplan_ir::ComputationId,
        arguments: Vec<InstructionId>,
        overwrites: bool,
    ) -> Result<InstructionId, BuildError> {
        let mut start = Box::<Async>::default();
        if overwrites {
            let (output_index, operand_index) = ([1].into(), ShapeIndex::root());
            start.output_operand_aliasing.push(OutputOperandAlias {
                output_index,
                operand: 0,
                operand_index,
            });
        }
        let start = self.computation.insert_calling(Op::AsyncStart(start), arguments, [callee])?;
        for _ in 0..self.random.below(3) {
            let added = self.binary()?;
            self.pool.extend(added);
        }
        self.computation.insert_calling(Op::AsyncDone(Box::<Async>::default()), [start], [callee])
    }
}
