//! `memplan passes`

use clap::{Args, ColorChoice};
use comfy_table::{Table, presets};
use memplan::driver::{Rewrite, Stages};
use memplan::passes::{ALL, FOREIGN, Pass};

use crate::failure::Failure;
use crate::options::Format;
use crate::output::write_result;
use crate::screen::Screen;

#[derive(Args)]
pub(crate) struct PassesArgs {
    /// Write text for people, or JSON for programs
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

pub(crate) fn run(args: &PassesArgs) -> Result<(), Failure> {
    let listed = Listed::new();
    let text = match args.format {
        Format::Json => {
            serde_json::to_string_pretty(&listed).expect("lists of strings have no keys that are not strings")
                + "\n"
        }
        Format::Text => listed.to_text(),
    };
    write_result(None, text)
}

/// The stages and passes.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Listed {
    /// The stages of `compile`, in order.
    compile: Vec<Stage>,
    /// The rewrites of `rewrite`, in order.
    rewrite: Vec<Described>,
    /// Every pass that `opt` can run by name.
    passes: Vec<Described>,
    /// Passes of other compilers, which `compile` does not run.
    foreign_passes: Vec<Described>,
}

#[derive(serde::Serialize, schemars::JsonSchema)]
struct Stage {
    name: &'static str,
    passes: Vec<&'static str>,
}

#[derive(serde::Serialize, schemars::JsonSchema)]
struct Described {
    name: &'static str,
    description: &'static str,
}

impl Listed {
    fn new() -> Listed {
        let stage = |(name, passes)| Stage { name, passes };
        let rewrite = |rewrite: Rewrite| Described { name: rewrite.name, description: rewrite.description };
        let described = |list: &[&'static dyn Pass]| -> Vec<Described> {
            list.iter().map(|pass| Described { name: pass.name(), description: pass.description() }).collect()
        };
        Listed {
            compile: Stages::default().list().into_iter().map(stage).collect(),
            rewrite: Rewrite::all().into_iter().map(rewrite).collect(),
            passes: described(ALL),
            foreign_passes: described(FOREIGN),
        }
    }

    fn to_text(&self) -> String {
        let stages = self.compile.iter().map(|stage| vec![stage.name.to_string(), stage.passes.join(", ")]);
        let described = |list: &[Described]| {
            let rows = list.iter().map(|of| vec![of.name.to_string(), of.description.to_string()]);
            rows.collect::<Vec<_>>()
        };
        [
            section("the stages of `compile`", stages.collect()),
            section("what `rewrite` tries", described(&self.rewrite)),
            section("passes, which `opt` runs by name", described(&self.passes)),
            section("passes of other compilers, for estimates", described(&self.foreign_passes)),
        ]
        .join("\n")
    }
}

fn section(title: &str, mut rows: Vec<Vec<String>>) -> String {
    Screen::of(None, ColorChoice::Never).break_cells(&mut rows, 1..2);
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).add_rows(rows);
    format!("{title}\n\n{}\n", table.trim_fmt())
}
