//! The screens of the verbs, 80 and 120 characters wide: no line is longer, and they are kept as snapshots to be looked
//! at.

use std::process::Command;

use crate::repository;

/// What a verb shows on a screen of a width.
fn screen(width: usize, args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_memplan"))
        .current_dir(repository(""))
        .env("COLUMNS", width.to_string())
        .args(args)
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
}

/// The verbs, each with a program that shows all its parts.
const VERBS: [(&str, &[&str]); 7] = [
    ("plan", &["plan", "tests/corpus/lstm/gpu.hlo.txt", "--target", "gpu-h100"]),
    ("compile", &["compile", "tests/corpus/transformer_training_step/before.hlo.txt", "--target", "cpu"]),
    ("estimate", &["estimate", "tests/corpus/attention/before.hlo.txt", "--compiler", "xla-gpu"]),
    (
        "fit",
        &[
            "fit",
            "tests/corpus/transformer_training_step/before.hlo.txt",
            "--target",
            "gpu-h100",
            "--memory-limit",
            "100KiB",
        ],
    ),
    ("explain", &["explain", "tests/corpus/lstm/gpu.hlo.txt", "--target", "gpu-h100"]),
    ("pack", &["pack", "tests/screens/problem.csv"]),
    ("replay", &["replay", "tests/corpus/attention/gpu.hlo.txt", "--target", "gpu-h100"]),
];

#[test]
fn no_line_is_longer_than_the_screen() {
    insta::with_settings!({
        snapshot_path => "../../../snapshots",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        for (name, args) in VERBS {
            for width in [80, 120] {
                let text = screen(width, args);
                for line in text.lines() {
                    assert!(line.chars().count() <= width, "{name} at {width}: {line}");
                }
                insta::assert_snapshot!(format!("screen_{name}_{width}"), without_times(&text));
            }
        }
    });
}

/// The screen without what a run takes, which changes with every number of the cost model; that has tests of its own.
pub(crate) fn without_times(text: &str) -> String {
    let (mut is_time, mut is_table) = (false, text.trim_start().starts_with("stage "));
    let without_runs = |line: &str| {
        is_table &= !line.trim().is_empty();
        // The columns of a stage after its bytes: behind the heading, or the first percent sign.
        let end = line
            .find("a run")
            .or_else(|| line.find('%').map(|at| at + 1))
            .or_else(|| line.find("iB").map(|at| at + 2));
        match end {
            Some(end) if is_table => format!("{}\n", line[..end].trim_end()),
            _ => line.to_string(),
        }
    };
    let keep = |line: &&str| {
        is_time = line.starts_with("one run takes") || is_time && line.starts_with("  ");
        !is_time
    };
    text.split_inclusive('\n').filter(keep).map(without_runs).collect()
}

/// Colours are there when they are asked for, and change nothing else.
#[test]
fn colors_when_they_are_asked_for() {
    let (_, args) = VERBS[0];
    let plain = screen(80, args);
    assert!(!plain.contains('\u{1b}'), "a pipe has no colours");
    let mut colored = screen(80, &[args, &["--color", "always"]].concat());
    assert!(colored.contains("\u{1b}[1m") && colored.contains("\u{1b}[31m"));
    while let Some(from) = colored.find('\u{1b}') {
        let to = colored[from..].find('m').unwrap();
        colored.replace_range(from..=from + to, "");
    }
    assert_eq!(colored, plain);
}
