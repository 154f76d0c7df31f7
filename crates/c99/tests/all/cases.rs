//! The cases of `tests/hlo/c99`: their C is readable, and computes what the evaluator does; or they are refused by name.

use memplan_testkit::{Fixture, random_inputs};

use crate::support::{Ready, compare, compilers, expected, run_all, written};

#[test]
fn c99_filetests() {
    let compiler = compilers().into_iter().next();
    insta::glob!("../../../../tests/hlo/c99", "*.hlo", |path| {
        let fixture = Fixture::read(path).unwrap();
        let module = memplan_hlo::parse(&fixture.source).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let target = fixture.target.as_deref().expect("a case has a target");
        let name = path.file_stem().and_then(|stem| stem.to_str()).expect("a case has a name");
        let program = match (written(module, target, name).expect("it can be compiled"), &fixture.error) {
            (Ok(program), None) => program,
            (Err(refusal), Some(error)) => {
                assert!(refusal.to_string().contains(error), "{path:?}: {refusal}");
                return;
            }
            (Ok(_), Some(_)) => panic!("{path:?} is not refused"),
            (Err(refusal), None) => panic!("{path:?}: {refusal}"),
        };
        insta::with_settings!({
            snapshot_path => "../../../../snapshots",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            input_file => path,
        }, {
            insta::assert_snapshot!("c99", of_the_program(&program.sources.c));
        });
        let inputs = random_inputs(&program.module, 5);
        let expected = expected(&program, &inputs).expect("it can be evaluated");
        if let Some(compiler) = compiler {
            let found = run_all(compiler, &[Ready { program, inputs }]).remove(0);
            let same = found.and_then(|found| compare(&found, &expected, 2e-5));
            same.unwrap_or_else(|reason| panic!("{path:?}: {reason}"));
        }
    });
}

/// A file without the lines that all files have.
fn of_the_program(file: &str) -> String {
    let end_of_head = "ASSERT(size_of_float, sizeof(float) == 4);\n";
    file.split_once(end_of_head).map_or(file, |(_, rest)| rest).to_string()
}
