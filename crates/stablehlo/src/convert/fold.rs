//! What MLIR folds on the way to HLO: operations that change nothing, and those of constants with one repeated element.

use std::cmp::Ordering;

use memplan_ir::{
    ArrayShape, BinaryOp, ComparisonDirection, ElementType, Insert, InstructionId, Op, Scalar, Shape,
    SliceDimension, UnaryOp,
};

use super::{Body, Converter};
use crate::mlir::{Elements, LocationId};

impl Converter<'_> {
    /// The instruction that an operation is without being computed; `None` where it must be.
    pub(super) fn folded(
        &mut self,
        op: &Op,
        operands: &[InstructionId],
        shape: &Shape,
        location: LocationId,
        body: &mut Body,
    ) -> Option<InstructionId> {
        let Shape::Array(result) = shape else { return None };
        if result.is_dynamic() || result.element_count().is_none() {
            return None;
        }
        let same = |id: InstructionId| {
            let array = self.module.shape(id).as_array();
            array.is_some_and(|array| array.same_ignoring_layout(result))
        };
        if result.element_count() == Some(0) && op.opcode().traits().effect == memplan_ir::Effect::None {
            let elements = Elements { shape: result.clone(), bytes: [].as_slice().into(), is_splat: false };
            return Some(self.constant_of(&elements, location, body));
        }
        let constants: Vec<Option<Scalar>> = operands.iter().map(|&id| self.repeated(id)).collect();
        let value = match (op, operands, &constants[..]) {
            (Op::Convert, &[x], _) if same(x) => return Some(x),
            (Op::Convert, _, [Some(x)]) => converted(*x, result.element_type)?,
            (Op::Reshape { .. }, &[x], _) if same(x) => return Some(x),
            (Op::Reshape { .. } | Op::Transpose { .. } | Op::Slice { .. }, _, [Some(x)]) => *x,
            (Op::Broadcast { .. }, _, [Some(x)]) => *x,
            (Op::Transpose { dimensions }, &[x], _)
                if same(x) && dimensions.iter().enumerate().all(|(i, &d)| d == i as i64) =>
            {
                return Some(x);
            }
            (Op::Slice { .. }, &[x], _) if same(x) => return Some(x),
            (Op::Slice { dimensions }, &[x], _) => {
                let source = &self.module.instructions[x];
                let Op::Concatenate { dimension } = source.op else { return None };
                let whole = self.module.shape(x).as_array()?;
                // The part of a concatenation that is one of its operands.
                let others = dimensions.iter().enumerate().all(|(d, range)| {
                    d as i64 == dimension
                        || range.start == 0 && range.stride == 1 && range.limit == whole.dimensions[d]
                });
                let range = dimensions.get(dimension as usize)?;
                let mut at = 0;
                for &part in &source.operands {
                    let extent = self.module.shape(part).as_array()?.dimensions[dimension as usize];
                    if others && range.stride == 1 && range.start == at && range.limit == at + extent {
                        return Some(part);
                    }
                    at += extent;
                }
                return None;
            }
            (Op::Pad { dimensions }, &[x, _], _)
                if dimensions.iter().all(|d| d.low == 0 && d.high == 0 && d.interior == 0) =>
            {
                return Some(x);
            }
            (Op::Concatenate { .. }, &[x], _) => return Some(x),
            (Op::Concatenate { .. }, _, [Some(first), rest @ ..])
                if rest.iter().all(|other| *other == Some(*first)) =>
            {
                *first
            }
            (Op::Unary(UnaryOp::Negate), _, [Some(x)]) => negated(*x)?,
            (Op::Unary(UnaryOp::Not), _, [Some(x)]) if x.element_type == ElementType::Pred => {
                Scalar::integer(ElementType::Pred, i64::from(x.is_zero()))
            }
            (Op::Concatenate { dimension }, operands, _) => {
                return self.joined(operands, *dimension, result, location, body);
            }
            (Op::Unary(part @ (UnaryOp::Real | UnaryOp::Imag)), &[x], _) => {
                let source = &self.module.instructions[x];
                let Op::Binary(BinaryOp::Complex) = source.op else { return None };
                return source.operands.get(usize::from(*part == UnaryOp::Imag)).copied();
            }
            (Op::Unary(op), _, [Some(x)]) => computed(*op, *x)?,
            (Op::Binary(op), _, [Some(x), Some(y)]) => combined(*op, *x, *y)?,
            (Op::Binary(BinaryOp::Multiply), &[x, _], [_, Some(y)]) if y.is_one() && same(x) => {
                return Some(x);
            }
            (Op::Binary(BinaryOp::Or), &[x, _], [_, Some(y)]) if y.is_zero() && same(x) => return Some(x),
            (Op::Binary(BinaryOp::And), _, [_, Some(y)]) if y.is_zero() => *y,
            (Op::Binary(BinaryOp::Or | BinaryOp::And), &[x, _], [_, Some(y)])
                if y.element_type == ElementType::Pred && y.is_one() =>
            {
                match op {
                    Op::Binary(BinaryOp::Or) => *y,
                    _ if same(x) => return Some(x),
                    _ => return None,
                }
            }
            (Op::Binary(BinaryOp::Multiply), _, [_, Some(y)])
                if y.element_type.is_integral() && y.is_zero() =>
            {
                *y
            }
            (Op::Binary(BinaryOp::Add | BinaryOp::Subtract), &[x, _], [_, Some(y)])
                if y.is_zero() && same(x) =>
            {
                return Some(x);
            }
            (Op::Reverse { dimensions }, &[x], _)
                if dimensions.iter().all(|&d| result.dimensions.get(d as usize) == Some(&1)) =>
            {
                return Some(x);
            }
            (Op::Reshape { .. }, &[x], _) => return self.reshaped(x, result, body),
            (Op::Reduce { dimensions }, &[x, _], _) if dimensions.is_empty() => return Some(x),
            (Op::Reduce { .. }, &[x, initial], _) => {
                let array = self.module.shape(x).as_array()?;
                if array.element_count() != Some(0) {
                    return None;
                }
                let extents = result.dimensions.clone();
                return Some(match extents.is_empty() {
                    true => initial,
                    false => self
                        .insert(body, location, "broadcast", |cursor| cursor.broadcast(initial, extents, [])),
                });
            }
            (Op::DynamicUpdateSlice, &[x, update, ..], _)
                if self.module.shape(update).as_array()?.element_count() == Some(0) && same(x) =>
            {
                return Some(x);
            }
            (Op::Compare { direction, .. }, &[x, y], constants) => {
                use ComparisonDirection::*;
                let element = self.module.shape(x).as_array()?.element_type;
                let order = match (direction, constants) {
                    (Ne, [_, Some(y)]) if element == ElementType::Pred && y.is_zero() && same(x) => {
                        return Some(x);
                    }
                    (Eq, [_, Some(y)]) if element == ElementType::Pred && y.is_one() && same(x) => {
                        return Some(x);
                    }
                    (_, [Some(a), Some(b)]) if element.is_floating() => {
                        a.as_float()?.partial_cmp(&b.as_float()?)
                    }
                    _ if !element.is_integral() && element != ElementType::Pred => return None,
                    (_, [Some(a), Some(b)]) => Some(a.as_integer()?.cmp(&b.as_integer()?)),
                    _ if x == y => Some(Ordering::Equal),
                    _ => return None,
                };
                let holds = match direction {
                    Eq => order == Some(Ordering::Equal),
                    Ne => order != Some(Ordering::Equal),
                    Ge => order.is_some_and(Ordering::is_ge),
                    Gt => order.is_some_and(Ordering::is_gt),
                    Le => order.is_some_and(Ordering::is_le),
                    Lt => order.is_some_and(Ordering::is_lt),
                };
                Scalar::integer(ElementType::Pred, i64::from(holds))
            }
            (Op::Select, &[_, x, y], [predicate, ..]) => {
                if x == y {
                    return Some(x);
                }
                return predicate.map(|predicate| if predicate.is_zero() { y } else { x });
            }
            _ => return None,
        };
        if value.element_type != result.element_type {
            return None;
        }
        Some(self.repeat(value, result, location, body))
    }

    /// A listed constant with other extents.
    fn reshaped(&mut self, x: InstructionId, result: &ArrayShape, body: &mut Body) -> Option<InstructionId> {
        let Op::Constant(literal) = &self.module.instructions[x].op else { return None };
        let array = literal.as_array()?;
        let bytes = array.bytes();
        let elements = Elements { shape: result.clone(), bytes, is_splat: false };
        (array.element_count() as u64 == result.element_count()?)
            .then(|| self.constant_of(&elements, LocationId::default(), body))
    }

    /// Short constants that are joined.
    fn joined(
        &mut self,
        operands: &[InstructionId],
        dimension: i64,
        result: &ArrayShape,
        location: LocationId,
        body: &mut Body,
    ) -> Option<InstructionId> {
        const MAX_ELEMENTS: u64 = 1 << 16;
        let outer = result.dimensions.get(..usize::try_from(dimension).ok()?)?;
        if result.element_count()? > MAX_ELEMENTS || outer.iter().any(|&extent| extent != 1) {
            return None;
        }
        let mut bytes = Vec::new();
        for &operand in operands {
            match &self.module.instructions[operand].op {
                Op::Constant(literal) => bytes.extend_from_slice(&literal.as_array()?.bytes()),
                _ => {
                    let element = self.repeated(operand)?.literal();
                    let element = element.as_array()?.bytes();
                    let count = self.module.shape(operand).as_array()?.element_count()?;
                    bytes.extend(element.repeat(usize::try_from(count).ok()?));
                }
            }
        }
        let elements = Elements { shape: result.clone(), bytes: bytes.into(), is_splat: false };
        Some(self.constant_of(&elements, location, body))
    }

    /// The same operation of other operands: constants of commutative operations are to the right, concatenations leave
    /// out what has no elements, a reshape of a reshape is one, and so is a transpose of a transpose; a slice within one
    /// operand of a concatenation is one of that operand.
    pub(super) fn shortened(&self, op: &mut Op, operands: &mut smallvec::SmallVec<[InstructionId; 3]>) {
        if let Some(constant) = self.constant_slice(op, operands) {
            *op = constant;
            operands.truncate(1);
        }
        if let (Op::Transpose { dimensions }, &[x]) = (&mut *op, &operands[..]) {
            let source = &self.module.instructions[x];
            if let Op::Transpose { dimensions: inner } = &source.op {
                let composed = dimensions.iter().map(|&d| inner.get(d as usize).copied());
                if let Some(composed) = composed.collect() {
                    *dimensions = composed;
                    operands[0] = source.operands[0];
                }
            }
            // What moves only dimensions of extent 1 is a reshape.
            let array = self.module.shape(operands[0]).as_array();
            let moved = array.and_then(|array| {
                let kept = dimensions.iter().filter(|&&d| array.dimensions.get(d as usize) != Some(&1));
                let kept: Vec<i64> = kept.copied().collect();
                (array.rank() == dimensions.len() && kept.is_sorted()).then_some(())
            });
            if moved.is_some() {
                *op = Op::Reshape { inferred_dimension: None };
            }
        }
        match op {
            Op::Binary(
                BinaryOp::Add
                | BinaryOp::Multiply
                | BinaryOp::Maximum
                | BinaryOp::Minimum
                | BinaryOp::And
                | BinaryOp::Or
                | BinaryOp::Xor,
            ) if operands.len() == 2 && self.is_constant(operands[0]) && !self.is_constant(operands[1]) => {
                operands.swap(0, 1);
            }
            Op::Concatenate { dimension } => {
                let is_empty = |id: InstructionId| {
                    let array = self.module.shape(id).as_array();
                    array.is_some_and(|array| array.dimensions.get(*dimension as usize) == Some(&0))
                };
                if operands.iter().any(|&id| !is_empty(id)) {
                    operands.retain(|id| !is_empty(*id));
                }
            }
            Op::Slice { dimensions } => {
                let source = &self.module.instructions[operands[0]];
                let Op::Concatenate { dimension } = source.op else { return };
                let Some(range) = dimensions.get_mut(dimension as usize) else { return };
                let mut at = 0;
                for &part in &source.operands {
                    let array = self.module.shape(part).as_array();
                    let Some(&extent) = array.and_then(|it| it.dimensions.get(dimension as usize)) else {
                        return;
                    };
                    let end = extent.saturating_add(at);
                    if (at..end).contains(&range.start) && range.limit <= end {
                        (range.start, range.limit) = (range.start - at, range.limit - at);
                        operands[0] = part;
                        return;
                    }
                    at = end;
                }
            }
            Op::Reshape { .. } => {
                let source = &self.module.instructions[operands[0]];
                if matches!(source.op, Op::Reshape { .. }) {
                    operands[0] = source.operands[0];
                }
            }
            _ => {}
        }
    }

    /// The slice that a dynamic one with constant starts is.
    fn constant_slice(&self, op: &Op, operands: &[InstructionId]) -> Option<Op> {
        let (Op::DynamicSlice { slice_sizes }, [x, starts @ ..]) = (op, operands) else { return None };
        let extents = &self.module.shape(*x).as_array()?.dimensions;
        if starts.len() != extents.len() || slice_sizes.len() != extents.len() {
            return None;
        }
        let dimension = |((&start, &extent), &size): ((&InstructionId, &i64), &i64)| {
            let start = self.repeated(start)?.as_integer()?.min(extent.checked_sub(size)?).max(0);
            Some(SliceDimension { start, limit: start.checked_add(size)?, stride: 1 })
        };
        let dimensions = starts.iter().zip(extents).zip(slice_sizes).map(dimension);
        Some(Op::Slice { dimensions: dimensions.collect::<Option<_>>()? })
    }

    /// Whether an instruction is a constant, repeated or not.
    fn is_constant(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        match &instruction.op {
            Op::Constant(_) => true,
            Op::Broadcast { .. } => {
                matches!(self.module.instructions[instruction.operands[0]].op, Op::Constant(_))
            }
            _ => false,
        }
    }

    /// The element that all elements of a constant are.
    fn repeated(&self, id: InstructionId) -> Option<Scalar> {
        let instruction = &self.module.instructions[id];
        match &instruction.op {
            Op::Constant(literal) => {
                let array = literal.as_array()?;
                // Large constants with equal elements are broadcast already.
                (array.element_count() == 1).then(|| Scalar::splat_of(array)).flatten()
            }
            Op::Broadcast { .. } => {
                let operand = &self.module.instructions[instruction.operands[0]];
                match &operand.op {
                    Op::Constant(literal) => {
                        let array = literal.as_array()?;
                        (array.element_count() == 1).then(|| Scalar::splat_of(array)).flatten()
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// A constant of one element that is repeated.
    pub(super) fn repeat(
        &mut self,
        value: Scalar,
        shape: &ArrayShape,
        location: LocationId,
        body: &mut Body,
    ) -> InstructionId {
        let bytes = match value.literal() {
            memplan_ir::Literal::Array(array) => array.bytes(),
            _ => unreachable!("a scalar is an array"),
        };
        let elements = Elements { shape: shape.clone(), bytes, is_splat: shape.element_count() != Some(1) };
        self.constant_of(&elements, location, body)
    }
}

fn converted(value: Scalar, to: ElementType) -> Option<Scalar> {
    match (value.as_integer(), value.as_float()) {
        (Some(integer), _) => Some(Scalar::integer(to, integer)),
        (_, Some(float)) if to.is_floating() => Scalar::float(to, float),
        (_, Some(float)) if to.is_integral() && float.is_finite() && float.abs() < 9e18 => {
            Some(Scalar::integer(to, float as i64))
        }
        _ => None,
    }
}

fn negated(value: Scalar) -> Option<Scalar> {
    match (value.as_integer(), value.as_float()) {
        (Some(integer), _) if value.element_type.is_integral() => {
            Some(Scalar::integer(value.element_type, integer.wrapping_neg()))
        }
        (_, Some(float)) => Scalar::float(value.element_type, -float),
        _ => None,
    }
}

fn computed(op: UnaryOp, x: Scalar) -> Option<Scalar> {
    let number = x.as_float().filter(|_| x.element_type.is_floating())?;
    let value = match op {
        UnaryOp::Abs => number.abs(),
        UnaryOp::Ceil => number.ceil(),
        UnaryOp::Cosine => libm::cos(number),
        UnaryOp::Erf => libm::erf(number),
        UnaryOp::Exponential => libm::exp(number),
        UnaryOp::Floor => number.floor(),
        UnaryOp::Log if number > 0.0 => libm::log(number),
        UnaryOp::Logistic => 1.0 / (1.0 + libm::exp(-number)),
        UnaryOp::Rsqrt if number > 0.0 => 1.0 / number.sqrt(),
        UnaryOp::Sine => libm::sin(number),
        UnaryOp::Sqrt if number >= 0.0 => number.sqrt(),
        UnaryOp::Tan => libm::tan(number),
        UnaryOp::Tanh => libm::tanh(number),
        _ => return None,
    };
    Scalar::float(x.element_type, value)
}

fn combined(op: BinaryOp, x: Scalar, y: Scalar) -> Option<Scalar> {
    let element = x.element_type;
    if let (Some(a), Some(b)) = (x.as_float(), y.as_float()) {
        // In double precision, sums, products and quotients of narrower numbers round once more to what they are.
        let value = match op {
            BinaryOp::Add => a + b,
            BinaryOp::Subtract => a - b,
            BinaryOp::Multiply => a * b,
            BinaryOp::Divide => a / b,
            BinaryOp::Maximum => a.max(b),
            BinaryOp::Minimum => a.min(b),
            _ => return None,
        };
        return Scalar::float(element, value);
    }
    let (a, b) = (x.as_integer()?, y.as_integer()?);
    let value = match op {
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
        _ if element == ElementType::Pred => return None,
        BinaryOp::Add => a.wrapping_add(b),
        BinaryOp::Subtract => a.wrapping_sub(b),
        BinaryOp::Multiply => a.wrapping_mul(b),
        BinaryOp::Divide if b != 0 && b != -1 => a / b,
        BinaryOp::Remainder if b != 0 && b != -1 => a % b,
        BinaryOp::Maximum => a.max(b),
        BinaryOp::Minimum => a.min(b),
        _ => return None,
    };
    Some(Scalar::integer(element, value))
}
