//! `memplan budget`: what the programs of a repository may need, checked in one step of CI.

mod file;
mod sarif;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use memplan::advice::OneDevice;
use memplan::memory::Bytes;
use serde::Serialize;
use serde_json::Value;

use crate::diff::{Setting, compare, markdown};
use crate::emit::{PlannedModule, html, json};
use crate::failure::Failure;
use crate::input::{Form, read_program};
use crate::options::Format;
use crate::output::{distinct, write_folder, write_result};
use file::Program;

#[derive(Args)]
pub(crate) struct BudgetArgs {
    /// The budget: programs, how to plan each, its limit and its allowed growth
    #[arg(default_value = "memplan.toml")]
    file: String,
    /// The same programs before the change, in a folder with the same paths in it
    #[arg(long, value_name = "FOLDER")]
    base: Option<String>,
    /// Also write the result as Markdown, for a comment on a pull request
    #[arg(long, value_name = "FILE")]
    markdown: Option<String>,
    /// Also write annotations at source lines, as SARIF
    #[arg(long, value_name = "FILE")]
    sarif: Option<String>,
    /// Also write a page for each program into this folder
    #[arg(long, value_name = "FOLDER")]
    pages: Option<String>,
    /// Text for people, or JSON for programs
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// File to write the result to (default: standard output)
    #[arg(short, value_name = "FILE")]
    output: Option<String>,
}

/// A program of the budget, and what was found.
#[derive(Serialize, schemars::JsonSchema)]
struct Found {
    name: String,
    module: String,
    target: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    compiler: Option<String>,
    total: Bytes,
    /// Its bytes before the change, if the base has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<Bytes>,
    /// Whether it needs more than its limit.
    over_limit: bool,
    /// Whether it grew by more than allowed.
    grown: bool,
    /// Who holds the peak, as in the plan file.
    holders: Vec<Value>,
    #[serde(skip)]
    details: String,
}

/// The JSON document of a budget.
#[derive(Serialize, schemars::JsonSchema)]
pub(crate) struct Document<'a> {
    format: &'static str,
    version: u32,
    programs: &'a [Found],
}

pub(crate) fn run(args: &BudgetArgs) -> Result<(), Failure> {
    let files = [&args.markdown, &args.sarif, &args.pages].into_iter().filter_map(|path| path.as_deref());
    distinct(std::iter::once(args.output.as_deref()).chain(files.map(Some)))?;
    let programs = file::read(&args.file)?;
    // Paths of a budget are those beside it.
    let folder = Path::new(&args.file).parent().unwrap_or(Path::new("")).to_owned();
    let (mut found, mut pages) = (Vec::new(), Vec::new());
    for program in programs {
        let (one, page) = examine(&program, &folder, args)?;
        pages.extend(
            page.map(|page| (PathBuf::from(format!("{}.html", file_name(&one.name))), page.into_bytes())),
        );
        found.push(one);
    }
    if let Some(path) = &args.markdown {
        write_result(Some(path), comment(&found))?;
    }
    if let Some(path) = &args.sarif {
        write_result(Some(path), sarif::document(&found))?;
    }
    if let Some(path) = &args.pages {
        write_folder(path, &pages)?;
    }
    let text = match args.format {
        Format::Text => text(&found),
        Format::Json => json(&Document { format: "memplan.budget", version: 1, programs: &found }),
    };
    write_result(args.output.as_deref(), text)?;
    verdict(&found)
}

/// Plans a program, and compares it with what it was.
fn examine(program: &Program, folder: &Path, args: &BudgetArgs) -> Result<(Found, Option<String>), Failure> {
    let path = folder.join(&program.module);
    let path = path.to_string_lossy().into_owned();
    let setting = Setting { way: program.way.clone(), target: program.target.clone(), keeps_modules: false };
    let form = if program.compiler.is_some() { Form::Given } else { Form::Compiled };
    let OneDevice { module, devices } = read_program(&path, form, &setting.target)?;
    let name = program.name.clone().unwrap_or_else(|| module.name.to_string());
    let (module, planned) = setting.program(module)?;
    let mut planned_module = PlannedModule::new(&module, &setting.target, &planned);
    planned_module.devices = devices.count;
    let plan: Value = serde_json::from_str(&planned_module.plan_json()).expect("a plan file is JSON");
    let holders = plan["peak"]["holders"].as_array().cloned().unwrap_or_default();
    let total = devices.of_whole.unwrap_or(planned.plan.totals.total);
    let base = args.base.as_ref().map(|base| Path::new(base).join(&program.module));
    let (mut before, mut grown, mut details) = (None, false, String::new());
    if let Some(base) = base.filter(|base| base.exists()) {
        let compared = compare(&base.to_string_lossy(), &path, &setting)?;
        if let [diff] = &compared.programs[..] {
            before = Some(diff.before.total);
            grown = program.growth.is_some_and(|limit| limit.is_exceeded_by(diff));
            if diff.before.total != diff.after.total {
                details = markdown(&compared, &[]);
            }
        }
    }
    let page = args.pages.is_some().then(|| html(&planned_module));
    let found = Found {
        name,
        module: program.module.clone(),
        target: setting.target.name.clone(),
        compiler: program.compiler.clone(),
        total,
        before,
        limit: program.limit,
        over_limit: program.limit.is_some_and(|limit| total > limit),
        grown,
        holders,
        details,
    };
    Ok((found, page))
}

/// `+1.00 GiB (+4.2 %)`, nothing where it is not known.
fn growth(found: &Found) -> String {
    let Some(before) = found.before else { return "new".to_owned() };
    let (bytes, sign) = match found.total >= before {
        true => (found.total.0 - before.0, '+'),
        false => (before.0 - found.total.0, '-'),
    };
    if bytes == 0 {
        return "the same".to_owned();
    }
    let share = if before.0 == 0 { 0.0 } else { 100.0 * bytes as f64 / before.0 as f64 };
    format!("{sign}{} ({sign}{share:.1} %)", Bytes(bytes))
}

fn state(found: &Found) -> &'static str {
    match (found.over_limit, found.grown) {
        (true, _) => "over its limit",
        (false, true) => "grew by more than allowed",
        (false, false) => "ok",
    }
}

fn text(found: &[Found]) -> String {
    let width = found.iter().map(|one| one.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for one in found {
        let limit = one.limit.map_or(String::new(), |limit| format!(" of {limit}"));
        let total = one.total.to_string();
        let _ = writeln!(text, "{:<width$}  {total:>10}{limit}  {}  {}", one.name, growth(one), state(one));
    }
    text
}

/// The comment on a pull request.
fn comment(found: &[Found]) -> String {
    let bad = found.iter().filter(|one| one.over_limit || one.grown).count();
    let mut text = match bad {
        0 => "### Memory of programs: within budget\n\n".to_owned(),
        _ => format!("### Memory of programs: {bad} of {} beyond budget\n\n", found.len()),
    };
    text.push_str("| program | needs | limit | change | |\n|---|---:|---:|---:|---|\n");
    for one in found {
        let limit = one.limit.map_or("-".to_owned(), |limit| limit.to_string());
        let mark = if one.over_limit || one.grown { ":x:" } else { ":white_check_mark:" };
        let _ = writeln!(
            text,
            "| {} | {} | {limit} | {} | {mark} {} |",
            one.name,
            one.total,
            growth(one),
            state(one)
        );
    }
    for one in found.iter().filter(|one| !one.details.is_empty()) {
        let details = one.details.replace("\n### ", "\n#### ");
        let _ = write!(text, "\n<details><summary>{}: why</summary>\n\n{details}\n\n</details>\n", one.name);
    }
    text
}

/// The worst of all programs decides the status.
fn verdict(found: &[Found]) -> Result<(), Failure> {
    if let Some(one) = found.iter().find(|one| one.over_limit) {
        let limit = one.limit.unwrap_or_default();
        return Err(Failure::DoesNotFit(format!(
            "error: `{}` needs {}, more than its limit of {limit}",
            one.name, one.total
        )));
    }
    match found.iter().find(|one| one.grown) {
        Some(one) => {
            Err(Failure::Grew(format!("error: `{}` grew by more than allowed: {}", one.name, growth(one))))
        }
        None => Ok(()),
    }
}

/// A name as one of a file.
fn file_name(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '_' })
        .collect()
}
