//! `--emit KIND=FILE`: other forms of a planned or compiled program.

mod costs;
mod kinds;
mod page;
mod planned_module;
mod request;
mod view;

use std::str::FromStr;

use clap::Args;
use memplan::memory::{Library, Target, did_you_mean};

pub(crate) use page::{AdviceArgs, AdviceKind, PageArgs};
pub(crate) use planned_module::{Before, PlannedModule, json};
pub(crate) use view::{Shown, page_of_two};

use crate::failure::Failure;
use crate::needless::{given, refuse};
use crate::output::{distinct, write_folder, write_result, write_together};
use kinds::{KINDS, Kind, c_name};
use request::{Contents, Request};

/// The page of a program, as `--emit html` writes it.
pub(crate) fn html(program: &PlannedModule<'_>) -> String {
    kinds::html(program)
}

#[derive(Args)]
pub(crate) struct EmitArgs {
    #[arg(long, value_name = "KIND=FILE", help = help())]
    emit: Vec<Emit>,
    /// With `--emit dot=FILE`, draw only the part of the graph around this instruction
    #[arg(long, value_name = "INSTRUCTION")]
    around: Option<String>,
    /// How many steps to follow from the instruction of `--around` to producers, readers, callers and callees
    #[arg(long, value_name = "N", default_value_t = 3, requires = "around")]
    depth: u32,
    /// With `--emit c=FILE`, call kernels of CMSIS-NN for fusions that they compute bit for bit
    #[arg(long)]
    cmsis_nn: bool,
}

/// One file to write.
#[derive(Clone, Debug)]
struct Emit {
    kind: &'static Kind,
    path: String,
}

fn help() -> String {
    let kinds: Vec<String> =
        KINDS.iter().map(|kind| format!("{}: {}", kind.name, kind.description)).collect();
    format!(
        "Also write the program in another form; may be given several times. KIND is {}",
        kinds.join("; ")
    )
}

impl FromStr for Emit {
    type Err = String;

    fn from_str(text: &str) -> Result<Emit, String> {
        let names = || KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ");
        let expected = || format!("expected KIND=FILE; the kinds are {}", names());
        let (name, path) = text.split_once('=').ok_or_else(expected)?;
        let known = KINDS.iter().find(|kind| kind.name == name);
        let kind = known.ok_or_else(|| {
            let meant = did_you_mean(name, KINDS.iter().map(|kind| kind.name));
            format!("there is no kind `{name}`{meant}\n  the kinds are {}", names())
        })?;
        if path.is_empty() {
            return Err("the file name is missing after `=`".to_string());
        }
        if kind.name == "c" {
            c_name(path)?;
        }
        Ok(Emit { kind, path: path.to_string() })
    }
}

impl Emit {
    /// The files to write.
    fn paths(&self) -> Vec<String> {
        let header = self.path.strip_suffix(".c").filter(|_| self.kind.name == "c");
        [self.path.clone()].into_iter().chain(header.map(|name| format!("{name}.h"))).collect()
    }
}

impl EmitArgs {
    /// Checks that each form makes sense for the machine, and that no two outputs go to one place.
    pub(crate) fn check(&self, report: Option<&str>, target: &Target) -> Result<(), Failure> {
        for kind in self.emit.iter().map(|emit| emit.kind) {
            (kind.runs_on)(target).map_err(|because| {
                Failure::Usage(format!(
                    "error: `--emit {}` makes no sense for {}: {because}",
                    kind.name, target.name
                ))
            })?;
        }
        let is_asked = |name: &str| self.emit.iter().any(|emit| emit.kind.name == name);
        if !is_asked("dot") {
            refuse(
                &given([("--around", self.around.is_some())]),
                "it configures the graph of `--emit dot=FILE`",
            )?;
        }
        if !is_asked("c") {
            refuse(&given([("--cmsis-nn", self.cmsis_nn)]), "it configures the C of `--emit c=FILE`")?;
        }
        if self.cmsis_nn && !target.libraries.contains(&Library::CmsisNn) {
            let others = Target::built_in().into_iter().filter(|it| it.libraries.contains(&Library::CmsisNn));
            let others: Vec<String> = others.map(|it| it.name).collect();
            return Err(Failure::Usage(format!(
                "error: `--cmsis-nn` makes no sense for {}, which is no Cortex-M: it is for {}, or yours with `libraries = \
                 [\"cmsis-nn\"]`",
                target.name,
                others.join(", ")
            )));
        }
        let paths: Vec<String> = self.emit.iter().flat_map(Emit::paths).collect();
        distinct(paths.iter().map(|path| Some(path.as_str())).chain([report]))
    }

    /// Writes every requested form.
    pub(crate) fn write(&self, program: &PlannedModule<'_>) -> Result<(), Failure> {
        let around = self.around.as_deref();
        let contents = |Emit { kind, path }: &Emit| {
            (kind.contents)(&Request { program, path, around, depth: self.depth, cmsis_nn: self.cmsis_nn })
        };
        // Nothing is written unless all can be made.
        let contents: Vec<Contents> = self.emit.iter().map(contents).collect::<Result<_, _>>()?;
        self.emit.iter().zip(contents).try_for_each(|(Emit { path, .. }, contents)| match contents {
            Contents::File(bytes) => write_result(Some(path), bytes),
            Contents::Folder(files) => write_folder(path, &files),
            Contents::Together(files) => write_together(&files),
        })
    }

    /// The file of a kind, for inputs of which no other form can be made.
    pub(crate) fn only(&self, name: &str) -> Result<Option<&str>, Failure> {
        let mut path = None;
        for emit in &self.emit {
            if emit.kind.name != name {
                let other = emit.kind.name;
                return Err(Failure::Usage(format!(
                    "error: a model has no form `{other}`; `--emit {name}=FILE` writes it with its plan"
                )));
            }
            path = Some(emit.path.as_str());
        }
        refuse(
            &given([("--around", self.around.is_some())]),
            "it configures the graph of `--emit dot=FILE`",
        )?;
        refuse(&given([("--cmsis-nn", self.cmsis_nn)]), "it configures the C of `--emit c=FILE`")?;
        Ok(path)
    }

    /// Whether to show the program beside the original.
    pub(crate) fn shows_before(&self) -> bool {
        self.emit.iter().any(|emit| emit.kind.name == "html")
    }
}
