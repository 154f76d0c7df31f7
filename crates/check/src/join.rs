//! Adjacent arrays that become one array: libtpu's `ConcatBitcast`, which moves nothing.

use memplan_ir::{ArrayShape, InstructionId};
use memplan_memory::Bytes;

use crate::effective_layout::{bits, tiles};
use crate::facts::Facts;

/// Whether an operation only gives its operands a name together: they are, in their order, all the bytes of its result,
/// and every element is where the result has it.
pub(crate) fn is_joined_in_place(facts: &Facts<'_>, id: InstructionId) -> bool {
    let instruction = &facts.module.instructions[id];
    if !instruction.op.is_concatenation_in_place() {
        return false;
    }
    let Some(whole) = facts.slice(facts.positions.root(id)) else { return false };
    let mut end = whole.offset;
    for &operand in &instruction.operands {
        match facts.slice(facts.positions.root(operand)) {
            Some(part) if (part.allocation, part.offset) == (whole.allocation, end) => {
                end = part.offset.saturating_add(part.size);
            }
            _ => return false,
        }
    }
    end == whole.offset.saturating_add(whole.size) && end > Bytes::ZERO && elements_are_in_place(facts, id)
}

/// Whether arrays whose bytes are put one after the other have their elements where the whole has them: they are cut
/// along the dimension that varies slowest, at the borders of tiles.
fn elements_are_in_place(facts: &Facts<'_>, id: InstructionId) -> bool {
    let module = facts.module;
    let operands = &module.instructions[id].operands;
    let parts: Option<Vec<&ArrayShape>> =
        operands.iter().map(|&part| module.shape(part).as_array()).collect();
    let (Some(whole), Some(parts)) = (module.shape(id).as_array(), parts) else { return false };
    let all_dimensions = whole.minor_to_major();
    let is_cut = |d: &i64| {
        parts.iter().any(|part| part.dimensions.get(*d as usize) != whole.dimensions.get(*d as usize))
    };
    let Some(at) = all_dimensions.iter().position(is_cut) else { return parts.len() == 1 };
    let cut = all_dimensions[at] as usize;
    let varies_slowest = all_dimensions[at + 1..].iter().all(|&d| whole.dimensions[d as usize] == 1);
    // A tile lists the dimension that varies fastest last.
    let tile =
        tiles(whole).first().map_or(1, |tile| tile.dimensions.iter().rev().nth(at).copied().unwrap_or(1));
    let (last, before) = parts.split_last().expect("a part differs from the whole");
    let lie_alike = |part: &&ArrayShape| {
        let ways = |array| (bits(array), tiles(array).to_vec());
        part.rank() == whole.rank()
            && part.element_type == whole.element_type
            && ways(part) == ways(whole)
            && part.minor_to_major() == all_dimensions
            && (0..whole.rank()).all(|d| d == cut || part.dimensions[d] == whole.dimensions[d])
    };
    let extents = parts.iter().map(|part| part.dimensions[cut]).sum::<i64>();
    varies_slowest
        && tile > 0
        && lie_alike(last)
        && before.iter().all(|part| lie_alike(part) && part.dimensions[cut] % tile == 0)
        && extents == whole.dimensions[cut]
}
