//! Aligned columns.

use std::fmt::{self, Write};

/// A cell longer than this sticks out of its column instead of widening it for all rows.
const MAX_WIDTH: usize = 56;

/// Rows of cells; the first row is the header.
pub(super) struct Table<const N: usize> {
    /// Whether each column is numbers, which line up on the right.
    is_number: [bool; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// A table with only its header. Columns whose title begins with `>` hold numbers.
    pub(super) fn new(header: [&str; N]) -> Table<N> {
        let is_number = header.map(|title| title.starts_with('>'));
        Table { is_number, rows: vec![header.map(|title| title.trim_start_matches('>').to_string())] }
    }

    pub(super) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut widths = [0; N];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                let n = cell.chars().count();
                *width = if n <= MAX_WIDTH { (*width).max(n) } else { *width };
            }
        }
        let mut line = String::new();
        for row in &self.rows {
            line.clear();
            for ((cell, &width), is_number) in row.iter().zip(&widths).zip(self.is_number) {
                match is_number {
                    true => write!(line, "  {cell:>width$}")?,
                    false => write!(line, "  {cell:<width$}")?,
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
