//! Programs that shardings spread over several devices: every verb works on the program of one.

use serde_json::Value;

use crate::{memplan, repository};

/// Cut by data and by tensors, layers in a loop, over eight devices.
const PROGRAM: &str = "tests/spmd/transformer_both_scanned_2x4.hlo.txt";

/// The standard output of a command that succeeds.
fn output(args: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = memplan(folder.path(), args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_verb_says_that_bytes_are_those_of_one_device() {
    let program = repository(PROGRAM);
    let program = program.to_str().unwrap();
    let verbs: [&[&str]; 5] = [
        &["plan", program],
        &["compile", program, "--target", "cpu", "--effort", "quick"],
        &["explain", program],
        &["estimate", program, "--compiler", "xla-cpu"],
        &["fit", program, "--target", "cpu", "--memory-limit", "1GiB"],
    ];
    for args in verbs {
        let text = output(args);
        let is_first =
            text.lines().take(4).any(|line| line.starts_with("bytes are those of one device of 8"));
        assert!(is_first, "{args:?}: {text}");
    }
}

#[test]
fn documents_have_the_bytes_of_one_device() {
    let program = repository(PROGRAM);
    let program = program.to_str().unwrap();
    let document = |args: &[&str]| -> Value {
        serde_json::from_str(&output(&[args, &["--format", "json"]].concat())).unwrap()
    };
    let estimate = document(&["estimate", program, "--compiler", "xla-cpu"]);
    let plan = document(&["plan", program]);
    let compiled = document(&["compile", program, "--target", "cpu", "--effort", "quick"]);
    let fit = document(&["fit", program, "--target", "cpu", "--memory-limit", "1GiB"]);
    for document in [&estimate, &plan, &compiled, &fit] {
        assert_eq!(document["devices"], 8);
    }
    // What a device holds of the arguments is the same for all.
    for document in [&plan, &compiled] {
        assert_eq!(document["totals"]["arguments"], estimate["totals"]["arguments"]);
    }
    // Donated state takes no bytes twice.
    assert!(plan["totals"]["aliased"].as_u64().unwrap() > plan["totals"]["outputs"].as_u64().unwrap() / 2);
    assert_eq!(fit["total"], estimate["total"]);
}

#[test]
fn a_plan_is_checked_against_the_program_that_it_is_of() {
    let folder = tempfile::tempdir().unwrap();
    let program = repository(PROGRAM);
    let program = program.to_str().unwrap();
    let plan = ["plan", program, "--format", "json", "-o", "plan.json", "--emit", "hlo=one.hlo.txt"];
    assert!(memplan(folder.path(), &plan).status.success());
    assert!(memplan(folder.path(), &["check", "one.hlo.txt", "plan.json"]).status.success());
    // What is written is for one device already.
    let again = memplan(folder.path(), &["plan", "one.hlo.txt", "--format", "json", "-o", "again.json"]);
    assert!(again.status.success());
    let read = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(folder.path().join(name)).unwrap()).unwrap()
    };
    assert_eq!(read("plan.json")["totals"], read("again.json")["totals"]);
    assert_eq!(read("again.json")["devices"], 8);
}

#[test]
fn arguments_that_are_whole_on_every_device_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let program = "HloModule step, num_partitions=4
ENTRY main {
  w = f32[1024,1024]{1,0} parameter(0), sharding={replicated}, metadata={op_name=\"params['w']\"}
  x = f32[4096,1024]{1,0} parameter(1), sharding={devices=[4,1]<=[4]}
  ROOT y = f32[4096,1024]{1,0} dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}";
    std::fs::write(folder.path().join("step.hlo"), program).unwrap();
    let verbs: [&[&str]; 3] =
        [&["plan", "step.hlo"], &["explain", "step.hlo"], &["estimate", "step.hlo", "--compiler", "xla-cpu"]];
    for args in verbs {
        let output = memplan(folder.path(), args);
        let text = String::from_utf8(output.stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        let named =
            "4.00 MiB params['w'] f32[1024,1024] on 4 devices; 1.00 MiB if its dimension 0 of 1024 were cut";
        assert!(text.contains(named), "{args:?}: {text}");
    }
}
