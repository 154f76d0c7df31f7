//! Convolutions: a matrix product whose left side is gathered from the window on demand.
//!
//! Rows are (batch, output spatial), columns output features, and the inner extent runs over the taps of the kernel and
//! the input features, so that the features of one tap are read together.

use std::ops::Range;

use memplan_ir::{ArrayShape, ConvolutionDimensions, Window};

use crate::Error;
use crate::element::Class;
use crate::kernels::gemm::{self, Dim, Dims, Number, Reader, Side, Writer, accumulator, with_number};
use crate::kernels::{Kernel, Operand};
use crate::lower::addressing;
use crate::memory::{Memory, Place};
use memplan_memory::Addressing;

pub(crate) struct ConvolutionKernel {
    input: Operand,
    kernel: Operand,
    addressing: [Addressing; 2],
    result: (ArrayShape, Addressing),
    class: Class,
    window: Window,
    dims: ConvolutionDimensions,
    feature_groups: i64,
    batch_groups: i64,
}

/// The beginnings of one group's parts of input, kernel and result.
struct Group {
    input_batch: i64,
    input_feature: i64,
    output_feature: i64,
}

impl Kernel for ConvolutionKernel {
    fn run(&self, memory: &mut Memory, operands: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        with_number!(self.class, T => self.run_as::<T>(memory, operands, results[0]));
        Ok(())
    }
}

impl ConvolutionKernel {
    pub(crate) fn new(
        window: &Window,
        dims: &ConvolutionDimensions,
        feature_groups: i64,
        batch_groups: i64,
        operands: &[Operand],
        result: &ArrayShape,
    ) -> Result<ConvolutionKernel, Error> {
        let (input, kernel) = (operands[0].clone(), operands[1].clone());
        Ok(ConvolutionKernel {
            addressing: [addressing(&input.shape)?, addressing(&kernel.shape)?],
            result: (result.clone(), addressing(result)?),
            class: accumulator(input.shape.element_type, kernel.shape.element_type, result.element_type),
            window: window.clone(),
            dims: dims.clone(),
            feature_groups: feature_groups.max(1),
            batch_groups: batch_groups.max(1),
            input,
            kernel,
        })
    }

    fn run_as<T: Number>(&self, memory: &mut Memory, operands: &[Place], result: Place) {
        let (shape, out) = &self.result;
        let d = &self.dims;
        let all = |shape: &ArrayShape, dims: &[i64]| -> Dims {
            dims.iter().map(|&dim| Dim::of(shape, dim)).collect()
        };
        let kernel = &self.kernel.shape;
        let groups = self.feature_groups * self.batch_groups;
        let features = Dim::of(shape, d.output_feature).extent / groups;
        let rows: Dims = [vec![Dim::of(shape, d.output_batch)], all(shape, &d.output_spatial)].concat();
        let columns: Dims = vec![Dim::whole(d.output_feature as usize, features)];
        let inner: Dims =
            [all(kernel, &d.kernel_spatial), vec![Dim::of(kernel, d.kernel_input_feature)]].concat();
        let extents = (gemm::extent(&rows), gemm::extent(&inner), features as usize);
        let mut writer = Writer::<T>::new(result, shape, out);
        for g in 0..groups {
            let group = Group {
                input_batch: if self.batch_groups > 1 { g * rows[0].extent } else { 0 },
                input_feature: if self.feature_groups > 1 { g * inner[inner.len() - 1].extent } else { 0 },
                output_feature: g * features,
            };
            let mut lhs = Windows {
                conv: self,
                reader: Reader::<T>::new(operands[self.input.number], &self.input.shape, &self.addressing[0]),
                rows: &rows,
                inner: &inner,
                group: &group,
            };
            let mut rhs = Taps {
                conv: self,
                reader: Reader::<T>::new(operands[self.kernel.number], kernel, &self.addressing[1]),
                inner: &inner,
                group: &group,
            };
            let mut known = (usize::MAX, Vec::new());
            gemm::product(extents, &mut lhs, &mut rhs, memory, |memory, row, column, sums: &[T]| {
                if known.0 != column {
                    let begin = group.output_feature + column as i64;
                    let along = |f: i64| out.along(columns[0].dimension, f);
                    known = (column, (begin..begin + sums.len() as i64).map(along).collect());
                }
                let at = gemm::offsets(&rows, out, row..row + 1)[0];
                let offsets: Vec<i64> = known.1.iter().map(|o| o + at).collect();
                writer.write(memory, sums, &offsets);
            });
        }
    }
}

/// The input as a matrix of windows.
struct Windows<'k, T> {
    conv: &'k ConvolutionKernel,
    reader: Reader<T>,
    rows: &'k Dims,
    inner: &'k Dims,
    group: &'k Group,
}

impl<T: Number> Side<T> for Windows<'_, T> {
    fn pack(&mut self, memory: &Memory, rows: Range<usize>, columns: Range<usize>, block: &mut [T]) {
        let (d, window) = (&self.conv.dims, &self.conv.window.dimensions);
        let (input, addressing) = (&self.conv.input.shape, &self.conv.addressing[0]);
        let width = columns.len();
        // Per column: how far its tap is from the window's first element, and its feature's part of the offset.
        let mut index = gemm::unravel(self.inner, columns.start);
        let mut taps: Vec<(usize, Vec<i64>)> = Vec::new();
        let mut features = Vec::with_capacity(width);
        for at in 0..width {
            let spatial = &index[..window.len()];
            if at == 0 || index[window.len()] == 0 {
                let shift = |(w, &i): (&memplan_ir::WindowDimension, &i64)| {
                    w.window_dilation * if w.window_reversal { w.size - 1 - i } else { i }
                };
                taps.push((at, window.iter().zip(spatial).map(shift).collect()));
            }
            features.push(
                addressing.along(d.input_feature as usize, self.group.input_feature + index[window.len()]),
            );
            gemm::increment(self.inner, &mut index);
        }
        let mut row = gemm::unravel(self.rows, rows.start);
        let mut offsets = vec![0i64; width];
        for (_, out) in rows.zip(block.chunks_mut(width)) {
            let batch = addressing.along(d.input_batch as usize, self.group.input_batch + row[0]);
            let mut outside: Vec<Range<usize>> = Vec::new();
            for (t, (begin, shifts)) in taps.iter().enumerate() {
                let end = taps.get(t + 1).map_or(width, |next| next.0);
                let mut at = Some(batch);
                for (k, w) in window.iter().enumerate() {
                    let dim = d.input_spatial[k] as usize;
                    let dilated = row[1 + k] * w.stride - w.padding_low + shifts[k];
                    let i = dilated / w.base_dilation;
                    let is_inside =
                        dilated >= 0 && dilated % w.base_dilation == 0 && i < input.dimensions[dim];
                    at = at.filter(|_| is_inside).map(|at| at + addressing.along(dim, i));
                }
                if at.is_none() {
                    outside.push(*begin..end);
                }
                // Positions outside read some element and are zeroed below.
                let at = at.unwrap_or(0);
                for (offset, feature) in offsets[*begin..end].iter_mut().zip(&features[*begin..end]) {
                    *offset = at + feature;
                }
            }
            if outside.len() == taps.len() {
                out.fill(T::default());
            } else {
                self.reader.read(memory, &offsets, out);
                outside.into_iter().for_each(|range| out[range].fill(T::default()));
            }
            gemm::increment(self.rows, &mut row);
        }
    }
}

/// The kernel as a matrix of taps and input features by output features.
struct Taps<'k, T> {
    conv: &'k ConvolutionKernel,
    reader: Reader<T>,
    inner: &'k Dims,
    group: &'k Group,
}

impl<T: Number> Side<T> for Taps<'_, T> {
    fn pack(&mut self, memory: &Memory, rows: Range<usize>, columns: Range<usize>, block: &mut [T]) {
        let addressing = &self.conv.addressing[1];
        let feature = self.conv.dims.kernel_output_feature as usize;
        let width = columns.len();
        let along = |c: usize| addressing.along(feature, self.group.output_feature + c as i64);
        let columns: Vec<i64> = columns.map(along).collect();
        let mut offsets = columns.clone();
        for (row, out) in gemm::offsets(self.inner, addressing, rows).into_iter().zip(block.chunks_mut(width))
        {
            offsets.iter_mut().zip(&columns).for_each(|(o, c)| *o = row + c);
            self.reader.read(memory, &offsets, out);
        }
    }
}
