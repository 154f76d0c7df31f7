//! Flags that several verbs share.

use std::time::Duration;

use clap::{Args, ColorChoice, ValueEnum};
use memplan::memory::{Bytes, NotBytes, Target};
use memplan::pack;
use memplan::plan::AssignOptions;

use crate::emit::EmitArgs;
use crate::failure::Failure;
use crate::needless::given;
use crate::output::write_result;
use crate::screen::Screen;

/// The format of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

/// Where to write results, and in which format.
#[derive(Args)]
pub(crate) struct OutputArgs {
    /// Write text for people, or JSON for programs
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
    /// File to write the result to (default: standard output)
    #[arg(short, value_name = "FILE")]
    output: Option<String>,
    /// When to use colors; `auto` uses them on a terminal that has them, unless `NO_COLOR` is set
    #[arg(long, value_name = "WHEN", default_value_t = ColorChoice::Auto)]
    color: ColorChoice,
}

impl OutputArgs {
    /// The screen that will show the result.
    pub(crate) fn screen(&self) -> Screen {
        Screen::of(self.output.as_deref(), self.color)
    }

    pub(crate) fn write(&self, text: String) -> Result<(), Failure> {
        write_result(self.output.as_deref(), text)
    }
}

/// Where verbs that plan a program write their result, and other outputs.
#[derive(Args)]
pub(crate) struct ResultArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    pub(crate) emit: EmitArgs,
}

impl ResultArgs {
    /// Rejects two outputs to one place, and outputs that make no sense for the machine, before any work is done.
    pub(crate) fn check(&self, target: &Target) -> Result<(), Failure> {
        self.emit.check(self.output.output.as_deref(), target)
    }
}

/// Questions about the result go to its output.
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
    /// The flags that were given.
    pub(crate) fn given(&self) -> Vec<&'static str> {
        given([("--pack-time", self.pack_time.is_some())])
    }

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
    Duration::try_from_secs_f64(seconds).map_err(|_| format!("`{text}` seconds is not a valid duration"))
}

/// A number of bytes with a binary or decimal unit (`16GiB`, `16GB`, `512 MiB`); only zero needs none.
///
/// # Errors
/// A message about the text.
pub fn parse_bytes(text: &str) -> Result<Bytes, String> {
    text.parse().map_err(|error: NotBytes| error.to_string())
}

/// A share of something, from 0 to 1.
pub(crate) fn parse_fraction(text: &str) -> Result<f64, String> {
    let fraction: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if (0.0..=1.0).contains(&fraction) {
        Ok(fraction)
    } else {
        Err(format!("`{text}` is not between 0 and 1"))
    }
}

/// Parses a share, e.g. `5%`.
pub(crate) fn parse_share(text: &str) -> Result<f64, String> {
    let percent = text.trim().strip_suffix('%').and_then(|percent| percent.trim().parse::<f64>().ok());
    match percent {
        Some(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent / 100.0),
        _ => Err(format!("`{text}` is not a share like `5%`")),
    }
}
