//! `memplan budget`, and the steps of the action around it.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::{failure, memplan, repository};

/// A program of two products of matrices, of this many rows, whose lines are known.
fn program(rows: u32) -> String {
    let t = format!("tensor<{rows}x64xf32>");
    format!(
        "module @jit_step {{
  func.func public @main(%arg0: {t}, %arg1: tensor<64x64xf32>) -> {t} {{
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : ({t}, tensor<64x64xf32>) -> {t} loc(#loc2)
    %1 = stablehlo.dot_general %0, %arg1, contracting_dims = [1] x [0] : ({t}, tensor<64x64xf32>) -> {t} loc(#loc4)
    return %1 : {t}
  }}
}}
#loc1 = loc(\"train.py\":12:4 to :20)
#loc2 = loc(\"jit(step)/dot_general\"(#loc1))
#loc3 = loc(\"train.py\":13:4 to :20)
#loc4 = loc(\"jit(step)/dot_general\"(#loc3))
"
    )
}

fn budget(limit: &str, growth: &str) -> String {
    format!(
        "[[program]]\nname = \"step\"\nmodule = \"step.mlir\"\nlimit = \"{limit}\"\ngrowth = \"{growth}\"\n"
    )
}

fn write(folder: &Path, rows: u32, limit: &str, growth: &str) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("step.mlir"), program(rows)).unwrap();
    fs::write(folder.join("memplan.toml"), budget(limit, growth)).unwrap();
}

#[test]
fn the_worst_program_decides() {
    let folder = tempfile::tempdir().unwrap();
    let (head, base) = (folder.path().join("head"), folder.path().join("base"));
    write(&base, 1024, "2MiB", "10%");
    write(&head, 1024, "2MiB", "10%");
    let run = |args: &[&str]| memplan(&head, &[&["budget", "--base", "../base"], args].concat());
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("step") && text.contains("of 2.00 MiB  the same  ok"), "{text}");

    write(&head, 2048, "2MiB", "10%");
    let output = run(&["--markdown", "c.md", "--sarif", "a.sarif", "--pages", "pages", "--format", "json"]);
    assert_eq!(output.status.code(), Some(5));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["programs"][0]["grown"], true);
    let comment = fs::read_to_string(head.join("c.md")).unwrap();
    assert!(comment.contains("1 of 1 beyond budget") && comment.contains("step: why"), "{comment}");
    let annotations: Value = serde_json::from_slice(&fs::read(head.join("a.sarif")).unwrap()).unwrap();
    let results = annotations["runs"][0]["results"].as_array().unwrap();
    assert_eq!(results[0]["ruleId"], "memory/growth");
    let lines =
        results.iter().map(|it| it["locations"][0]["physicalLocation"]["region"]["startLine"].as_u64());
    assert!(lines.clone().any(|line| line == Some(12)), "{annotations}");
    let page = fs::read_to_string(head.join("pages/step.html")).unwrap();
    assert!(page.contains("<html") && page.contains("jit_step"));

    write(&head, 2048, "1MiB", "10%");
    assert_eq!(run(&[]).status.code(), Some(3));
}

#[test]
fn mistakes_in_a_budget_are_shown_with_their_line() {
    let folder = tempfile::tempdir().unwrap();
    for (text, message) in [
        ("[[program]]\nmodule = \"m\"\nlimits = \"1GiB\"\n", "memplan.toml:3:1"),
        ("[[program]]\nmodule = \"m\"\nlimit = \"1 lot\"\n", "memplan.toml:1:1"),
        ("program = []\n", "has no [[program]]"),
        ("[[program]]\nmodule = \"m\"\ncompiler = \"gcc\"\n", "gcc"),
    ] {
        fs::write(folder.path().join("memplan.toml"), text).unwrap();
        let (shown, status) = failure(folder.path(), &["budget"]);
        assert!(status == 1 && shown.contains(message), "{shown}");
    }
}

/// The steps of the action on two commits of a repository: comment, annotations, page, status.
#[test]
fn the_action_runs_on_two_commits() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let git = |args: &[&str]| {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
        let output = Command::new("git").args(identity).args(args).current_dir(at).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    git(&["init", "--quiet", "--initial-branch=main"]);
    // The program is made by a command, as JAX would.
    for (rows, message) in [(1024, "small"), (4096, "large")] {
        fs::write(at.join("source.mlir"), program(rows)).unwrap();
        fs::write(at.join("memplan.toml"), budget("64MiB", "5%")).unwrap();
        git(&["add", "."]);
        git(&["commit", "--quiet", "-m", message]);
    }
    let run = |base: &str| {
        Command::new("bash")
            .arg(repository("ci/budget.sh"))
            .current_dir(at)
            .env("MEMPLAN", env!("CARGO_BIN_EXE_memplan"))
            .env("BUILD", "cp source.mlir step.mlir")
            .env("BASE", base)
            .env("OUT", at.join("out"))
            .env("GITHUB_OUTPUT", at.join("github_output"))
            .env("GITHUB_STEP_SUMMARY", at.join("summary"))
            .output()
            .unwrap()
    };
    let output = run("HEAD~1");
    assert_eq!(output.status.code(), Some(5), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |file: &str| fs::read_to_string(at.join(file)).unwrap();
    assert!(read("out/comment.md").contains("| step | "));
    assert_eq!(read("summary"), read("out/comment.md"));
    assert!(read("out/annotations.sarif").contains("train.py"));
    assert!(read("out/pages/step.html").contains("<html"));
    assert_eq!(read("github_output"), "status=5\n");
    assert_eq!(run("HEAD").status.code(), Some(0), "nothing grew since the commit itself");
    assert_eq!(run("").status.code(), Some(0), "without a base there is only the limit");
}
