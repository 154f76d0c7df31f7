//! Memory against the program, drawn with characters.

use memplan::memory::Bytes;

/// Characters across and lines down.
const WIDTH: usize = 84;
const HEIGHT: usize = 12;

/// Eighths of a cell, from empty to full.
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws a load curve: each column the most bytes live in its part of the program, the peak marked below.
pub(crate) fn draw(curve: &[Bytes], peak: usize) -> String {
    if curve.is_empty() {
        return String::new();
    }
    let width = WIDTH.min(curve.len().max(1));
    let column =
        |i: usize| i * curve.len() / width..((i + 1) * curve.len() / width).max(i * curve.len() / width + 1);
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
    text.push_str(&format!("{:>14}{:marker$}peak, instruction {peak} of {}\n", "", "", curve.len()));
    text
}
