//! Programs of several devices in reports: whose bytes these are, and which of them are on several devices alike.

use memplan::advice::{Devices, Replicated};
use memplan::memory::Bytes;

use crate::report::count;
use crate::screen::Screen;

/// The line that comes before all bytes of a report; empty for a program of one device.
pub fn line(devices: &Devices) -> String {
    match (devices.count, devices.of_whole) {
        (Some(n), _) => format!("bytes are those of one device of {n}\n"),
        (None, Some(arguments)) => format!(
            "not partitioned, since its shardings are not understood: bytes are those of the whole program; the \
             arguments need {arguments} on each device ({arguments:#} bytes)\n"
        ),
        (None, None) => String::new(),
    }
}

/// Names the arguments that several devices hold alike, in a program of these bytes, and what each costs.
pub(crate) fn could_be_cut(devices: &Devices, total: Bytes, screen: Screen) -> String {
    list(&devices.worth_cutting(total).collect::<Vec<_>>(), screen)
}

/// The same, of these arguments.
pub(crate) fn list(arguments: &[&Replicated], screen: Screen) -> String {
    if arguments.is_empty() {
        return String::new();
    }
    let heading = screen.heading("arguments of which several devices hold the same part:");
    let saved = arguments
        .iter()
        .filter(|argument| argument.divides.is_some())
        .fold(0, |sum, argument| sum + argument.bytes.0.saturating_sub(argument.cut().0));
    let mut text = match saved {
        0 => format!("\n{heading}\n"),
        _ => format!("\n{heading} {} on each that cuts would save\n", Bytes(saved)),
    };
    for Replicated { argument, shape, bytes, pieces, divides } in arguments.iter().take(MOST).copied() {
        let cut = match divides {
            Some((d, extent)) => {
                format!("{} if its dimension {d} of {extent} were cut", Bytes(bytes.0.div_ceil(*pieces)))
            }
            None => format!("no dimension is a multiple of {pieces}"),
        };
        text += &screen
            .wrap(&format!(" {:>10}  {argument} {shape} on {pieces} devices; {cut}\n", bytes.to_string()));
    }
    if let Some(rest) = arguments.get(MOST..).filter(|rest| !rest.is_empty()) {
        let sum = rest.iter().fold(Bytes::ZERO, |sum, argument| sum.saturating_add(argument.bytes));
        text += &format!(" {:>10}  {}\n", sum.to_string(), count(rest.len(), "smaller one"));
    }
    text
}

/// The most arguments to name.
const MOST: usize = 8;
