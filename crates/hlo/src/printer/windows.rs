//! Attributes of windows and convolutions.

use std::fmt::{self, Write};

use memplan_ir::{ConvolutionDimensions, TensorSparsity, Window};

use super::separated;

/// `{size=3x3 pad=1_1x1_1}`; `{}` without dimensions.
pub(crate) fn window<W: Write>(window: &Window, out: &mut W) -> fmt::Result {
    let dimensions = &window.dimensions;
    if dimensions.is_empty() {
        return out.write_str("{}");
    }
    out.write_str("{size=")?;
    separated(out, "x", dimensions, |out, d| write!(out, "{}", d.size))?;
    if dimensions.iter().any(|d| d.stride != 1) {
        out.write_str(" stride=")?;
        separated(out, "x", dimensions, |out, d| write!(out, "{}", d.stride))?;
    }
    if dimensions.iter().any(|d| d.padding_low != 0 || d.padding_high != 0) {
        out.write_str(" pad=")?;
        separated(out, "x", dimensions, |out, d| write!(out, "{}_{}", d.padding_low, d.padding_high))?;
    }
    if dimensions.iter().any(|d| d.base_dilation != 1) {
        out.write_str(" lhs_dilate=")?;
        separated(out, "x", dimensions, |out, d| write!(out, "{}", d.base_dilation))?;
    }
    if dimensions.iter().any(|d| d.window_dilation != 1) {
        out.write_str(" rhs_dilate=")?;
        separated(out, "x", dimensions, |out, d| write!(out, "{}", d.window_dilation))?;
    }
    if dimensions.iter().any(|d| d.window_reversal) {
        out.write_str(" rhs_reversal=")?;
        separated(out, "x", dimensions, |out, d| write!(out, "{}", u8::from(d.window_reversal)))?;
    }
    out.write_char('}')
}

/// `b01f_01io->b01f`
pub(crate) fn dimension_labels<W: Write>(d: &ConvolutionDimensions, out: &mut W) -> fmt::Result {
    labels(out, [(b'b', d.input_batch), (b'f', d.input_feature)], &d.input_spatial)?;
    out.write_char('_')?;
    labels(out, [(b'i', d.kernel_input_feature), (b'o', d.kernel_output_feature)], &d.kernel_spatial)?;
    out.write_str("->")?;
    labels(out, [(b'b', d.output_batch), (b'f', d.output_feature)], &d.output_spatial)
}

/// One letter or digit per dimension; `?` where a dimension has no meaning.
fn labels<W: Write>(out: &mut W, letters: [(u8, i64); 2], spatial: &[i64]) -> fmt::Result {
    let rank = letters.iter().map(|&(_, d)| d).chain(spatial.iter().copied()).max().unwrap_or(-1) + 1;
    let mut text = vec![b'?'; usize::try_from(rank).unwrap_or(0)];
    let spatial = spatial.iter().enumerate().map(|(i, &d)| (b'0' + i as u8, d));
    for (label, dimension) in letters.into_iter().chain(spatial) {
        if let Some(place) = usize::try_from(dimension).ok().and_then(|d| text.get_mut(d)) {
            *place = label;
        }
    }
    text.iter().try_for_each(|&b| out.write_char(char::from(b)))
}

/// `{lhs={sparsity=2x4 dimension=1 stride=1}}`
pub(crate) fn sparsity<W: Write>(sides: &[Option<TensorSparsity>; 2], out: &mut W) -> fmt::Result {
    out.write_char('{')?;
    let sides = ["lhs", "rhs"].into_iter().zip(sides).filter_map(|(name, side)| Some((name, (*side)?)));
    separated(out, " ", sides, |out, (name, s)| {
        write!(
            out,
            "{name}={{sparsity={}x{} dimension={} stride={}}}",
            s.num_non_zero, s.block_size, s.dimension, s.stride
        )
    })?;
    out.write_char('}')
}
