//! Random modules: as C they compute what the evaluator does.

use memplan_testkit::{Family, GenerateOptions, generate, random_inputs};

use crate::support::{Written, compare, compilers, expected, run, written};

/// Programs that one run of the compiler makes one executable of.
const BATCH: u64 = 24;

/// What became of modules.
#[derive(Default, Debug)]
struct Counts {
    equal: usize,
    refused: usize,
    /// Those that the compiler or the evaluator does not take.
    other: usize,
}

/// Compiles, runs and compares the modules of some seeds.
fn check(compiler: &str, seeds: std::ops::Range<u64>, counts: &mut Counts) -> Result<(), String> {
    let mut programs: Vec<(Written, Vec<memplan_ir::Literal>, memplan_ir::Literal)> = Vec::new();
    for seed in seeds {
        let family = [Family::Plain, Family::Scans][seed as usize / 2 % 2];
        let options = GenerateOptions { unusual: seed % 2 == 1, family, ..GenerateOptions::default() };
        let target = ["cpu", "mcu-cortex-m7"][seed as usize / 4 % 2];
        let module = generate(seed, &options);
        match written(module, target, &format!("seed_{seed}")) {
            None => counts.other += 1,
            Some(Err(refusal)) => {
                counts.refused += 1;
                eprintln!("seed {seed}: {refusal}");
            }
            Some(Ok(program)) => {
                let inputs = random_inputs(&program.module, seed);
                match expected(&program, &inputs) {
                    None => counts.other += 1,
                    Some(expected) => programs.push((program, inputs, expected)),
                }
            }
        }
    }
    if programs.is_empty() {
        return Ok(());
    }
    let all: Vec<&Written> = programs.iter().map(|p| &p.0).collect();
    let inputs: Vec<_> = programs.iter().map(|p| p.1.clone()).collect();
    let found = match run(compiler, &all, &inputs) {
        Ok(found) => found.into_iter().map(Ok).collect(),
        // One by one, to find which it is.
        Err(_) => (all.iter().zip(&inputs))
            .map(|(&program, inputs)| {
                run(compiler, &[program], std::slice::from_ref(inputs)).map(|mut found| found.swap_remove(0))
            })
            .collect::<Vec<_>>(),
    };
    let mut failures = Vec::new();
    for ((program, _, expected), found) in programs.iter().zip(found) {
        match found.and_then(|found| compare(&found, expected)) {
            Ok(()) => counts.equal += 1,
            Err(reason) => failures.push(format!("{}: {reason}", program.name)),
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

#[test]
fn random_modules_compute_the_same() {
    for compiler in compilers() {
        let mut counts = Counts::default();
        check(compiler, 0..BATCH, &mut counts).unwrap();
        assert!(counts.equal > BATCH as usize / 2, "{counts:?}");
    }
}

/// As many modules as `MEMPLAN_C99_MODULES` says, from `MEMPLAN_C99_FROM` on.
#[test]
#[ignore = "takes about a tenth of a second a module"]
fn many_random_modules_compute_the_same() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |n| n.parse().expect("a number"));
    let (from, n) = (number("MEMPLAN_C99_FROM", 0), number("MEMPLAN_C99_MODULES", 1000));
    let compiler = compilers()[0];
    let mut counts = Counts::default();
    let mut failures = 0;
    for begin in (from..from + n).step_by(BATCH as usize) {
        if let Err(reason) = check(compiler, begin..(begin + BATCH).min(from + n), &mut counts) {
            failures += 1;
            eprintln!("{reason}");
        }
    }
    eprintln!("{n} modules: {counts:?}, {failures} batches failed");
    assert_eq!(failures, 0);
}
