//! Flags that several verbs share.

use std::time::Duration;

use clap::{Args, ColorChoice, ValueEnum};
use memplan::memory::Bytes;
use memplan::pack;
use memplan::plan::AssignOptions;

use crate::emit::EmitArgs;
use crate::failure::Failure;
use crate::output::write_result;
use crate::screen::Screen;

/// How a result is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

/// Where results go, and in which form.
#[derive(Args)]
pub(crate) struct OutputArgs {
    /// For people or for programs
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
    /// Where to write the result
    #[arg(short, value_name = "FILE")]
    output: Option<String>,
    /// Colours: where the terminal has them and `NO_COLOR` is not set, or always, or never
    #[arg(long, value_name = "WHEN", default_value_t = ColorChoice::Auto)]
    color: ColorChoice,
}

impl OutputArgs {
    /// Where the result is read.
    pub(crate) fn screen(&self) -> Screen {
        Screen::of(self.output.as_deref(), self.color)
    }

    pub(crate) fn write(&self, text: String) -> Result<(), Failure> {
        write_result(self.output.as_deref(), text)
    }
}

/// Where results of verbs that plan a program go, and what else they write.
#[derive(Args)]
pub(crate) struct ResultArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    pub(crate) emit: EmitArgs,
}

impl ResultArgs {
    /// Refuses what would be written to one place twice, before any work is done.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.emit.check(self.output.output.as_deref())
    }
}

/// What is asked of a result is asked of where it goes.
impl std::ops::Deref for ResultArgs {
    type Target = OutputArgs;

    fn deref(&self) -> &OutputArgs {
        &self.output
    }
}

#[derive(Args)]
pub(crate) struct PackOptions {
    /// Search for a smaller arena for up to this many seconds each (default: a fixed number of steps, so that the answer
    /// is the same on every machine)
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pack_time: Option<Duration>,
}

impl PackOptions {
    pub(crate) fn assign_options(&self) -> AssignOptions {
        let mut options = AssignOptions::default();
        if let Some(time) = self.pack_time {
            options.place.pack = pack::Options::within(time);
        }
        options
    }
}

/// A number of seconds, fractions allowed.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("`{text}` seconds is not a time to wait"))
}

/// A number of bytes: plain, or with a binary or decimal unit (`16GiB`, `16GB`, `512 MiB`).
///
/// # Errors
/// What is wrong with the text, for people.
pub fn parse_bytes(text: &str) -> Result<Bytes, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..split], text[split..].trim());
    if number.is_empty() {
        return Err(format!("`{text}` is not a number of bytes"));
    }
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" | "k" => 1 << 10,
        "mib" | "m" => 1 << 20,
        "gib" | "g" => 1 << 30,
        "tib" | "t" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(format!("`{unit}` is not a unit; use B, KiB, MiB, GiB, TiB, kB, MB, GB or TB")),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(factor).map(Bytes).ok_or_else(|| format!("`{text}` is beyond 64 bits"));
    }
    let value: f64 = number.parse().map_err(|_| format!("`{text}` is not a number of bytes"))?;
    let bytes = value * factor as f64;
    if bytes.is_finite() && bytes < 9.0e18 {
        Ok(Bytes(bytes as u64))
    } else {
        Err(format!("`{text}` is beyond 64 bits"))
    }
}

/// A share of something, from 0 to 1.
pub(crate) fn parse_fraction(text: &str) -> Result<f64, String> {
    let fraction: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if (0.0..=1.0).contains(&fraction) { Ok(fraction) } else { Err(format!("`{text}` is not from 0 to 1")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_with_units() {
        for (text, bytes) in
            [("0", 0), ("16GiB", 16 << 30), ("1.5 kB", 1500), ("64 MiB", 64 << 20), ("7b", 7)]
        {
            assert_eq!(parse_bytes(text), Ok(Bytes(bytes)), "{text}");
        }
        for text in ["", "GiB", "-1", "1 QB", "99999999999999999999", "1e3", "18446744073709551615k"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
