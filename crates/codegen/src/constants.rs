//! The bytes of constants, in the layout in which the program reads them.
//!
//! All constant allocations stand in one file, in order, each at a multiple of its alignment. An embedder copies each
//! from [`Allocation::file_offset`](crate::layout::Allocation::file_offset) to wherever it put the allocation, or maps
//! the file and uses it in place. Bytes that are padding are zero.
//!
//! Elements are little-endian. Elements of less than a byte are one to a byte unless the layout packs them (`E(4)`);
//! packed ones fill bytes from the lowest bit up. Tiled complex numbers are two planes, the real one first.

use std::io::Write;

use memplan_ir::{
    ArrayLiteral, ArrayShape, ElementType, EntityRef, Literal, LiteralData, Module, Op, ShapeIndex,
};
use memplan_memory::{AllocationId, AllocationKind, Bytes, MemoryPlan, Slice, TiledIndex};

/// Why constants cannot be written.
#[derive(Debug, thiserror::Error)]
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
    #[error("the layout of constant `{name}` is not one that elements can be laid out in")]
    Layout {
        /// The constant.
        name: String,
    },
    /// The file cannot be written.
    #[error("cannot write the constants")]
    Write(#[from] std::io::Error),
}

/// Where each allocation's bytes are in the file of constants, none for those that are no constants; and its size.
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
    let mut written = 0;
    for (allocation, parts) in constants_by_allocation(module, plan).into_iter().enumerate() {
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
    /// Puts the elements where the layout says, into bytes that are zero.
    fn lay_out(&self, out: &mut [u8]) -> Result<(), ConstantsError> {
        let LiteralData::Bytes(data) = &self.literal.data else {
            return Err(ConstantsError::Elided { name: self.name.to_string() });
        };
        if self.shape.layout.as_ref().is_none_or(|layout| layout.is_default() || is_plain(layout)) {
            let n = data.len().min(out.len());
            out[..n].copy_from_slice(&data[..n]);
            return Ok(());
        }
        let no_rule = || ConstantsError::Layout { name: self.name.to_string() };
        let index = TiledIndex::new(self.shape).ok_or_else(no_rule)?;
        let elements = self.elements(&index);
        let mut at: Vec<u64> = vec![0; self.shape.rank()];
        for element in data.chunks_exact(self.literal.element_type.byte_width() as usize) {
            let place = index.place(&at);
            for (plane, part) in element.chunks_exact(elements.bytes).enumerate() {
                let bit = (plane as u64 * elements.plane + place) * elements.bits;
                put(out, bit, elements.bits, part).ok_or_else(no_rule)?;
            }
            advance(&mut at, &self.shape.dimensions);
        }
        Ok(())
    }

    fn elements(&self, index: &TiledIndex) -> Elements {
        let width = self.literal.element_type.byte_width() as usize;
        let layout = self.shape.layout.as_ref();
        let is_tiled = layout.is_some_and(|layout| !layout.tiles.is_empty());
        if self.literal.element_type == ElementType::C64 && is_tiled {
            return Elements { bytes: width / 2, bits: width as u64 * 4, plane: index.places() };
        }
        let packed = layout.and_then(|layout| u64::try_from(layout.element_size_in_bits).ok()).unwrap_or(0);
        Elements { bytes: width, bits: if packed > 0 { packed } else { width as u64 * 8 }, plane: 0 }
    }
}

/// How elements are stored.
struct Elements {
    /// Bytes of an element of one plane in the literal.
    bytes: usize,
    /// Bits of it in memory.
    bits: u64,
    /// Places from one plane to the next.
    plane: u64,
}

/// Whether elements are in row-major order with nothing in between, in whichever memory space.
fn is_plain(layout: &memplan_ir::Layout) -> bool {
    layout.is_row_major()
        && layout.tiles.is_empty()
        && layout.element_size_in_bits == 0
        && layout.rare.is_none()
}

/// Sets the bits of one element; `None` when they are not there.
fn put(out: &mut [u8], bit: u64, bits: u64, element: &[u8]) -> Option<()> {
    let first = usize::try_from(bit / 8).ok()?;
    if bits >= 8 {
        let n = element.len().min(bits as usize / 8);
        out.get_mut(first..first + n)?.copy_from_slice(&element[..n]);
    } else {
        let mask = (1u8 << bits) - 1;
        *out.get_mut(first)? |= (element[0] & mask) << (bit % 8);
    }
    Some(())
}

/// The indices of the next element in row-major order.
fn advance(at: &mut [u64], dimensions: &[i64]) {
    for (index, &extent) in at.iter_mut().zip(dimensions).rev() {
        *index += 1;
        if *index < extent as u64 {
            return;
        }
        *index = 0;
    }
}

fn pad(out: &mut impl Write, bytes: u64) -> std::io::Result<()> {
    std::io::copy(&mut std::io::Read::take(std::io::repeat(0), bytes), out).map(|_| ())
}
