//! Kernels of CMSIS-NN, Arm's library for Cortex-M, in place of loops.
//!
//! [`KERNELS`] is the table: a row recognizes what one kernel computes, to the bit, and has its arguments. What is not
//! exactly that stays a nest of loops. Sums become `s8` by a multiplier and a shift of each channel; the [`ROUNDINGS`] say
//! how a program writes that. What a kernel needs beside its operands is an array on the stack.

mod call;
mod pattern;

use memplan_ir::BinaryOp::*;
use memplan_ir::UnaryOp::*;
use memplan_ir::{BinaryOp, Convolution, ConvolutionDimensions, ElementType, InstructionId, Module, Op};

use crate::storage::order_in_memory;
use call::{Extents, Window};
use pattern::Pattern::{self, Binary, Integer, Less, Narrow, Unary, Wide};
use pattern::{Instructions, Part, Search};

pub(crate) use call::{Call, PRELUDE};
pub(crate) use pattern::Source;

/// How a kernel rounds when it scales a sum, which the library is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// To the multiplier's bits and then to the shift's, halves away from zero.
    Twice,
    /// Once, halves up: `CMSIS_NN_USE_SINGLE_ROUNDING`.
    Once,
}

const SUM: Pattern = Pattern::Part(Part::Sum);
const SHIFT: Pattern = Pattern::Part(Part::Shift);
const MULTIPLIER: Pattern = Pattern::Part(Part::Multiplier);
const BIASED: Pattern = Binary(Add, &SUM, &Pattern::Part(Part::Bias));

/// `((sum << max(shift, 0)) * multiplier + (1 << 30)) >> 31`
const HIGH: Pattern = Wide(&Binary(ShiftRightArithmetic, &NUDGED, &Integer(31)));
const NUDGED: Pattern = Wide(&Binary(Add, &PRODUCT, &Integer(1 << 30)));
const PRODUCT: Pattern = Wide(&Binary(Multiply, &Binary(ShiftLeft, &BIASED, &LEFT), &MULTIPLIER));
const LEFT: Pattern = Binary(Maximum, &SHIFT, &Integer(0));
const RIGHT: Pattern = Binary(Maximum, &Unary(Negate, &SHIFT), &Integer(0));

/// `sign(high) * ((abs(high) + (1 << right >> 1)) >> right)`
const BY_MAGNITUDE: Pattern =
    Binary(Multiply, &Unary(Sign, &HIGH), &Binary(ShiftRightArithmetic, &AWAY, &RIGHT));
const AWAY: Pattern = Wide(&Binary(Add, &Unary(Abs, &HIGH), &HALF));
const HALF: Pattern =
    Binary(ShiftRightArithmetic, &Wide(&Binary(ShiftLeft, &Integer(1), &RIGHT)), &Integer(1));

/// `(high >> right) + ((high & mask) > (mask >> 1) + (high >> right < 0))`, as TensorFlow Lite writes it
const BY_REMAINDER: Pattern = Binary(Add, &QUOTIENT, &Less(&THRESHOLD, &Binary(And, &Narrow(&HIGH), &MASK)));
const QUOTIENT: Pattern = Binary(ShiftRightArithmetic, &Narrow(&HIGH), &RIGHT);
const MASK: Pattern = Binary(Add, &Binary(ShiftLeft, &Integer(1), &RIGHT), &Integer(-1));
const THRESHOLD: Pattern =
    Binary(Add, &Binary(ShiftRightArithmetic, &MASK, &Integer(1)), &Less(&QUOTIENT, &Integer(0)));

/// `(sum * multiplier + (1 << (30 - shift))) >> (31 - shift)`
const ONCE: Pattern = Binary(ShiftRightArithmetic, &HALF_UP, &Binary(Subtract, &Integer(31), &SHIFT));
const HALF_UP: Pattern = Wide(&Binary(
    Add,
    &Wide(&Binary(Multiply, &BIASED, &MULTIPLIER)),
    &Wide(&Binary(ShiftLeft, &Integer(1), &Binary(Subtract, &Integer(30), &SHIFT))),
));

/// How programs scale a sum.
const ROUNDINGS: [(Pattern, Rounding); 3] =
    [(BY_MAGNITUDE, Rounding::Twice), (BY_REMAINDER, Rounding::Twice), (ONCE, Rounding::Once)];

/// `(sum + sign(sum) * half) / count`: the mean, halves away from zero
const MEAN: Pattern = Binary(
    Divide,
    &Binary(Add, &SUM, &Binary(Multiply, &Unary(Sign, &SUM), &Pattern::Part(Part::Half))),
    &Pattern::Part(Part::Count),
);

/// A row for each kernel.
const KERNELS: [fn(&Instructions<'_>) -> Option<Call>; 5] =
    [convolution, depthwise, product, largest_of_windows, mean];

/// The call of a kernel that computes exactly what an instruction does.
pub(crate) fn find(module: &Module, id: InstructionId) -> Option<Call> {
    let of = Instructions::of(module, id)?;
    KERNELS.iter().find_map(|kernel| kernel(&of))
}

/// A sum that is scaled, clamped and narrowed to `s8`.
struct Scaled<'s, 'm> {
    search: Search<'s, 'm>,
    rounding: Rounding,
    limits: (i64, i64),
    sum: InstructionId,
}

impl Scaled<'_, '_> {
    fn activation(&self) -> String {
        activation(self.limits)
    }
}

fn activation((low, high): (i64, i64)) -> String {
    format!(".activation = {{.min = {low}, .max = {high}}}")
}

fn scaled<'s, 'm>(of: &'s Instructions<'m>) -> Option<Scaled<'s, 'm>> {
    if *of.op(of.root) != Op::Convert || of.shape(of.root)?.element_type != ElementType::S8 {
        return None;
    }
    let (limits, inner) = clamped(of, of.operand(of.root, 0))?;
    ROUNDINGS.iter().find_map(|(pattern, rounding)| {
        let search = Search::find(of, pattern, inner)?;
        let sum = search.part(Part::Sum);
        Some(Scaled { search, rounding: *rounding, limits, sum })
    })
}

/// The limits of a value, which are within those of `s8`, and the value before it was clamped.
fn clamped(of: &Instructions<'_>, id: InstructionId) -> Option<((i64, i64), InstructionId)> {
    let (mut low, mut high, mut at) = (i64::MIN, i64::MAX, id);
    loop {
        at = of.narrow(at);
        let limited = |k| Some((of.integer(of.operand(at, k))?, of.operand(at, 1 - k)));
        let (limit, inner) = match of.op(at) {
            Op::Binary(Maximum | Minimum) => limited(0).or_else(|| limited(1))?,
            _ => break,
        };
        match of.op(at) {
            Op::Binary(Maximum) => low = low.max(limit),
            _ => high = high.min(limit),
        }
        at = inner;
    }
    (-128 <= low && low <= high && high <= 127).then_some(((low, high), at))
}

/// A convolution of an array of batch, height, width and channels, whose filter begins with the results' channels.
fn convolution(of: &Instructions<'_>) -> Option<Call> {
    let scaled = scaled(of)?;
    let Op::Convolution(it) = of.op(scaled.sum) else { return None };
    let [input, output, filter] =
        extents(of, scaled.sum, it, |d, [h, w]| [d.kernel_output_feature, h, w, d.kernel_input_feature])?;
    let window = Window::of(&it.window.dimensions, [0, 1]).filter(|_| it.feature_group_count == 1)?;
    let is_pointwise = (window.size, window.padding, window.dilation) == ([1, 1], [0, 0], [1, 1]);
    let [_, h, w, c] = filter;
    // Two columns of the patch under a window, as 16 bits, each padded to four numbers.
    let scratch = if is_pointwise { 0 } else { 16 * (h * w * c + 3).div_euclid(4) };
    let fields = [window.fields_with_dilation(), scaled.activation()];
    let call = Call::new("convolve_wrapper_s8", "conv_params", &fields)
        .with_scratch(scratch, format!("convolve_wrapper_s8_get_buffer_size({OF_CONVOLUTION})"));
    filtered(of, call, &scaled, [input, filter, output])
}

/// A convolution of each channel on its own, perhaps with several filters.
fn depthwise(of: &Instructions<'_>) -> Option<Call> {
    let scaled = scaled(of)?;
    let Op::Convolution(it) = of.op(scaled.sum) else { return None };
    let [input, output, filter] =
        extents(of, scaled.sum, it, |d, [h, w]| [d.kernel_input_feature, h, w, d.kernel_output_feature])?;
    let window = Window::of(&it.window.dimensions, [0, 1])?;
    let [one, h, w, _] = filter;
    if one != 1 || it.feature_group_count != input[3] {
        return None;
    }
    let is_plain = input[3] == output[3] && input[0] == 1 && window.dilation == [1, 1];
    let is_in_registers = window.size == [3, 3] && window.padding.iter().all(|&p| p <= 1);
    // The patch under a window, as 16 bits.
    let scratch = if is_plain && !is_in_registers { 2 * h * w * input[3] } else { 0 };
    let multiple = format!(".ch_mult = {}", output[3] / input[3]);
    let fields = [multiple, window.fields_with_dilation(), scaled.activation()];
    let call = Call::new("depthwise_conv_wrapper_s8", "dw_conv_params", &fields)
        .with_scratch(scratch, format!("depthwise_conv_wrapper_s8_get_buffer_size({OF_CONVOLUTION})"));
    filtered(of, call, &scaled, [input, filter, output])
}

/// What the size of the scratch of a convolution depends on.
const OF_CONVOLUTION: &str = "&parameters, &input_extents, &filter_extents, &output_extents";

/// The extents of input, result and filter of a convolution, if they are in memory in this order.
fn extents(
    of: &Instructions<'_>,
    id: InstructionId,
    it: &Convolution,
    order: impl Fn(&ConvolutionDimensions, [i64; 2]) -> [i64; 4],
) -> Option<[Extents; 3]> {
    let d = &it.dimensions;
    let ([ih, iw], [oh, ow]) = (&*d.input_spatial, &*d.output_spatial) else { return None };
    let [kh, kw] = &*d.kernel_spatial else { return None };
    if it.batch_group_count != 1 || it.sparsity.iter().any(Option::is_some) {
        return None;
    }
    let input = stored(of, of.narrow(of.operand(id, 0)), [d.input_batch, *ih, *iw, d.input_feature])?;
    let filter = stored(of, of.narrow(of.operand(id, 1)), order(d, [*kh, *kw]))?;
    let output = [d.output_batch, *oh, *ow, d.output_feature];
    // The search takes the last dimension for that of the channels.
    let output = (d.output_feature == 3).then(|| stored(of, of.root, output))??;
    Some([input, output, filter])
}

/// The extents of an array of `s8` in some order of its dimensions, if they are in memory in it.
fn stored<const N: usize>(of: &Instructions<'_>, id: InstructionId, order: [i64; N]) -> Option<[i64; N]> {
    let shape = of.shape(id).filter(|shape| shape.element_type == ElementType::S8 && shape.rank() == N)?;
    let extent = |d: &i64| shape.dimensions[*d as usize];
    let longer = order.iter().copied().filter(|d| extent(d) != 1);
    let is_so = longer.eq(order_in_memory(shape)?)
        && order.iter().all(|d| (1..=i64::from(i16::MAX)).contains(&extent(d)));
    is_so.then(|| order.map(|d| extent(&d)))
}

/// Adds the arrays and the scale of a convolution to its call.
fn filtered(
    of: &Instructions<'_>,
    call: Call,
    scaled: &Scaled<'_, '_>,
    [input, filter, output]: [Extents; 3],
) -> Option<Call> {
    let operand = |k| of.source(of.narrow(of.operand(scaled.sum, k)));
    let part = |part| {
        let id = scaled.search.part(part);
        let is_whole = of.shape(id)?.element_count() == Some(output[3] as u64);
        of.source(id).filter(|_| is_whole)
    };
    let scale = [part(Part::Multiplier)?, part(Part::Shift)?];
    let call = call
        .scaled_by(scale, "per_channel_quant_params", "")
        .taking("input", input, operand(0)?)
        .taking("filter", filter, operand(1)?)
        .taking("bias", [1, 1, 1, output[3]], part(Part::Bias)?)
        .giving(output)
        .rounding(scaled.rounding);
    Some(call)
}

/// A product with a matrix, whose rows make one result each.
fn product(of: &Instructions<'_>) -> Option<Call> {
    let scaled = scaled(of)?;
    let Op::Dot(dot) = of.op(scaled.sum) else { return None };
    let d = &dot.dimensions;
    let ([l], [r]) = (&*d.lhs_contracting, &*d.rhs_contracting) else { return None };
    if !d.lhs_batch.is_empty() || !d.rhs_batch.is_empty() {
        return None;
    }
    let operand = |k| of.narrow(of.operand(scaled.sum, k));
    let [rows, depth] = stored(of, operand(0), [1 - l, *l])?;
    let [columns, _] = stored(of, operand(1), [1 - r, *r])?;
    let [_, _] = stored(of, of.root, [0, 1])?;
    let part = |part| {
        let id = scaled.search.part(part);
        Some((of.source(id)?, of.shape(id)?.element_count()? as i64))
    };
    let ((bias, n), (multiplier, n_multipliers), (shift, n_shifts)) =
        (part(Part::Bias)?, part(Part::Multiplier)?, part(Part::Shift)?);
    if n != columns || n_multipliers != n_shifts {
        return None;
    }
    let each = format!(", .is_per_channel = {}", i32::from(n_shifts == columns));
    let call = Call::new("fully_connected_wrapper_s8", "fc_params", &[scaled.activation()])
        .with_scratch(0, "fully_connected_s8_get_buffer_size(&filter_extents)")
        .scaled_by([multiplier, shift], "quant_params", &each)
        .taking("input", [rows, 1, 1, depth], of.source(operand(0))?)
        .taking("filter", [depth, 1, 1, columns], of.source(operand(1))?)
        .taking("bias", [1, 1, 1, columns], bias)
        .giving([rows, 1, 1, columns])
        .rounding(scaled.rounding);
    Some(call)
}

/// The largest number of each window.
fn largest_of_windows(of: &Instructions<'_>) -> Option<Call> {
    let Op::ReduceWindow(window) = of.op(of.root) else { return None };
    let [still, .., also_still] = &*window.dimensions else { return None };
    let operand = of.operand(of.root, 0);
    let input = stored(of, operand, [0, 1, 2, 3])?;
    let output = stored(of, of.root, [0, 1, 2, 3])?;
    let is_least = of.integer(of.operand(of.root, 1)) == Some(-128);
    if !is_least || !combines_by(of, of.root, Maximum) || !still.is_still() || !also_still.is_still() {
        return None;
    }
    let window = Window::of(&window.dimensions, [1, 2]).filter(|it| it.dilation == [1, 1])?;
    let call = Call::new("max_pool_s8", "pool_params", &[window.fields(), activation((-128, 127))])
        .taking("input", input, of.source(operand)?)
        .over("filter", [1, window.size[0], window.size[1], 1])
        .giving(output);
    Some(call)
}

/// The mean of each channel.
fn mean(of: &Instructions<'_>) -> Option<Call> {
    if *of.op(of.root) != Op::Convert {
        return None;
    }
    let found = Search::find(of, &MEAN, of.operand(of.root, 0))?;
    let sum = found.part(Part::Sum);
    let Op::Reduce { dimensions } = of.op(sum) else { return None };
    let operand = of.narrow(of.operand(sum, 0));
    let [n, h, w, c] = stored(of, operand, [0, 1, 2, 3])?;
    stored(of, of.root, [0, 1])?;
    let number = |part| of.integer(found.part(part));
    let is_mean = number(Part::Count) == Some(h * w) && number(Part::Half) == Some(h * w / 2);
    let is_sum = combines_by(of, sum, Add) && of.integer(of.operand(sum, 1)) == Some(0);
    if !is_mean || !is_sum || **dimensions != [1, 2] {
        return None;
    }
    let fields = [Window::of_size([h, w]).fields(), activation((-128, 127))];
    // A sum of 32 bits for each channel.
    let call = Call::new("avgpool_s8", "pool_params", &fields)
        .with_scratch(4 * c, format!("avgpool_s8_get_buffer_size(1, {c})"))
        .taking("input", [n, h, w, c], of.source(operand)?)
        .over("filter", [1, h, w, 1])
        .giving([n, 1, 1, c]);
    Some(call)
}

/// Whether an instruction combines elements by an operation.
fn combines_by(of: &Instructions<'_>, id: InstructionId, op: BinaryOp) -> bool {
    let combiner = &of.module.computations[of.module.instructions[id].called[0]];
    let root = &of.module.instructions[combiner.root];
    let takes = |&parameter: &InstructionId| root.operands.contains(&parameter);
    root.op == Op::Binary(op) && root.operands.len() == 2 && combiner.parameters.iter().all(takes)
}
