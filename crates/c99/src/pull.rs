//! One rule per operation: the operand elements that an element of the result needs.

use memplan_ir::scopes::Name;
use memplan_ir::{
    ArrayShape, BinaryOp, ComparisonType, ElementType, GatherDimensions, InstructionId, Literal, LiteralData,
    Op, PaddingDimension,
};
use smallvec::{SmallVec, smallvec};

use crate::dag::{NodeId, Type};
use crate::error::{Refusal, refusal};
use crate::lower::{ArrayPlace, Leaf, Lower, Rows};
use crate::operations::{self, Form, Function, is_supported};

impl Lower<'_> {
    /// The expressions of an instruction's results at some indices.
    pub(crate) fn pull(&mut self, name: Name, rows: &[NodeId]) -> Result<SmallVec<[NodeId; 2]>, Refusal> {
        match &self.module.instructions[name.instruction].op {
            Op::Reduce { .. } => self.pull_reduce(name, rows),
            Op::ReduceWindow(_) => self.pull_reduce_window(name, rows),
            _ => Ok(smallvec![self.pull_element(name, rows)?]),
        }
    }

    fn pull_element(&mut self, name: Name, rows: &[NodeId]) -> Result<NodeId, Refusal> {
        let module = self.module;
        let id = name.instruction;
        let instruction = &module.instructions[id];
        if let Op::RngBitGenerator { algorithm } = instruction.op {
            return self.pull_random_bits(name, rows, algorithm);
        }
        let shape = module.shape(id).as_array();
        let shape = shape.ok_or_else(|| refusal(module, id, "there is no C for it inside a kernel"))?;
        let t = shape.element_type;
        if !is_supported(t) {
            return Err(refusal(module, id, format!("numbers of {t} are not supported")));
        }
        let operand = |k: usize| Name { instruction: instruction.operands[k], leaf: 0, ..name };
        let undefined = |of: ElementType| refusal(module, id, format!("it is not supported for {of}"));
        Ok(match &instruction.op {
            Op::Unary(op) => {
                let from = self.shape(instruction.operands[0])?.element_type;
                let functions = operations::unary(*op, from).ok_or_else(|| undefined(from))?;
                let x = self.value(operand(0), rows)?;
                self.chain(functions, &[x])
            }
            Op::Binary(op) => {
                let functions = operations::binary(*op, t).ok_or_else(|| undefined(t))?;
                let inputs = [self.value(operand(0), rows)?, self.value(operand(1), rows)?];
                self.chain(functions, &inputs)
            }
            Op::Compare { direction, comparison_type } => {
                let from = self.shape(instruction.operands[0])?.element_type;
                let kind = comparison_type.unwrap_or_else(|| ComparisonType::default_for(from));
                let (order, function) = operations::compare(*direction, kind, from);
                let mut inputs = [self.value(operand(0), rows)?, self.value(operand(1), rows)?];
                if let Some(order) = order {
                    inputs = inputs.map(|x| self.dag.apply(order, &[x]));
                }
                self.dag.apply(function, &inputs)
            }
            Op::Select => {
                let p = self.scalar_or_element(operand(0), rows)?;
                let (x, y) = (self.value(operand(1), rows)?, self.value(operand(2), rows)?);
                self.choose(p, x, y)
            }
            Op::Clamp => {
                let low = self.scalar_or_element(operand(0), rows)?;
                let high = self.scalar_or_element(operand(2), rows)?;
                let x = self.value(operand(1), rows)?;
                let [max, min] = [BinaryOp::Maximum, BinaryOp::Minimum]
                    .map(|op| operations::binary(op, t).ok_or_else(|| undefined(t)));
                let raised = self.chain(max?, &[low, x]);
                self.chain(min?, &[raised, high])
            }
            Op::Convert => {
                let from = self.shape(instruction.operands[0])?.element_type;
                let x = self.value(operand(0), rows)?;
                self.chain(operations::convert(from, t), &[x])
            }
            Op::ReducePrecision { exponent_bits, mantissa_bits } => {
                let x = self.value(operand(0), rows)?;
                let bits =
                    [exponent_bits, mantissa_bits].map(|&b| self.dag.constant(ElementType::S32, b as u64));
                let form = Form::Helper("reduce_precision", t, None);
                self.dag.apply(Function { form, result: Type::Element(t) }, &[x, bits[0], bits[1]])
            }
            Op::BitcastConvert => {
                let from = self.shape(instruction.operands[0])?.element_type;
                let x = self.value(operand(0), rows)?;
                self.reinterpreted(id, x, from, t)?
            }
            Op::Bitcast => {
                let from = self.shape(instruction.operands[0])?;
                let rows = self.bitcast_rows(id, from, shape, rows)?;
                let x = self.value(operand(0), &rows)?;
                self.reinterpreted(id, x, from.element_type, t)?
            }
            Op::Constant(Literal::Array(literal)) => {
                if let LiteralData::Elided = literal.data {
                    return Err(refusal(module, id, "its elements are not in the program"));
                }
                let bytes = literal.bytes();
                if literal.element_count() == 1 {
                    return Ok(self.dag.constant(t, constant_bits(t, &bytes)));
                }
                let dense = ArrayShape::new(t, literal.dimensions.iter().copied());
                let name_of = instruction.name.to_string();
                let array = self.array(id, name_of, &dense, ArrayPlace::Constant(id))?;
                self.scopes.store(name, Leaf::Array(array));
                self.load(array, rows)
            }
            Op::Iota { dimension } => self.number(rows[*dimension as usize], t),
            Op::GetDimensionSize { dimension } => {
                let from = self.shape(instruction.operands[0])?;
                if from.is_dynamic() {
                    return Err(refusal(module, id, "the extents of its operand are dynamic"));
                }
                self.dag.constant(t, from.dimensions[*dimension as usize] as u64)
            }
            Op::Broadcast { dimensions } => {
                let from = self.shape(instruction.operands[0])?;
                let zero = self.dag.integer(0);
                let row = |(&d, &e): (&i64, &i64)| if e == 1 { zero } else { rows[d as usize] };
                let rows: Rows = dimensions.iter().zip(&from.dimensions).map(row).collect();
                self.value(operand(0), &rows)?
            }
            Op::Reshape { .. } => {
                let from = self.shape(instruction.operands[0])?;
                let rows = self.reshaped(rows, &shape.dimensions, &from.dimensions);
                self.value(operand(0), &rows)?
            }
            Op::Transpose { dimensions } => {
                let mut moved = Rows::from_slice(rows);
                dimensions.iter().zip(rows).for_each(|(&d, &row)| moved[d as usize] = row);
                self.value(operand(0), &moved)?
            }
            Op::Reverse { dimensions } => {
                let mut rows = Rows::from_slice(rows);
                for &d in dimensions {
                    let last = shape.dimensions[d as usize] - 1;
                    rows[d as usize] = self.dag.affine(&[(rows[d as usize], -1)], last);
                }
                self.value(operand(0), &rows)?
            }
            Op::Slice { dimensions } => {
                let pairs = rows.iter().zip(dimensions);
                let rows: Rows =
                    pairs.map(|(&row, d)| self.dag.affine(&[(row, d.stride)], d.start)).collect();
                self.value(operand(0), &rows)?
            }
            Op::DynamicSlice { slice_sizes } => {
                let from = self.shape(instruction.operands[0])?;
                let starts = self.starts(name, 1, &from.dimensions, slice_sizes)?;
                let rows: Rows = rows
                    .iter()
                    .zip(starts)
                    .map(|(&row, start)| self.dag.affine(&[(row, 1), (start, 1)], 0))
                    .collect();
                self.value(operand(0), &rows)?
            }
            Op::DynamicUpdateSlice => self.pull_update(name, rows)?,
            Op::Concatenate { dimension } => self.pull_concatenate(name, rows, *dimension as usize)?,
            Op::Pad { dimensions } => self.pull_pad(name, rows, dimensions)?,
            Op::Gather(gather) => self.pull_gather(name, rows, gather)?,
            Op::Map { .. } => {
                let n = instruction.operands.len();
                let arguments =
                    (0..n).map(|k| self.value(operand(k), rows)).collect::<Result<Vec<_>, _>>()?;
                self.lambda(id, 0, &arguments)?[0]
            }
            Op::Dot(dot) => self.pull_dot(name, rows, &dot.dimensions)?,
            Op::Convolution(convolution) => self.pull_convolution(name, rows, convolution)?,
            Op::ReplicaId | Op::PartitionId => self.dag.constant(t, 0),
            _ => return Err(refusal(module, id, "there is no C for it inside a kernel")),
        })
    }

    /// An index as a number of the program.
    pub(crate) fn number(&mut self, index: NodeId, t: ElementType) -> NodeId {
        if let (Some(value), true) = (self.dag.as_integer(index), t.is_integral()) {
            return self.dag.constant(t, value as u64);
        }
        let function = |form, of| Function { form, result: Type::Element(of) };
        let c = operations::computed(t);
        let functions = match t {
            ElementType::Pred => vec![function(Form::NotZero, t)],
            t if c != t => vec![function(Form::Cast, c), function(Form::Helper("round", t, None), t)],
            t => vec![function(Form::Cast, t)],
        };
        self.chain(functions, &[index])
    }

    pub(crate) fn choose(&mut self, p: NodeId, x: NodeId, y: NodeId) -> NodeId {
        let of = self.dag.of(x);
        if x == y { x } else { self.dag.apply(operations::choose(of), &[p, x, y]) }
    }

    /// Whether all of these hold; `None` if there are none.
    pub(crate) fn all(&mut self, conditions: impl IntoIterator<Item = NodeId>) -> Option<NodeId> {
        conditions.into_iter().reduce(|p, q| self.dag.apply(operations::and(), &[p, q]))
    }

    /// A scalar operand applies to all elements.
    fn scalar_or_element(&mut self, name: Name, rows: &[NodeId]) -> Result<NodeId, Refusal> {
        let rank = self.shape(name.instruction)?.rank();
        self.value(name, if rank == 0 { &[] } else { rows })
    }

    fn reinterpreted(
        &mut self,
        id: InstructionId,
        x: NodeId,
        from: ElementType,
        to: ElementType,
    ) -> Result<NodeId, Refusal> {
        if from == to {
            return Ok(x);
        }
        let function = operations::bitcast(from, to);
        let function =
            function.ok_or_else(|| refusal(self.module, id, format!("it reads {from} as {to}")))?;
        Ok(self.dag.apply(function, &[x]))
    }

    /// The indices of a reshape's operand.
    pub(crate) fn reshaped(&mut self, rows: &[NodeId], to: &[i64], from: &[i64]) -> Rows {
        let mut unit = 1;
        let mut terms: SmallVec<[(NodeId, i64); 6]> = smallvec![];
        for (&row, &extent) in rows.iter().zip(to).rev() {
            terms.push((row, unit));
            unit *= extent;
        }
        let position = self.dag.affine(&terms, 0);
        self.digits(position, from)
    }

    /// The indices of the element at a row-major position.
    pub(crate) fn digits(&mut self, position: NodeId, extents: &[i64]) -> Rows {
        let mut unit = 1;
        let mut rows: Rows = smallvec![];
        for &extent in extents.iter().rev() {
            let rest = self.dag.quotient(position, unit);
            rows.push(self.dag.remainder(rest, extent.max(1)));
            unit *= extent.max(1);
        }
        rows.reverse();
        rows
    }

    /// The elements at the same places in memory, under the layout and extents of the operand.
    fn bitcast_rows(
        &mut self,
        id: InstructionId,
        from: &ArrayShape,
        to: &ArrayShape,
        rows: &[NodeId],
    ) -> Result<Rows, Refusal> {
        let is_plain = |shape: &ArrayShape| shape.layout.as_ref().is_none_or(|l| l.tiles.is_empty());
        if from.element_type.bits() != to.element_type.bits()
            || from.element_count() != to.element_count()
            || !is_plain(from)
            || !is_plain(to)
        {
            return Err(refusal(self.module, id, "its bytes are other elements"));
        }
        let physical = |shape: &ArrayShape| -> SmallVec<[i64; 6]> {
            shape.minor_to_major().iter().rev().map(|&d| shape.dimensions[d as usize]).collect()
        };
        let order: Rows = to.minor_to_major().iter().rev().map(|&d| rows[d as usize]).collect();
        let inner = self.reshaped(&order, &physical(to), &physical(from));
        let mut logical = inner.clone();
        from.minor_to_major().iter().rev().zip(inner).for_each(|(&d, row)| logical[d as usize] = row);
        Ok(logical)
    }

    /// The clamped starts of a dynamic slice: operands from `first` on, scalars or one vector.
    pub(crate) fn starts(
        &mut self,
        name: Name,
        first: usize,
        extents: &[i64],
        sizes: &[i64],
    ) -> Result<Rows, Refusal> {
        let operands = &self.module.instructions[name.instruction].operands[first..];
        let mut starts: Rows = smallvec![];
        for (k, (&extent, &size)) in extents.iter().zip(sizes).enumerate() {
            let is_vector = self.shape(operands[0])?.rank() == 1;
            let of = Name { instruction: operands[if is_vector { 0 } else { k }], leaf: 0, ..name };
            let at = if is_vector { vec![self.dag.integer(k as i64)] } else { vec![] };
            let start = self.value(of, &at)?;
            starts.push(self.clamped(start, extent - size));
        }
        Ok(starts)
    }

    /// An integer within `[0, high]`, as an index.
    pub(crate) fn clamped(&mut self, start: NodeId, high: i64) -> NodeId {
        match self.known(start) {
            Some(value) => self.dag.integer(value.clamp(0, high.max(0))),
            None => self.dag.clamp(start, high),
        }
    }

    /// The value of an integer that is a constant.
    pub(crate) fn known(&self, node: NodeId) -> Option<i64> {
        match self.dag.nodes[node] {
            crate::dag::Node::Constant(t, bits) if t.is_integral() => {
                let unused = 64 - t.bits();
                Some(match t.is_signed() {
                    true => (bits as i64) << unused >> unused,
                    false => i64::try_from(bits << unused >> unused).unwrap_or(i64::MAX),
                })
            }
            _ => self.dag.as_integer(node),
        }
    }

    fn pull_update(&mut self, name: Name, rows: &[NodeId]) -> Result<NodeId, Refusal> {
        let instruction = &self.module.instructions[name.instruction];
        let operand = |k: usize| Name { instruction: instruction.operands[k], leaf: 0, ..name };
        let (shape, update) = (self.shape(name.instruction)?, self.shape(instruction.operands[1])?);
        if update.element_count() == Some(0) {
            return self.value(operand(0), rows);
        }
        let starts = self.starts(name, 2, &shape.dimensions, &update.dimensions)?;
        let mut inside: SmallVec<[NodeId; 6]> = smallvec![];
        let mut moved: Rows = smallvec![];
        for ((&row, start), &extent) in rows.iter().zip(starts).zip(&update.dimensions) {
            let row = self.dag.affine(&[(row, 1), (start, -1)], 0);
            inside.extend(self.dag.in_range(row, 0, extent));
            moved.push(self.dag.clamp(row, extent - 1));
        }
        let u = self.value(operand(1), &moved)?;
        match self.all(inside) {
            None => Ok(u),
            Some(p) => {
                let x = self.value(operand(0), rows)?;
                Ok(self.choose(p, u, x))
            }
        }
    }

    fn pull_concatenate(&mut self, name: Name, rows: &[NodeId], dimension: usize) -> Result<NodeId, Refusal> {
        let operands = &self.module.instructions[name.instruction].operands;
        let mut parts: Vec<(NodeId, i64)> = Vec::new();
        let mut begin = 0;
        for &operand in operands {
            let extent = self.shape(operand)?.dimensions[dimension];
            if extent == 0 {
                continue;
            }
            let mut rows = Rows::from_slice(rows);
            let row = self.dag.affine(&[(rows[dimension], 1)], -begin);
            rows[dimension] = self.dag.clamp(row, extent - 1);
            begin += extent;
            parts.push((self.value(Name { instruction: operand, leaf: 0, ..name }, &rows)?, begin));
        }
        let Some((mut result, _)) = parts.pop() else {
            return Err(refusal(self.module, name.instruction, "it has no elements"));
        };
        for (part, end) in parts.into_iter().rev() {
            result = match self.dag.in_range(rows[dimension], 0, end) {
                Some(p) => self.choose(p, part, result),
                None => part,
            };
        }
        Ok(result)
    }

    fn pull_pad(
        &mut self,
        name: Name,
        rows: &[NodeId],
        padding: &[PaddingDimension],
    ) -> Result<NodeId, Refusal> {
        let operands = &self.module.instructions[name.instruction].operands;
        let operand = |k: usize| Name { instruction: operands[k], leaf: 0, ..name };
        let from = self.shape(operands[0])?;
        let value = self.value(operand(1), &[])?;
        if from.element_count() == Some(0) {
            return Ok(value);
        }
        let mut inside: SmallVec<[NodeId; 6]> = smallvec![];
        let mut inner: Rows = smallvec![];
        for ((&row, p), &extent) in rows.iter().zip(padding).zip(&from.dimensions) {
            let shifted = self.dag.affine(&[(row, 1)], -p.low);
            let step = p.interior + 1;
            inside.extend(self.dag.in_range(shifted, 0, (extent - 1) * step + 1));
            let shifted = self.dag.clamp(shifted, (extent - 1) * step);
            let rest = self.dag.remainder(shifted, step);
            inside.extend(self.dag.in_range(rest, 0, 1));
            inner.push(self.dag.quotient(shifted, step));
        }
        let x = self.value(operand(0), &inner)?;
        let inside = self.all(inside);
        Ok(inside.map_or(x, |p| self.choose(p, x, value)))
    }

    fn pull_gather(&mut self, name: Name, rows: &[NodeId], g: &GatherDimensions) -> Result<NodeId, Refusal> {
        let operands = &self.module.instructions[name.instruction].operands;
        let operand = |k: usize| Name { instruction: operands[k], leaf: 0, ..name };
        let (from, indices) = (self.shape(operands[0])?, self.shape(operands[1])?);
        let is_batch = |d: &usize| !g.offset_dims.contains(&(*d as i64));
        let batch: Rows = (0..rows.len()).filter(is_batch).map(|d| rows[d]).collect();
        let mut offset_dims = g.offset_dims.iter();
        let mut inner: Rows = smallvec![];
        for (d, &extent) in (0i64..).zip(&from.dimensions) {
            let mut terms: SmallVec<[(NodeId, i64); 3]> = smallvec![];
            if !g.collapsed_slice_dims.contains(&d) && !g.operand_batching_dims.contains(&d) {
                let at = offset_dims.next();
                let at =
                    at.ok_or_else(|| refusal(self.module, name.instruction, "offset_dims are too few"))?;
                terms.push((rows[*at as usize], 1));
            }
            if let Some(k) = g.start_index_map.iter().position(|&m| m == d) {
                let at = self.index_vector(&batch, indices.rank(), g.index_vector_dim, k);
                let start = self.value(operand(1), &at)?;
                terms.push((self.clamped(start, extent - g.slice_sizes[d as usize]), 1));
            }
            if let Some(k) = g.operand_batching_dims.iter().position(|&m| m == d) {
                let of = g.start_indices_batching_dims[k];
                terms.push((batch[(of - i64::from(of > g.index_vector_dim)) as usize], 1));
            }
            inner.push(self.dag.affine(&terms, 0));
        }
        self.value(operand(0), &inner)
    }

    /// The indices of component `k` of the index vector of a batch.
    pub(crate) fn index_vector(&mut self, batch: &[NodeId], rank: usize, dimension: i64, k: usize) -> Rows {
        let mut rows = Rows::from_slice(batch);
        if (dimension as usize) < rank {
            rows.insert(dimension as usize, self.dag.integer(k as i64));
        }
        rows
    }
}

/// The bits of a constant's only element, as [`Node::Constant`](crate::dag::Node) keeps them.
pub(crate) fn constant_bits(t: ElementType, bytes: &[u8]) -> u64 {
    let mut wide = [0; 8];
    wide[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
    let bits = u64::from_le_bytes(wide);
    match t {
        ElementType::Bf16 => bits << 16,
        ElementType::F16 => u64::from(f32_of_f16(bits as u16).to_bits()),
        _ => bits,
    }
}

/// A half-precision number as a single-precision one.
fn f32_of_f16(bits: u16) -> f32 {
    let (sign, exponent, fraction) = (bits >> 15, bits >> 10 & 0x1f, u32::from(bits & 0x3ff));
    let magnitude = match exponent {
        0 => fraction as f32 * 2f32.powi(-24),
        0x1f if fraction == 0 => f32::INFINITY,
        0x1f => f32::NAN,
        e => (1024 + fraction) as f32 * 2f32.powi(i32::from(e) - 25),
    };
    if sign == 1 { -magnitude } else { magnitude }
}
