//! Every operation on the numbers of XLA: the cases of `tests/opcodes`, which `scripts/make_opcode_cases.py` makes.

use memplan_ir::{ArrayLiteral, ArrayShape, Literal, Module};
use memplan_testkit::difference_from_xla;

use crate::support::{Ready, Written, compilers, leaves, run_all, written};

/// Cases of types and operations that small devices do not have are refused.
const LEAST_EQUAL: usize = 850;

#[test]
fn operations_give_the_values_of_xla() {
    let Some(compiler) = compilers().into_iter().next() else { return };
    let (mut refused, mut ready, mut cases_of) = (Vec::new(), Vec::new(), Vec::new());
    let cases = cases();
    for (number, case) in cases.iter().enumerate() {
        let module = memplan_hlo::parse(case).expect("cases are valid");
        if module.config.num_partitions.unwrap_or(1) * module.config.replica_count.unwrap_or(1) > 1 {
            continue;
        }
        match written(module, "cpu", &format!("case_{number}")) {
            None => {}
            Some(Err(refusal)) => refused.push(refusal.to_string()),
            Some(Ok(program)) => {
                let inputs = inputs(case, &program.module);
                ready.push(Ready { program, inputs });
                cases_of.push(case);
            }
        }
    }
    let (mut n_equal, mut wrong) = (0, Vec::new());
    for ((found, case), ready) in run_all(compiler, &ready).into_iter().zip(cases_of).zip(&ready) {
        let name = case.trim_start_matches("HloModule ").split([',', '\n']).next().unwrap_or_default();
        match found.and_then(|found| check(case, &ready.program, &found)) {
            Ok(()) => n_equal += 1,
            Err(reason) => wrong.push(format!("{name}: {reason}")),
        }
    }
    refused.sort();
    eprintln!(
        "{n_equal} of {} cases are equal, {} are refused:\n{}",
        cases.len(),
        refused.len(),
        refused.join("\n")
    );
    assert!(wrong.is_empty(), "{} cases are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(n_equal > LEAST_EQUAL, "only {n_equal} cases are equal");
}

/// All modules, each with its comments.
fn cases() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/opcodes");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("the repository has the cases").flatten().collect();
    files.sort_by_key(|file| file.path());
    let texts = files.iter().map(|file| std::fs::read_to_string(file.path()).expect("cases can be read"));
    let split = |text: String| -> Vec<String> {
        let starts = text.match_indices("HloModule ").map(|(at, _)| at).chain([text.len()]);
        let starts: Vec<usize> = starts.collect();
        starts.windows(2).map(|w| text[w[0]..w[1]].to_string()).collect()
    };
    texts.flat_map(split).collect()
}

fn inputs(case: &str, module: &Module) -> Vec<Literal> {
    let parameters = module.entry_computation().parameters.iter().enumerate();
    parameters
        .map(|(k, &p)| {
            let shape = module.shape(p).as_array().expect("parameters are arrays");
            Literal::Array(array(case, &format!("// p{k}:"), shape))
        })
        .collect()
}

/// The array after a prefix.
fn array(case: &str, prefix: &str, shape: &ArrayShape) -> ArrayLiteral {
    let hex = case.lines().find_map(|l| l.strip_prefix(prefix)).expect("a case has all its arrays").trim();
    let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hexadecimal");
    let n = shape.dense_bytes().expect("extents are known") as usize;
    let bytes: Vec<u8> = (0..n).map(byte).collect();
    ArrayLiteral::new(shape.element_type, shape.dimensions.iter().copied(), bytes)
}

fn check(case: &str, program: &Written, found: &Literal) -> Result<(), String> {
    let module = &program.module;
    let shapes = module.shape(module.entry_computation().root).leaves();
    let shapes: Vec<&ArrayShape> = shapes.iter().filter_map(|(_, s)| s.as_array()).collect();
    for (k, (found, shape)) in leaves(found).into_iter().zip(shapes).enumerate() {
        if let Some(reason) = difference_from_xla(found, &array(case, &format!("// o{k}:"), shape)) {
            return Err(format!("o{k}: {reason}"));
        }
    }
    Ok(())
}
