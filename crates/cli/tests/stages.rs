//! `memplan passes`, and what `memplan compile` says of its stages.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{memplan, repository};

/// Standard output of a command that succeeds.
#[track_caller]
fn said(args: &[&str]) -> String {
    let output = memplan(&repository("."), args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn passes_are_listed_and_run_by_name() {
    let listed: Value = serde_json::from_str(&said(&["passes", "--format", "json"])).unwrap();
    let list = |value: &Value| value.as_array().unwrap().clone();
    let names = |key: &str| -> BTreeSet<String> {
        list(&listed[key]).iter().map(|of| of["name"].as_str().unwrap().to_string()).collect()
    };
    let text = said(&["passes"]).split_whitespace().collect::<Vec<_>>().join(" ");
    for key in ["passes", "foreign_passes", "rewrite"] {
        for of in list(&listed[key]) {
            let (name, description) = (of["name"].as_str().unwrap(), of["description"].as_str().unwrap());
            assert!(!description.is_empty(), "{name} says nothing");
            assert!(text.contains(name) && text.contains(description), "{name} is not in the text");
        }
    }
    let all = names("passes");
    for stage in list(&listed["compile"]) {
        assert!(text.contains(stage["name"].as_str().unwrap()));
        for pass in list(&stage["passes"]) {
            assert!(all.contains(pass.as_str().unwrap()), "`opt` does not know {pass}");
        }
    }
    assert!(all.is_disjoint(&names("foreign_passes")));
    let passes = all.into_iter().collect::<Vec<_>>().join(",");
    assert!(said(&["opt", "examples/attention.hlo.txt", "--passes", &passes]).starts_with("HloModule"));
}

#[test]
fn stages_say_what_they_came_to_and_why() {
    let program = "examples/attention.hlo.txt";
    let compile = ["compile", program, "--target", "tpu-v5e"];
    let text = said(&compile);
    let explained = said(&[&compile[..], &["--explain-stages"]].concat());
    // What is explained is added to the report.
    let why = explained.strip_prefix(text.as_str()).expect("the report is the same");
    assert!(why.starts_with("\ndecisions of the stages\n"), "{why}");
    let (table, _) = text.split_once("\n\n").unwrap();
    // A line with nothing in front is the name of a stage, which is in the table, too.
    let stages: Vec<&str> =
        why.lines().skip(2).filter(|line| !line.is_empty() && !line.starts_with(' ')).collect();
    assert!(stages.contains(&"schedule") && stages.contains(&"fast memory"), "{stages:?}");
    for stage in stages {
        assert!(
            table.lines().any(|line| line.trim_start().starts_with(stage)),
            "{stage} is not in the table"
        );
    }
    // Each stage that is measured has bytes, and the time of a run.
    let (header, rows) = table.split_once('\n').unwrap();
    assert!(header.contains("total") && header.contains("a run"), "{header}");
    assert!(rows.lines().filter(|row| row.contains("iB") && row.contains("s ")).count() > 3, "{table}");
    assert!(said(&[&compile[..], &["--timings"]].concat()).contains(" ms"));
}

/// The time of a run stands in every report, of XLA's own programs too, and its parts make up the whole.
#[test]
fn reports_say_what_time_goes_to() {
    for args in [
        ["compile", "examples/attention.hlo.txt", "--target", "gpu-h100"],
        ["plan", "tests/corpus/spectrum/gpu.hlo.txt", "--target", "gpu-h100"],
        ["plan", "tests/corpus/spectrum/tpu.hlo.txt", "--target", "tpu-v5e"],
        ["plan", "tests/corpus/spectrum/cpu.hlo.txt", "--target", "cpu"],
    ] {
        let text = said(&args);
        let line =
            text.lines().find(|line| line.starts_with("one run takes ")).unwrap_or_else(|| panic!("{text}"));
        let percent = |word: &[&str]| (word[1] == "%").then(|| word[0].parse::<f64>().unwrap());
        let words: Vec<&str> = line.split_whitespace().collect();
        let sum: f64 = words.windows(2).filter_map(percent).sum();
        assert!((98.0..=102.0).contains(&sum), "{line}");
    }
}
