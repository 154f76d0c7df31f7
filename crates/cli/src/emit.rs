//! `--emit KIND=FILE`: what else a plan or a compiled program can be written as.

use std::cell::OnceCell;
use std::str::FromStr;

use clap::Args;
use memplan::analysis::RunEstimate;
use memplan::codegen::layout::{ProgramLayout, layout};
use memplan::codegen::{c_header, write_constants};
use memplan::hlo;
use memplan::ipu::TileDocument;
use memplan::ir::Module;
use memplan::memory::{PlanFile, Target};
use memplan::plan::{Planned, ProgramCost};

use crate::failure::Failure;
use crate::ipu_report::{Chips, summary};
use crate::output::{distinct, write_result};

#[derive(Args)]
pub(crate) struct EmitArgs {
    /// Write something else too; may be given several times. KIND is
    /// hlo: the module that the plan describes;
    /// plan: the plan, as JSON;
    /// costs: what each instruction costs by the cost model, as tab-separated values;
    /// layout: spaces, buffers, launches and transfers with addresses, as a text if FILE ends in .txt, else as JSON;
    /// c-header: offsets, sizes and totals as constants for C and C++;
    /// constants: the bytes of constants, at the offsets that layout and c-header give;
    /// tiles: what lies where on every tile of a machine that has some, as JSON
    #[arg(long, value_name = "KIND=FILE")]
    emit: Vec<Emit>,
}

/// One file to write.
#[derive(Clone, Debug)]
struct Emit {
    kind: Kind,
    path: String,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Hlo,
    Plan,
    Costs,
    Layout,
    CHeader,
    Constants,
    Tiles,
}

const KINDS: [(&str, Kind); 7] = [
    ("hlo", Kind::Hlo),
    ("plan", Kind::Plan),
    ("costs", Kind::Costs),
    ("layout", Kind::Layout),
    ("c-header", Kind::CHeader),
    ("constants", Kind::Constants),
    ("tiles", Kind::Tiles),
];

impl FromStr for Emit {
    type Err = String;

    fn from_str(text: &str) -> Result<Emit, String> {
        let kinds = || format!("the kinds are {}", KINDS.map(|(name, _)| name).join(", "));
        let (kind, path) = text.split_once('=').ok_or_else(|| format!("expected KIND=FILE; {}", kinds()))?;
        let known = KINDS.iter().find(|(name, _)| *name == kind);
        let (_, kind) = known.ok_or_else(|| format!("there is no kind `{kind}`; {}", kinds()))?;
        match path.is_empty() {
            true => Err("the file is missing after `=`".to_string()),
            false => Ok(Emit { kind: *kind, path: path.to_string() }),
        }
    }
}

/// A planned module, and what it can be written as.
pub(crate) struct Program<'a> {
    pub(crate) module: &'a Module,
    pub(crate) target: &'a Target,
    pub(crate) planned: &'a Planned,
    /// The tiles, of a machine that has some.
    pub(crate) tiles: Option<&'a Chips>,
    layout: OnceCell<ProgramLayout>,
    cost: OnceCell<ProgramCost>,
}

impl<'a> Program<'a> {
    pub(crate) fn new(module: &'a Module, target: &'a Target, planned: &'a Planned) -> Program<'a> {
        Program { module, target, planned, tiles: None, layout: OnceCell::new(), cost: OnceCell::new() }
    }

    /// The plan file.
    pub(crate) fn plan_json(&self) -> String {
        let mut file = PlanFile::new(self.module, &self.planned.schedule, &self.planned.plan);
        file.tiles = self.tiles.map(|chips| summary(self.module, chips));
        self.cost().note(self.module, &self.planned.facts, &mut file);
        json(&file)
    }

    fn layout(&self) -> &ProgramLayout {
        let Planned { facts, plan, .. } = self.planned;
        self.layout.get_or_init(|| layout(self.module, facts, self.target, plan))
    }

    fn cost(&self) -> &ProgramCost {
        self.cost.get_or_init(|| ProgramCost::new(self.module, &self.planned.facts, self.target))
    }

    /// A row for every instruction of every computation that runs in sequence.
    fn costs(&self) -> String {
        let mut text = String::from(
            "computation\tinstruction\truns\tseconds\tmain_memory_bytes\tmatrix_operations\tvector_operations\n",
        );
        let (module, cost) = (self.module, self.cost());
        let kernels = cost.kernels(module, &self.planned.facts, self.target);
        for &computation in self.planned.facts.graph.sequential() {
            let (name, runs) = (&module.computations[computation].name, cost.runs(computation));
            for (id, instruction) in module.instructions_of(computation) {
                let RunEstimate { seconds, main_memory_bytes, matrix_operations, vector_operations, .. } =
                    kernels.of(id);
                text.push_str(&format!(
                    "{name}\t{}\t{runs}\t{seconds:e}\t{main_memory_bytes}\t{matrix_operations}\t{vector_operations}\n",
                    instruction.name
                ));
            }
        }
        text
    }

    fn constants(&self) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        write_constants(self.module, &self.planned.plan, &mut bytes)
            .map_err(|error| Failure::input(&error))?;
        Ok(bytes)
    }

    fn contents(&self, emit: &Emit) -> Result<Vec<u8>, Failure> {
        let text = match emit.kind {
            Kind::Hlo => hlo::print(self.module),
            Kind::Plan => self.plan_json(),
            Kind::Costs => self.costs(),
            Kind::Layout if emit.path.ends_with(".txt") => self.layout().to_string(),
            Kind::Layout => json(self.layout()),
            Kind::CHeader => c_header(self.layout()),
            Kind::Constants => return self.constants(),
            Kind::Tiles => {
                let chips = self.tiles.ok_or_else(|| {
                    let what =
                        "is not planned by tiles here; `compile` for a machine that has some writes them";
                    Failure::Usage(format!("`{}` {what}", self.target.name))
                })?;
                // There are very many numbers, so that nobody reads it line by line.
                let document = TileDocument::new(self.module, self.target, &chips.plans);
                serde_json::to_string(&document).expect("documents have only string keys") + "\n"
            }
        };
        Ok(text.into_bytes())
    }
}

impl EmitArgs {
    /// Whether all that is asked for, and the report, go to places of their own.
    pub(crate) fn check(&self, report: Option<&str>) -> Result<(), Failure> {
        distinct(self.emit.iter().map(|emit| Some(emit.path.as_str())).chain([report]))
    }

    /// Writes all that was asked for.
    pub(crate) fn write(&self, program: &Program<'_>) -> Result<(), Failure> {
        self.emit.iter().try_for_each(|emit| write_result(Some(&emit.path), program.contents(emit)?))
    }
}

fn json(document: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(document).expect("documents have only string keys") + "\n"
}
