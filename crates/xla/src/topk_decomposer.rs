//! `topk-decomposer`: sorts whole rows where the library has no kernel that finds the largest elements.
//!
//! ```text
//!   t = (f16[8,4], s32[8,4]) topk(x), k=4, largest=true
//!      =>
//!   i = s32[8,99] iota(), iota_dimension=1
//!   s = (f16[8,99], s32[8,99]) sort(x, i), dimensions={1}, is_stable=true, to_apply=greater
//!   t = (f16[8,4], s32[8,4]) tuple(slice(s#0), slice(s#1))
//! ```
//!
//! XLA's compilers do this (CPU and GPU seen on jaxlib 0.10.2, libtpu on 0.12), except for the element types and sizes that
//! their library supports. Newer ones (0.12.0.1) use another method for bf16, in rows of fewer than 65,536 elements: they
//! sort integers whose halves are an element and its position. The upper half is ordered as the elements are; the lower
//! half is larger for earlier positions.
//!
//! *Changed* means that there was a topk that the library does not support.

use memplan_ir::{
    ArrayShape, BinaryOp, ComparisonDirection, ComparisonType, ComputationId, ElementType, Insert,
    InstructionId, Module, Op, Scalar, Shape,
};
use memplan_memory::by_name;
use memplan_rewriter::{Context, PassError, Rewriter};
use serde::Deserialize;

/// What the library finds without sorting.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopkRules {
    /// The types of its elements.
    #[serde(with = "by_name::list")]
    pub element_types: Vec<ElementType>,
    /// Most elements that it finds in a row.
    pub max_found: i64,
    /// Fewest elements of a row.
    pub min_elements: i64,
    /// Elements that a row must have for each found one but the first.
    #[serde(default)]
    pub min_elements_per_found: i64,
    /// Whether elements of bf16 are sorted in one integer with their positions.
    #[serde(default)]
    pub packs: bool,
}

/// Rows with this many elements or more have positions that half of an integer does not hold.
const PACKED_ELEMENTS: i64 = 1 << 16;

/// The type of positions, and of integers that hold an element and its position.
const PLACE: ElementType = ElementType::S32;

pass_with_rules!(
    TOPK_DECOMPOSER = TopkDecomposer(TopkRules),
    "topk-decomposer",
    "sort whole rows where no kernel finds the largest elements, as XLA's compilers do",
    run
);

fn run(module: &mut Module, _: &Context<'_>, rules: &TopkRules) -> Result<bool, PassError> {
    Ok(Rewriter::swept(module, |r, id| decompose(r, rules, id)))
}

fn decompose(r: &mut Rewriter<'_>, rules: &TopkRules, id: InstructionId) -> Option<InstructionId> {
    let Op::TopK { k, largest, .. } = *r.op(id) else { return None };
    let operand = r.operand(id, 0);
    let array = r.array(operand)?.clone();
    let &n = array.dimensions.last()?;
    if rules.packs && largest && array.element_type == ElementType::Bf16 && n < PACKED_ELEMENTS {
        return Some(sort_packed(r, operand, &array, k));
    }
    let is_found = rules.element_types.contains(&array.element_type)
        && k <= rules.max_found
        && n >= rules.min_elements
        && n > (k - 1).saturating_mul(rules.min_elements_per_found);
    (!is_found).then(|| sort_with_places(r, operand, &array, k, largest))
}

/// Sorts rows along with positions, and returns the beginning of both.
fn sort_with_places(
    r: &mut Rewriter<'_>,
    operand: InstructionId,
    array: &ArrayShape,
    k: i64,
    largest: bool,
) -> InstructionId {
    let dimension = array.rank() as i64 - 1;
    let [elements, places] = [array.element_type, PLACE].map(|of| in_rows(of, array));
    let iota = r.emit(Op::Iota { dimension }, [], places.clone());
    let comparator = comparator(r, &[array.element_type, PLACE], largest);
    let both = Shape::tuple([elements.clone(), places.clone()]);
    let sorted = r.emit_call(Op::Sort { dimension, is_stable: true }, [operand, iota], [comparator], both);
    let mut parts = Vec::new();
    for (index, shape) in (0..).zip([elements, places]) {
        let part = r.emit(Op::GetTupleElement { index }, [sorted], shape);
        parts.push(first_of_rows(r, part, k));
    }
    r.tuple(parts)
}

/// Sorts elements of bf16 and positions in one integer, and takes the first of them apart.
fn sort_packed(r: &mut Rewriter<'_>, operand: InstructionId, array: &ArrayShape, k: i64) -> InstructionId {
    let dimension = array.rank() as i64 - 1;
    let integers = in_rows(PLACE, array);
    let places = r.emit(Op::Iota { dimension }, [], integers.clone());
    let wide = r.convert(operand, ElementType::F32);
    let bits = r.emit(Op::BitcastConvert, [wide], integers.clone());
    let ordered = ordered(r, bits);
    let lower = constant_like(r, ordered, 0xFFFF);
    let element = r.binary(BinaryOp::Or, ordered, lower);
    let packed = r.binary(BinaryOp::Xor, element, places);
    let comparator = comparator(r, &[PLACE], true);
    let sorted = r.emit_call(Op::Sort { dimension, is_stable: false }, [packed], [comparator], integers);
    let first = first_of_rows(r, sorted, k);

    let lower = constant_like(r, first, 0xFFFF);
    let reversed = r.binary(BinaryOp::Xor, first, lower);
    let place = r.binary(BinaryOp::And, reversed, lower);
    let bits = self::ordered(r, first);
    let upper = constant_like(r, bits, -0x10000);
    let bits = r.binary(BinaryOp::And, bits, upper);
    let floats = Shape::array(ElementType::F32, r.dimensions(bits).expect("an array"));
    let wide = r.emit(Op::BitcastConvert, [bits], floats);
    let element = r.convert(wide, ElementType::Bf16);
    r.tuple([element, place])
}

/// Integers that are ordered as floats of these bits are, and those bits for such integers: below zero, all bits but the sign
/// are inverted.
fn ordered(r: &mut Rewriter<'_>, bits: InstructionId) -> InstructionId {
    let without_sign = constant_like(r, bits, 0x7FFF_FFFF);
    let magnitude = r.binary(BinaryOp::And, bits, without_sign);
    let width = constant_like(r, bits, 31);
    let sign = r.binary(BinaryOp::ShiftRightArithmetic, bits, width);
    r.binary(BinaryOp::Xor, magnitude, sign)
}

/// One integer in every element of an array like another.
fn constant_like(r: &mut Rewriter<'_>, id: InstructionId, value: i64) -> InstructionId {
    let extents = r.dimensions(id).expect("an array");
    r.splat_array(Scalar::integer(PLACE, value), &extents)
}

fn in_rows(element_type: ElementType, like: &ArrayShape) -> Shape {
    Shape::array(element_type, like.dimensions.iter().copied())
}

fn first_of_rows(r: &mut Rewriter<'_>, id: InstructionId, k: i64) -> InstructionId {
    let last = r.dimensions(id).expect("an array").len() - 1;
    r.slice_along(id, last, 0..k)
}

/// Compares the first of several pairs.
fn comparator(r: &mut Rewriter<'_>, types: &[ElementType], largest: bool) -> ComputationId {
    let direction = if largest { ComparisonDirection::Gt } else { ComparisonDirection::Lt };
    let comparison_type = types[0].is_floating().then_some(ComparisonType::TotalOrder);
    r.new_computation("comparator", "", |r| {
        let pairs: Vec<InstructionId> = (types.iter())
            .flat_map(|&of| [of, of])
            .map(|of| r.parameter("parameter", Shape::scalar(of)))
            .collect();
        r.insert(Op::Compare { direction, comparison_type }, [pairs[0], pairs[1]])
    })
}
