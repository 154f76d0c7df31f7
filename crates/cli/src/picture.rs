//! Memory against the program, drawn with characters.

use memplan::memory::Bytes;

use crate::screen::Screen;

/// The most characters across, those of the labels, and the number of lines.
const WIDTH: usize = 84;
const LABELS: usize = 14;
const HEIGHT: usize = 12;

/// Eighths of a cell, from empty to full.
const BARS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Draws a load curve: each column shows the most live bytes in its part of the program; a mark below shows the peak.
pub(crate) fn draw(curve: &[Bytes], peak: usize, screen: Screen) -> String {
    draw_of(curve, peak, "instruction", screen)
}

/// The same for a curve over steps that are not instructions.
pub(crate) fn draw_of(curve: &[Bytes], peak: usize, step: &str, screen: Screen) -> String {
    if curve.is_empty() {
        return String::new();
    }
    let width = columns(curve.len(), screen);
    let column = |i: usize| column(i, width, curve.len());
    let tops: Vec<u64> =
        (0..width).map(|i| curve[column(i)].iter().map(|bytes| bytes.0).max().unwrap_or(0)).collect();
    let highest = tops.iter().copied().max().unwrap_or(0).max(1);
    let marker = (0..width).find(|&i| column(i).contains(&peak)).unwrap_or(0);
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
        let bar = |&top: &u64| {
            let eighths = (u128::from(top) * (HEIGHT as u128) * 8).div_ceil(u128::from(highest)) as usize;
            BARS[eighths.saturating_sub(line * 8).min(8)]
        };
        let part = |tops: &[u64]| tops.iter().map(bar).collect::<String>();
        text.push_str(&screen.drawn(&part(&tops[..marker])));
        text.push_str(&screen.bad(&part(&tops[marker..=marker])));
        text.push_str(&screen.drawn(part(&tops[marker + 1..]).trim_end()));
        text.push('\n');
    }
    text.push_str(&format!("{:>12} └{}▲{}\n", "0 B", "─".repeat(marker), "─".repeat(width - marker - 1)));
    // The text starts or ends at the marker, depending on the room.
    let label = format!("peak, {step} {peak} of {}", curve.len());
    let from = match marker + label.len() + LABELS <= screen.width {
        true => marker,
        false => (marker + 1).saturating_sub(label.len()),
    };
    text.push_str(&format!("{:LABELS$}{:from$}{}\n", "", "", screen.bad(&label)));
    text
}

/// Draws shares from 0 to 1 as one line of bars: each column shows the largest of its part.
pub(crate) fn line(shares: &[f64], screen: Screen) -> String {
    let width = columns(shares.len(), screen);
    let largest = |i: usize| shares[column(i, width, shares.len())].iter().copied().fold(0.0, f64::max);
    (0..width).map(|i| BARS[(largest(i).clamp(0.0, 1.0) * 8.0).round() as usize]).collect()
}

/// The number of columns for a number of steps.
fn columns(steps: usize, screen: Screen) -> usize {
    WIDTH.min(screen.width - LABELS).min(steps)
}

/// The steps that a column represents.
fn column(i: usize, width: usize, steps: usize) -> std::ops::Range<usize> {
    i * steps / width..((i + 1) * steps / width).max(i * steps / width + 1)
}

/// The character of a point of a [`scatter`].
pub(crate) fn mark(i: usize) -> char {
    u8::try_from(i).ok().filter(|i| *i < 26).map_or('·', |i| char::from(b'a' + i))
}

/// Draws points of seconds and bytes, each as its [`mark`]; the axes begin at the smallest values.
pub(crate) fn scatter(points: &[(f64, u64)], screen: Screen) -> String {
    let across = WIDTH.min(screen.width - LABELS);
    let range = |of: &dyn Fn(&(f64, u64)) -> f64| {
        points.iter().map(of).fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (a.min(x), b.max(x)))
    };
    let (seconds, bytes) = (range(&|point| point.0), range(&|point| point.1 as f64));
    let place = |x: f64, (low, high): (f64, f64), n: usize| match high > low {
        true => ((x - low) / (high - low) * (n - 1) as f64).round() as usize,
        false => 0,
    };
    let mut cells = vec![vec![' '; across]; HEIGHT];
    for (i, &(x, y)) in points.iter().enumerate() {
        cells[place(y as f64, bytes, HEIGHT)][place(x, seconds, across)] = mark(i);
    }
    let mut text = String::new();
    for (line, row) in cells.into_iter().enumerate().rev() {
        let label = match line {
            _ if line == HEIGHT - 1 => Bytes(bytes.1 as u64).to_string(),
            0 => Bytes(bytes.0 as u64).to_string(),
            _ => String::new(),
        };
        let row: String = row.into_iter().collect();
        text.push_str(format!("{label:>12} │{row}").trim_end());
        text.push('\n');
    }
    let (low, high) = (format!("{:.3} ms", seconds.0 * 1e3), format!("{:.3} ms", seconds.1 * 1e3));
    text.push_str(&format!(
        "{:>12} └{}\n{:>14}{low}{high:>width$}\n",
        "",
        "─".repeat(across),
        "",
        width = across - low.len()
    ));
    text
}
