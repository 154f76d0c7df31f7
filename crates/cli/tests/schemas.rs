//! What verbs write as JSON agrees with the schemas in the repository.

use std::fs;

use serde_json::Value;

use crate::agreement::disagreement;
use crate::{memplan, repository};

/// After a change of a format: `MEMPLAN_UPDATE=1 cargo test -p memplan-cli schemas`.
#[test]
fn schemas_are_up_to_date() {
    for (name, schema) in memplan_cli::schemas() {
        let path = repository(&format!("schema/{name}.schema.json"));
        let contents = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var_os("MEMPLAN_UPDATE").is_some() {
            fs::write(&path, &contents).unwrap();
        }
        assert_eq!(fs::read_to_string(path).unwrap_or_default(), contents, "{name}");
    }
}

#[test]
fn documents_agree_with_their_schemas() {
    let folder = tempfile::tempdir().unwrap();
    let paths = [
        "tests/corpus/branches/before.hlo.txt",
        "tests/questions/training_step.hlo",
        "crates/tflite/tests/residual.tflite",
        "tests/screens/problem.csv",
    ];
    let [program, step, model, problem] = paths.map(repository);
    let [program, step, model, problem] =
        [&program, &step, &model, &problem].map(|path| path.to_str().unwrap());
    fs::write(folder.path().join("memplan.toml"), format!("[[program]]\nmodule = {program:?}\n")).unwrap();
    for (name, arguments) in [
        ("budget", &["budget"][..]),
        ("diff", &["diff", program, program]),
        ("estimate", &["estimate", program, "--compiler", "xla-cpu"]),
        ("explain", &["explain", program]),
        ("explain_value", &["explain", step, "a0"]),
        ("fit", &["fit", program, "--target", "gpu-h100"]),
        ("frontier", &["compile", program, "--target", "gpu-h100", "--frontier"]),
        ("pack", &["pack", problem]),
        ("passes", &["passes"]),
        ("replay", &["replay", program, "--target", "gpu-h100", "--defragment-at", "0"]),
        ("resident", &["plan", program, step, "--resident", "--target", "gpu-h100"]),
        ("targets", &["targets"]),
        ("tflite", &["plan", model]),
    ] {
        let output = memplan(folder.path(), &[arguments, &["--format", "json"]].concat());
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_agrees(name, &document);
    }
    let report = folder.path().join("report.json");
    let arguments = ["rewrite", step, "--compiler", "xla-gpu", "-o", "out.hlo", "--report", "report.json"];
    let output = memplan(folder.path(), &arguments);
    assert!(output.status.success(), "rewrite: {}", String::from_utf8_lossy(&output.stderr));
    assert_agrees("rewrite", &serde_json::from_slice(&fs::read(report).unwrap()).unwrap());
}

#[track_caller]
fn assert_agrees(name: &str, document: &Value) {
    let (_, schema) = memplan_cli::schemas().into_iter().find(|(found, _)| *found == name).unwrap();
    let schema = serde_json::to_value(schema).unwrap();
    assert_eq!(disagreement(&schema, &schema, document), None, "{name}");
    assert!(disagreement(&schema, &schema, &Value::from("text")).is_some(), "{name}: a text is none");
}
