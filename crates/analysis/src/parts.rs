//! Parts: values that are adjacent in memory and later become one value.
//!
//! libtpu fetches a large array in slices, each with its own transfer, and then uses them as the whole
//! (`ConcatBitcast`):
//!
//! ```text
//!   a = slice-done(..)                 [--)              a, b and c have the bytes of w, in this order
//!   b = slice-done(..)                    [--)
//!   w = ConcatBitcast(a, b)                  [-----)     nothing moves: a and b end where w begins
//! ```
//!
//! Includes only parts that a plan can use: values that only the joining operation reads, and that are written in
//! order, the first one first. Other values have separate places.

use cranelift_entity::SecondaryMap;
use memplan_ir::{ArrayShape, InstructionId, Module};
use memplan_program::ValueId;

use crate::{Buffers, Dataflow, LiveRanges, Timeline, ValueKind};

/// Which values are parts of others.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    part: SecondaryMap<ValueId, Option<Part>>,
}

/// A part of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The operation that joins the parts.
    pub joined_by: InstructionId,
    /// The value that they become.
    pub whole: ValueId,
    /// The part's number, which is that of the operand.
    pub number: usize,
}

impl Parts {
    /// Finds the values that are parts of others, in time linear in the module. The live ranges are of values that have
    /// separate places.
    pub(crate) fn new(
        module: &Module,
        flow: &Dataflow,
        buffers: &Buffers,
        line: &Timeline,
        live: &LiveRanges,
    ) -> Parts {
        let mut parts = Parts::default();
        let is_join = |&&id: &&InstructionId| module.instructions[id].op.is_concatenation_in_place();
        for &id in line.instructions.iter().filter(is_join) {
            let is_free = |value: ValueId| {
                let is_alone = buffers.values[buffers.of(value)].len() == 1;
                let is_written = flow.values[value].kind == ValueKind::Written;
                is_alone && is_written && !live.is_live_out(value) && !live.is_resident(value)
            };
            let operands = &module.instructions[id].operands;
            let values: Option<Vec<ValueId>> =
                operands.iter().map(|&operand| flow.value_of(operand)).collect();
            let (Some(whole), Some(values)) = (flow.value_of(id), values) else { continue };
            let ends_here = |&value: &ValueId| live.of(value).end == line.time(id) + 1 && is_free(value);
            let starts = values.iter().map(|&value| live.of(value).start);
            if is_free(whole)
                && values.iter().all(ends_here)
                && starts.is_sorted_by(|a, b| a < b)
                && are_neighbors(module, id)
            {
                for (number, &value) in values.iter().enumerate() {
                    parts.part[value] = Some(Part { joined_by: id, whole, number });
                }
            }
        }
        parts
    }

    /// The whole that a value is a part of.
    pub fn of(&self, value: ValueId) -> Option<Part> {
        self.part[value]
    }

    /// All values that are parts, in the order of their ids.
    pub fn all(&self) -> impl Iterator<Item = (ValueId, Part)> + '_ {
        self.part.iter().filter_map(|(value, part)| Some((value, (*part)?)))
    }
}

/// Whether the operands of a concatenation in place have its bytes, one after the other.
fn are_neighbors(module: &Module, id: InstructionId) -> bool {
    let Some(whole) = module.shape(id).as_array() else { return false };
    let operands = &module.instructions[id].operands;
    let parts: Option<Vec<&ArrayShape>> = operands.iter().map(|&o| module.shape(o).as_array()).collect();
    let Some(parts) = parts else { return false };
    let Some(d) = (0..whole.rank())
        .find(|&d| parts.iter().any(|part| part.dimensions.get(d) != whole.dimensions.get(d)))
    else {
        return parts.len() == 1;
    };
    let Some(layout) = &whole.layout else { return false };
    let minor_to_major = &layout.minor_to_major;
    let Some(at) = minor_to_major.iter().position(|&other| other == d as i64) else { return false };
    let is_outermost = minor_to_major[at + 1..].iter().all(|&major| whole.dimensions[major as usize] == 1);
    // Tiles are written most major first.
    let tile = layout.tiles.first().and_then(|tile| {
        let from_minor = tile.dimensions.len().checked_sub(at + 1)?;
        Some(tile.dimensions[from_minor])
    });
    /// Parts begin where values may begin; no machine asks for more.
    const ALIGNMENT: u64 = 512;
    let is_aligned = |part: &ArrayShape| {
        let width = u64::from(part.element_type.byte_width());
        part.element_count().is_some_and(|n| n.checked_mul(width).is_some_and(|bytes| bytes % ALIGNMENT == 0))
    };
    let fills_tiles = |part: &&ArrayShape| {
        tile.unwrap_or(1) > 0 && part.dimensions[d] % tile.unwrap_or(1) == 0 && is_aligned(part)
    };
    let is_alike = |part: &&ArrayShape| {
        let others = (0..whole.rank()).filter(|&other| other != d);
        part.element_type == whole.element_type
            && part.layout == whole.layout
            && part.rank() == whole.rank()
            && others.into_iter().all(|other| part.dimensions[other] == whole.dimensions[other])
    };
    is_outermost
        && parts.iter().all(is_alike)
        && parts[..parts.len() - 1].iter().all(fills_tiles)
        && parts.iter().map(|part| part.dimensions[d]).sum::<i64>() == whole.dimensions[d]
}
