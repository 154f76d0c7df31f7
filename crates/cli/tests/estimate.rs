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

/// What each of XLA's compilers made of a small program, and the cause that makes a difference.
#[test]
fn estimates_are_compared_with_what_xla_made() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        ("kmeans", "gpu", "fusion"),
        ("mlp_training_step", "gpu", "copy"),
        ("half_precision_training_step", "gpu", "fusion"),
        ("spectrum", "tpu", "layout"),
    ];
    for (program, backend, cause) in cases {
        let file = |name: &str| repository(&format!("tests/corpus/{program}/{name}.hlo.txt"));
        let (given, made) = (file("before"), file(backend));
        let compiler = format!("xla-{backend}");
        let args = [given.to_str().unwrap(), "--beside", made.to_str().unwrap(), "--compiler", &compiler];
        let output = memplan(folder.path(), &[&["estimate"], &args[..], &["--format", "json"]].concat());
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let beside = &found["beside"];
        let causes = beside["causes"].as_array().unwrap();
        assert_eq!(causes[0]["kind"], cause, "{program}: {beside:#}");
        let sum: i64 = causes.iter().map(|cause| cause["bytes"].as_i64().unwrap()).sum();
        let total = &beside["totals"].as_array().unwrap().last().unwrap();
        let bytes = |side: &str| total[side].as_i64().unwrap();
        assert_eq!(sum, bytes("after") - bytes("before"), "{program}");
        assert_eq!(found["total"].as_i64().unwrap(), bytes("before"), "{program}");
    }
}

#[test]
fn comparisons_say_what_to_give_instead() {
    let folder = tempfile::tempdir().unwrap();
    let given = repository("tests/corpus/kmeans/before.hlo.txt");
    let given = given.to_str().unwrap();
    let error = |beside: &str, more: &[&str]| {
        let args = ["estimate", given, "--compiler", "xla-gpu", "--beside", beside];
        failure(folder.path(), &[&args[..], more].concat())
    };
    let (message, status) = error(given, &[]);
    assert_eq!(status, 1, "{message}");
    assert!(message.contains("is not scheduled") && message.contains("--xla_dump_to=FOLDER"), "{message}");

    let other = repository("tests/corpus/spectrum/gpu.hlo.txt");
    let (message, status) = error(other.to_str().unwrap(), &[]);
    assert_eq!(status, 1, "{message}");
    assert!(message.contains("was not compiled from `jit_kmeans`"), "{message}");
    assert!(message.contains("--xla_dump_to=FOLDER"), "{message}");

    let (message, status) = error(repository("tests/corpus/kmeans/tpu.hlo.txt").to_str().unwrap(), &[]);
    assert_eq!(status, 1, "{message}");
    assert!(message.contains("compiled for a TPU") && message.contains("--compiler xla-tpu"), "{message}");

    let (message, status) = error(repository("Cargo.toml").to_str().unwrap(), &[]);
    assert_eq!(status, 1, "{message}");
    let (message, _) = error(folder.path().to_str().unwrap(), &[]);
    assert!(message.contains("--xla_dump_to"), "{message}");

    let (message, status) = error(given, &["--group", "source"]);
    assert_eq!(status, 2, "{message}");
    assert!(message.contains("compares two plans"), "{message}");
}
