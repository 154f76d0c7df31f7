//! Declared shapes: valid in themselves, and equal to the inferred ones.

use smallvec::SmallVec;

use crate::infer::{Agreement, Inference, brief, compatible};
use crate::{
    ArrayLiteral, ArrayShape, EntityRef, Instruction, Layout, Literal, LiteralData, Op, Opcode, Role, Shape,
    SplitConfig, Tile,
};

use super::{InstructionError, ShapeError, Verifier};

/// Deeper shapes would be a danger to every recursive walk.
const MAX_DEPTH: usize = 1000;

impl Verifier<'_> {
    pub(super) fn check_shapes(&mut self) {
        let module = self.module;
        // Each interned shape is looked at once, however many instructions declare it.
        let shape_errors: Vec<Option<ShapeError>> =
            module.shapes.iter().map(|s| check_shape(s).err()).collect();
        for (id, instruction) in self.sound_instructions() {
            if let Some(error) = &shape_errors[instruction.shape.index()] {
                self.report(id, error.clone());
                continue;
            }
            if let Err(error) = self.check_declared(instruction) {
                self.report(id, error);
            }
            if let Op::Constant(literal) = &instruction.op
                && let Err(error) = check_literal(literal)
            {
                self.report(id, error);
            }
        }
    }

    fn check_declared(&self, instruction: &Instruction) -> Result<(), InstructionError> {
        let module = self.module;
        let declared = module.shape_of(instruction.shape);
        let operands: SmallVec<[&Shape; 8]> = instruction.operands.iter().map(|&o| module.shape(o)).collect();
        let inference = Inference {
            module,
            op: &instruction.op,
            operands: &operands,
            called: &instruction.called,
            given: Some(declared),
        };
        let inferred = inference.shape()?;
        if compatible(declared, &inferred, agreement(instruction.opcode())) {
            return Ok(());
        }
        Err(InstructionError::Declared { declared: brief(declared), inferred: brief(&inferred) })
    }
}

/// An operation that writes its result may round it to another precision on the way out, and TPU programs do so even
/// in copies and broadcasts; one that passes a value on, reinterprets it, updates it in place or ends what another
/// began may not. (XLA lets the ends of collectives round too, which nothing makes and nothing carries out.)
fn agreement(opcode: Opcode) -> Agreement {
    use Opcode::*;
    match opcode.traits().role {
        Role::PassesOn | Role::Continues | Role::Ends => return Agreement::Exact,
        _ => {}
    }
    match opcode {
        Call | Conditional | Constant | CopyStart | CustomCall | Fusion | DynamicUpdateSlice
        | GetTupleElement | Infeed | Outfeed | Parameter | Recv | Send | Tuple | While | AsyncStart => {
            Agreement::Exact
        }
        _ => Agreement::IgnoringPrecision,
    }
}

/// Whether extents, dynamic marks and layouts of a shape make sense.
pub(super) fn check_shape(shape: &Shape) -> Result<(), ShapeError> {
    fn walk(whole: &Shape, shape: &Shape, depth: usize) -> Result<(), ShapeError> {
        if depth > MAX_DEPTH {
            return Err(ShapeError::TooDeep { shape: brief(whole) });
        }
        match shape {
            Shape::Array(array) | Shape::Buffer(array) => check_array(array),
            Shape::Tuple(elements) => elements.iter().try_for_each(|element| walk(whole, element, depth + 1)),
            Shape::Token | Shape::Opaque => Ok(()),
        }
    }
    walk(shape, shape, 0)
}

fn check_array(array: &ArrayShape) -> Result<(), ShapeError> {
    let shape = || brief(&Shape::Array(array.clone()));
    if !array.dynamic.is_empty() && array.dynamic.len() != array.rank() {
        return Err(ShapeError::DynamicMarks { found: array.dynamic.len(), shape: shape() });
    }
    for (dimension, &extent) in array.dimensions.iter().enumerate() {
        if extent == ArrayShape::UNBOUNDED {
            if !array.is_dynamic_dimension(dimension) {
                return Err(ShapeError::UnboundedStatic { dimension, shape: shape() });
            }
        } else if extent < 0 {
            return Err(ShapeError::Extent { dimension, extent, shape: shape() });
        }
    }
    let is_bounded = !array.is_unbounded();
    if is_bounded && array.dense_bytes().is_none_or(|bytes| bytes > i64::MAX as u64) {
        return Err(ShapeError::TooLarge { shape: shape() });
    }
    array.layout.as_ref().map_or(Ok(()), |layout| check_layout(layout, array))
}

fn check_layout(layout: &Layout, array: &ArrayShape) -> Result<(), ShapeError> {
    let shape = || brief(&Shape::Array(array.clone()));
    let rank = array.rank();
    if !is_permutation(&layout.minor_to_major, rank) {
        return Err(ShapeError::Order { order: layout.minor_to_major.to_vec(), shape: shape() });
    }
    for tile in &layout.tiles {
        if !tile.dimensions.iter().all(|&extent| extent > 0 || extent == Tile::COMBINE) {
            return Err(ShapeError::Tile { tile: tile.dimensions.to_vec(), shape: shape() });
        }
    }
    let rare = layout.rare.as_deref();
    let attributes = [
        ("memory space", layout.memory_space),
        ("element size in bits", layout.element_size_in_bits),
        ("tail padding alignment", rare.map_or(1, |r| r.tail_padding_alignment_in_elements) - 1),
        ("dynamic shape metadata prefix bytes", rare.map_or(0, |r| r.dynamic_shape_metadata_prefix_bytes)),
    ];
    // Memory spaces are numbered with 32 bits.
    let is_wrong = |&&(attribute, value): &&(&str, i64)| {
        value < 0 || attribute == "memory space" && u32::try_from(value).is_err()
    };
    if let Some(&(attribute, value)) = attributes.iter().find(is_wrong) {
        return Err(ShapeError::Attribute { attribute, value, shape: shape() });
    }
    for SplitConfig { dimension, split_indices } in rare.map_or(&[][..], |r| &r.split_configs) {
        let extent = usize::try_from(*dimension).ok().and_then(|d| array.dimensions.get(d));
        let ascending = split_indices.windows(2).all(|pair| pair[0] < pair[1]);
        let inside = extent.is_some_and(|extent| split_indices.iter().all(|i| (0..=*extent).contains(i)));
        if !ascending || !inside {
            let indices = split_indices.to_vec();
            return Err(ShapeError::Split { dimension: *dimension, indices, shape: shape() });
        }
    }
    Ok(())
}

/// Whether `order` has each of `0..n` once.
pub(super) fn is_permutation(order: &[i64], n: usize) -> bool {
    let mut seen = vec![false; n];
    order.len() == n
        && order.iter().all(|&d| {
            usize::try_from(d).ok().and_then(|d| seen.get_mut(d)).is_some_and(|s| !std::mem::replace(s, true))
        })
}

/// Whether a literal has all its elements.
fn check_literal(literal: &Literal) -> Result<(), InstructionError> {
    match literal {
        Literal::Tuple(elements) => elements.iter().try_for_each(check_literal),
        Literal::Array(ArrayLiteral { element_type, dimensions, data: LiteralData::Bytes(bytes) }) => {
            let elements = dimensions.iter().try_fold(1u64, |n, &d| n.checked_mul(u64::try_from(d).ok()?));
            let elements = if dimensions.contains(&0) { Some(0) } else { elements };
            let expected = elements.and_then(|n| n.checked_mul(u64::from(element_type.byte_width())));
            match expected {
                Some(expected) if expected == bytes.len() as u64 => Ok(()),
                _ => Err(InstructionError::LiteralSize {
                    expected: expected.unwrap_or(u64::MAX),
                    found: bytes.len(),
                }),
            }
        }
        Literal::Array(_) | Literal::Token => Ok(()),
    }
}
