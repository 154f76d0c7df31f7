//! Memory against time: the addresses of one allocation upwards, launches from left to right.
//!
//! ```text
//!     4096 │    ███████
//!     2048 │████▒▒▒▒███
//!        0 └───────────
//! ```

use std::collections::BTreeSet;
use std::fmt::{Formatter, Result};

use memplan_memory::Bytes;

use super::{Allocation, ProgramLayout};

/// Characters across and lines down, at most.
const WIDTH: u64 = 96;
const HEIGHT: u64 = 16;

/// How much of a cell is taken, from nothing to all of it.
const SHADES: [char; 5] = [' ', '░', '▒', '▓', '█'];

/// Draws the bytes in use in an allocation over time.
pub(super) fn draw(f: &mut Formatter<'_>, layout: &ProgramLayout, allocation: &Allocation) -> Result {
    let (bytes, launches) = (allocation.size.0, u64::from(layout.launches));
    if bytes == 0 || launches == 0 {
        return Ok(());
    }
    // No more lines than there are different addresses to show.
    let inside = layout.buffers.iter().filter(|buffer| buffer.address.allocation == allocation.index);
    let addresses: BTreeSet<Bytes> = inside.map(|buffer| buffer.address.end()).collect();
    let (width, height) = (WIDTH.min(launches), HEIGHT.min(bytes).min(addresses.len().max(1) as u64));
    writeln!(
        f,
        "allocation {}, {} of {}: addresses upwards, launches 0..{launches} to the right",
        allocation.index, allocation.name, allocation.space
    )?;
    let area = taken(layout, allocation, width, height);
    // The area of a cell is (bytes / height) x (launches / width); both are kept multiplied out.
    let whole = u128::from(bytes) * u128::from(launches);
    for row in (0..height).rev() {
        let label = (u128::from(bytes) * u128::from(row + 1) / u128::from(height)) as u64;
        let cells = &area[(row * width) as usize..((row + 1) * width) as usize];
        let line: String =
            cells.iter().map(|&part| SHADES[(part * 4).div_ceil(whole).min(4) as usize]).collect();
        writeln!(f, "  {label:>14} │{}", line.trim_end())?;
    }
    writeln!(f, "  {:>14} └{}\n", 0, "─".repeat(width as usize))
}

/// For each cell, row by row from the bottom, the bytes times launches taken in it, times `width * height`. Buffers that
/// share bytes and a launch count twice, which the shade does not show.
fn taken(layout: &ProgramLayout, allocation: &Allocation, width: u64, height: u64) -> Vec<u128> {
    let mut area = vec![0u128; (width * height) as usize];
    let (bytes, launches) = (allocation.size.0, u64::from(layout.launches));
    for buffer in layout.buffers.iter().filter(|buffer| buffer.address.allocation == allocation.index) {
        let rows = overlaps(buffer.address.offset.0, buffer.address.end().0, bytes, height);
        let columns = overlaps(buffer.live.from.into(), buffer.live.to.into(), launches, width);
        for &(row, tall) in &rows {
            for &(column, wide) in &columns {
                area[(row * width + column) as usize] += tall * wide;
            }
        }
    }
    area
}

/// The cells that a range overlaps, when `whole` is cut into `n` equal ones, and by how much, times `n`.
fn overlaps(from: u64, to: u64, whole: u64, n: u64) -> Vec<(u64, u128)> {
    let scaled = |x: u64| u128::from(x.min(whole)) * u128::from(n);
    let (from, to, whole) = (scaled(from), scaled(to), u128::from(whole));
    let cells = from / whole..to.div_ceil(whole);
    cells.map(|cell| (cell as u64, to.min((cell + 1) * whole) - from.max(cell * whole))).collect()
}
