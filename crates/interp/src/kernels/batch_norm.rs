//! The three batch normalizations, in `f64`.

use memplan_ir::{ArrayShape, ElementType, Op};

use crate::Error;
use crate::kernels::dense::{Dense, Work, numbers_mut};
use crate::kernels::{Kernel, Operand};
use crate::memory::{Memory, Place};

pub(crate) struct BatchNormKernel {
    op: Op,
    operands: Vec<Dense>,
    results: Vec<Dense>,
    epsilon: f64,
    feature: usize,
}

impl BatchNormKernel {
    pub(crate) fn new(
        op: &Op,
        operands: &[Operand],
        results: &[(usize, &ArrayShape)],
    ) -> Result<BatchNormKernel, Error> {
        let (epsilon, feature) = match op {
            Op::BatchNormTraining { epsilon, feature_index }
            | Op::BatchNormInference { epsilon, feature_index }
            | Op::BatchNormGrad { epsilon, feature_index } => (f64::from(*epsilon), *feature_index as usize),
            _ => unreachable!("called for batch normalizations"),
        };
        Ok(BatchNormKernel {
            op: op.clone(),
            operands: operands.iter().map(Dense::operand).collect::<Result<_, _>>()?,
            results: results
                .iter()
                .map(|&(number, shape)| Dense::new(number, shape))
                .collect::<Result<_, _>>()?,
            epsilon,
            feature,
        })
    }
}

impl Kernel for BatchNormKernel {
    /// Operands and results as numbers, and two numbers per feature.
    fn scratch_bytes(&self) -> usize {
        Work::bytes([self.numbers().saturating_mul(size_of::<f64>())])
    }

    fn run(
        &self,
        memory: &mut Memory,
        operands: &[Place],
        results: &[Place],
        scratch: Place,
    ) -> Result<(), Error> {
        let all = Work::new(memory, scratch).take::<f64>(self.numbers());
        let mut rest = all;
        let mut take = |n: usize| {
            let (taken, size) = (rest, n * size_of::<f64>());
            rest = rest.part(size, rest.size - size);
            taken.part(0, size)
        };
        for operand in &self.operands {
            operand.read(memory, operands, ElementType::F64, take(operand.count()));
        }
        let outputs: Vec<Place> = self.results.iter().map(|result| take(result.count())).collect();
        self.normalize(numbers_mut::<f64>(memory, all));
        for (result, output) in self.results.iter().zip(outputs) {
            result.write(memory, results, ElementType::F64, output);
        }
        Ok(())
    }
}

impl BatchNormKernel {
    fn n_features(&self) -> usize {
        self.operands[0].shape.dimensions[self.feature] as usize
    }

    fn numbers(&self) -> usize {
        let count = |arrays: &[Dense]| arrays.iter().map(Dense::count).sum::<usize>();
        count(&self.operands) + count(&self.results) + 2 * self.n_features()
    }

    /// Computes the results from the operands, whose places come first.
    fn normalize(&self, mut numbers: &mut [f64]) {
        let extents = &self.operands[0].shape.dimensions;
        let n_features = self.n_features();
        let inner = extents[self.feature + 1..].iter().product::<i64>() as usize;
        let of = |i: usize| i / inner % n_features;
        let mut take = |n: usize| -> &mut [f64] {
            let (taken, rest) = std::mem::take(&mut numbers).split_at_mut(n);
            numbers = rest;
            taken
        };
        let given: Vec<&[f64]> = self.operands.iter().map(|operand| &*take(operand.count())).collect();
        let mut made: Vec<&mut [f64]> = self.results.iter().map(|result| take(result.count())).collect();
        let (means, factors) = (take(n_features), take(n_features));
        let (x, scale) = (given[0], given[1]);
        let per_feature = (x.len() / n_features.max(1)) as f64;
        match (&self.op, &mut made[..]) {
            (Op::BatchNormTraining { .. }, [y, mean, variance]) => {
                sum_up(mean, x.len(), &of, |i| x[i] / per_feature);
                sum_up(variance, x.len(), &of, |i| (x[i] - mean[of(i)]).powi(2) / per_feature);
                means.copy_from_slice(mean);
                for (factor, variance) in factors.iter_mut().zip(&**variance) {
                    *factor = (variance + self.epsilon).sqrt();
                }
                let offset = given[2];
                for (i, y) in y.iter_mut().enumerate() {
                    *y = (x[i] - means[of(i)]) / factors[of(i)] * scale[of(i)] + offset[of(i)];
                }
            }
            (Op::BatchNormInference { .. }, [y]) => {
                let (offset, mean, variance) = (given[2], given[3], given[4]);
                for (i, y) in y.iter_mut().enumerate() {
                    let f = of(i);
                    *y = (x[i] - mean[f]) / (variance[f] + self.epsilon).sqrt() * scale[f] + offset[f];
                }
            }
            (Op::BatchNormGrad { .. }, [x_grad, scale_grad, offset_grad]) => {
                let (mean, variance, grad) = (given[2], given[3], given[4]);
                for (factor, variance) in factors.iter_mut().zip(variance) {
                    *factor = (variance + self.epsilon).sqrt();
                }
                let normal = |i: usize| (x[i] - mean[of(i)]) / factors[of(i)];
                sum_up(offset_grad, x.len(), &of, |i| grad[i]);
                sum_up(scale_grad, x.len(), &of, |i| grad[i] * normal(i));
                for (i, x_grad) in x_grad.iter_mut().enumerate() {
                    let f = of(i);
                    let centered = per_feature * grad[i] - offset_grad[f] - normal(i) * scale_grad[f];
                    *x_grad = scale[f] / factors[f] / per_feature * centered;
                }
            }
            _ => unreachable!("batch normalizations have one or three results"),
        }
    }
}

/// Sums of `n` values, each added to the sum of its feature.
fn sum_up(sums: &mut [f64], n: usize, of: &dyn Fn(usize) -> usize, value: impl Fn(usize) -> f64) {
    sums.fill(0.0);
    (0..n).for_each(|i| sums[of(i)] += value(i));
}
