//! Tables that fit the screen: long cells are broken at word and name boundaries.

use std::ops::Range;

use textwrap::core::display_width;

use crate::screen::Screen;

/// Blanks after a cell; those at the end of a line are not printed.
const PADDING: usize = 2;

/// The minimum width of a column of text, on any screen.
const NARROWEST: usize = 8;

impl Screen {
    /// Breaks the cells of the columns `texts` so that a table of these rows fits the screen. These columns share the
    /// width that the others leave: the one that needs least gets it first, and leaves the rest to the others. Takes
    /// time linear in the text.
    pub(crate) fn break_cells(self, rows: &mut [Vec<String>], texts: Range<usize>) {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |rows: &[Vec<String>], column: usize| {
            let lines = rows.iter().filter_map(|row| row.get(column)).flat_map(|cell| cell.lines());
            lines.map(display_width).max().unwrap_or(0)
        };
        let others: usize =
            (0..columns).filter(|column| !texts.contains(column)).map(|c| width(rows, c)).sum();
        let mut room = (self.width + 1).saturating_sub(others + PADDING * columns);
        let mut waiting: Vec<usize> = texts.collect();
        waiting.sort_by_key(|&column| width(rows, column));
        for (i, &column) in waiting.iter().enumerate() {
            let share = (room / (waiting.len() - i)).max(NARROWEST);
            if width(rows, column) > share {
                for cell in rows.iter_mut().filter_map(|row| row.get_mut(column)) {
                    *cell = broken(cell, share);
                }
            }
            room = room.saturating_sub(width(rows, column));
        }
    }
}

/// Breaks a text into lines of at most `width` characters, each as long as good places to break allow. Looks only as
/// far as a line reaches, so that long texts take linear time.
fn broken(text: &str, width: usize) -> String {
    let mut lines = Vec::new();
    let mut rest = text.trim_end();
    loop {
        let end = bytes_within(rest, width);
        if end == rest.len() {
            lines.push(rest);
            return lines.join("\n");
        }
        let cut = cut(rest, end, width);
        lines.push(rest[..cut].trim_end());
        rest = rest[cut..].trim_start();
    }
}

/// The number of bytes at the front of a text that fit into `width` columns.
fn bytes_within(text: &str, width: usize) -> usize {
    let mut columns = 0;
    let beyond = text.char_indices().find(|&(_, c)| {
        columns += display_width(c.encode_utf8(&mut [0; 4]));
        columns > width
    });
    beyond.map_or(text.len(), |(at, _)| at)
}

/// Where to end the first line of a text of which `end` bytes fit: between words; if that leaves the line half empty,
/// between the parts of a name; else anywhere.
fn cut(text: &str, end: usize, width: usize) -> usize {
    let end = end.max(text.chars().next().map_or(0, char::len_utf8));
    let last = |is_joint: fn(&str, &str) -> bool| {
        let mut cuts = (1..=end).rev().filter(|&at| text.is_char_boundary(at));
        cuts.find(|&at| is_joint(&text[..at], &text[at..]))
    };
    let words = last(|before, after| before.ends_with(' ') || after.starts_with(' '));
    let is_half_full = |at: &usize| 2 * display_width(&text[..*at]) >= width;
    (words.filter(is_half_full))
        .or_else(|| {
            last(|before, after| {
                before.ends_with(['/', ':']) || after.starts_with("['") || after.starts_with("[*")
            })
        })
        .or(words)
        .or_else(|| last(|before, _| before.ends_with(['_', '.', ',', '>', '-'])))
        .unwrap_or(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| cell.to_string()).collect()).collect()
    }

    #[test]
    fn names_break_at_their_joints() {
        for (text, width, lines) in [
            ("while/dot_general f32[4,128]", 20, "while/dot_general\nf32[4,128]"),
            ("2 × while/dot_general f32[4,128]", 20, "2 × while/\ndot_general\nf32[4,128]"),
            ("params['layers']['qkv'] f32[4,16,48]", 20, "params['layers']\n['qkv'] f32[4,16,48]"),
            ("bhqk,bkhd->bqhd/transpose", 19, "bhqk,bkhd->bqhd/\ntranspose"),
            ("2 × m['layers'][*]['w1'] f32[32,64]", 15, "2 × m['layers']\n[*]['w1']\nf32[32,64]"),
            ("programs.py:132", 14, "programs.py:\n132"),
            ("rematted_computation", 12, "rematted_\ncomputation"),
            ("nothing to see", 20, "nothing to see"),
            ("abcdefghij", 4, "abcd\nefgh\nij"),
            ("×××", 1, "×\n×\n×"),
            ("", 4, ""),
        ] {
            assert_eq!(broken(text, width), lines, "{text} at {width}");
        }
    }

    #[test]
    fn who_needs_little_leaves_room() {
        let mut table = rows(&[&["1.00 GiB", "a/long/name/of/something/large", "a.py:1"]]);
        let mut screen = Screen::PLAIN;
        screen.width = 36;
        screen.break_cells(&mut table, 1..3);
        assert_eq!(table[0][1], "a/long/name/of/\nsomething/large");
        assert_eq!(table[0][2], "a.py:1");
    }

    #[test]
    fn what_fits_stays() {
        let mut table = rows(&[&["bytes", "what"], &["1 B", "a name of a value"]]);
        let before = table.clone();
        Screen::PLAIN.break_cells(&mut table, 1..2);
        assert_eq!(table, before);
    }
}
