//! Whole arrays as vectors of numbers, for kernels that work on them as mathematics does. The vectors are those kernels'
//! scratch.

use memplan_ir::{ArrayLiteral, ArrayShape, ElementType};
use num_complex::Complex64;

use crate::Error;
use crate::addressing::Addressing;
use crate::element::{Class, LANES, Lanes, load, store};
use crate::kernels::Operand;
use crate::lower::addressing;
use crate::math;
use crate::memory::{Memory, Place};
use crate::transfer::{self, at, for_each_batch};

/// An array of a kernel, with where its elements lie.
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

    /// All elements in row-major order, as complex numbers.
    pub(crate) fn read(&self, memory: &Memory, places: &[Place]) -> Vec<Complex64> {
        let mut values = Vec::with_capacity(self.count());
        let t = self.shape.element_type;
        let mut wide = Lanes::new(Class::C128, LANES);
        self.for_each_register(memory, places, |lanes, n| {
            math::convert(t, ElementType::C128, lanes, &mut wide, n);
            let Lanes::C128(wide) = &wide else { unreachable!("made as complex numbers") };
            values.extend_from_slice(&wide[..n]);
        });
        values
    }

    /// All elements in row-major order, in one long register.
    pub(crate) fn read_lanes(&self, memory: &Memory, places: &[Place]) -> Lanes {
        let mut all = Lanes::new(Class::of(self.shape.element_type), self.count());
        let mut filled = 0;
        self.for_each_register(memory, places, |lanes, n| {
            all.copy_from(filled, lanes, 0, n);
            filled += n;
        });
        all
    }

    /// Writes all elements in row-major order.
    pub(crate) fn write(&self, memory: &mut Memory, places: &[Place], values: &[Complex64]) {
        let t = self.shape.element_type;
        let mut wide = Lanes::new(Class::C128, LANES);
        let mut lanes = Lanes::new(Class::of(t), LANES);
        for_each_batch(&self.shape.dimensions, &self.addressing, |base, offsets| {
            let n = offsets.len();
            let Lanes::C128(wide_lanes) = &mut wide else { unreachable!("made as complex numbers") };
            wide_lanes[..n].copy_from_slice(&values[base..base + n]);
            math::convert(ElementType::C128, t, &wide, &mut lanes, n);
            store(t, &lanes, n, at(&self.addressing, offsets), memory.bytes_mut(places[self.number]));
        });
    }

    /// Writes all elements from one long register in row-major order.
    pub(crate) fn write_lanes(&self, memory: &mut Memory, places: &[Place], values: &Lanes) {
        let t = self.shape.element_type;
        let mut lanes = Lanes::new(Class::of(t), LANES);
        for_each_batch(&self.shape.dimensions, &self.addressing, |base, offsets| {
            let n = offsets.len();
            lanes.copy_from(0, values, base, n);
            store(t, &lanes, n, at(&self.addressing, offsets), memory.bytes_mut(places[self.number]));
        });
    }

    /// The bytes of all elements in row-major order, as a literal has them.
    pub(crate) fn read_bytes(&self, memory: &Memory, places: &[Place]) -> Vec<u8> {
        transfer::read(&self.shape, &self.addressing, memory, places[self.number]).bytes().to_vec()
    }

    /// Writes all elements from their bytes in row-major order.
    pub(crate) fn write_bytes(&self, memory: &mut Memory, places: &[Place], bytes: &[u8]) {
        let literal =
            ArrayLiteral::new(self.shape.element_type, self.shape.dimensions.iter().copied(), bytes);
        transfer::write(&literal, &self.addressing, memory, places[self.number]);
    }

    fn for_each_register(&self, memory: &Memory, places: &[Place], mut f: impl FnMut(&Lanes, usize)) {
        let t = self.shape.element_type;
        let bytes = memory.bytes(places[self.number]);
        let mut lanes = Lanes::new(Class::of(t), LANES);
        for_each_batch(&self.shape.dimensions, &self.addressing, |_, offsets| {
            load(t, bytes, at(&self.addressing, offsets), offsets.len(), &mut lanes);
            f(&lanes, offsets.len());
        });
    }
}
