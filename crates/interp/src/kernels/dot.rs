//! Dots: batched matrix products over any dimensions, and their ragged and scaled relatives.

use std::ops::Range;

use memplan_ir::{ArrayShape, DotDimensions};

use crate::Error;
use crate::addressing::Addressing;
use crate::element::Class;
use crate::kernels::gemm::{self, Number, Reader, Side, Writer, accumulator, with_number};
use crate::kernels::{Kernel, Operand};
use crate::lower::addressing;
use crate::memory::{Memory, Place};

/// A dimension and its extent.
type Dims = Vec<(usize, i64)>;

pub(crate) struct DotKernel {
    sides: [Operand; 2],
    addressing: [Addressing; 2],
    result: (ArrayShape, Addressing),
    class: Class,
    batch: [Dims; 2],
    free: [Dims; 2],
    contracting: [Dims; 2],
}

impl Kernel for DotKernel {
    fn run(&self, memory: &mut Memory, operands: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        with_number!(self.class, T => self.run_as::<T>(memory, operands, results[0]));
        Ok(())
    }
}

impl DotKernel {
    pub(crate) fn new(
        dimensions: &DotDimensions,
        operands: &[Operand],
        result: &ArrayShape,
    ) -> Result<DotKernel, Error> {
        let sides = [operands[0].clone(), operands[1].clone()];
        let dims = |side: usize, numbers: &[i64]| -> Dims {
            numbers.iter().map(|&d| (d as usize, sides[side].shape.dimensions[d as usize])).collect()
        };
        let free = |side: usize, used: [&[i64]; 2]| -> Dims {
            let numbers = 0..sides[side].shape.rank() as i64;
            dims(side, &numbers.filter(|d| !used.iter().any(|u| u.contains(d))).collect::<Vec<_>>())
        };
        let d = dimensions;
        let types = [&sides[0], &sides[1]].map(|o| o.shape.element_type);
        Ok(DotKernel {
            addressing: [addressing(&sides[0].shape)?, addressing(&sides[1].shape)?],
            result: (result.clone(), addressing(result)?),
            class: accumulator(types[0], types[1], result.element_type),
            batch: [dims(0, &d.lhs_batch), dims(1, &d.rhs_batch)],
            free: [
                free(0, [&d.lhs_batch[..], &d.lhs_contracting[..]]),
                free(1, [&d.rhs_batch[..], &d.rhs_contracting[..]]),
            ],
            contracting: [dims(0, &d.lhs_contracting), dims(1, &d.rhs_contracting)],
            sides,
        })
    }

    fn run_as<T: Number>(&self, memory: &mut Memory, operands: &[Place], result: Place) {
        let (shape, out) = &self.result;
        let place = |side: usize| operands[self.sides[side].number];
        let reader =
            |side: usize| Reader::<T>::new(place(side), &self.sides[side].shape, &self.addressing[side]);
        let mut lhs = Strided {
            reader: reader(0),
            addressing: &self.addressing[0],
            rows: &self.free[0],
            columns: &self.contracting[0],
            base: 0,
        };
        let mut rhs = Strided {
            reader: reader(1),
            addressing: &self.addressing[1],
            rows: &self.contracting[1],
            columns: &self.free[1],
            base: 0,
        };
        let mut writer = Writer::<T>::new(result, shape, out);
        // The result's dimensions are batch, free of lhs, free of rhs, in this order.
        let numbered = |dims: &Dims, first: usize| -> Dims {
            dims.iter().enumerate().map(|(i, d)| (first + i, d.1)).collect()
        };
        let batch = numbered(&self.batch[0], 0);
        let rows = numbered(&self.free[0], batch.len());
        let columns = numbered(&self.free[1], batch.len() + rows.len());
        let extents = (gemm::extent(&rows), gemm::extent(&self.contracting[0]), gemm::extent(&columns));
        for b in 0..gemm::extent(&batch) {
            let base = |dims: &Dims, addressing: &Addressing| gemm::offsets(dims, addressing, b..b + 1)[0];
            lhs.base = base(&self.batch[0], &self.addressing[0]);
            rhs.base = base(&self.batch[1], &self.addressing[1]);
            let out_base = base(&batch, out);
            let mut known = (usize::MAX, Vec::new());
            gemm::product(extents, &mut lhs, &mut rhs, memory, |memory, row, column, sums: &[T]| {
                if known.0 != column {
                    known = (column, gemm::offsets(&columns, out, column..column + sums.len()));
                }
                let at = out_base + gemm::offsets(&rows, out, row..row + 1)[0];
                let offsets: Vec<i64> = known.1.iter().map(|o| o + at).collect();
                writer.write(memory, sums, &offsets);
            });
        }
    }
}

/// A side whose rows and columns are products of dimensions.
struct Strided<'k, T> {
    reader: Reader<T>,
    addressing: &'k Addressing,
    rows: &'k Dims,
    columns: &'k Dims,
    base: i64,
}

impl<T: Number> Side<T> for Strided<'_, T> {
    fn pack(&mut self, memory: &Memory, rows: Range<usize>, columns: Range<usize>, block: &mut [T]) {
        let width = columns.len();
        let columns = gemm::offsets(self.columns, self.addressing, columns);
        let mut offsets = columns.clone();
        for (row, out) in
            gemm::offsets(self.rows, self.addressing, rows).into_iter().zip(block.chunks_mut(width))
        {
            offsets.iter_mut().zip(&columns).for_each(|(o, c)| *o = self.base + row + c);
            self.reader.read(memory, &offsets, out);
        }
    }
}
