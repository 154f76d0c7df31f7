//! Memory against the program, drawn with characters.

use memplan::memory::Bytes;

/// Characters across and lines down.
const WIDTH: usize = 84;
const HEIGHT: usize = 12;

/// Eighths of a cell, from empty to full.
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws a load curve: each column the most bytes live in its part of the program, the peak marked below.
pub(crate) fn draw(curve: &[Bytes], peak: usize) -> String {
    draw_of(curve, peak, "instruction")
}

/// The same for a curve over other steps than instructions.
pub(crate) fn draw_of(curve: &[Bytes], peak: usize, step: &str) -> String {
    if curve.is_empty() {
        return String::new();
    }
    let width = WIDTH.min(curve.len());
    let column = |i: usize| column(i, curve.len());
    let tops: Vec<u64> =
        (0..width).map(|i| curve[column(i)].iter().map(|bytes| bytes.0).max().unwrap_or(0)).collect();
    let highest = tops.iter().copied().max().unwrap_or(0).max(1);
    let mut text = String::new();
    for line in (0..HEIGHT).rev() {
        let label = if line == HEIGHT - 1 {
            Bytes(highest).to_string()
        } else if line == HEIGHT / 2 - 1 {
            Bytes(highest / 2).to_string()
        } else {
            String::new()
        };
        text.push_str(&format!("{label:>12} │"));
        for &top in &tops {
            let eighths = (u128::from(top) * (HEIGHT as u128) * 8).div_ceil(u128::from(highest)) as usize;
            text.push(BARS[eighths.saturating_sub(line * 8).min(8)]);
        }
        text.push('\n');
    }
    let marker = (0..width).find(|&i| column(i).contains(&peak)).unwrap_or(0);
    text.push_str(&format!("{:>12} └{}▲{}\n", "0 B", "─".repeat(marker), "─".repeat(width - marker - 1)));
    text.push_str(&format!("{:>14}{:marker$}peak, {step} {peak} of {}\n", "", "", curve.len()));
    text
}

/// Draws shares from 0 to 1 as one line of bars: each column the largest of its part.
pub(crate) fn line(shares: &[f64]) -> String {
    let width = WIDTH.min(shares.len());
    let largest = |i: usize| shares[column(i, shares.len())].iter().copied().fold(0.0, f64::max);
    (0..width).map(|i| BARS[(largest(i).clamp(0.0, 1.0) * 8.0).round() as usize]).collect()
}

/// The steps that one column of a picture stands for.
fn column(i: usize, steps: usize) -> std::ops::Range<usize> {
    let width = WIDTH.min(steps);
    i * steps / width..((i + 1) * steps / width).max(i * steps / width + 1)
}
