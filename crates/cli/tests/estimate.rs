//! `memplan estimate`, and what `compile` says of other compilers.

use serde_json::Value;

use crate::{failure, memplan, repository};

#[test]
fn estimates_are_text_or_json() {
    let folder = tempfile::tempdir().unwrap();
    let case = repository("tests/hlo/estimate/xla-gpu__stable_sort.hlo");
    let case = case.to_str().unwrap();
    let output = memplan(folder.path(), &["estimate", case, "--compiler", "xla-gpu", "--format", "json"]);
    assert!(output.status.success());
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let totals = &found["totals"];
    let sum = |keys: [&str; 3]| keys.iter().map(|key| totals[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(found["total"].as_u64().unwrap(), sum(["arguments", "outputs", "temp"]));
    assert_eq!(found["target"], "gpu-h100");

    let output = memplan(folder.path(), &["estimate", case, "--compiler", "xla-cpu"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("expected of xla-cpu"), "{text}");
    assert!(text.contains("live at the peak"), "{text}");

    let (message, status) = failure(folder.path(), &["estimate", case, "--compiler", "gcc"]);
    assert_eq!(status, 2);
    assert!(message.contains("xla-gpu, xla-cpu, xla-tpu"), "{message}");
}

#[test]
fn compile_says_whose_kernels_it_assumes() {
    let folder = tempfile::tempdir().unwrap();
    let case = repository("tests/hlo/estimate/xla-gpu__stable_sort.hlo");
    let output = memplan(folder.path(), &["compile", case.to_str().unwrap(), "--target", "gpu-h100"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("with the kernels that gpu-h100's file promises; xla-gpu would need"), "{text}");
}
