//! Compares programs that memplan reads as StableHLO with what XLA made of them: `same_modules PROGRAM HLO ...`, pairs of
//! files. Prints a line for each: `same`, `same but for names of operations`, `refused: why`, or `differs`.

#![allow(clippy::print_stdout, reason = "a command")]

use memplan_testkit::canonical;

fn main() {
    let files: Vec<String> = std::env::args().skip(1).collect();
    for pair in files.chunks_exact(2) {
        println!("{}\t{}", pair[0], verdict(&pair[0], &pair[1]));
    }
}

fn verdict(program: &str, hlo: &str) -> String {
    let bytes = std::fs::read(program).expect("the file can be read");
    let ours = match memplan_stablehlo::is_binary(&bytes) {
        true => memplan_stablehlo::read(&bytes),
        false => memplan_stablehlo::parse(&String::from_utf8_lossy(&bytes)),
    };
    let ours = match ours {
        Ok(module) => module,
        Err(error) => return format!("refused: {error}"),
    };
    if let Err(errors) = memplan_ir::verify(&ours) {
        let first = &errors.0[0];
        return format!(
            "differs: invalid: {first} {}",
            std::error::Error::source(first).map_or(String::new(), |e| e.to_string())
        );
    }
    let bytes = std::fs::read(hlo).expect("the file can be read");
    let theirs = match memplan_hlo::proto::read(&bytes) {
        Ok(found) => found.module,
        Err(_) => memplan_hlo::parse(&String::from_utf8_lossy(&bytes)).expect("XLA's module is one"),
    };
    // A text without locations names no operations.
    let has_names =
        ours.instructions.values().any(|it| it.metadata.as_ref().is_some_and(|it| !it.op_name.is_empty()));
    if canonical(&ours, has_names) == canonical(&theirs, has_names) {
        return "same".to_owned();
    }
    if canonical(&ours, false) == canonical(&theirs, false) {
        return "same but for names of operations".to_owned();
    }
    "differs".to_owned()
}
