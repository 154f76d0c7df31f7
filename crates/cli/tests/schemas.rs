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
    let program = repository("tests/corpus/branches/before.hlo.txt");
    let program = program.to_str().unwrap();
    let model = repository("crates/tflite/tests/residual.tflite");
    fs::write(folder.path().join("memplan.toml"), format!("[[program]]\nmodule = {program:?}\n")).unwrap();
    for (name, arguments) in [
        ("budget", &["budget"][..]),
        ("diff", &["diff", program, program]),
        ("estimate", &["estimate", program, "--compiler", "xla-cpu"]),
        ("explain", &["explain", program]),
        ("fit", &["fit", program, "--target", "gpu-h100"]),
        ("frontier", &["compile", program, "--target", "gpu-h100", "--frontier"]),
        ("passes", &["passes"]),
        ("tflite", &["plan", model.to_str().unwrap()]),
    ] {
        let output = memplan(folder.path(), &[arguments, &["--format", "json"]].concat());
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let (_, schema) = memplan_cli::schemas().into_iter().find(|(found, _)| *found == name).unwrap();
        let schema = serde_json::to_value(schema).unwrap();
        assert_eq!(disagreement(&schema, &schema, &document), None, "{name}");
        assert!(disagreement(&schema, &schema, &Value::from("text")).is_some(), "{name}: a text is none");
    }
}
