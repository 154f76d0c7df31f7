//! Offsets for the tensors of a model.

use memplan_pack::{Item, Options, Problem, minimize};

use crate::{Model, TfliteError};

/// TFLite Micro aligns every tensor to as many bytes.
pub const ALIGNMENT: u64 = 16;

/// Offsets in the arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The offset of each tensor, of one subgraph after another; `None` leaves it to the runtime.
    pub offsets: Vec<Option<u64>>,
    /// Bytes of the arena that the tensors need.
    pub arena: u64,
    /// Bytes that no placement of them can do without.
    pub lower_bound: u64,
}

/// Packs the tensors of the first subgraph.
///
/// # Errors
/// A tensor that needs a place has no fixed size, or there is no subgraph.
pub fn plan(model: &Model, options: &Options) -> Result<Plan, TfliteError> {
    let main = model.subgraphs.first().ok_or(TfliteError::NoSubgraph)?;
    let (mut problem, mut placed) = (Problem::new(), Vec::new());
    for (number, tensor) in main.tensors.iter().enumerate() {
        let Some(lifetime) = tensor.lifetime else { continue };
        let size = tensor.size.ok_or_else(|| TfliteError::Size {
            number,
            name: tensor.name.clone(),
            why: "an extent is left open, or its elements have no fixed size",
        })?;
        if size == 0 {
            continue;
        }
        let padded = size.checked_next_multiple_of(ALIGNMENT).filter(|&size| size <= i32::MAX as u64);
        let padded = padded.ok_or(TfliteError::Offset { number, offset: size })?;
        problem.push(Item::new(padded, lifetime.first as u64..lifetime.last as u64 + 1).aligned(ALIGNMENT));
        placed.push(number);
    }
    let packing = minimize(&problem, options).map_err(|error| TfliteError::Packing(error.to_string()))?;
    let total = model.subgraphs.iter().map(|subgraph| subgraph.tensors.len()).sum();
    let mut offsets = vec![None; total];
    for (&number, &offset) in placed.iter().zip(&packing.offsets) {
        if i32::try_from(offset).is_err() {
            return Err(TfliteError::Offset { number, offset });
        }
        offsets[number] = Some(offset);
    }
    Ok(Plan { offsets, arena: packing.height, lower_bound: packing.certificate.lower_bound })
}
