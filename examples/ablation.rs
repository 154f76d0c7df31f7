//! Measures each technique of memplan, by turning it off.
//!
//! ```text
//! cargo run --release --example ablation [-- CORPUS] > docs/ablation.md
//! ```
//!
//! A corpus is a folder with a folder for each program, whose `before.hlo.txt` is JAX's module; by default it is that
//! of the repository's tests. Bytes are the same on every machine, seconds are those of this one.

#![allow(clippy::print_stdout, reason = "an example talks")]

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use memplan::driver::{FastMemoryUse, FirstGuess, Rewrite};
use memplan::ir::Module;
use memplan::memory::{Compiler, Target};
use memplan::passes::Fusion;
use memplan::plan::{AsXla, PlaceOptions, Sharing, TakeOver};
use memplan::{CompileOptions, Objective, RewriteOptions, compile, hlo, rewrite};

/// The machines to compile for.
const TARGETS: [&str; 3] = ["gpu-h100", "tpu-v5e", "cpu"];

/// The compilers to rewrite for.
const COMPILERS: [&str; 3] = ["xla-gpu", "xla-tpu", "xla-cpu"];

#[allow(dead_code, reason = "the test of this example calls `document`")]
fn main() -> Result<(), Box<dyn Error>> {
    let corpus = std::env::args().nth(1).unwrap_or_else(|| "tests/corpus".into());
    print!("{}", document(&corpus, &programs(Path::new(&corpus))?)?);
    Ok(())
}

/// A program by its name.
pub(crate) type NamedModule = (String, Module);

/// The programs of a folder, in the order of their names.
pub(crate) fn programs(corpus: &Path) -> Result<Vec<NamedModule>, Box<dyn Error>> {
    let mut programs = Vec::new();
    for entry in corpus.read_dir()? {
        let entry = entry?;
        let Ok(text) = std::fs::read_to_string(entry.path().join("before.hlo.txt")) else { continue };
        programs.push((entry.file_name().to_string_lossy().into_owned(), hlo::parse(&text)?));
    }
    programs.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(programs)
}

/// The whole document.
pub(crate) fn document(corpus: &str, programs: &[NamedModule]) -> Result<String, Box<dyn Error>> {
    let mut text = format!(
        "# What each technique is worth\n\n\
         Written by `cargo run --release --example ablation -- {corpus}`; do not edit.\n\n\
         Each row turns one technique off and leaves all others on. A figure is what the {} programs of the corpus need then \
         (arguments, results and temporaries), over what they need with everything on: the geometric mean, and the program \
         that loses most. Below 1, a program needs fewer bytes without the technique: what is decided early is right on the \
         whole, not each time. On TPUs, a program without layout assignment stays untiled, so that its arrays take no \
         padding: that figure is no saving. Bytes are the same on every machine; seconds are those that all programs took on the machine \
         that wrote this, and only show where time goes.\n",
        programs.len()
    );
    for target in TARGETS {
        let target = Target::find(target)?;
        let of = |options: &CompileOptions, module: &Module| -> Result<u64, Box<dyn Error>> {
            let options = CompileOptions { objective: Objective::Memory, ..options.clone() };
            Ok(compile(&mut module.clone(), &target, &options)?.planned.plan.totals.total.0)
        };
        write!(text, "\n## `memplan compile --target {}`\n\n", target.name)?;
        text.push_str(&table(
            programs,
            &of,
            TECHNIQUES.iter().map(|technique| (technique.name, technique.options())),
        ));
    }
    for compiler in COMPILERS {
        let compiler = Compiler::find(compiler)?;
        let target = Target::find(&compiler.target)?;
        let of = |options: &RewriteOptions, module: &Module| -> Result<u64, Box<dyn Error>> {
            Ok(rewrite(module.clone(), &compiler, &target, options)?.after().price.total.0)
        };
        write!(
            text,
            "\n## `memplan rewrite --compiler {}`, by the estimate of that compiler\n\n",
            compiler.name
        )?;
        let without = |rewrite: Rewrite| {
            let mut options = RewriteOptions::default();
            options.rewrites.retain(|other| other.name != rewrite.name);
            (rewrite.name, options)
        };
        text.push_str(&table(programs, &of, Rewrite::all().into_iter().map(without)));
    }
    Ok(text)
}

/// A technique that can be turned off.
struct Technique {
    name: &'static str,
    turn_off: fn(&mut CompileOptions),
}

impl Technique {
    fn options(&self) -> CompileOptions {
        let mut options = CompileOptions::default();
        (self.turn_off)(&mut options);
        options
    }
}

const TECHNIQUES: &[Technique] = &[
    Technique { name: "algebra", turn_off: |options| drop_pass(options, "algebraic-simplifier") },
    Technique { name: "recomputation", turn_off: |options| drop_pass(options, "remat") },
    Technique {
        name: "sums and invariants within loops",
        turn_off: |options| drop_pass(options, "keep-within-loops"),
    },
    Technique { name: "recomputed rows of loops", turn_off: |options| drop_pass(options, "loop-residuals") },
    Technique { name: "loop state in place", turn_off: |options| drop_pass(options, "loop-state-in-place") },
    Technique { name: "gradients of gathers", turn_off: |options| drop_pass(options, "scatter-to-select") },
    Technique { name: "layout assignment", turn_off: |options| drop_pass(options, "layout-assignment") },
    Technique { name: "donation", turn_off: |options| drop_pass(options, "donation") },
    Technique { name: "fusion", turn_off: |options| options.stages.fusions.clear() },
    Technique { name: "fusion of updates", turn_off: |options| options.stages.fusions.truncate(1) },
    Technique { name: "kernels that hold rows on chip", turn_off: hold_no_rows },
    Technique { name: "several first guesses", turn_off: |options| options.guesses = vec![FirstGuess::Text] },
    Technique { name: "search for a schedule", turn_off: |options| options.schedule.budget = 0 },
    Technique {
        name: "holes in results and arguments",
        turn_off: |options| {
            options.assign.place.sharing =
                Sharing::AsXla(AsXla { take_over: TakeOver::Any, temps_in_results: false })
        },
    },
    Technique {
        name: "taking over operands of other shapes, too",
        turn_off: |options| {
            options.assign.place.sharing =
                Sharing::AsXla(AsXla { take_over: TakeOver::SameShapes, temps_in_results: false })
        },
    },
    Technique {
        name: "search in packing",
        turn_off: |options| options.assign.place.pack = PlaceOptions::quick().pack,
    },
    Technique { name: "fast memory", turn_off: |options| options.fast_memory = FastMemoryUse::Unused },
];

fn drop_pass(options: &mut CompileOptions, name: &str) {
    let stages = &mut options.stages;
    stages.front.iter_mut().for_each(|stage| *stage = stage.without(name));
    stages.recompute = stages.recompute.without(name);
}

fn hold_no_rows(options: &mut CompileOptions) {
    options.stages.fusions.iter_mut().for_each(|fusion: &mut Fusion| fusion.options.rows.max_kernels = 0);
}

/// What a program needs with some options.
type Bytes<'a, Options> = dyn Fn(&Options, &Module) -> Result<u64, Box<dyn Error>> + 'a;

/// A row for each way to work, after one for the default.
fn table<Options: Default>(
    programs: &[NamedModule],
    of: &Bytes<'_, Options>,
    ways: impl Iterator<Item = (&'static str, Options)>,
) -> String {
    let run = |options: &Options| {
        let start = Instant::now();
        let bytes: Vec<Option<u64>> = programs.iter().map(|(_, module)| of(options, module).ok()).collect();
        (bytes, start.elapsed().as_secs_f64())
    };
    let (default, seconds) = run(&Options::default());
    let mut text =
        String::from("| without | bytes | worst program | | seconds |\n|---|---:|---:|---|---:|\n");
    let mut row = |name: &str, [mean, worst]: [String; 2], program: &str, seconds: f64| {
        text.push_str(&format!("| {name} | {mean} | {worst} | {program} | {seconds:.1} |\n"));
    };
    row("(nothing)", ["1.000".into(), String::new()], "", seconds);
    for (name, options) in ways {
        let (bytes, seconds) = run(&options);
        let ratios: Vec<(f64, &str)> = programs
            .iter()
            .zip(bytes.iter().zip(&default))
            .filter_map(|((program, _), (&bytes, &default))| {
                Some((bytes? as f64 / default.filter(|bytes| *bytes > 0)? as f64, program.as_str()))
            })
            .collect();
        let n_failed = bytes.iter().filter(|bytes| bytes.is_none()).count();
        let mean =
            (ratios.iter().map(|(ratio, _)| ratio.ln()).sum::<f64>() / ratios.len().max(1) as f64).exp();
        let worst = ratios.iter().copied().reduce(|a, b| if b.0 > a.0 { b } else { a });
        let (worst, program) = worst.filter(|(ratio, _)| *ratio > 1.0005).unwrap_or((1.0, ""));
        let program = match n_failed {
            0 => program.to_string(),
            n => format!("{program} ({n} not compiled)"),
        };
        row(name, [format!("{mean:.3}"), format!("{worst:.3}")], &program, seconds);
    }
    text
}
