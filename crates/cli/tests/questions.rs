//! `docs/questions.md`: what people ask about the memory of programs, and the command that answers. Every answer is a
//! snapshot, and the page is made from this table. Answers of the Python package are run by its own tests
//! (`python/tests/test_questions.py`).

use std::path::Path;
use std::process::Command;

use crate::repository;
use crate::screens::{without_search_time, without_times};

/// A need, the question, and the command that answers it.
struct Question {
    need: &'static str,
    asks: &'static str,
    command: &'static str,
}

const fn question(need: &'static str, asks: &'static str, command: &'static str) -> Question {
    Question { need, asks, command }
}

/// Needs that users of XLA, JAX and PyTorch voice, in no order of importance.
const QUESTIONS: &[Question] = &[
    question(
        "who owns the peak",
        "What is live when memory is fullest, which line made it, what keeps it?",
        "plan tests/questions/training_step.hlo --target gpu-h100",
    ),
    question(
        "will it fit",
        "Does it fit, and if not, by how much and because of what?",
        "compile tests/questions/training_step.hlo --target gpu-h100 --memory-limit 128KiB",
    ),
    question(
        "a number to trust",
        "What will XLA itself need?",
        "estimate tests/questions/training_step.hlo --compiler xla-gpu --top 3",
    ),
    question(
        "what to change, in bytes",
        "Which changes would make it fit, what does each bring and cost, and how is it written in JAX?",
        "fit tests/questions/training_step.hlo --target gpu-h100 --memory-limit 200KiB",
    ),
    question(
        "padding and its cure",
        "Which shapes lose bytes to tiles, and which would not?",
        "plan tests/questions/padding.hlo --target tpu-v5e",
    ),
    question(
        "orders that blow up",
        "Is it the order of the program, and what would another one need?",
        "plan tests/questions/wide_order.hlo --schedule memory",
    ),
    question(
        "regressions and gates",
        "What has grown since the last version, why, and is it more than allowed?",
        "diff tests/hlo/diff/step.hlo tests/hlo/diff/batch.hlo --target gpu-h100 --fail-above 2%",
    ),
    question(
        "donation that fails",
        "Which donated arguments are used, which are not, which could be donated?",
        "explain tests/questions/donation.hlo",
    ),
    question(
        "fragmentation, plan or pool",
        "Is it the program, the arena or the allocator?",
        "replay tests/questions/training_step.hlo --target gpu-h100",
    ),
    question(
        "why a loop copies",
        "Why is there a copy in my loop?",
        "explain tests/questions/loop_copies.hlo",
    ),
    question(
        "recomputation to a budget",
        "What is the fastest program at each size?",
        "compile tests/questions/training_step.hlo --target gpu-h100 --frontier",
    ),
    question(
        "offload",
        "What is in the host's memory, and what does it take on the device?",
        "plan tests/hlo/layout/memory_spaces.hlo --target gpu-h100",
    ),
    question(
        "mistakes of sharding",
        "What would be on each of eight devices, by batch, by parameters, by features?",
        "fit tests/questions/training_step.hlo --target gpu-h100 --memory-limit 100KiB --devices 8",
    ),
    question(
        "timeline and map of addresses",
        "What is where, and from when to when?",
        "plan tests/hlo/plan/elementwise_chain.hlo --emit layout=- -o /dev/null",
    ),
    question(
        "arenas of small devices",
        "Which offsets does the runtime of a small device want?",
        "plan tests/hlo/plan/elementwise_chain.hlo --emit executorch=- -o /dev/null",
    ),
    question(
        "several memories",
        "What is in which memory, and does it fit?",
        "plan tests/questions/constants.hlo --target mcu-nrf52840 --pin p=flash",
    ),
    question("packing with a bound", "How good is this packing?", "pack tests/screens/problem.csv"),
    question(
        "captured constants",
        "Which arrays have become part of the program?",
        "explain tests/questions/constants.hlo",
    ),
    question(
        "preallocation",
        "What is left in the process when the pool is taken?",
        "plan tests/questions/training_step.hlo --target gpu-h100 --memory-fraction 0.9 --top 1",
    ),
    question(
        "scratch",
        "What do libraries, kernels and collectives want besides results?",
        "explain tests/questions/workspace.hlo --target gpu-h100",
    ),
    question("copies and causes", "Why is each copy there?", "explain tests/questions/scheduled_copies.hlo"),
    question(
        "minimum against actual",
        "How far from the least that the order allows is it?",
        "plan tests/hlo/plan/two_branches.hlo --target toy",
    ),
    question(
        "big graphs",
        "Can I see the part around one value?",
        "plan tests/questions/training_step.hlo --emit dot=- --around a0 --depth 1 -o /dev/null",
    ),
    question(
        "output for programs",
        "Can a script read it?",
        "plan tests/hlo/plan/elementwise_chain.hlo --format json",
    ),
    question(
        "programs resident together",
        "What do all programs of a process need together, and what do captured constants add to each?",
        "plan tests/questions/dump --target gpu-h100 --top 3",
    ),
    question(
        "one value",
        "Why does this one live so long, and what would free it?",
        "explain tests/questions/training_step.hlo a0 --target gpu-h100",
    ),
    question(
        "the checkpoint to write",
        "Around what do I write `jax.checkpoint`, and with which policy?",
        "python tests/questions/checkpoint.py",
    ),
    question(
        "a number with its error",
        "How far may XLA be from the estimate?",
        "estimate examples/gpt_training_step.hlo.txt.gz --compiler xla-gpu --top 1",
    ),
    question(
        "from the out-of-memory text to the cause",
        "XLA says RESOURCE_EXHAUSTED: which line is it, and what helps?",
        "explain tests/questions/out_of_memory.txt",
    ),
    question(
        "PyTorch",
        "What held the memory at the peak of a CUDA snapshot?",
        "python tests/questions/snapshot.py",
    ),
    question(
        "in place or told why not",
        "Is this cache updated in place, and if not, why?",
        "explain tests/questions/in_place.hlo --target gpu-h100",
    ),
    question(
        "several programs on one device",
        "What is left for caches beside a program that trains and one that predicts?",
        "plan tests/questions/dump/module_0001.jit_update.before_optimizations.txt \
         tests/questions/dump/module_0002.jit_predict.before_optimizations.txt --resident --target gpu-h100",
    ),
    question(
        "CI in one step",
        "Do all programs of this repository stay within their budget?",
        "budget tests/questions/ci/memplan.toml --base tests/questions/ci/base",
    ),
    question(
        "StableHLO and jax.export",
        "I have an artifact of `jax.export`, and no Python: what will XLA need?",
        "estimate crates/stablehlo/tests/programs/scan_rows.jaxexport --compiler xla-gpu --top 3",
    ),
    question(
        "TFLite in and out",
        "How large is the arena of a TFLite model, and can the model have the offsets?",
        "plan crates/tflite/tests/residual.tflite --emit tflite-micro=/dev/null",
    ),
    question(
        "collectives, order and flags",
        "Do all-reduces that XLA hides keep my gradients alive, and which flag stops that?",
        "rewrite tests/questions/data_parallel.mlir --compiler xla-gpu --only flags --max-slowdown 20% -o /dev/null",
    ),
];

/// Where the Python package's tests keep its answers.
const PYTHON_ANSWERS: &str = "python/tests/answers";

#[test]
fn every_question_has_an_answer() {
    let mut page = include_str!("../../../docs/questions.head.md").to_string();
    insta::with_settings!({
        snapshot_path => "../../../snapshots",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        for Question { need, asks, command } in QUESTIONS {
            if let Some(script) = command.strip_prefix("python ") {
                let name = Path::new(script).file_stem().unwrap().to_str().unwrap();
                page.push_str(&format!("| {need} | {asks} | [`{command}`](../{PYTHON_ANSWERS}/{name}.txt) |\n"));
                continue;
            }
            let words: String = need.chars().filter(|c| c.is_ascii_alphabetic() || *c == ' ').collect();
            let name = format!("question_{}", words.replace(' ', "_"));
            insta::assert_snapshot!(name.clone(), answer(command));
            page.push_str(&format!("| {need} | {asks} | [`memplan {command}`](../snapshots/{name}.snap) |\n"));
        }
    });
    let path = repository("docs/questions.md");
    if std::env::var_os("MEMPLAN_UPDATE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == page,
        "docs/questions.md is not that of this version: MEMPLAN_UPDATE=1 cargo test -p memplan-cli questions"
    );
}

/// What a command shows, and its exit status where it is not 0.
fn answer(command: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_memplan"))
        .current_dir(repository(""))
        .env("COLUMNS", "110")
        .args(command.split(' '))
        .arg("--quiet")
        .output()
        .unwrap();
    let shown = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    let shown = without_search_time(&without_times(&shown));
    match output.status.code() {
        Some(0) => shown,
        status => format!("{shown}status {status:?}\n"),
    }
}
