//! Dots: batched matrix products over any dimensions, and their ragged and scaled relatives.

use std::ops::Range;

use memplan_ir::{ArrayShape, DotDimensions, DotOperand, InstructionId, Module};

use crate::Error;
use crate::element::Class;
use crate::kernels::gemm::{self, Dim, Dims, Number, Reader, Side, Writer, accumulator, with_number};
use crate::kernels::{Kernel, Operand};
use crate::lower::addressing;
use crate::memory::{Memory, Place};
use memplan_memory::Addressing;

pub(crate) struct DotKernel {
    product: Product,
    roles: Roles,
}

/// Two operands and a result, with their layouts in memory.
pub(crate) struct Product {
    sides: [Operand; 2],
    addressing: [Addressing; 2],
    result: (ArrayShape, Addressing),
    class: Class,
}

/// The roles of the dimensions of both sides and of the result. Lists of one role have equal extents, except that an
/// extent of 1, which fixes an index, may be missing from the others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roles {
    /// Of lhs, rhs, and the result.
    pub(crate) batch: [Dims; 3],
    /// Of lhs and the result.
    pub(crate) rows: [Dims; 2],
    /// Of lhs and rhs.
    pub(crate) inner: [Dims; 2],
    /// Of rhs and the result.
    pub(crate) columns: [Dims; 2],
}

impl Kernel for DotKernel {
    fn run(&self, memory: &mut Memory, operands: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        self.product.multiply(&self.roles, memory, operands, results[0]);
        Ok(())
    }
}

impl DotKernel {
    pub(crate) fn new(
        dimensions: &DotDimensions,
        operands: &[Operand],
        result: &ArrayShape,
    ) -> Result<DotKernel, Error> {
        let roles = Roles::new(dimensions, [&operands[0].shape, &operands[1].shape], &[], 0);
        Ok(DotKernel { product: Product::new(operands, result)?, roles })
    }
}

impl Roles {
    /// The result's dimensions from `first` on are batch, free of lhs, free of rhs, in this order. Dimensions of rhs that
    /// count `groups` have no role.
    pub(crate) fn new(d: &DotDimensions, shapes: [&ArrayShape; 2], groups: &[i64], first: usize) -> Roles {
        let dims = |side: usize, numbers: &[i64]| -> Dims {
            numbers.iter().map(|&d| Dim::of(shapes[side], d)).collect()
        };
        let mut next = first;
        let mut numbered = |dims: &Dims| -> Dims {
            next += dims.len();
            (next - dims.len()..next).zip(dims).map(|(d, dim)| Dim::whole(d, dim.extent)).collect()
        };
        let batch = [dims(0, &d.lhs_batch), dims(1, &d.rhs_batch)];
        let rows = dims(0, &d.free(DotOperand::Lhs, shapes[0].rank()));
        let mut columns = d.free(DotOperand::Rhs, shapes[1].rank());
        columns.retain(|d| !groups.contains(d));
        let columns = dims(1, &columns);
        let out = [numbered(&batch[0]), numbered(&rows), numbered(&columns)];
        let [out_batch, out_rows, out_columns] = out;
        let [lhs_batch, rhs_batch] = batch;
        Roles {
            batch: [lhs_batch, rhs_batch, out_batch],
            rows: [rows, out_rows],
            inner: [dims(0, &d.lhs_contracting), dims(1, &d.rhs_contracting)],
            columns: [columns, out_columns],
        }
    }
}

impl Product {
    pub(crate) fn new(operands: &[Operand], result: &ArrayShape) -> Result<Product, Error> {
        let sides = [operands[0].clone(), operands[1].clone()];
        let types = [&sides[0], &sides[1]].map(|o| o.shape.element_type);
        Ok(Product {
            addressing: [addressing(&sides[0].shape)?, addressing(&sides[1].shape)?],
            result: (result.clone(), addressing(result)?),
            class: accumulator(types[0], types[1], result.element_type),
            sides,
        })
    }

    /// Writes the elements of the result that have a role.
    pub(crate) fn multiply(&self, roles: &Roles, memory: &mut Memory, operands: &[Place], result: Place) {
        with_number!(self.class, T => self.multiply_as::<T>(roles, memory, operands, result));
    }

    fn multiply_as<T: Number>(&self, roles: &Roles, memory: &mut Memory, operands: &[Place], result: Place) {
        let [mut lhs, mut rhs] = [0, 1].map(|side| Strided::<T>::new(self, roles, side, operands));
        self.each_batch::<T>(roles, memory, result, |memory, b, extents, out| {
            lhs.set_batch(b);
            rhs.set_batch(b);
            gemm::product(extents, &mut lhs, &mut rhs, memory, out);
        });
    }

    /// Calls `f` for each batch, with the extents of its product and what takes the product's rows.
    fn each_batch<T: Number>(
        &self,
        roles: &Roles,
        memory: &mut Memory,
        result: Place,
        mut f: impl FnMut(
            &mut Memory,
            usize,
            (usize, usize, usize),
            &mut dyn FnMut(&mut Memory, usize, usize, &[T]),
        ),
    ) {
        let (shape, out) = &self.result;
        let mut writer = Writer::<T>::new(result, shape, out);
        let (rows, columns) = (&roles.rows[1], &roles.columns[1]);
        let extents = (gemm::extent(rows), gemm::extent(&roles.inner[0]), gemm::extent(columns));
        for b in 0..gemm::extent(&roles.batch[2]) {
            let out_base = gemm::offsets(&roles.batch[2], out, b..b + 1)[0];
            let mut known = (usize::MAX, Vec::new());
            f(memory, b, extents, &mut |memory, row, column, sums| {
                if known.0 != column {
                    known = (column, gemm::offsets(columns, out, column..column + sums.len()));
                }
                let at = out_base + gemm::offsets(rows, out, row..row + 1)[0];
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
    batch: &'k Dims,
    rows: &'k Dims,
    columns: &'k Dims,
    base: i64,
}

impl<'k, T: Number> Strided<'k, T> {
    fn new(product: &'k Product, roles: &'k Roles, side: usize, operands: &[Place]) -> Strided<'k, T> {
        let Operand { number, shape } = &product.sides[side];
        let addressing = &product.addressing[side];
        let (rows, columns) = match side {
            0 => (&roles.rows[0], &roles.inner[0]),
            _ => (&roles.inner[1], &roles.columns[0]),
        };
        let reader = Reader::new(operands[*number], shape, addressing);
        Strided { reader, addressing, batch: &roles.batch[side], rows, columns, base: 0 }
    }

    fn set_batch(&mut self, b: usize) {
        self.base = gemm::offsets(self.batch, self.addressing, b..b + 1)[0];
    }
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

/// A dot of scaled operands: each block of elements has one scale. Elements and scales are rounded to `bf16`, and so
/// are their products, as in JAX's decomposition of the operation; these are multiplied and added up in `f32`.
pub(crate) struct ScaledDotKernel {
    product: Product,
    scales: Product,
    roles: Roles,
    scale_roles: Roles,
}

impl ScaledDotKernel {
    pub(crate) fn new(
        module: &Module,
        id: InstructionId,
        dimensions: &DotDimensions,
        operands: &[Operand],
        result: &ArrayShape,
    ) -> Result<ScaledDotKernel, Error> {
        for side in 0..2 {
            let (elements, scales) = (&operands[side].shape, &operands[side + 2].shape);
            let divides = |(&extent, &n): (&i64, &i64)| extent == 0 || n > 0 && extent % n == 0;
            if scales.rank() != 0 && scales.rank() != elements.rank()
                || !elements.dimensions.iter().zip(&scales.dimensions).all(divides)
            {
                return Err(Error::invalid(module, id, "scales are not for equal blocks of elements"));
            }
        }
        let roles = Roles::new(dimensions, [&operands[0].shape, &operands[1].shape], &[], 0);
        let mut scale_roles = roles.clone();
        for side in 0..2 {
            let other = if side == 0 { &mut scale_roles.rows[0] } else { &mut scale_roles.columns[0] };
            let lists = [&mut scale_roles.batch[side], &mut scale_roles.inner[side], other];
            lists.into_iter().for_each(|dims| share_scales(dims, &operands[side + 2].shape));
        }
        let class = Class::F32;
        Ok(ScaledDotKernel {
            product: Product { class, ..Product::new(&operands[..2], result)? },
            scales: Product { class, ..Product::new(&operands[2..], result)? },
            roles,
            scale_roles,
        })
    }
}

/// Makes indices of an operand indices of its scales.
fn share_scales(dims: &mut Dims, scales: &ArrayShape) {
    for dim in dims {
        dim.block = match scales.dimensions.get(dim.dimension) {
            Some(&n) => (dim.extent / n.max(1)).max(1),
            None => gemm::ALL,
        };
    }
}

impl Kernel for ScaledDotKernel {
    fn run(&self, memory: &mut Memory, operands: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        let [mut lhs, mut rhs] = [0, 1].map(|side| Scaled {
            elements: Strided::new(&self.product, &self.roles, side, operands),
            scales: Strided::new(&self.scales, &self.scale_roles, side, operands),
            block: Vec::new(),
        });
        self.product.each_batch::<f32>(&self.roles, memory, results[0], |memory, b, extents, out| {
            for side in [&mut lhs, &mut rhs] {
                side.elements.set_batch(b);
                side.scales.set_batch(b);
            }
            gemm::product(extents, &mut lhs, &mut rhs, memory, out);
        });
        Ok(())
    }
}

/// A side of elements times scales.
struct Scaled<'k> {
    elements: Strided<'k, f32>,
    scales: Strided<'k, f32>,
    /// The scales of a block.
    block: Vec<f32>,
}

impl Side<f32> for Scaled<'_> {
    fn pack(&mut self, memory: &Memory, rows: Range<usize>, columns: Range<usize>, block: &mut [f32]) {
        let n = rows.len() * columns.len();
        self.block.resize(n, 0.0);
        self.elements.pack(memory, rows.clone(), columns.clone(), block);
        self.scales.pack(memory, rows, columns, &mut self.block);
        let bf16 = |x: f32| half::bf16::from_f32(x).to_f32();
        for (x, &scale) in block.iter_mut().zip(&self.block) {
            *x = bf16(bf16(*x) * bf16(scale));
        }
    }
}
