//! The whole program: the holders of the peak, arguments, copies, reserved memory, constants.

use indexmap::IndexMap;
use memplan::advice::explain::{ConstantNote, CopyNote, Donation, Overview, Reserved, ReservedFor, Subject};
use memplan::advice::{folded_operation, peaks};
use memplan::memory::Bytes;

use super::{MOST_LINES, aligned, more};
use crate::holders::{self, PeakOptions};
use crate::screen::Screen;

/// The program as a whole.
pub(super) fn whole(
    subject: &Subject<'_>,
    overview: &Overview,
    note: &str,
    options: &PeakOptions,
    screen: Screen,
) -> String {
    let title = format!("{} on {}: {}", overview.module, overview.target, overview.totals.total);
    let mut text = screen.heading(&title) + "\n" + note;
    for peak in peaks(&subject.words, subject.planned) {
        text.push_str(&holders::live_at_the_peak(
            subject.module,
            &subject.planned.plan,
            &peak,
            options,
            screen,
        ));
    }
    text.push_str(&donations(overview, screen));
    text.push_str(&copies(overview, screen));
    text.push_str(&reserved(&overview.reserved, screen));
    text.push_str(&constants(&overview.constants, screen));
    text
}

/// Constants of the program.
fn constants(constants: &[ConstantNote], screen: Screen) -> String {
    if constants.is_empty() {
        return String::new();
    }
    let bytes = constants.iter().map(|constant| constant.bytes).fold(Bytes::ZERO, Bytes::saturating_add);
    let mut text = format!("\n{} {bytes}\n", screen.heading("constants embedded in the program:"));
    let mut table = screen.table();
    for constant in constants.iter().take(MOST_LINES) {
        let twice =
            constant.same_as.as_ref().map_or_else(String::new, |other| format!(", the same as `{other}`"));
        table.add_row([
            constant.bytes.to_string(),
            format!("{} {}", constant.name, constant.shape),
            constant.source.clone().unwrap_or_default(),
            format!("captured{twice}: pass it as an argument, and all programs share it"),
        ]);
    }
    text.push_str(&aligned(table));
    text.push_str(&more(constants.len(), "constants"));
    text
}

/// Arguments grouped by donation; those of all layers share a line.
fn donations(overview: &Overview, screen: Screen) -> String {
    let totals = &overview.donation;
    let mut text = format!(
        "\n{} {} are donated and used, {} are donated in vain, {} could be donated\n",
        screen.heading("arguments:"),
        totals.used,
        totals.unused,
        totals.possible
    );
    type Kind<'a> = (Donation, String, &'a str, String);
    let mut groups: IndexMap<Kind<'_>, (Bytes, Vec<u32>)> = IndexMap::new();
    for argument in &overview.arguments {
        // If several results are donated to, only the first is named, so that arguments of all layers share a line.
        let why = match argument.donation {
            Donation::Used | Donation::Possible => String::new(),
            _ => argument.why.clone(),
        };
        let key = (argument.donation, folded_operation(&argument.name), &*argument.class, why);
        let (bytes, numbers) = groups.entry(key).or_default();
        *bytes = bytes.saturating_add(argument.bytes);
        numbers.push(argument.number);
    }
    let mut table = screen.table();
    let mut kinds: Vec<_> = groups.into_iter().collect();
    // Possible improvements first.
    let rank = |donation| match donation {
        Donation::Possible => 0,
        Donation::Unused => 1,
        Donation::Used => 2,
        Donation::Useless => 3,
    };
    kinds.sort_by_key(|((donation, ..), (bytes, _))| (rank(*donation), std::cmp::Reverse(*bytes)));
    for ((donation, name, class, why), (bytes, numbers)) in kinds.iter().take(MOST_LINES) {
        let said = match donation {
            Donation::Possible => "not donated: a result of its shape could live in it".to_string(),
            Donation::Used => "donated, and used".to_string(),
            Donation::Unused => format!("donated in vain: {why}"),
            Donation::Useless => format!("not donated: {why}"),
        };
        table.add_row([
            bytes.to_string(),
            format!("{name} ({})", numbered(numbers)),
            class.replace('-', " "),
            said,
        ]);
    }
    text.push_str(&aligned(table));
    text.push_str(&more(kinds.len(), "kinds of arguments"));
    if totals.possible > Bytes::ZERO {
        let numbers: Vec<u32> = overview
            .arguments
            .iter()
            .filter(|argument| argument.donation == Donation::Possible)
            .map(|argument| argument.number)
            .collect();
        text.push_str(&format!(
            "{} to save {}: `jax.jit(..., donate_argnums=...)`, or `memplan.jit`, for {}\n",
            screen.bad("donate"),
            totals.possible,
            numbered(&numbers)
        ));
    }
    text
}

/// Copies grouped by cause and shape.
fn copies(overview: &Overview, screen: Screen) -> String {
    let copies = &overview.copies;
    let heading = screen.heading(&match &overview.expected {
        Some(expected) => format!("copies that {} will make, by memplan's estimate:", expected.compiler),
        None => "copies:".to_string(),
    });
    if copies.is_empty() {
        return format!("\n{heading} none\n");
    }
    let bytes = copies.iter().map(|copy| copy.bytes).fold(Bytes::ZERO, Bytes::saturating_add);
    let mut text = format!("\n{heading} {}, {bytes} together\n", copies.len());
    let mut groups: IndexMap<(&str, Bytes, String), Vec<&CopyNote>> = IndexMap::new();
    for copy in copies {
        let key = (<&str>::from(copy.cause), copy.bytes, folded_operation(&copy.operation));
        groups.entry(key).or_default().push(copy);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, copies)| {
        std::cmp::Reverse(copies.iter().map(|copy| copy.bytes).fold(Bytes::ZERO, Bytes::saturating_add))
    });
    let mut table = screen.table();
    for ((cause, bytes, operation), of) in groups.iter().take(MOST_LINES) {
        let first = of[0];
        let number = if of.len() == 1 { String::new() } else { format!("{} × ", of.len()) };
        let runs = if first.runs > 1.0 { format!(", {:.0} times", first.runs) } else { String::new() };
        let place = first.source.clone().unwrap_or_else(|| operation.clone());
        table.add_row([
            format!("{number}{bytes}"),
            format!("{} of {}{runs}", first.instruction, first.of),
            cause.to_string(),
            format!("{}{}", first.why, if place.is_empty() { String::new() } else { format!(" ({place})") }),
        ]);
    }
    text.push_str(&aligned(table));
    text.push_str(&more(groups.len(), "kinds of copies"));
    text
}

fn reserved(reserved: &[Reserved], screen: Screen) -> String {
    if reserved.is_empty() {
        return format!("\n{} nothing\n", screen.heading("reserved by kernels, libraries and collectives:"));
    }
    let mut text = format!("\n{}\n", screen.heading("reserved by kernels, libraries and collectives"));
    let mut groups: IndexMap<(&str, &str, &str), (Bytes, usize, &Reserved)> = IndexMap::new();
    for entry in reserved {
        // Kernels of all kinds share a line.
        let opcode = if entry.what == ReservedFor::Kernel { "kernel" } else { &*entry.opcode };
        let key = (<&str>::from(entry.what), &*entry.space, opcode);
        let group = groups.entry(key).or_insert((Bytes::ZERO, 0, entry));
        group.1 += 1;
        if entry.bytes > group.0 {
            (group.0, group.2) = (entry.bytes, entry);
        }
    }
    let mut table = screen.table();
    for ((what, space, opcode), (most, n, entry)) in groups.iter().take(MOST_LINES) {
        let whose = match *what {
            "kernel" => "working memory while it runs",
            "library" => "working memory that the library requests",
            _ => "a result beside the operands",
        };
        table.add_row([
            most.to_string(),
            format!("of {space}"),
            match n {
                1 => format!("`{}` ({opcode})", entry.instruction),
                n => format!("{n} × {opcode}, most for `{}`", entry.instruction),
            },
            whose.to_string(),
        ]);
    }
    text.push_str(&aligned(table));
    text
}

/// Ranges of argument numbers: `0 to 5, 7`.
fn numbered(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number || *last == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let text = |&(from, to): &(u32, u32)| match from == to {
        true => from.to_string(),
        false => format!("{from} to {to}"),
    };
    let shown: Vec<String> = runs.iter().take(6).map(text).collect();
    let rest = if runs.len() > 6 { ", ..." } else { "" };
    let what = if numbers.len() == 1 { "argument" } else { "arguments" };
    format!("{what} {}{rest}", shown.join(", "))
}
