//! One rule per operation: the operand elements that an element of the result needs.

use std::collections::BTreeSet;

use memplan_ir::scopes::Name;
use memplan_ir::{
    Access, ArrayShape, BinaryOp, ComparisonType, Computation, ComputationId, ElementType, GatherDimensions,
    InstructionId, Literal, Module, Op, PaddingDimension, Role, Shape,
};
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use crate::Error;
use crate::compile::check_precision;
use crate::element::{Class, Lanes};
use crate::lower::{DomainId, Ix, Leaf, Lower, Need};
use crate::math;
use crate::program::{Reg, Source, StepOp};
use memplan_memory::Addressing;

/// Which computations consist of operations with a rule here.
pub(crate) struct Pullable(FxHashMap<ComputationId, bool>);

impl Pullable {
    /// Looks at all computations. Linear in the module.
    pub(crate) fn new(module: &Module) -> Pullable {
        Pullable::of(module, module.computations.keys())
    }

    /// Looks at what one instruction calls, and at what that calls.
    pub(crate) fn below(module: &Module, id: InstructionId) -> Pullable {
        Pullable::from_computations(module, module.instructions[id].called.iter().copied())
    }

    /// Analyzes some computations, and their callees.
    pub(crate) fn from_computations(
        module: &Module,
        computations: impl IntoIterator<Item = ComputationId>,
    ) -> Pullable {
        let mut found: BTreeSet<ComputationId> = computations.into_iter().collect();
        let mut pending: Vec<ComputationId> = found.iter().copied().collect();
        while let Some(computation) = pending.pop() {
            for (_, instruction) in module.instructions_of(computation) {
                pending.extend(instruction.called.iter().filter(|&&callee| found.insert(callee)));
            }
        }
        Pullable::of(module, found)
    }

    /// Analyzes computations in order of their ids: callees precede callers.
    fn of(module: &Module, computations: impl IntoIterator<Item = ComputationId>) -> Pullable {
        let mut pullable = Pullable(FxHashMap::default());
        for id in computations {
            let is_pullable =
                module.computations[id].instructions.iter().all(|&i| pullable.instruction(module, i));
            pullable.0.insert(id, is_pullable);
        }
        pullable
    }

    pub(crate) fn computation(&self, computation: ComputationId) -> bool {
        self.0.get(&computation).copied().unwrap_or(false)
    }

    /// Whether an instruction's elements can be computed one by one from its operands' elements.
    pub(crate) fn instruction(&self, module: &Module, id: InstructionId) -> bool {
        let instruction = &module.instructions[id];
        let operand_shape = |k: usize| module.shape(instruction.operands[k]).as_array();
        match &instruction.op {
            op if op.is_elementwise() => true,
            Op::Parameter { .. }
            | Op::Constant(Literal::Array(_))
            | Op::DynamicUpdateSlice
            | Op::GetTupleElement { .. }
            | Op::Tuple => true,
            Op::GetDimensionSize { dimension } => {
                operand_shape(0).is_some_and(|s| !s.is_dynamic_dimension(*dimension as usize))
            }
            Op::BitcastConvert => match (operand_shape(0), module.shape(id).as_array()) {
                (Some(from), Some(to)) => from.element_type.bits() == to.element_type.bits(),
                _ => false,
            },
            Op::Bitcast => match (operand_shape(0), module.shape(id).as_array()) {
                (Some(from), Some(to)) => is_index_bitcast(from, to),
                _ => false,
            },
            op if op.traits().access == Access::Reindexing => true,
            Op::Map { .. } | Op::Call { .. } | Op::Fusion(_) => {
                instruction.called.first().is_some_and(|&c| self.computation(c))
            }
            op => op.traits().role == Role::PassesOn,
        }
    }
}

/// Whether a bitcast only renames indices: elements of one width, each array dense in its own order.
fn is_index_bitcast(from: &ArrayShape, to: &ArrayShape) -> bool {
    let is_plain = |shape: &ArrayShape| {
        shape
            .layout
            .as_ref()
            .is_none_or(|l| l.tiles.is_empty() && l.tail_padding_alignment_in_elements() <= 1)
            && Addressing::new(shape).is_some_and(|a| a.packed_bits.is_none())
    };
    from.element_type.bits() == to.element_type.bits()
        && from.element_count() == to.element_count()
        && is_plain(from)
        && is_plain(to)
}

impl Lower<'_> {
    /// Appends the steps for an instruction's elements at a domain. Returns the missing operand if an operand's
    /// elements do not exist yet.
    pub(crate) fn emit(&mut self, name: Name, domain: DomainId) -> Result<Reg, Need> {
        let module = self.module;
        check_precision(module, name.instruction)?;
        let instruction = &module.instructions[name.instruction];
        let shape = module.shape(name.instruction);
        let Some(shape) = shape.as_array() else {
            return Err(Error::unsupported(module, name.instruction, "it is not an array").into());
        };
        let t = shape.element_type;
        let class = Class::of(t);
        let operand = |k: usize| Name { scope: name.scope, instruction: instruction.operands[k], leaf: 0 };
        let operand_shape = |k: usize| array_shape(module, instruction.operands[k]);
        let operand_type = |k: usize| operand_shape(k).map(|s| s.element_type);
        match &instruction.op {
            Op::Unary(op) => {
                let from = operand_type(0)?;
                let is_defined = math::unary(*op, from, &no_lanes(from), &mut no_lanes(t), 0).is_some();
                self.check_type(is_defined, name.instruction, from)?;
                let [x] = self.all([(operand(0), domain)])?;
                Ok(self.step(StepOp::Unary(*op, from), class, [x]))
            }
            Op::Binary(op) => {
                let from = operand_type(0)?;
                let (x, y) = (no_lanes(from), no_lanes(from));
                let is_defined = math::binary(*op, from, &x, &y, &mut no_lanes(t), 0).is_some();
                self.check_type(is_defined, name.instruction, from)?;
                let [x, y] = self.all([(operand(0), domain), (operand(1), domain)])?;
                Ok(self.step(StepOp::Binary(*op, from), class, [x, y]))
            }
            Op::Compare { direction, comparison_type } => {
                let from = operand_type(0)?;
                let kind = comparison_type.unwrap_or_else(|| ComparisonType::default_for(from));
                let [x, y] = self.all([(operand(0), domain), (operand(1), domain)])?;
                Ok(self.step(StepOp::Compare(*direction, kind, from), class, [x, y]))
            }
            Op::Select => {
                let p = self.scalar_or(operand_shape(0)?, domain);
                let [p, x, y] = self.all([(operand(0), p), (operand(1), domain), (operand(2), domain)])?;
                Ok(self.step(StepOp::Select, class, [p, x, y]))
            }
            Op::Clamp => {
                let low = self.scalar_or(operand_shape(0)?, domain);
                let high = self.scalar_or(operand_shape(2)?, domain);
                let [low, x, high] =
                    self.all([(operand(0), low), (operand(1), domain), (operand(2), high)])?;
                let raised = self.step(StepOp::Binary(BinaryOp::Maximum, t), class, [low, x]);
                Ok(self.step(StepOp::Binary(BinaryOp::Minimum, t), class, [raised, high]))
            }
            Op::Convert => {
                let from = operand_type(0)?;
                let [x] = self.all([(operand(0), domain)])?;
                Ok(if from == t { x } else { self.step(StepOp::Convert { from, to: t }, class, [x]) })
            }
            Op::StochasticConvert => {
                let from = operand_type(0)?;
                let [x, random] = self.all([(operand(0), domain), (operand(1), domain)])?;
                Ok(self.step(StepOp::StochasticConvert { from, to: t }, class, [x, random]))
            }
            Op::ReducePrecision { exponent_bits, mantissa_bits } => {
                let [x] = self.all([(operand(0), domain)])?;
                let (exponent_bits, mantissa_bits) = (*exponent_bits, *mantissa_bits);
                let op = StepOp::ReducePrecision { element_type: t, exponent_bits, mantissa_bits };
                Ok(self.step(op, class, [x]))
            }
            Op::BitcastConvert => {
                let [x] = self.all([(operand(0), domain)])?;
                Ok(self.reinterpreted(x, operand_type(0)?, t))
            }
            Op::Bitcast => {
                let from = operand_shape(0)?;
                let domain = self.bitcast_domain(from, shape, domain);
                let [x] = self.all([(operand(0), domain)])?;
                Ok(self.reinterpreted(x, from.element_type, t))
            }
            Op::Constant(Literal::Array(literal)) => {
                let bytes = literal.bytes();
                if literal.element_count() == 1 {
                    return Ok(self.step(StepOp::Constant(t, SmallVec::from_slice(&bytes)), class, []));
                }
                let dense = ArrayShape::new(t, literal.dimensions.iter().copied());
                let addressing = crate::lower::addressing(&dense)?;
                let array = self.array(Source::Literal(bytes), t, addressing);
                self.scopes.store(name, Leaf::Array(array));
                Ok(self.all([(name, domain)])?[0])
            }
            Op::Iota { dimension } => {
                let row = self.rows(domain)[*dimension as usize];
                let row = self.index(row);
                Ok(self.step(StepOp::Convert { from: ElementType::S64, to: t }, class, [row]))
            }
            Op::GetDimensionSize { dimension } => {
                let extent = operand_shape(0)?.dimensions[*dimension as usize];
                let value = self.index(Ix::Constant(extent));
                Ok(self.step(StepOp::Convert { from: ElementType::S64, to: t }, class, [value]))
            }
            Op::Broadcast { dimensions } => {
                let rows = self.rows(domain);
                let from = operand_shape(0)?;
                let row = |(&d, &e): (&i64, &i64)| if e == 1 { Ix::Constant(0) } else { rows[d as usize] };
                let rows = dimensions.iter().zip(&from.dimensions).map(row).collect();
                let domain = self.rows_domain(&from.dimensions, rows);
                Ok(self.all([(operand(0), domain)])?[0])
            }
            Op::Reshape { .. } => {
                let domain = self.reshaped(domain, &operand_shape(0)?.dimensions);
                Ok(self.all([(operand(0), domain)])?[0])
            }
            Op::Transpose { dimensions } => {
                let from = operand_shape(0)?;
                let rows = self.rows(domain);
                let mut moved: SmallVec<[Ix; 6]> = smallvec![Ix::Constant(0); rows.len()];
                dimensions.iter().zip(rows).for_each(|(&d, row)| moved[d as usize] = row);
                let domain = self.rows_domain(&from.dimensions, moved);
                Ok(self.all([(operand(0), domain)])?[0])
            }
            Op::Reverse { dimensions } => {
                let mut rows = self.rows(domain);
                for &d in dimensions {
                    rows[d as usize] =
                        self.weighted(&[(rows[d as usize], -1)], shape.dimensions[d as usize] - 1);
                }
                let domain = self.rows_domain(&shape.dimensions, rows);
                Ok(self.all([(operand(0), domain)])?[0])
            }
            Op::Slice { dimensions } => {
                let mut rows = self.rows(domain);
                for (row, d) in rows.iter_mut().zip(dimensions) {
                    *row = self.weighted(&[(*row, d.stride)], d.start);
                }
                let domain = self.rows_domain(&operand_shape(0)?.dimensions, rows);
                Ok(self.all([(operand(0), domain)])?[0])
            }
            Op::DynamicSlice { slice_sizes } => {
                let from = operand_shape(0)?;
                let starts = self.starts(name, 1, &from.dimensions, slice_sizes)?;
                let mut rows = self.rows(domain);
                for (row, &start) in rows.iter_mut().zip(&starts) {
                    *row = self.weighted(&[(*row, 1), (start, 1)], 0);
                }
                let domain = self.rows_domain(&from.dimensions, rows);
                Ok(self.all([(operand(0), domain)])?[0])
            }
            Op::DynamicUpdateSlice => {
                let update = operand_shape(1)?;
                if update.element_count() == Some(0) {
                    return Ok(self.all([(operand(0), domain)])?[0]);
                }
                let starts = self.starts(name, 2, &shape.dimensions, &update.dimensions)?;
                let rows = self.rows(domain);
                let moved: SmallVec<[Ix; 6]> = rows
                    .iter()
                    .zip(&starts)
                    .map(|(&row, &start)| self.weighted(&[(row, 1), (start, -1)], 0))
                    .collect();
                let inside: SmallVec<[Reg; 6]> =
                    moved.iter().zip(&update.dimensions).map(|(&row, &e)| self.in_range(row, 0, e)).collect();
                let clamped =
                    moved.iter().zip(&update.dimensions).map(|(&row, &e)| self.clamped(row, e)).collect();
                let clamped = self.rows_domain(&update.dimensions, clamped);
                let [x, u] = self.all([(operand(0), domain), (operand(1), clamped)])?;
                let inside = self.conjunction(inside);
                Ok(inside.map_or(u, |p| self.step(StepOp::Select, class, [p, u, x])))
            }
            Op::Concatenate { dimension } => self.emit_concatenate(name, domain, *dimension as usize, class),
            Op::Pad { dimensions } => self.emit_pad(name, domain, dimensions, class),
            Op::Gather(gather) => self.emit_gather(name, domain, gather),
            Op::Map { .. } => {
                let operands = (0..instruction.operands.len()).map(|k| (operand(k), domain));
                let parameters = self.many(operands)?.into_iter().map(|r| vec![Leaf::Element(r)]).collect();
                let scope = self.map_scope(name, domain, parameters);
                let root = module.computations[instruction.called[0]].root;
                let scalar = self.scalar_domain();
                Ok(self.all([(Name { scope, instruction: root, leaf: 0 }, scalar)])?[0])
            }
            _ => Err(Error::unsupported(module, name.instruction, "it has no value per element").into()),
        }
    }

    fn emit_concatenate(
        &mut self,
        name: Name,
        domain: DomainId,
        dimension: usize,
        class: Class,
    ) -> Result<Reg, Need> {
        let module = self.module;
        let rows = self.rows(domain);
        let mut begin = 0;
        let (mut wanted, mut ends) = (Vec::new(), Vec::new());
        for &operand in &module.instructions[name.instruction].operands {
            let shape = array_shape(module, operand)?;
            let extent = shape.dimensions[dimension];
            if extent == 0 {
                continue;
            }
            let mut rows = rows.clone();
            let row = self.weighted(&[(rows[dimension], 1)], -begin);
            rows[dimension] = self.clamped(row, extent);
            let domain = self.rows_domain(&shape.dimensions, rows);
            wanted.push((Name { scope: name.scope, instruction: operand, leaf: 0 }, domain));
            begin += extent;
            ends.push(begin);
        }
        let parts = self.many(wanted)?;
        let Some((&last, others)) = parts.split_last() else {
            return Err(Error::invalid(module, name.instruction, "it has no elements").into());
        };
        let mut result = last;
        for (&part, &end) in others.iter().zip(&ends).rev() {
            let p = self.in_range(rows[dimension], i64::MIN, end);
            result = self.step(StepOp::Select, class, [p, part, result]);
        }
        Ok(result)
    }

    fn emit_pad(
        &mut self,
        name: Name,
        domain: DomainId,
        padding: &[PaddingDimension],
        class: Class,
    ) -> Result<Reg, Need> {
        let module = self.module;
        let operands = &module.instructions[name.instruction].operands;
        let operand = |k: usize| Name { scope: name.scope, instruction: operands[k], leaf: 0 };
        let from = array_shape(module, operands[0])?;
        let scalar = self.scalar_domain();
        if from.element_count() == Some(0) {
            return Ok(self.all([(operand(1), scalar)])?[0]);
        }
        let rows = self.rows(domain);
        let mut inside: SmallVec<[Reg; 6]> = smallvec![];
        let mut inner: SmallVec<[Ix; 6]> = smallvec![];
        for ((&row, p), &extent) in rows.iter().zip(padding).zip(&from.dimensions) {
            let to = array_shape(module, name.instruction)?.dimensions[inner.len()];
            let shifted = self.weighted(&[(row, 1)], -p.low);
            let step = p.interior + 1;
            let covered = p.low <= 0 && to - p.low <= (extent - 1) * step + 1;
            if !covered {
                inside.push(self.in_range(shifted, 0, (extent - 1) * step + 1));
            }
            if step > 1 {
                let register = self.index(shifted);
                inside.push(self.step(StepOp::IsMultiple { of: step }, Class::Int, [register]));
            }
            let row = self.digit(shifted, step, 0);
            inner.push(if covered { row } else { self.clamped(row, extent) });
        }
        let inner = self.rows_domain(&from.dimensions, inner);
        let [x, padding] = self.all([(operand(0), inner), (operand(1), scalar)])?;
        let inside = self.conjunction(inside);
        Ok(inside.map_or(x, |p| self.step(StepOp::Select, class, [p, x, padding])))
    }

    fn emit_gather(&mut self, name: Name, domain: DomainId, g: &GatherDimensions) -> Result<Reg, Need> {
        let module = self.module;
        let operands = &module.instructions[name.instruction].operands;
        let operand = |k: usize| Name { scope: name.scope, instruction: operands[k], leaf: 0 };
        let (from, indices) = (array_shape(module, operands[0])?, array_shape(module, operands[1])?);
        let rows = self.rows(domain);
        let batch: SmallVec<[Ix; 6]> =
            (0..rows.len()).filter(|&d| !g.offset_dims.contains(&(d as i64))).map(|d| rows[d]).collect();
        let wanted = (0..g.start_index_map.len() as i64)
            .map(|k| {
                (operand(1), self.index_vector_domain(&indices.dimensions, &batch, g.index_vector_dim, k))
            })
            .collect::<Vec<_>>();
        let starts = self.many(wanted)?;
        let is_unsigned = indices.element_type.is_unsigned();
        let mut offset_dims = g.offset_dims.iter();
        let mut inner: SmallVec<[Ix; 6]> = smallvec![];
        for (d, &extent) in (0i64..).zip(&from.dimensions) {
            let mut terms: SmallVec<[(Ix, i64); 3]> = smallvec![];
            if !g.collapsed_slice_dims.contains(&d) && !g.operand_batching_dims.contains(&d) {
                let at = offset_dims
                    .next()
                    .ok_or_else(|| Error::invalid(module, name.instruction, "offset_dims are too few"))?;
                terms.push((rows[*at as usize], 1));
            }
            if let Some(k) = g.start_index_map.iter().position(|&m| m == d) {
                terms.push((
                    self.clamped_start(starts[k], extent - g.slice_sizes[d as usize], is_unsigned),
                    1,
                ));
            }
            if let Some(k) = g.operand_batching_dims.iter().position(|&m| m == d) {
                let of = g.start_indices_batching_dims[k];
                terms.push((batch[(of - (of > g.index_vector_dim) as i64) as usize], 1));
            }
            inner.push(self.weighted(&terms, 0));
        }
        let inner = self.rows_domain(&from.dimensions, inner);
        Ok(self.all([(operand(0), inner)])?[0])
    }

    /// The domain of component `k` of the index vectors at batch indices.
    pub(crate) fn index_vector_domain(
        &mut self,
        extents: &[i64],
        batch: &[Ix],
        vector_dim: i64,
        k: i64,
    ) -> DomainId {
        let mut rows: SmallVec<[Ix; 6]> = batch.into();
        if (vector_dim as usize) < extents.len() {
            rows.insert(vector_dim as usize, Ix::Constant(k));
        }
        self.rows_domain(extents, rows)
    }

    /// The clamped starts of a dynamic slice: operands from `first` on, scalars or one vector. Scalars that are constants
    /// are known here, so that such a slice has the indices of one whose starts are part of the operation.
    pub(crate) fn starts(
        &mut self,
        name: Name,
        first: usize,
        extents: &[i64],
        sizes: &[i64],
    ) -> Result<SmallVec<[Ix; 6]>, Need> {
        let module = self.module;
        let operands = &module.instructions[name.instruction].operands[first..];
        let operand = |k: usize| Name { scope: name.scope, instruction: operands[k], leaf: 0 };
        if extents.is_empty() {
            return Ok(smallvec![]);
        }
        let shape = array_shape(module, operands[0])?;
        let wanted: Vec<_> = if shape.rank() == 1 {
            (0..extents.len() as i64)
                .map(|k| (operand(0), self.rows_domain(&shape.dimensions, smallvec![Ix::Constant(k)])))
                .collect()
        } else {
            let scalar = self.scalar_domain();
            (0..extents.len()).map(|k| (operand(k), scalar)).collect()
        };
        let is_unsigned = shape.element_type.is_unsigned();
        let known = |k: usize| match &module.instructions[*operands.get(k)?].op {
            Op::Constant(literal) if shape.rank() == 0 => literal.as_array()?.as_integer(),
            _ => None,
        };
        let unknown = wanted.into_iter().enumerate().filter(|&(k, _)| known(k).is_none());
        let mut computed = self.many(unknown.map(|(_, wanted)| wanted))?.into_iter();
        let limits = extents.iter().zip(sizes).map(|(extent, size)| extent - size);
        Ok(limits
            .enumerate()
            .map(|(k, limit)| match known(k) {
                Some(start) => Ix::Constant(start.clamp(0, limit.max(0))),
                None => {
                    let start = computed.next().expect("every start is known or computed");
                    self.clamped_start(start, limit, is_unsigned)
                }
            })
            .collect())
    }

    fn clamped_start(&mut self, start: Reg, high: i64, is_unsigned: bool) -> Ix {
        if high <= 0 {
            return Ix::Constant(0);
        }
        Ix::Reg(self.step(StepOp::ClampIndex { low: 0, high, is_unsigned }, Class::Int, [start]))
    }

    /// An index clamped to an extent, if a mask decides whether the element is used.
    pub(crate) fn clamped(&mut self, ix: Ix, extent: i64) -> Ix {
        match ix {
            _ if extent <= 1 => Ix::Constant(0),
            Ix::Constant(value) => Ix::Constant(value.clamp(0, extent - 1)),
            Ix::Reg(register) => {
                let op = StepOp::ClampIndex { low: 0, high: extent - 1, is_unsigned: false };
                Ix::Reg(self.step(op, Class::Int, [register]))
            }
        }
    }

    pub(crate) fn in_range(&mut self, ix: Ix, low: i64, high: i64) -> Reg {
        let register = self.index(ix);
        self.step(StepOp::InRange { low, high }, Class::Int, [register])
    }

    /// Whether all of these hold; `None` when there are none.
    pub(crate) fn conjunction(&mut self, predicates: impl IntoIterator<Item = Reg>) -> Option<Reg> {
        predicates
            .into_iter()
            .reduce(|p, q| self.step(StepOp::Binary(BinaryOp::And, ElementType::Pred), Class::Int, [p, q]))
    }

    fn reinterpreted(&mut self, x: Reg, from: ElementType, to: ElementType) -> Reg {
        if from == to { x } else { self.step(StepOp::BitcastConvert { from, to }, Class::of(to), [x]) }
    }

    /// A scalar operand that applies to all elements has the scalar domain.
    fn scalar_or(&mut self, shape: &ArrayShape, domain: DomainId) -> DomainId {
        if shape.rank() == 0 { self.scalar_domain() } else { domain }
    }

    /// The elements at the same places in memory, under the layout and extents of the operand.
    fn bitcast_domain(&mut self, from: &ArrayShape, to: &ArrayShape, domain: DomainId) -> DomainId {
        let physical = |shape: &ArrayShape| -> SmallVec<[i64; 6]> {
            shape.minor_to_major().iter().rev().map(|&d| shape.dimensions[d as usize]).collect()
        };
        let in_memory = if to.is_row_major() {
            domain
        } else {
            let rows = self.rows(domain);
            let rows = to.minor_to_major().iter().rev().map(|&d| rows[d as usize]).collect();
            self.rows_domain(&physical(to), rows)
        };
        let in_memory = self.reshaped(in_memory, &physical(from));
        if from.is_row_major() {
            return in_memory;
        }
        let rows = self.rows(in_memory);
        let mut logical: SmallVec<[Ix; 6]> = smallvec![Ix::Constant(0); rows.len()];
        from.minor_to_major().iter().rev().zip(rows).for_each(|(&d, row)| logical[d as usize] = row);
        self.rows_domain(&from.dimensions, logical)
    }

    fn check_type(&self, is_fine: bool, id: InstructionId, element_type: ElementType) -> Result<(), Error> {
        let instruction = &self.module.instructions[id];
        if is_fine {
            return Ok(());
        }
        Err(Error::ElementType {
            instruction: instruction.name.to_string(),
            opcode: instruction.opcode(),
            element_type,
        })
    }
}

/// Empty registers, which are enough to learn whether an operation is defined for their types.
fn no_lanes(t: ElementType) -> Lanes {
    Lanes::new(Class::of(t), 0)
}

/// The shape of an instruction that must be an array.
pub(crate) fn array_shape(module: &Module, id: InstructionId) -> Result<&ArrayShape, Error> {
    module.shape(id).as_array().ok_or_else(|| Error::invalid(module, id, "an array is expected here"))
}

/// The operation of a scalar computation, if it is a single one on its parameters in order.
pub(crate) fn as_binary(module: &Module, computation: &Computation) -> Option<BinaryOp> {
    let root = &module.instructions[computation.root];
    let Op::Binary(op) = root.op else { return None };
    let is_parameter = |k: usize| {
        let id = root.operands[k];
        module.instructions[id].op == Op::Parameter { number: k as u32 }
            && matches!(module.shape(id), Shape::Array(a) if a.rank() == 0)
    };
    (computation.parameters.len() == 2 && is_parameter(0) && is_parameter(1)).then_some(op)
}
