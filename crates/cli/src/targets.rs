//! `memplan targets`

use std::collections::BTreeMap;

use clap::{Args, ColorChoice};
use comfy_table::{CellAlignment, Table, presets};
use memplan::memory::Target;

use crate::failure::Failure;
use crate::input::target_and_file;
use crate::options::Format;
use crate::output::write_result;
use crate::screen::Screen;

#[derive(Args)]
pub(crate) struct TargetsArgs {
    /// Show only this machine as a file to copy for your own, every number with its source; for a path to a TOML file, check
    /// and show that file
    target: Option<String>,
    /// Write text for people, or JSON for programs
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(crate) fn run(args: &TargetsArgs) -> Result<(), Failure> {
    let names = match &args.target {
        Some(name) => vec![name.clone()],
        None => Target::built_in().into_iter().map(|target| target.name).collect(),
    };
    let described: Vec<Described> =
        names.iter().map(|name| Described::find(name)).collect::<Result<_, _>>()?;
    let text = match (args.format, args.target.is_some()) {
        (Format::Json, _) => {
            serde_json::to_string_pretty(&described)
                .expect("targets have no map with keys that are not strings")
                + "\n"
        }
        (Format::Text, true) => described.into_iter().map(|described| described.file).collect(),
        (Format::Text, false) => table(&described, Screen::of(None, ColorChoice::Never)),
    };
    write_result(None, text)
}

/// A target with the sources of its numbers.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Described {
    #[serde(flatten)]
    target: Target,
    /// The comment beside each number in the target's file, by path.
    sources: BTreeMap<String, String>,
    #[serde(skip)]
    file: String,
}

impl Described {
    fn find(name: &str) -> Result<Described, Failure> {
        let (target, file) = target_and_file(name)?;
        Ok(Described { target, sources: Target::sources(&file).into_iter().collect(), file })
    }
}

fn table(targets: &[Described], screen: Screen) -> String {
    let mut rows =
        vec![["target", "memory", "capacity", "align", "description"].map(str::to_string).to_vec()];
    for Described { target, .. } in targets {
        for (i, space) in target.spaces.iter().enumerate() {
            let first = |text: &str| if i == 0 { text.to_string() } else { String::new() };
            rows.push(vec![
                first(&target.name),
                format!("{} {}", space.id, space.name),
                space.capacity.map_or_else(|| "-".to_string(), |capacity| capacity.to_string()),
                space.alignment.to_string(),
                first(&target.description),
            ]);
        }
    }
    screen.break_cells(&mut rows, 4..5);
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(rows.remove(0)).add_rows(rows);
    for column in [2, 3] {
        table.column_mut(column).expect("five columns").set_cell_alignment(CellAlignment::Right);
    }
    format!(
        "{}\n\n`memplan targets NAME` shows every number of a target, with its source\n",
        table.trim_fmt()
    )
}
