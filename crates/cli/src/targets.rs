//! `memplan targets`

use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use memplan::memory::Target;

use crate::failure::Failure;
use crate::output::write_result;

/// How a result is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

#[derive(Args)]
pub(crate) struct TargetsArgs {
    /// For people or for programs
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(crate) fn run(args: &TargetsArgs) -> Result<(), Failure> {
    let targets = Target::built_in();
    let text = match args.format {
        Format::Json => {
            serde_json::to_string_pretty(&targets)
                .expect("targets have no map with keys that are not strings")
                + "\n"
        }
        Format::Text => table(&targets),
    };
    write_result(None, &text)
}

fn table(targets: &[Target]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(["target", "memory", "capacity", "align", "description"]);
    for target in targets {
        for (i, space) in target.spaces.iter().enumerate() {
            let first = |text: &str| if i == 0 { text.to_string() } else { String::new() };
            let capacity = space.capacity.map_or_else(|| "-".to_string(), |capacity| capacity.to_string());
            table.add_row([
                first(&target.name),
                format!("{} {}", space.id, space.name),
                capacity,
                space.alignment.to_string(),
                first(&target.description),
            ]);
        }
    }
    for column in [2, 3] {
        table.column_mut(column).expect("five columns").set_cell_alignment(CellAlignment::Right);
    }
    format!("{table}\n")
}
