//! Plans in the formats of small devices' runtimes.
//!
//! Both runtimes number tensors and need an offset for each in their arena; the numbers are those of the buffers of
//! [`ProgramLayout`]. They place arguments and constants themselves.

use memplan_memory::{Bytes, KindName};
use serde::Serialize;

use crate::layout::{Buffer, ProgramLayout};

/// A plan that a runtime has no room for in its numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MicroError {
    /// An offset of 2 GiB or more.
    #[error("`{name}` is at {offset}, and TFLite Micro counts offsets in 31 bits")]
    Offset {
        /// The buffer.
        name: String,
        /// Its offset.
        offset: Bytes,
    },
    /// A buffer in another memory than the first.
    #[error("`{name}` is in memory {space}, and TFLite Micro has one arena")]
    Space {
        /// The buffer.
        name: String,
        /// The memory.
        space: u32,
    },
}

/// The contents of the metadata `OfflineMemoryAllocation` of a TFLite Micro model: 32-bit words, least byte first. They
/// are the version (1), the subgraph (0), how many offsets follow, and those offsets, where -1 leaves a tensor to the
/// runtime.
///
/// # Errors
/// Buffers in several memories, or beyond 2 GiB.
pub fn offline_memory_allocation(layout: &ProgramLayout) -> Result<Vec<u8>, MicroError> {
    let mut words = vec![1, 0, layout.buffers.len() as i32];
    for buffer in &layout.buffers {
        words.push(match kind(layout, buffer) {
            KindName::Temp if buffer.space.0 != 0 => {
                return Err(MicroError::Space { name: buffer.full_name(), space: buffer.space.0 });
            }
            KindName::Temp => i32::try_from(buffer.address.offset.0).map_err(|_| MicroError::Offset {
                name: buffer.full_name(),
                offset: buffer.address.offset,
            })?,
            _ => -1,
        });
    }
    Ok(words.into_iter().flat_map(i32::to_le_bytes).collect())
}

/// The result of ExecuTorch's memory planning: the size of each arena, and for each tensor its arena and its offset
/// there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExecutorchPlan {
    /// Bytes of each arena by its number, of which ExecuTorch keeps the first, 0, for itself.
    pub non_const_buffer_sizes: Vec<u64>,
    /// The tensors, by number.
    pub values: Vec<ExecutorchValue>,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExecutorchValue {
    /// The instruction that makes it, with the path into its result.
    pub name: String,
    /// Its bytes.
    pub nbytes: u64,
    /// Its place; `None` for arguments and constants.
    pub allocation_info: Option<AllocationDetails>,
}

/// As ExecuTorch's schema has it, with an offset in two halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AllocationDetails {
    /// The arena, `mem_id`.
    pub memory_id: u32,
    /// The lower 32 bits of the offset, `mem_offset`.
    pub memory_offset_low: u32,
    /// The upper ones.
    pub memory_offset_high: u32,
}

/// A plan as ExecuTorch's emitter wants it: memory spaces are arenas in the order of the layout, from 1 on.
pub fn executorch(layout: &ProgramLayout) -> ExecutorchPlan {
    let arena =
        |space| layout.spaces.iter().position(|known| known.id == space).expect("spaces are listed") + 1;
    let value = |buffer: &Buffer| ExecutorchValue {
        name: buffer.full_name(),
        nbytes: buffer.address.size.0,
        allocation_info: (kind(layout, buffer) == KindName::Temp).then(|| AllocationDetails {
            memory_id: arena(buffer.space) as u32,
            memory_offset_low: buffer.address.offset.0 as u32,
            memory_offset_high: (buffer.address.offset.0 >> 32) as u32,
        }),
    };
    ExecutorchPlan {
        non_const_buffer_sizes: std::iter::once(0).chain(layout.spaces.iter().map(|s| s.temp.0)).collect(),
        values: layout.buffers.iter().map(value).collect(),
    }
}

fn kind(layout: &ProgramLayout, buffer: &Buffer) -> KindName {
    layout.allocations[buffer.address.allocation as usize].kind
}
