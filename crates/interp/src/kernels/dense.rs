//! Whole arrays as vectors of numbers, in the kernel's scratch, for kernels with mathematical algorithms.

use bytemuck::Pod;
use memplan_ir::{ArrayShape, ElementType};
use memplan_memory::Addressing;

use crate::Error;
use crate::element::{At, Class, LANES, Lanes, load, store};
use crate::kernels::Operand;
use crate::lower::addressing;
use crate::math;
use crate::memory::{Memory, Place};
use crate::transfer::{at, for_each_batch};

/// The alignment of vectors in scratch: the widest number.
const ALIGNMENT: usize = 16;

/// Hands out the scratch of a kernel, vector by vector.
pub(crate) struct Work(Place);

impl Work {
    pub(crate) fn new(memory: &Memory, scratch: Place) -> Work {
        // Plans for small machines align less than numbers here want to be.
        let skipped = memory.bytes(scratch).as_ptr().align_offset(ALIGNMENT).min(scratch.size);
        Work(scratch.part(skipped, scratch.size - skipped))
    }

    /// A place for `n` numbers.
    pub(crate) fn take<T>(&mut self, n: usize) -> Place {
        let size = n * size_of::<T>();
        let place = self.0.part(0, size);
        let used = size.next_multiple_of(ALIGNMENT).min(self.0.size);
        self.0 = self.0.part(used, self.0.size - used);
        place
    }

    /// The rest of the place.
    pub(crate) fn rest(self) -> Place {
        self.0
    }

    /// Bytes of scratch that vectors of these sizes in bytes take.
    pub(crate) fn bytes(sizes: impl IntoIterator<Item = usize>) -> usize {
        let padded = |size: usize| size.checked_next_multiple_of(ALIGNMENT).unwrap_or(usize::MAX);
        sizes.into_iter().map(padded).fold(ALIGNMENT - 1, usize::saturating_add)
    }
}

/// The numbers at a place that [`Work::take`] gave.
pub(crate) fn numbers_mut<T: Pod>(memory: &mut Memory, place: Place) -> &mut [T] {
    bytemuck::cast_slice_mut(memory.bytes_mut(place))
}

/// An array of a kernel, with the addresses of its elements.
pub(crate) struct Dense {
    number: usize,
    pub(crate) shape: ArrayShape,
    addressing: Addressing,
}

impl Dense {
    pub(crate) fn operand(operand: &Operand) -> Result<Dense, Error> {
        Dense::new(operand.number, &operand.shape)
    }

    pub(crate) fn new(number: usize, shape: &ArrayShape) -> Result<Dense, Error> {
        Ok(Dense { number, shape: shape.clone(), addressing: addressing(shape)? })
    }

    /// Elements.
    pub(crate) fn count(&self) -> usize {
        self.shape.dimensions.iter().product::<i64>() as usize
    }

    /// Bytes of all elements, none sharing a byte.
    pub(crate) fn byte_count(&self) -> usize {
        self.count().saturating_mul(self.shape.element_type.byte_width() as usize)
    }

    /// The extents of the last two dimensions, rows and columns.
    pub(crate) fn matrix(&self) -> (usize, usize) {
        match self.shape.dimensions[..] {
            [.., rows, columns] => (rows as usize, columns as usize),
            _ => (1, self.count()),
        }
    }

    /// Copies all elements to scratch, in row-major order, as numbers of type `to`.
    pub(crate) fn read(&self, memory: &mut Memory, places: &[Place], to: ElementType, scratch: Place) {
        let t = self.shape.element_type;
        let mut lanes = Lanes::new(Class::of(t), LANES);
        let mut converted = Lanes::new(Class::of(to), LANES);
        for_each_batch(&self.shape.dimensions, &self.addressing, |base, offsets| {
            let n = offsets.len();
            load(t, memory.bytes(places[self.number]), at(&self.addressing, offsets), n, &mut lanes);
            let begin = At::Consecutive(base * to.byte_width() as usize);
            if t == to {
                store(to, &lanes, n, begin, memory.bytes_mut(scratch));
            } else {
                math::convert(t, to, &lanes, &mut converted, n);
                store(to, &converted, n, begin, memory.bytes_mut(scratch));
            }
        });
    }

    /// Copies all elements from scratch, where they are in row-major order as numbers of type `from`.
    pub(crate) fn write(&self, memory: &mut Memory, places: &[Place], from: ElementType, scratch: Place) {
        let width = from.byte_width() as usize;
        let mut lanes = Lanes::new(Class::of(from), LANES);
        self.fill(memory, places, from, |memory, base, n, out| {
            load(from, memory.bytes(scratch), At::Consecutive(base * width), n, &mut lanes);
            out.copy_from(0, &lanes, 0, n);
        });
    }

    /// Sets all elements in row-major order, a register of numbers of type `from` at a time: `f` is given the position
    /// of the first and how many there are.
    pub(crate) fn fill(
        &self,
        memory: &mut Memory,
        places: &[Place],
        from: ElementType,
        mut f: impl FnMut(&Memory, usize, usize, &mut Lanes),
    ) {
        let t = self.shape.element_type;
        let mut lanes = Lanes::new(Class::of(from), LANES);
        let mut converted = Lanes::new(Class::of(t), LANES);
        for_each_batch(&self.shape.dimensions, &self.addressing, |base, offsets| {
            let n = offsets.len();
            f(memory, base, n, &mut lanes);
            let bytes = memory.bytes_mut(places[self.number]);
            if t == from {
                store(t, &lanes, n, at(&self.addressing, offsets), bytes);
            } else {
                math::convert(from, t, &lanes, &mut converted, n);
                store(t, &converted, n, at(&self.addressing, offsets), bytes);
            }
        });
    }

    /// The first elements, at most a register of them.
    pub(crate) fn first(&self, memory: &Memory, places: &[Place]) -> Lanes {
        let t = self.shape.element_type;
        let mut lanes = Lanes::new(Class::of(t), self.count().min(LANES));
        let mut is_first = true;
        for_each_batch(&self.shape.dimensions, &self.addressing, |_, offsets| {
            if std::mem::take(&mut is_first) {
                let bytes = memory.bytes(places[self.number]);
                load(t, bytes, at(&self.addressing, offsets), offsets.len(), &mut lanes);
            }
        });
        lanes
    }
}
