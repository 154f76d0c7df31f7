//! The three batch normalizations, in `f64`.

use memplan_ir::{ArrayShape, Op};

use crate::Error;
use crate::kernels::dense::Dense;
use crate::kernels::{Kernel, Operand};
use crate::memory::{Memory, Place};
use num_complex::Complex64;

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
    fn scratch_bytes(&self) -> usize {
        // Operands and results, each once as it is read or written and once as numbers.
        let count = |arrays: &[Dense]| arrays.iter().map(Dense::count).sum::<usize>();
        let n_features = self.operands[0].shape.dimensions[self.feature] as usize;
        2 * (count(&self.operands) + count(&self.results) + 4 * n_features) * size_of::<Complex64>()
    }

    fn run(&self, memory: &mut Memory, operands: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        let real =
            |k: usize| -> Vec<f64> { self.operands[k].read(memory, operands).iter().map(|x| x.re).collect() };
        let extents = &self.operands[0].shape.dimensions;
        let n_features = extents[self.feature] as usize;
        let inner = extents[self.feature + 1..].iter().product::<i64>() as usize;
        let of = |i: usize| i / inner % n_features;
        let x = real(0);
        let per_feature = (x.len() / n_features.max(1)) as f64;
        let sums = |value: &dyn Fn(usize) -> f64| {
            let mut sums = vec![0f64; n_features];
            (0..x.len()).for_each(|i| sums[of(i)] += value(i));
            sums
        };
        let means = |value: &dyn Fn(usize) -> f64| -> Vec<f64> {
            sums(value).iter().map(|s| s / per_feature).collect()
        };
        let (scale, epsilon) = (real(1), self.epsilon);
        let outputs: Vec<Vec<f64>> = match self.op {
            Op::BatchNormTraining { .. } => {
                let offset = real(2);
                let mean = means(&|i| x[i]);
                let variance = means(&|i| (x[i] - mean[of(i)]).powi(2));
                let normal = |i: usize| (x[i] - mean[of(i)]) / (variance[of(i)] + epsilon).sqrt();
                let y = (0..x.len()).map(|i| normal(i) * scale[of(i)] + offset[of(i)]).collect();
                vec![y, mean, variance]
            }
            Op::BatchNormInference { .. } => {
                let (offset, mean, variance) = (real(2), real(3), real(4));
                let normal = |i: usize| (x[i] - mean[of(i)]) / (variance[of(i)] + epsilon).sqrt();
                vec![(0..x.len()).map(|i| normal(i) * scale[of(i)] + offset[of(i)]).collect()]
            }
            _ => {
                let (mean, variance, grad) = (real(2), real(3), real(4));
                let deviation: Vec<f64> = variance.iter().map(|v| (v + epsilon).sqrt()).collect();
                let normal = |i: usize| (x[i] - mean[of(i)]) / deviation[of(i)];
                let offset_grad = sums(&|i| grad[i]);
                let scale_grad = sums(&|i| grad[i] * normal(i));
                let x_grad = (0..x.len()).map(|i| {
                    let f = of(i);
                    let centered = per_feature * grad[i] - offset_grad[f] - normal(i) * scale_grad[f];
                    scale[f] / deviation[f] / per_feature * centered
                });
                vec![x_grad.collect(), scale_grad, offset_grad]
            }
        };
        for (result, values) in self.results.iter().zip(outputs) {
            let values: Vec<Complex64> = values.into_iter().map(Complex64::from).collect();
            result.write(memory, results, &values);
        }
        Ok(())
    }
}
