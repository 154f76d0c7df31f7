//! `memplan rewrite`: text and protobuf in and out, preserved parts of a program, and limits.

use crate::{failure, memplan, repository};

const RESIDUALS: &str = "tests/hlo/rewrite/residuals.hlo";

#[test]
fn text_and_protobuf_are_the_same_program() {
    let folder = tempfile::tempdir().unwrap();
    let module = repository(RESIDUALS).display().to_string();
    let rewrite = |from: &str, to: &str| {
        let output = memplan(folder.path(), &["rewrite", from, "--compiler", "xla-gpu", "-o", to]);
        let report = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{report}");
        assert!(report.contains("loop residuals"), "{report}");
        std::fs::read(folder.path().join(to)).unwrap()
    };
    let text = rewrite(&module, "out.hlo");
    assert!(text.starts_with(b"HloModule residuals"));
    let binary = rewrite(&module, "out.pb");
    assert!(std::str::from_utf8(&binary).is_err(), "a name that ends in .pb asks for protobuf");
    // Protobuf wants names that are unique in the whole module, so that texts differ in names.
    let read = String::from_utf8(memplan(folder.path(), &["opt", "out.pb"]).stdout).unwrap();
    let opcodes = |text: &str| -> Vec<String> {
        let words = text
            .lines()
            .filter_map(|line| line.split_once(" = ")?.1.split_once('(')?.0.split(' ').next_back());
        words.map(String::from).collect()
    };
    assert_eq!(opcodes(&read), opcodes(std::str::from_utf8(&text).unwrap()));
    // Rewritten once more, from protobuf, nothing is left to do.
    let output = memplan(folder.path(), &["rewrite", "out.pb", "--compiler", "xla-gpu", "-o", "again.pb"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no rewrite is worth it"));
    assert_eq!(std::fs::read(folder.path().join("again.pb")).unwrap(), binary);
}

/// What the caller and the partitioner read is still there.
#[test]
fn shardings_donation_attributes_and_custom_calls_survive() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(repository(RESIDUALS)).unwrap();
    let text = text.replacen(
        "HloModule residuals",
        "HloModule residuals, input_output_alias={ {0}: (0, {}, may-alias) }, num_partitions=2, \
         frontend_attributes={from=\"jax\"}",
        1,
    );
    let text = text.replacen(
        "  h = f32[4096] parameter(0)",
        "  h0 = f32[4096] parameter(0), sharding={devices=[2]<=[2]}, frontend_attributes={kept=\"yes\"}\n  \
         h = f32[4096] custom-call(h0), custom_call_target=\"Sharding\", sharding={replicated}, \
         metadata={op_name=\"here\"}",
        1,
    );
    std::fs::write(folder.path().join("in.hlo"), text).unwrap();
    let output = memplan(folder.path(), &["rewrite", "in.hlo", "--compiler", "xla-gpu", "-o", "out.hlo"]);
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && !report.contains("no rewrite is worth it"), "{report}");
    let text = std::fs::read_to_string(folder.path().join("out.hlo")).unwrap();
    for kept in [
        "input_output_alias={ {0}: (0, {}, may-alias) }",
        "num_partitions=2",
        "frontend_attributes={from=\"jax\"}",
        "sharding={devices=[2]<=[2]}, frontend_attributes={kept=\"yes\"}",
        "custom_call_target=\"Sharding\", sharding={replicated}, metadata={op_name=\"here\"}",
    ] {
        assert!(text.contains(kept), "{kept} is lost:\n{text}");
    }
}

#[test]
fn a_limit_that_is_not_met_is_status_3_with_the_program_written() {
    let folder = tempfile::tempdir().unwrap();
    let module = repository(RESIDUALS).display().to_string();
    let arguments = ["rewrite", &module, "--compiler", "xla-gpu", "--memory-limit", "1KiB", "-o", "out.hlo"];
    let (text, status) = failure(folder.path(), &arguments);
    assert!(text.contains("but only 1.00 KiB is available"), "{text}");
    assert_eq!(status, 3);
    assert!(folder.path().join("out.hlo").exists());
}

#[test]
fn compilers_that_are_not_there_are_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let module = repository(RESIDUALS).display().to_string();
    let (text, status) = failure(folder.path(), &["rewrite", &module, "--compiler", "gcc"]);
    assert!(text.contains("xla-gpu, xla-cpu, xla-tpu"), "{text}");
    assert_eq!(status, 2);
}
