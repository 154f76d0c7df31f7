//! The bytes of constants, in the program's layouts.
//!
//! All constant allocations are in one file, in order, each at a multiple of its alignment. An embedder copies each
//! from [`Allocation::file_offset`](crate::layout::Allocation::file_offset) to the address of the allocation, or maps
//! the file and uses it in place. Padding bytes are zero.
//!
//! Elements are little-endian. Elements smaller than a byte take one byte each unless the layout packs them (`E(4)`);
//! packed ones fill bytes from the lowest bit up. Tiled complex numbers are two planes, the real one first.

use std::io::Write;

use memplan_ir::{
    ArrayLiteral, ArrayShape, ElementType, EntityRef, Literal, LiteralData, Module, Op, ShapeIndex,
};
use memplan_memory::{Addressing, AllocationId, AllocationKind, Bytes, MemoryPlan, Slice};

/// Why constants cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConstantsError {
    /// The text of the program does not have the data.
    #[error(
        "the data of constant `{name}` is not in the program: its text has `{{...}}`. Print it whole, or use its protobuf"
    )]
    Elided {
        /// The constant.
        name: String,
    },
    /// There is no rule for where the elements are.
    #[error("the layout of constant `{name}` is not valid for its elements")]
    Layout {
        /// The constant.
        name: String,
    },
    /// The file cannot be written.
    #[error("cannot write the constants")]
    Write(#[from] std::io::Error),
}

/// The offset of each allocation's bytes in the file of constants, `None` for others; and the file's size.
pub(crate) fn constant_offsets(plan: &MemoryPlan) -> (Vec<Option<Bytes>>, Bytes) {
    let mut end = Bytes::ZERO;
    let offset = |allocation: &memplan_memory::Allocation| {
        (allocation.kind == AllocationKind::Constant).then(|| {
            let offset = end.align_up(allocation.alignment);
            end = offset.saturating_add(allocation.size);
            offset
        })
    };
    let offsets = plan.allocations.values().map(offset).collect();
    (offsets, end)
}

/// Writes the file of constants. Needs memory for the largest of them.
///
/// # Errors
/// See [`ConstantsError`].
pub fn write_constants(
    module: &Module,
    plan: &MemoryPlan,
    out: &mut impl Write,
) -> Result<(), ConstantsError> {
    let (offsets, end) = constant_offsets(plan);
    let constants = constants_by_allocation(module, plan);
    // Checked before memory is allocated that only the data would justify.
    for part in constants.iter().flatten() {
        part.data()?;
    }
    let mut written = 0;
    for (allocation, parts) in constants.into_iter().enumerate() {
        let Some(offset) = offsets[allocation] else { continue };
        pad(out, offset.0 - written)?;
        let size = plan.allocations[AllocationId::new(allocation)].size;
        let mut bytes = vec![0; size.0 as usize];
        for part in parts {
            let at = part.slice.offset.0 as usize..part.slice.end().0 as usize;
            part.lay_out(&mut bytes[at])?;
        }
        out.write_all(&bytes)?;
        written = offset.0 + size.0;
    }
    Ok(pad(out, end.0 - written)?)
}

/// An array of a constant, and where it goes.
struct Part<'a> {
    name: &'a str,
    literal: &'a ArrayLiteral,
    shape: &'a ArrayShape,
    slice: Slice,
}

fn constants_by_allocation<'a>(module: &'a Module, plan: &MemoryPlan) -> Vec<Vec<Part<'a>>> {
    let mut parts: Vec<Vec<Part<'a>>> = plan.allocations.keys().map(|_| Vec::new()).collect();
    for (position, &slice) in &plan.slices {
        let instruction = &module.instructions[position.instruction];
        let Op::Constant(literal) = &instruction.op else { continue };
        let shape = module.shape(position.instruction).subshape(&position.index);
        if let (Some(Literal::Array(literal)), Some(shape)) =
            (part_of(literal, &position.index), shape.and_then(|shape| shape.as_array()))
        {
            parts[slice.allocation.index()].push(Part { name: &instruction.name, literal, shape, slice });
        }
    }
    parts
}

fn part_of<'a>(literal: &'a Literal, index: &ShapeIndex) -> Option<&'a Literal> {
    index.0.iter().try_fold(literal, |literal, &step| match literal {
        Literal::Tuple(elements) => elements.get(step as usize),
        _ => None,
    })
}

impl Part<'_> {
    fn data(&self) -> Result<&[u8], ConstantsError> {
        match &self.literal.data {
            LiteralData::Bytes(data) => Ok(data),
            LiteralData::Elided => Err(ConstantsError::Elided { name: self.name.to_string() }),
        }
    }

    /// Puts the elements where the layout says, into bytes that are zero.
    fn lay_out(&self, out: &mut [u8]) -> Result<(), ConstantsError> {
        let data = self.data()?;
        let no_rule = || ConstantsError::Layout { name: self.name.to_string() };
        let addressing = Addressing::new(self.shape).ok_or_else(no_rule)?;
        if addressing.is_row_major {
            out.get_mut(..data.len()).ok_or_else(no_rule)?.copy_from_slice(data);
            return Ok(());
        }
        let width = self.literal.element_type.byte_width() as usize;
        let mut at: Vec<i64> = vec![0; self.shape.rank()];
        for element in data.chunks_exact(width) {
            let offset = addressing.offset(at.iter().copied()) as usize;
            match addressing.packed_bits {
                Some(bits) => put_bits(out, offset * bits as usize, bits, element[0]),
                None if self.is_in_planes() => {
                    let (real, imaginary) = element.split_at(width / 2);
                    put(out, offset / 2, real)
                        .and_then(|()| put(out, (addressing.size + offset) / 2, imaginary))
                }
                None => put(out, offset, element),
            }
            .ok_or_else(no_rule)?;
            advance(&mut at, &self.shape.dimensions);
        }
        Ok(())
    }

    /// Whether the words of an element are apart, as TPUs have it.
    fn is_in_planes(&self) -> bool {
        let is_tiled = self.shape.layout.as_ref().is_some_and(|layout| !layout.tiles.is_empty());
        self.literal.element_type == ElementType::C64 && is_tiled
    }
}

/// Sets the bytes of an element; `None` when they are not there.
fn put(out: &mut [u8], offset: usize, element: &[u8]) -> Option<()> {
    out.get_mut(offset..offset + element.len())?.copy_from_slice(element);
    Some(())
}

/// Sets the bits of an element of less than a byte; `None` when they are not there.
fn put_bits(out: &mut [u8], bit: usize, bits: u32, element: u8) -> Option<()> {
    let mask = (1u8 << bits) - 1;
    *out.get_mut(bit / 8)? |= (element & mask) << (bit % 8);
    Some(())
}

/// The indices of the next element in row-major order.
fn advance(at: &mut [i64], dimensions: &[i64]) {
    for (index, &extent) in at.iter_mut().zip(dimensions).rev() {
        *index += 1;
        if *index < extent {
            return;
        }
        *index = 0;
    }
}

fn pad(out: &mut impl Write, bytes: u64) -> std::io::Result<()> {
    std::io::copy(&mut std::io::Read::take(std::io::repeat(0), bytes), out).map(|_| ())
}
