//! Operands of which a kernel reads only a slice.

use memplan_ir::{ArrayShape, InstructionId, Module, Op, Shape, Use, Users};
use smallvec::SmallVec;

/// The slice that a kernel cuts out of an operand, and all that it reads of it.
#[derive(Clone, Debug)]
pub struct SlicedOperand {
    /// The `slice` or `dynamic-slice`: the kernel itself, or inside of it.
    pub slice: InstructionId,
    /// The slice as an array in memory.
    pub array: ArrayShape,
}

impl SlicedOperand {
    /// The slice that a kernel cuts out of an operand; `None` when the kernel reads something else of the operand too, or
    /// the slice is not one that transfers can cut out: of whole tiles, without strides.
    pub fn of(module: &Module, users: &Users, it: Use) -> Option<SlicedOperand> {
        let kernel = &module.instructions[it.user];
        let slice = match kernel.op {
            Op::Fusion(_) => {
                let parameter = module.computations[kernel.called[0]].parameters[it.operand as usize];
                let &[slice] = users.of(parameter) else { return None };
                let reads =
                    module.instructions[slice].operands.iter().filter(|&&operand| operand == parameter);
                (module.instructions[slice].operands[0] == parameter && reads.count() == 1)
                    .then_some(slice)?
            }
            _ => (it.operand == 0).then_some(it.user)?,
        };
        let Shape::Array(source) = module.shape(kernel.operands[it.operand as usize]) else { return None };
        let Shape::Array(result) = module.shape(slice) else { return None };
        let moves_rows = match &module.instructions[slice].op {
            Op::DynamicSlice { .. } => true,
            Op::Slice { dimensions } => dimensions.iter().all(|d| d.stride == 1),
            _ => false,
        };
        let same_order = |a: &ArrayShape, b: &ArrayShape| {
            let order = |shape: &ArrayShape| {
                shape.layout.as_ref().map(|l| (l.minor_to_major.clone(), l.tiles.clone()))
            };
            order(a) == order(b)
        };
        let array = ArrayShape { dimensions: result.dimensions.clone(), ..source.clone() };
        (moves_rows && same_order(source, result) && is_of_whole_tiles(source, &array))
            .then_some(SlicedOperand { slice, array })
    }

    /// The start of a static slice; empty for a dynamic one.
    pub fn starts(&self, module: &Module) -> SmallVec<[i64; 4]> {
        match &module.instructions[self.slice].op {
            Op::Slice { dimensions } => dimensions.iter().map(|d| d.start).collect(),
            _ => SmallVec::new(),
        }
    }

    /// The scalars that say where a dynamic slice begins; none for a static one.
    pub fn offsets<'m>(&self, module: &'m Module) -> &'m [InstructionId] {
        &module.instructions[self.slice].operands[1..]
    }
}

/// Whether a slice is less than its source, and cuts none of the dimensions that a tile spans.
fn is_of_whole_tiles(source: &ArrayShape, slice: &ArrayShape) -> bool {
    let Some(layout) = &source.layout else { return false };
    let spanned = layout.tiles.first().map_or(1, |tile| tile.dimensions.len());
    source.dimensions != slice.dimensions
        && source.element_type == slice.element_type
        && source.memory_space() == 0
        && !source.is_dynamic()
        && layout
            .minor_to_major
            .iter()
            .take(spanned)
            .all(|&d| source.dimensions[d as usize] == slice.dimensions[d as usize])
}
