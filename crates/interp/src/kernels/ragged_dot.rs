//! Ragged dots: one dimension of the left side is divided into groups, whose sizes are known at run time.
//!
//! The kind of that dimension gives groups their meaning. Free: each group of rows has its own right side. Contracting:
//! each group gives its own product. Batch: groups of batches, which change nothing.

use memplan_ir::{ArrayShape, ElementType, InstructionId, Module, RaggedDot};

use crate::Error;
use crate::element::{Class, LANES, Lanes};
use crate::kernels::dense::{Dense, Work, numbers_mut};
use crate::kernels::dot::{Product, Roles};
use crate::kernels::gemm::{self, Dim, Dims};
use crate::kernels::{Kernel, Operand};
use crate::memory::{Memory, Place};

pub(crate) struct RaggedDotKernel {
    product: Product,
    roles: Roles,
    sizes: Dense,
    /// The dimension of lhs that is cut.
    ragged: usize,
    mode: Mode,
    /// Dimensions of lhs for whose indices the groups differ. Groups are the last dimension of the sizes.
    prefix: Dims,
    result: Dense,
}

enum Mode {
    /// Rows; the dimension of rhs that counts groups.
    Rows(usize),
    /// The contracted dimension. Groups are the first dimension of the result.
    Inner,
    Batch,
}

impl RaggedDotKernel {
    pub(crate) fn new(
        module: &Module,
        id: InstructionId,
        dot: &RaggedDot,
        operands: &[Operand],
        result: &ArrayShape,
    ) -> Result<RaggedDotKernel, Error> {
        let (numbers, lhs) = (&dot.dimensions, &operands[0].shape);
        let ragged = dot.lhs_ragged_dims[0];
        let contracted = numbers.lhs_contracting.contains(&ragged);
        let mode = match (contracted, numbers.lhs_batch.contains(&ragged), dot.rhs_group_dims.first()) {
            (true, ..) => Mode::Inner,
            (false, true, _) => Mode::Batch,
            (false, false, Some(&group)) => Mode::Rows(group as usize),
            (false, false, None) => return Err(Error::invalid(module, id, "it has no group dimension")),
        };
        let first = matches!(mode, Mode::Inner) as usize;
        let roles = Roles::new(numbers, [lhs, &operands[1].shape], &dot.rhs_group_dims, first);
        // Those of the ragged dimension's role that precede it.
        let is_before = |d: &i64| match mode {
            Mode::Rows(_) => {
                *d < ragged && !numbers.lhs_contracting.contains(d) && !numbers.lhs_batch.contains(d)
            }
            Mode::Inner => *d < ragged && numbers.lhs_contracting.contains(d),
            Mode::Batch => false,
        };
        let own: Vec<i64> = (0..lhs.rank() as i64).filter(is_before).collect();
        let prefix: Dims = numbers.lhs_batch.iter().chain(&own).map(|&d| Dim::of(lhs, d)).collect();
        let sizes = Dense::operand(&operands[2])?;
        let prefix = if sizes.shape.rank() > 1 { prefix } else { Dims::new() };
        if matches!(mode, Mode::Inner) && !own.is_empty() && !prefix.is_empty() {
            return Err(Error::unsupported(
                module,
                id,
                "its groups differ along another contracted dimension",
            ));
        }
        let n_prefix = sizes.shape.rank() - 1;
        if !matches!(mode, Mode::Batch)
            && !prefix.iter().map(|d| d.extent).eq(sizes.shape.dimensions[..n_prefix].iter().copied())
        {
            return Err(Error::invalid(module, id, "the group sizes have other extents than the batches"));
        }
        let product = Product::new(operands, result)?;
        let result = Dense::new(0, result)?;
        Ok(RaggedDotKernel { product, roles, sizes, ragged: ragged as usize, mode, prefix, result })
    }
}

impl Kernel for RaggedDotKernel {
    /// The group sizes.
    fn scratch_bytes(&self) -> usize {
        Work::bytes([self.sizes.count().saturating_mul(size_of::<i64>())])
    }

    fn run(
        &self,
        memory: &mut Memory,
        operands: &[Place],
        results: &[Place],
        scratch: Place,
    ) -> Result<(), Error> {
        if let Mode::Batch = self.mode {
            self.product.multiply(&self.roles, memory, operands, results[0]);
            return Ok(());
        }
        let sizes = Work::new(memory, scratch).take::<i64>(self.sizes.count());
        self.sizes.read(memory, operands, ElementType::S64, sizes);
        // Rows and products of no group are zero.
        let t = self.result.shape.element_type;
        let zeros = Lanes::new(Class::of(t), LANES);
        self.result.fill(memory, results, t, |_, _, n, lanes| lanes.copy_from(0, &zeros, 0, n));
        let n_groups = *self.sizes.shape.dimensions.last().unwrap_or(&0);
        let extent = self.ragged_extent();
        for at in 0..gemm::extent(&self.prefix) {
            let index = gemm::unravel(&self.prefix, at);
            let mut begin = 0i64;
            for group in 0..n_groups {
                let size = numbers_mut::<i64>(memory, sizes)[at * n_groups as usize + group as usize];
                let end = begin.max(begin.saturating_add(size)).min(extent);
                let roles = self.of_group(&index, group, begin, end);
                self.product.multiply(&roles, memory, operands, results[0]);
                begin = end;
            }
        }
        Ok(())
    }
}

impl RaggedDotKernel {
    fn ragged_extent(&self) -> i64 {
        let lists = [&self.roles.rows[0], &self.roles.inner[0]];
        let found = lists.into_iter().flatten().find(|d| d.dimension == self.ragged);
        found.map_or(0, |d| d.extent)
    }

    /// The part of the product that a group is, for one index of the prefix.
    fn of_group(&self, index: &[i64], group: i64, begin: i64, end: i64) -> Roles {
        let mut roles = self.roles.clone();
        let fixed = |dimension: usize, begin: i64| Dim { dimension, begin, extent: 1, block: 1 };
        for (dim, &at) in self.prefix.iter().zip(index) {
            // An index of lhs is the same index of all others that share its role.
            for lists in [&mut roles.batch[..], &mut roles.rows[..]] {
                if let Some(k) = lists[0].iter().position(|d| d.dimension == dim.dimension) {
                    lists.iter_mut().for_each(|dims| dims[k] = fixed(dims[k].dimension, at));
                }
            }
        }
        let cut = |dims: &mut Dims, k: usize| {
            dims[k].begin = begin;
            dims[k].extent = end - begin;
        };
        match self.mode {
            Mode::Rows(dimension) => {
                if let Some(k) = roles.rows[0].iter().position(|d| d.dimension == self.ragged) {
                    roles.rows.iter_mut().for_each(|dims| cut(dims, k));
                }
                roles.batch[1].push(fixed(dimension, group));
            }
            Mode::Inner => {
                if let Some(k) = roles.inner[0].iter().position(|d| d.dimension == self.ragged) {
                    roles.inner.iter_mut().for_each(|dims| cut(dims, k));
                }
                roles.batch[2].push(fixed(0, group));
            }
            Mode::Batch => {}
        }
        roles
    }
}
