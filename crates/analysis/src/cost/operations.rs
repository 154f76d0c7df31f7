//! The number of operations of an instruction.

use memplan_ir::{
    Arithmetic, ArrayShape, Convolution, DotDimensions, Instruction, InstructionId, Module, Op,
    WindowDimension,
};

use super::Products;
use memplan_memory::Target;

use super::library_calls::{LibraryCall, library_call};
use super::matrix_unit::MatrixProduct;

/// Vector operations of a function that is evaluated by a polynomial or a table: the order of magnitude of the code
/// that compilers emit for exp, log, tanh and the like.
const TRANSCENDENTAL: f64 = 8.0;

/// Vector operations of a division or a root: an estimate and a step or two of Newton's method.
const DIVISION: f64 = 4.0;

/// Vector operations of one random number: the rounds of a counter-based generator.
const RANDOM: f64 = 16.0;

/// Adds the operations of `share` of an instruction's result to the counts: of products, the target's number, if one is
/// given.
pub(super) fn add(
    module: &Module,
    target: Option<&Target>,
    id: InstructionId,
    share: f64,
    matrix: &mut impl Extend<Products>,
    vector: &mut f64,
) {
    let instruction = &module.instructions[id];
    let operand = |i: usize| instruction.operands.get(i).and_then(|&o| module.shape(o).as_array());
    let product = match &instruction.op {
        Op::RaggedDot(dot) => {
            // Every row is multiplied with the matrix of one group.
            let contracted = dot.dimensions.lhs_contracting.iter().map(|&d| extent(operand(0), d));
            let contracted: f64 = contracted.product();
            let result = elements(module.shape(id).first_array());
            let columns = extent(operand(1), operand(1).map_or(0, |a| a.rank() as i64) - 1);
            Some(MatrixProduct {
                batch: 1.0,
                rows: result / columns.max(1.0),
                columns,
                contracted,
                taps: 1.0,
                is_depthwise: false,
            })
        }
        Op::Convolution(convolution) => {
            let result = module.shape(id).first_array();
            Some(convolution_product(convolution, operand(0), operand(1), result))
        }
        Op::CustomCall(_) => match library_call(module, id) {
            Some(LibraryCall::Dot(dimensions, [lhs, rhs])) => {
                Some(dot_product(&dimensions, Some(lhs), Some(rhs)))
            }
            Some(LibraryCall::Convolution(convolution, [base, kernel, result])) => {
                Some(convolution_product(&convolution, Some(base), Some(kernel), Some(result)))
            }
            Some(LibraryCall::Products(operations)) => {
                let operations = share * operations;
                let products = |array: &ArrayShape| Products {
                    element_type: array.element_type,
                    operations,
                    padded: operations,
                    start: 0.0,
                };
                matrix.extend(operand(0).map(products));
                return;
            }
            Some(LibraryCall::Vector(operations)) => {
                *vector += share * operations;
                return;
            }
            None => None,
        },
        op => op.dot_dimensions().map(|dimensions| dot_product(dimensions, operand(0), operand(1))),
    };
    match (product, operand(0)) {
        (Some(product), Some(array)) => {
            let operations = 2.0 * share * product.multiplications();
            let padded =
                2.0 * share * target.map_or(product.multiplications(), |target| product.padded_on(target));
            let start = target.map_or(0.0, |target| product.start_on(target));
            matrix.extend([Products { element_type: array.element_type, operations, padded, start }]);
        }
        (Some(_), None) => {}
        (None, first) => {
            let result = elements(module.shape(id).first_array());
            let slowness = target.map_or(1.0, |target| scatter_slowness(module, target, id));
            *vector += share * slowness * vector_operations(module, instruction, result, elements(first));
        }
    }
}

pub(super) fn dot_product(
    dimensions: &DotDimensions,
    lhs: Option<&ArrayShape>,
    rhs: Option<&ArrayShape>,
) -> MatrixProduct {
    let product = |array, dimensions: &[i64]| dimensions.iter().map(|&d| extent(array, d)).product::<f64>();
    let batch = product(lhs, &dimensions.lhs_batch);
    let contracted = product(lhs, &dimensions.lhs_contracting);
    let others = |array| elements(array) / (batch * contracted).max(1.0);
    MatrixProduct {
        batch,
        rows: others(lhs),
        columns: others(rhs),
        contracted,
        taps: 1.0,
        is_depthwise: false,
    }
}

pub(super) fn elements(shape: Option<&ArrayShape>) -> f64 {
    shape.and_then(ArrayShape::element_count).unwrap_or(0) as f64
}

fn vector_operations(module: &Module, instruction: &Instruction, result: f64, operand: f64) -> f64 {
    let log2 = |n: f64| n.max(2.0).log2();
    // Windows are reduced one dimension after the other, wide ones by doubling.
    let window = |dimensions: &[WindowDimension]| {
        let steps = |size: f64| if size > 2.0 { (size - 1.0).min(2.0 * log2(size)) } else { size - 1.0 };
        dimensions.iter().map(|d| steps(d.size as f64)).sum::<f64>().max(1.0)
    };
    match &instruction.op {
        op @ (Op::Unary(_) | Op::Binary(_)) => result * per_element(op),
        Op::Reduce { .. } | Op::Map { .. } | Op::TopK { .. } | Op::Scan(_) => {
            let arrays = (instruction.operands.len() / 2).max(1);
            operand * arrays as f64
        }
        Op::ReduceWindow(w) | Op::SelectAndScatter(w) => result * window(&w.dimensions),
        Op::Sort { dimension, .. } => {
            let array = instruction.operands.first().and_then(|&o| module.shape(o).as_array());
            operand * log2(extent(array, *dimension)) * instruction.operands.len() as f64
        }
        Op::Fft { lengths, .. } => 5.0 * result * log2(lengths.iter().map(|&n| n as f64).product()),
        Op::Cholesky { .. } => {
            let array = instruction.operands.first().and_then(|&o| module.shape(o).as_array());
            result * extent(array, array.map_or(0, |a| a.rank() as i64) - 1) / 3.0
        }
        Op::TriangularSolve(_) => {
            let array = instruction.operands.first().and_then(|&o| module.shape(o).as_array());
            result * extent(array, array.map_or(0, |a| a.rank() as i64) - 1)
        }
        Op::Rng { .. } | Op::RngBitGenerator { .. } => RANDOM * result,
        Op::BatchNormTraining { .. } | Op::BatchNormInference { .. } | Op::BatchNormGrad { .. } => {
            DIVISION * operand
        }
        Op::Scatter(_) => {
            let updates = instruction.operands.last().and_then(|&o| module.shape(o).as_array());
            updates.and_then(ArrayShape::element_count).unwrap_or(0) as f64
        }
        // Inside a kernel these cost nothing but the reads, which are counted as such.
        op if op.is_free() => 0.0,
        Op::Fusion(_) => 0.0,
        Op::DynamicUpdateSlice => {
            let update = instruction.operands.get(1).and_then(|&o| module.shape(o).as_array());
            update.and_then(ArrayShape::element_count).unwrap_or(0) as f64
        }
        _ => result,
    }
}

/// The additions that take as long as one update of a scatter, which adds to memory that other cores add to at the same
/// time. 1 where updates replace elements.
fn scatter_slowness(module: &Module, target: &Target, id: InstructionId) -> f64 {
    let instruction = &module.instructions[id];
    let (Op::Scatter(_), Some(array)) = (&instruction.op, module.shape(id).first_array()) else { return 1.0 };
    let combined = module.computations[instruction.called[0]].root;
    let replaces = matches!(module.instructions[combined].op, Op::Parameter { .. });
    let rates = target.vector_rate.zip(target.scatter_rates.get(array.element_type));
    rates.filter(|_| !replaces).map_or(1.0, |(vector, scatter)| (vector / scatter).max(1.0))
}

/// Vector operations of one element of an elementwise operation.
fn per_element(op: &Op) -> f64 {
    match op.traits().arithmetic {
        Arithmetic::Simple => 1.0,
        Arithmetic::Division => DIVISION,
        Arithmetic::Transcendental => TRANSCENDENTAL,
    }
}

/// A convolution as a matrix product: a row for each position of the result, a column for each feature of it, and a sum
/// over the features of the base and the elements of the window. Multiplications with padding, or with the holes of a
/// dilated base, are left out.
fn convolution_product(
    convolution: &Convolution,
    base: Option<&ArrayShape>,
    kernel: Option<&ArrayShape>,
    result: Option<&ArrayShape>,
) -> MatrixProduct {
    let labels = &convolution.dimensions;
    // The kernel's input features are one group's already; batch groups share the batch.
    let groups = convolution.batch_group_count.max(1) as f64;
    let mut product = MatrixProduct {
        batch: 1.0,
        rows: extent(base, labels.input_batch) / groups,
        columns: extent(kernel, labels.kernel_output_feature),
        contracted: extent(kernel, labels.kernel_input_feature),
        taps: 1.0,
        is_depthwise: convolution.feature_group_count > 1
            && extent(kernel, labels.kernel_input_feature) == 1.0,
    };
    for (i, window) in convolution.window.dimensions.iter().enumerate() {
        let at = |labels: &[i64]| labels.get(i).copied().unwrap_or(-1);
        let (n, outputs) =
            (extent(base, at(&labels.input_spatial)), extent(result, at(&labels.output_spatial)));
        let pairs = valid_pairs(window, n as i64, outputs as i64);
        let per_output = pairs / outputs.max(1.0);
        if window.size > 1 && per_output <= 1.0 {
            // Each element of the window meets one of the base: as many products as there are elements.
            product.batch *= pairs;
        } else if per_output <= 1.0 {
            product.rows *= pairs;
        } else {
            product.rows *= outputs;
            // Only the taps of the innermost window are next to each other.
            product.batch *= product.taps;
            product.taps = per_output;
        }
    }
    product
}

/// Positions of a window that are looked at one by one: the kernel of every real convolution has fewer in each
/// dimension, while a text can claim any number.
const MAX_POSITIONS: i64 = 1 << 12;

/// Pairs of a window's element and a placement of the window such that an element of the base is under it; for windows
/// longer than [`MAX_POSITIONS`], estimated from as many of their elements.
fn valid_pairs(window: &WindowDimension, base: i64, outputs: i64) -> f64 {
    let (stride, dilation) = (i128::from(window.stride.max(1)), i128::from(window.base_dilation.max(1)));
    let last = (i128::from(base) - 1) * dilation;
    // Of the placements of one element, every `period`th meets an element of the base and not a hole.
    let (divisor, inverse) = gcd_and_inverse(stride, dilation);
    let period = dilation / divisor;
    let step = usize::try_from(window.size / MAX_POSITIONS).unwrap_or(0).max(1);
    let (mut pairs, mut positions) = (0i128, 0);
    for k in (0..window.size).step_by(step) {
        positions += 1;
        // Placement `o` reads position `o * stride + shift` of the dilated base.
        let shift = i128::from(k) * i128::from(window.window_dilation) - i128::from(window.padding_low);
        let first_placement = (-shift).max(0).div_euclid(stride) + i128::from((-shift).max(0) % stride != 0);
        let last_placement = (last - shift).div_euclid(stride).min(i128::from(outputs) - 1);
        if shift % divisor != 0 {
            continue;
        }
        let hit = (-shift / divisor).rem_euclid(period) * inverse.rem_euclid(period) % period;
        let first = first_placement + (hit - first_placement).rem_euclid(period);
        if first <= last_placement {
            pairs += (last_placement - first) / period + 1;
        }
    }
    pairs as f64 * (window.size as f64 / f64::from(positions.max(1)))
}

/// The greatest common divisor of `a` and `b`, and a number whose product with `a` is that plus a multiple of `b`:
/// Euclid's algorithm.
fn gcd_and_inverse(a: i128, b: i128) -> (i128, i128) {
    let (mut rest, mut inverse) = ((a, b), (1, 0));
    while rest.1 != 0 {
        let quotient = rest.0 / rest.1;
        rest = (rest.1, rest.0 - quotient * rest.1);
        inverse = (inverse.1, inverse.0 - quotient * inverse.1);
    }
    (rest.0, inverse.0)
}

pub(super) fn extent(array: Option<&ArrayShape>, dimension: i64) -> f64 {
    let dimension = usize::try_from(dimension).ok();
    dimension.and_then(|d| array?.dimensions.get(d)).map_or(1.0, |&extent| extent.max(0) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(window: WindowDimension, base: i64, outputs: i64) {
        let brute_force =
            (0..window.size).flat_map(|k| (0..outputs).map(move |o| (k, o))).filter(|(k, o)| {
                let at = o * window.stride + k * window.window_dilation - window.padding_low;
                at >= 0 && at % window.base_dilation == 0 && at / window.base_dilation < base
            });
        assert_eq!(valid_pairs(&window, base, outputs), brute_force.count() as f64);
    }

    #[test]
    fn only_elements_under_the_window_count() {
        let window = WindowDimension { size: 3, ..WindowDimension::default() };
        check(WindowDimension { padding_low: 1, padding_high: 1, ..window }, 8, 8);
        check(WindowDimension { stride: 2, padding_low: 1, ..window }, 9, 4);
        check(WindowDimension { base_dilation: 2, padding_low: 2, padding_high: 2, ..window }, 7, 15);
        check(WindowDimension { base_dilation: 6, stride: 4, padding_low: 5, ..window }, 11, 14);
        check(WindowDimension { base_dilation: 9, stride: 6, padding_low: 7, ..window }, 30, 50);
        check(WindowDimension { window_dilation: 5, padding_low: 3, ..window }, 4, 2);
    }

    #[test]
    fn the_longest_windows_are_estimated() {
        let window = WindowDimension { size: 1 << 40, ..WindowDimension::default() };
        let (base, outputs) = ((1 << 41) - 1, 1 << 40);
        let all = f64::from(1 << 20).powi(4);
        assert!((valid_pairs(&window, base, outputs) / all - 1.0).abs() < 1e-9);
        let extreme = WindowDimension { stride: i64::MAX, base_dilation: i64::MAX - 1, ..window };
        assert!(valid_pairs(&extreme, i64::MAX, i64::MAX).is_finite());
    }
}
