//! Random modules: as C they compute what the evaluator does.

use memplan_testkit::{Family, GenerateOptions, generate, random_inputs};

use crate::support::{BATCH, Ready, compare, compilers, expected, run_all, written, written_as_given};

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
    let (mut programs, mut wanted) = (Vec::new(), Vec::new());
    for seed in seeds {
        let family = [Family::Plain, Family::Scans][seed as usize / 2 % 2];
        let options = GenerateOptions { unusual: seed % 2 == 1, family, ..GenerateOptions::default() };
        let target = ["cpu", "mcu-cortex-m7"][seed as usize / 4 % 2];
        let module = generate(seed, &options);
        let written = if seed as usize / 8 % 4 == 3 { written_as_given } else { written };
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
                    Some(expected) => {
                        programs.push(Ready { program, inputs });
                        wanted.push(expected);
                    }
                }
            }
        }
    }
    let mut failures = Vec::new();
    for ((found, expected), ready) in run_all(compiler, &programs).into_iter().zip(wanted).zip(&programs) {
        match found.and_then(|found| compare(&found, &expected, 2e-5)) {
            Ok(()) => counts.equal += 1,
            Err(reason) => failures.push(format!("{}: {reason}", ready.program.name)),
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n")) }
}

#[test]
fn random_modules_compute_the_same() {
    for compiler in compilers() {
        let mut counts = Counts::default();
        check(compiler, 0..BATCH as u64, &mut counts).unwrap();
        assert!(counts.equal > BATCH / 2, "{counts:?}");
    }
}

/// As many modules as `MEMPLAN_C99_MODULES` says, from `MEMPLAN_C99_FROM` on. `MEMPLAN_C99_FLAGS=-O0` compiles C several
/// times as fast, without sanitizers.
#[test]
#[ignore = "takes about a tenth of a second a module"]
fn many_random_modules_compute_the_same() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |n| n.parse().expect("a number"));
    let (from, n) = (number("MEMPLAN_C99_FROM", 0), number("MEMPLAN_C99_MODULES", 1000));
    let compiler = compilers()[0];
    let mut counts = Counts::default();
    let mut failures = 0;
    for begin in (from..from + n).step_by(BATCH) {
        if let Err(reason) = check(compiler, begin..(begin + BATCH as u64).min(from + n), &mut counts) {
            failures += 1;
            eprintln!("{reason}");
        }
    }
    eprintln!("{n} modules: {counts:?}, {failures} batches failed");
    assert_eq!(failures, 0);
}
