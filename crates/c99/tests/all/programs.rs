//! Real programs: as C they compute what the evaluator does.

use memplan_testkit::{CorpusProgram, corpus, random_inputs};

use crate::support::{compare, compilers, expected, run, written};

/// Steps of training divide by roots of sums of squares, which random numbers leave near zero.
const TOLERANCE: f64 = 1e-4;

#[test]
fn programs_of_the_repository_compute_the_same() {
    check(compilers().into_iter().take(1), |program| program.is_ours);
}

#[test]
#[ignore = "takes minutes"]
fn small_programs_compute_the_same() {
    check(compilers().into_iter(), CorpusProgram::is_small);
}

fn check(compilers: impl Iterator<Item = &'static str> + Clone, is_asked: impl Fn(&CorpusProgram) -> bool) {
    let (mut n, mut failures) = (0, Vec::new());
    for program in corpus().iter().filter(|program| is_asked(program)) {
        let module = memplan_hlo::parse(&program.text("before")).expect("programs of the corpus are valid");
        let program = match written(module, "cpu", &program.name) {
            Some(Ok(program)) => program,
            Some(Err(refusal)) => {
                eprintln!("{}: {refusal}", program.name);
                continue;
            }
            None => continue,
        };
        let inputs = random_inputs(&program.module, 1);
        let Some(expected) = expected(&program, &inputs) else { continue };
        for compiler in compilers.clone() {
            let found = run(compiler, &[&program], std::slice::from_ref(&inputs));
            match found.and_then(|found| compare(&found[0], &expected, TOLERANCE)) {
                Ok(()) => n += 1,
                Err(reason) => failures.push(format!("{}: {compiler}: {reason}", program.name)),
            }
        }
    }
    eprintln!("{n} runs are equal");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(compilers.count() == 0 || n > 5, "only {n} programs were run");
}
