//! `memplan diff`: one thing changed each time, and the reason that is given (`scripts/make_diff_cases.py` makes the cases).

use std::process::Command;

use serde_json::Value;

use crate::{failure, memplan, repository};

fn case(name: &str) -> String {
    repository(&format!("tests/hlo/diff/{name}.hlo")).display().to_string()
}

fn shown(width: usize, args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_memplan"))
        .env("COLUMNS", width.to_string())
        .args(args)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn reasons_are_named() {
    insta::with_settings!({
        snapshot_path => "../../../snapshots",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        for changed in ["batch", "remat", "kept", "bfloat16", "renamed"] {
            for width in [80, 120] {
                let text = shown(width, &["diff", &case("step"), &case(changed)]);
                for line in text.lines() {
                    assert!(line.chars().count() <= width, "{changed} at {width}: {line}");
                }
                insta::assert_snapshot!(format!("diff_{changed}_{width}"), text);
            }
        }
        let text = shown(80, &["diff", &case("step"), &case("batch"), "--format", "markdown"]);
        insta::assert_snapshot!("diff_markdown", text);
    });
    let (small, large) = (case("weights_at_the_peak"), case("batch_at_the_peak"));
    insta::with_settings!({
        snapshot_path => "../../../snapshots",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        // The same place either way: what shrank is compared where the peak was.
        for (name, before, after) in [("moved", &small, &large), ("moved_back", &large, &small)] {
            let text = shown(80, &["diff", before, after]);
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
            insta::assert_snapshot!(format!("diff_{name}"), text);
        }
    });
    assert!(shown(80, &["diff", &case("step"), &case("step")]).contains("no change in bytes"));
}

#[test]
fn growth_beyond_the_limit_is_status_5() {
    let folder = tempfile::tempdir().unwrap();
    let (before, after) = (case("step"), case("batch"));
    let status = |args: &[&str]| {
        let args = [&["diff", &before, &after, "-o", "out"][..], args].concat();
        memplan(folder.path(), &args).status.code()
    };
    assert_eq!(status(&[]), Some(0));
    assert_eq!(status(&["--fail-above", "2%"]), Some(5));
    assert_eq!(status(&["--fail-over", "2%"]), Some(5));
    assert_eq!(status(&["--fail-above", "500%"]), Some(0));
    assert_eq!(status(&["--fail-above", "1KiB"]), Some(5));
    assert_eq!(status(&["--fail-above", "1GiB"]), Some(0));
    assert_eq!(status(&["--fail-above", "2B"]), Some(5));
    assert_eq!(status(&["--fail-above", "-2%"]), Some(2));
    let (message, _) = failure(folder.path(), &["diff", &before, &after, "--fail-above", "x%", "-o", "out"]);
    assert!(message.contains("a share like `5%`"), "{message}");
}

#[test]
fn plan_files_and_folders_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    for (dump, cases) in [("a", ["step", "kept"]), ("b", ["batch", "kept"])] {
        std::fs::create_dir(root.join(dump)).unwrap();
        for (i, name) in cases.iter().enumerate() {
            let module = std::fs::read_to_string(case(name))
                .unwrap()
                .replace("HloModule jit_step", &format!("HloModule m{i}"));
            let file = format!("{dump}/module_000{i}.m{i}.before_optimizations.txt");
            std::fs::write(root.join(file), module).unwrap();
        }
    }
    let output = memplan(root, &["diff", "a", "b", "--format", "json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["format"], "memplan.diff");
    assert_eq!(found["programs"].as_array().unwrap().len(), 2);
    assert_eq!(found["programs"][0]["causes"][0]["kind"], "dimension");
    assert_eq!(found["programs"][1]["changes"].as_array().unwrap().len(), 0);

    for (file, name) in [("a.json", "step"), ("b.json", "batch")] {
        let output = memplan(root, &["plan", &case(name), "--format", "json", "-o", file]);
        assert!(output.status.success());
    }
    let of_files = memplan(root, &["diff", "a.json", "b.json"]).stdout;
    let of_modules = memplan(root, &["diff", &case("step"), &case("batch")]).stdout;
    assert_eq!(String::from_utf8(of_files), String::from_utf8(of_modules));

    std::fs::write(root.join("broken.json"), "{\"format\": 3").unwrap();
    let (message, status) = failure(root, &["diff", "a.json", "broken.json"]);
    assert!(message.contains("broken.json:1:12: not a plan"), "{message}");
    assert_eq!(status, 1);
}
