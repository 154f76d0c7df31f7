//! `memplan diff`

mod page;
mod programs;
mod text;

use clap::{Args, ColorChoice, ValueEnum};
use memplan::advice::diff::Diff;
use serde::Serialize;

use crate::emit::{PageArgs, json};
use crate::estimate::{compiler, machine_of};
use crate::failure::Failure;
use crate::input::target;
use crate::options::{parse_bytes, parse_share};
use crate::output::write_result;
use crate::screen::Screen;
pub(crate) use programs::{Preparation, Setting, compare};
pub(crate) use text::markdown;

#[derive(Args)]
pub(crate) struct DiffArgs {
    /// The baseline: a module, a folder of `--xla_dump_to`, or a plan file
    before: String,
    /// The program to compare with it
    after: String,
    /// Exit with status 5 if a total grew by more than this: a share of it (2%), or bytes (64MiB)
    #[arg(long, alias = "fail-over", value_name = "LIMIT", value_parser = parse_limit)]
    fail_above: Option<Limit>,
    /// Machine to plan modules for: a name from `memplan targets`, or a TOML file (default: cpu, or the compiler's usual
    /// one)
    #[arg(long)]
    target: Option<String>,
    /// Compile modules from JAX before comparing them: `memplan` compiles them itself, xla-gpu, xla-cpu and xla-tpu
    /// estimate these compilers
    #[arg(long, value_parser = parse_way)]
    compiler: Option<Preparation>,
    /// Text for people, JSON for programs, or Markdown for a comment on a pull request
    #[arg(long, value_enum, default_value_t)]
    format: DiffFormat,
    #[command(flatten)]
    page: PageArgs,
    /// File to write the result to (default: standard output)
    #[arg(short, value_name = "FILE")]
    output: Option<String>,
    /// When to use colors; `auto` uses them on a terminal that has them, unless `NO_COLOR` is set
    #[arg(long, value_name = "WHEN", default_value_t = ColorChoice::Auto)]
    color: ColorChoice,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum DiffFormat {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
    /// For pull requests
    Markdown,
}

/// How much a program may grow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    /// A share of its bytes before.
    Share(f64),
    /// A number of bytes.
    Bytes(u64),
}

impl Limit {
    /// Whether a program grew by more.
    pub(crate) fn is_exceeded_by(self, diff: &Diff) -> bool {
        match self {
            Limit::Share(share) => diff.ratio() > 1.0 + share,
            Limit::Bytes(bytes) => diff.bytes() > i128::from(bytes),
        }
    }
}

/// The JSON document.
#[derive(Serialize, schemars::JsonSchema)]
pub(crate) struct DiffFile<'a> {
    format: &'static str,
    version: u32,
    /// Whether a program grew by more than allowed.
    exceeded: bool,
    programs: &'a [Diff],
    only_before: &'a [String],
    only_after: &'a [String],
}

pub(crate) fn run(args: &DiffArgs) -> Result<(), Failure> {
    args.page.check(args.output.as_deref())?;
    let setting = args.setting()?;
    let compared = compare(&args.before, &args.after, &setting)?;
    args.page.write(|| page::page(&compared, &setting))?;
    let grown: Vec<&Diff> = compared.programs.iter().filter(|diff| args.exceeds(diff)).collect();
    let text = match args.format {
        DiffFormat::Text => text::text(&compared, Screen::of(args.output.as_deref(), args.color)),
        DiffFormat::Markdown => markdown(&compared, &grown),
        DiffFormat::Json => json(&DiffFile {
            format: "memplan.diff",
            version: 1,
            exceeded: !grown.is_empty(),
            programs: &compared.programs,
            only_before: &compared.only_before,
            only_after: &compared.only_after,
        }),
    };
    write_result(args.output.as_deref(), text)?;
    match grown.first() {
        Some(diff) => Err(Failure::Grew(format!(
            "error: `{}` grew by {}, from {} to {}, which is more than `--fail-above` allows",
            diff.after.module,
            text::growth(diff),
            diff.before.total,
            diff.after.total
        ))),
        None => Ok(()),
    }
}

impl DiffArgs {
    fn setting(&self) -> Result<Setting, Failure> {
        let way = self.compiler.clone().unwrap_or_default();
        let target = match &way {
            Preparation::Estimated(compiler) => machine_of(compiler, self.target.as_deref())?,
            Preparation::Planned | Preparation::Compiled => target(self.target.as_deref().unwrap_or("cpu"))?,
        };
        Ok(Setting { way, target, keeps_modules: self.page.is_asked_for() })
    }

    fn exceeds(&self, diff: &Diff) -> bool {
        self.fail_above.is_some_and(|limit| limit.is_exceeded_by(diff))
    }
}

/// memplan itself, or another compiler.
pub(crate) fn parse_way(name: &str) -> Result<Preparation, String> {
    match name {
        "memplan" => Ok(Preparation::Compiled),
        _ => compiler(name).map(|compiler| Preparation::Estimated(Box::new(compiler))),
    }
}

/// `2%`, or a number of bytes.
pub(crate) fn parse_limit(text: &str) -> Result<Limit, String> {
    match text.trim().ends_with('%') {
        true => parse_share(text).map(Limit::Share),
        false => {
            let bytes = parse_bytes(text).map_err(|error| format!("{error}; or `2%`"))?;
            Ok(Limit::Bytes(bytes.0))
        }
    }
}
