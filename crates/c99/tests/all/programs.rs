//! Real programs: as C they compute what the evaluator does.

use memplan_testkit::{corpus, random_inputs};

use crate::support::{compare, compilers, expected, run, written};

#[test]
fn small_programs_compute_the_same() {
    let programs = corpus().into_iter().filter(|program| program.is_small());
    let (mut n, mut failures) = (0, Vec::new());
    for program in programs {
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
        for compiler in compilers() {
            let found = run(compiler, &[&program], std::slice::from_ref(&inputs));
            match found.and_then(|found| compare(&found[0], &expected)) {
                Ok(()) => n += 1,
                Err(reason) => failures.push(format!("{}: {reason}", program.name)),
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(compilers().is_empty() || n > 0, "no program was run");
}
