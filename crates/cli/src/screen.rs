//! The screen that text is written for: its width, and whether it has colors.

use std::io::IsTerminal;

use anstyle::{AnsiColor, Style};
use clap::ColorChoice;
use comfy_table::{ContentArrangement, Table, presets};

/// A screen, file or pipe that shows text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    /// Characters across.
    pub(crate) width: usize,
    is_colored: bool,
}

/// The narrowest and the widest report.
const WIDTHS: std::ops::RangeInclusive<usize> = 60..=140;

/// Room for a signed number of bytes.
const FIGURE: usize = 12;

impl Screen {
    /// For files, and for programs that display the text themselves.
    pub const PLAIN: Screen = Screen { width: 110, is_colored: false };

    /// The screen of a result: a file, or standard output, also for `-`.
    pub(crate) fn of(output: Option<&str>, choice: ColorChoice) -> Screen {
        match output {
            None | Some("-") => Screen::standard_output(choice),
            Some(_) => Screen::PLAIN,
        }
    }

    /// Standard output: as wide as `COLUMNS` or the terminal; colored by the user's choice, else if the terminal has
    /// colors and `NO_COLOR` is not set.
    fn standard_output(choice: ColorChoice) -> Screen {
        let asked = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let terminal = || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
        let is_terminal = std::io::stdout().is_terminal();
        let width = asked.or_else(|| is_terminal.then(terminal).flatten());
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let has_colors =
            || is_terminal && !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|t| t != "dumb");
        Screen {
            width: width.map_or(Screen::PLAIN.width, |width| width.clamp(*WIDTHS.start(), *WIDTHS.end())),
            is_colored: match choice {
                ColorChoice::Always => true,
                ColorChoice::Never => false,
                ColorChoice::Auto => has_colors(),
            },
        }
    }

    /// Breaks long lines, between words where possible; continuation lines are indented.
    pub(crate) fn wrap(self, text: &str) -> String {
        let mut wrapped = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            let bare = line.trim_end_matches('\n');
            if textwrap::core::display_width(bare) <= self.width {
                wrapped.push_str(line);
                continue;
            }
            let indent = " ".repeat(bare.len() - bare.trim_start().len() + 2);
            wrapped.push_str(&self.fill(bare, "", &indent));
            wrapped.push_str(&line[bare.len()..]);
        }
        wrapped
    }

    /// A figure with its description beside it, on as many lines as needed.
    pub(crate) fn item(self, figure: &str, text: &str) -> String {
        let first = format!(" {figure:>FIGURE$}  ");
        self.fill(text, &first, &" ".repeat(first.chars().count())) + "\n"
    }

    fn fill(self, text: &str, first: &str, rest: &str) -> String {
        // Named, since the default depends on features that other crates enable.
        let options = textwrap::Options::new(self.width)
            .wrap_algorithm(textwrap::WrapAlgorithm::FirstFit)
            .word_separator(textwrap::WordSeparator::AsciiSpace)
            .initial_indent(first)
            .subsequent_indent(rest);
        textwrap::fill(text, options)
    }

    /// A table without rules whose columns share the width.
    pub(crate) fn table(self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(self.width).unwrap_or(u16::MAX));
        table
    }

    /// A heading.
    pub(crate) fn heading(self, text: &str) -> String {
        self.styled(Style::new().bold(), text)
    }

    /// Text of minor importance.
    pub(crate) fn faint(self, text: &str) -> String {
        self.styled(Style::new().dimmed(), text)
    }

    /// Good news.
    pub(crate) fn good(self, text: &str) -> String {
        self.styled(AnsiColor::Green.on_default(), text)
    }

    /// Bad news, to look at first.
    pub(crate) fn bad(self, text: &str) -> String {
        self.styled(AnsiColor::Red.on_default(), text)
    }

    /// Parts of a drawing.
    pub(crate) fn drawn(self, text: &str) -> String {
        self.styled(AnsiColor::Blue.on_default(), text)
    }

    fn styled(self, style: Style, text: &str) -> String {
        match self.is_colored && !text.is_empty() {
            true => format!("{style}{text}{style:#}"),
            false => text.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_and_indented() {
        let screen = Screen { width: 20, is_colored: false };
        assert_eq!(
            screen.wrap("short\n\n  one two three four five\n"),
            "short\n\n  one two three four\n    five\n"
        );
        assert_eq!(screen.wrap("no end of line"), "no end of line");
    }

    #[test]
    fn what_belongs_to_a_figure_stands_beside_it() {
        let screen = Screen { width: 24, is_colored: false };
        assert_eq!(
            screen.item("+1.00 MiB", "one two three"),
            "    +1.00 MiB  one two\n               three\n"
        );
    }

    #[test]
    fn colors_take_no_room() {
        let screen = Screen { width: 12, is_colored: true };
        let text = format!("{} and so on", screen.good("ten"));
        assert_eq!(screen.wrap(&text).lines().count(), 2);
        assert_eq!(screen.wrap(&screen.good("twelve chars")).lines().count(), 1);
        assert_eq!(Screen::PLAIN.good("ten"), "ten");
    }
}
