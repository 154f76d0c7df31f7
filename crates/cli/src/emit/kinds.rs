//! The kinds of `--emit`, a row each.

use std::path::Path;

use memplan::c99::{self, is_identifier};
use memplan::codegen::view::{perfetto, svg};
use memplan::codegen::{
    Around, c_header, dot, executorch, offline_memory_allocation, write_constants, xprof,
};
use memplan::hlo;
use memplan::ipu::TileDocument;
use memplan::memory::{Family, Target};

use super::PlannedModule;
use super::costs::costs;
use super::planned_module::json;
use super::request::{Contents, Request};
use super::view::{Shown, page, view};
use crate::failure::Failure;

/// A form in which to write a planned module.
pub(super) struct Kind {
    /// The word before `=`.
    pub(super) name: &'static str,
    /// One line for people.
    pub(super) description: &'static str,
    /// Why no runtime of the machine could use it, if so.
    pub(super) runs_on: fn(&Target) -> Result<(), &'static str>,
    /// The function that writes it.
    pub(super) contents: fn(&Request<'_>) -> Result<Contents, Failure>,
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// All kinds, in the order of the help text.
pub(super) const KINDS: &[Kind] = &[
    Kind {
        name: "hlo",
        description: "the module that the plan describes",
        runs_on: anywhere,
        contents: |request| Ok(hlo::print(request.program.module).into()),
    },
    Kind {
        name: "plan",
        description: "the plan, as JSON",
        runs_on: anywhere,
        contents: |request| Ok(request.program.plan_json().into()),
    },
    Kind {
        name: "html",
        description: "a page for a browser: memory over the program, every buffer, and why each is alive",
        runs_on: anywhere,
        contents: |request| Ok(html(request.program).into()),
    },
    Kind {
        name: "svg",
        description: "a picture of the plan: bytes live, and address by time",
        runs_on: anywhere,
        contents: |request| Ok(svg(request.program.view()).into()),
    },
    Kind {
        name: "dot",
        description: "the program as a graph for Graphviz, whole or `--around` an instruction",
        runs_on: anywhere,
        contents: graph,
    },
    Kind {
        name: "perfetto",
        description: "a trace for ui.perfetto.dev: launches, transfers, buffers, bytes live",
        runs_on: anywhere,
        contents: |request| Ok(perfetto(request.program.view()).into()),
    },
    Kind {
        name: "xprof",
        description: "a folder that XProf (TensorBoard) opens, in its memory viewer and graph viewer",
        runs_on: anywhere,
        contents: profile,
    },
    Kind {
        name: "costs",
        description: "the cost of each instruction by the cost model, as tab-separated values",
        runs_on: anywhere,
        contents: |request| Ok(costs(request.program).into()),
    },
    Kind {
        name: "layout",
        description: "spaces, buffers, launches and transfers with addresses, as a text if FILE ends in .txt, else as JSON",
        runs_on: anywhere,
        contents: |request| {
            let layout = request.program.layout();
            Ok(if request.path.ends_with(".txt") { layout.to_string() } else { json(layout) }.into())
        },
    },
    Kind {
        name: "c",
        description: "the program as C99, in FILE.c and FILE.h, which runs in a static arena",
        runs_on: runs_c,
        contents: c_sources,
    },
    Kind {
        name: "c-header",
        description: "offsets, sizes and totals as constants for C and C++",
        runs_on: anywhere,
        contents: |request| Ok(c_header(request.program.layout()).into()),
    },
    Kind {
        name: "constants",
        description: "the bytes of constants, at the offsets of layout and c-header",
        runs_on: anywhere,
        contents: |request| constants(request.program),
    },
    Kind {
        name: "tflite-micro",
        description: "offsets for TFLite Micro: the contents of the metadata `OfflineMemoryAllocation`; of a TFLite model, the \
                      model with them in it",
        runs_on: small_runtime,
        contents: |request| {
            let words = offline_memory_allocation(request.program.layout());
            Ok(words.map_err(|error| Failure::input(&error))?.into())
        },
    },
    Kind {
        name: "executorch",
        description: "arenas and offsets for ExecuTorch's memory planning, as JSON",
        runs_on: small_runtime,
        contents: |request| Ok(json(&executorch(request.program.layout())).into()),
    },
    Kind {
        name: "tiles",
        description: "the contents of every tile of a machine with tiles, as JSON",
        runs_on: has_tiles,
        contents: |request| tiles(request.program),
    },
];

fn anywhere(_: &Target) -> Result<(), &'static str> {
    Ok(())
}

/// Accepts targets whose runtimes interpret programs on a processor, in memory that they are given.
fn small_runtime(target: &Target) -> Result<(), &'static str> {
    match target.family {
        Family::Gpu | Family::Tpu | Family::Ipu => {
            Err("this runtime is for processors, such as cpu, mcu-cortex-m7 or your own machine")
        }
        _ => Ok(()),
    }
}

/// Accepts targets for which there is a C compiler.
fn runs_c(target: &Target) -> Result<(), &'static str> {
    match target.family {
        Family::Cpu | Family::Mcu => Ok(()),
        _ => Err(
            "C is for processors and microcontrollers: cpu, mcu-cortex-m7, mcu-nrf52840, mcu-rp2040, mcu-stm32f746, or yours of \
             such a family",
        ),
    }
}

fn has_tiles(target: &Target) -> Result<(), &'static str> {
    target.tiles.is_some().then_some(()).ok_or("it has no tiles")
}

/// The program, and beside it the original, if there is one.
pub(super) fn html(program: &PlannedModule<'_>) -> String {
    let shown = |name, module, planned| Shown { name, module, target: program.target, planned };
    let after = (shown("plan", program.module, program.planned), program.view());
    let before = program.before.as_ref().map(|before| {
        (
            shown("as given", before.module, before.planned),
            view(before.module, program.target, before.planned),
        )
    });
    page(after, before.as_ref().map(|(before, view)| (*before, view)), false, &[])
}

fn graph(request: &Request<'_>) -> Result<Contents, Failure> {
    let PlannedModule { module, planned, .. } = *request.program;
    let find = |name: &str| {
        let name = name.trim_start_matches('%');
        let found = module.instructions.iter().find(|(_, instruction)| *instruction.name == *name);
        let found = found
            .map(|(id, _)| id)
            .filter(|&id| planned.facts.graph.is_sequential(module.instructions[id].parent));
        found.ok_or_else(|| {
            Failure::Input(format!("error: no instruction `{name}` runs in {} as it is planned", module.name))
        })
    };
    let around = request.around.map(find).transpose()?;
    let around = around.map(|instruction| Around { instruction, depth: request.depth });
    Ok(dot(module, planned, around).into())
}

/// A log folder with a profile of one run that has only the program.
fn profile(request: &Request<'_>) -> Result<Contents, Failure> {
    let PlannedModule { module, planned, .. } = *request.program;
    let program = xprof(module, planned).map_err(|error| Failure::input(&error))?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let name: String = module.name.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    let run = |file: &str| format!("plugins/profile/memplan/{file}").into();
    Ok(Contents::Folder(vec![
        (run(&format!("{name}.hlo_proto.pb")), program),
        (run("x.xplane.pb"), Vec::new()),
    ]))
}

fn constants(program: &PlannedModule<'_>) -> Result<Contents, Failure> {
    let mut bytes = Vec::new();
    write_constants(program.module, &program.planned.plan, &mut bytes)
        .map_err(|error| Failure::input(&error))?;
    Ok(bytes.into())
}

/// The name that begins the names of a C file.
///
/// # Errors
/// What is wrong with the path.
pub(super) fn c_name(path: &str) -> Result<&str, String> {
    let name = Path::new(path).file_name().and_then(|name| name.to_str()?.strip_suffix(".c"));
    name.filter(|name| is_identifier(name)).ok_or_else(|| {
        format!("the file must be NAME.c, where NAME can begin the names of C functions; `{path}` is not")
    })
}

/// The program as C: the file and, beside it, its header.
fn c_sources(request: &Request<'_>) -> Result<Contents, Failure> {
    let path = Path::new(request.path);
    let name = c_name(request.path).map_err(|reason| Failure::Usage(format!("error: {reason}")))?;
    let PlannedModule { module, target, planned, .. } = *request.program;
    let (schedule, facts, plan) = (&planned.schedule, &planned.facts, &planned.plan);
    let cmsis_nn = request.cmsis_nn;
    let sources = c99::write(&c99::Program { module, schedule, facts, plan, target, name, cmsis_nn });
    let sources = sources.map_err(|error| Failure::input(&error))?;
    Ok(Contents::Together(vec![
        (path.to_path_buf(), sources.c.into_bytes()),
        (path.with_extension("h"), sources.h.into_bytes()),
    ]))
}

fn tiles(program: &PlannedModule<'_>) -> Result<Contents, Failure> {
    let chips = program.tiles.ok_or_else(|| {
        let what = "is not planned by tiles here; `compile` for a machine with tiles writes them";
        Failure::Usage(format!("`{}` {what}", program.target.name))
    })?;
    // The document has very many numbers, so nobody reads it line by line.
    let document = TileDocument::new(program.module, program.target, &chips.plans);
    let text = serde_json::to_string(&document).expect("documents have only string keys") + "\n";
    Ok(text.into())
}
