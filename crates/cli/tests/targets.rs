//! `memplan targets`, and target files that are wrong.

use std::fmt::Write as _;

use crate::{failure, memplan, repository};

/// What is wrong with a target file is shown with its place and with what may stand there.
#[test]
fn wrong_target_files() {
    let folder = tempfile::tempdir().unwrap();
    let module = repository("examples/attention.hlo.txt").display().to_string();
    let toy = std::fs::read_to_string(repository("crates/memory/targets/toy.toml")).unwrap();
    let mut text = String::new();
    for (from, to) in [
        ("family = \"toy\"\n", ""),
        ("capacity = 1024", "capacity = -1024"),
        ("capacity = 1024", "capacty = 1024"),
        ("capacity = 1024", "capacity = \"1 QiB\""),
        ("capacity = 1024", "capacity = \"1024\""),
        ("capacity = 1024", "capacity = 99999999999999999999"),
        ("id = 1", "id = 0"),
        ("argument_alignment = 1", "argument_alignment = 12"),
        ("[[spaces]]", "[[transfers]]\nfrom = 0\nto = 7\n\n[[spaces]]"),
        ("[[spaces]]", "[[spaces"),
    ] {
        std::fs::write(folder.path().join("mine.toml"), toy.replacen(from, to, 1)).unwrap();
        let (said, status) = failure(folder.path(), &["plan", &module, "--target", "mine.toml"]);
        assert_eq!(status, 1, "{said}");
        // The same wherever a target is named.
        assert_eq!(failure(folder.path(), &["targets", "mine.toml"]), (said.clone(), 1));
        writeln!(text, "{said}").unwrap();
    }
    let ipu = std::fs::read_to_string(repository("crates/memory/targets/ipu-gc200.toml")).unwrap();
    for (from, to) in [
        ("count = 1472", "count = 0"),
        ("count = 1472", "count = 4294967295"),
        ("chips = 64", "chips = 0"),
        ("bytes = 638976", "bytes = 0"),
        ("bank_bytes = 16384", "bank_bytes = 12288"),
        ("bank_bytes = 16384", "bank_bytes = 1048576"),
        ("threads = 6", "threads = 0"),
        ("exchange_bandwidth = 8.0e12", "exchange_bandwidth = nan"),
        ("code_bytes = 212992", "code_bytes = 212993"),
        ("temporary_proportion = 0.6", "temporary_proportion = 1.1"),
        ("partial_bytes = 4", "partial_bytes = 3"),
        ("codelet_code = 96", "codelet_code = 18446744073709551615"),
        ("\ndot = 3072", "\ndott = 3072"),
        ("\ndot = 3072", "\ndot = 18446744073709551615"),
        ("f16 = 2.5e14", "f17 = 2.5e14"),
        ("f16 = 2.5e14", "f16 = 0"),
        ("capacity = 940572672", "capacity = 940572673"),
    ] {
        assert!(ipu.contains(from), "{from}");
        std::fs::write(folder.path().join("mine.toml"), ipu.replacen(from, to, 1)).unwrap();
        let (said, status) = failure(folder.path(), &["compile", &module, "--target", "mine.toml"]);
        assert_eq!(status, 1, "{said}");
        writeln!(text, "{said}").unwrap();
    }
    for contents in [&b"\xff\xfe"[..], b""] {
        std::fs::write(folder.path().join("mine.toml"), contents).unwrap();
        let (said, status) = failure(folder.path(), &["plan", &module, "--target", "mine.toml"]);
        assert_eq!(status, 1, "{said}");
        writeln!(text, "{said}").unwrap();
    }
    for (name, expected) in
        [("other.toml", "cannot read `other.toml`"), ("tpu-v1", "the built-in ones are cpu, ")]
    {
        let (said, status) = failure(folder.path(), &["plan", &module, "--target", name]);
        assert!(status == 1 && said.contains(expected), "{said}");
    }
    insta::with_settings!({
        snapshot_path => "../../../snapshots",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        insta::assert_snapshot!("wrong_target_files", text);
    });
}

/// Bytes may be written with a unit.
#[test]
fn target_files_have_units() {
    let folder = tempfile::tempdir().unwrap();
    let toy = std::fs::read_to_string(repository("crates/memory/targets/toy.toml")).unwrap();
    std::fs::write(
        folder.path().join("mine.toml"),
        toy.replacen("capacity = 1024", "capacity = \"8 MiB\"", 1),
    )
    .unwrap();
    let shown = memplan(folder.path(), &["targets", "mine.toml", "--format", "json"]).stdout;
    let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
    let spaces = shown[0]["spaces"].as_array().unwrap();
    assert!(spaces.iter().any(|space| space["capacity"] == 8 << 20), "{shown}");
}

/// What is shown of a built-in target is a file that makes the same target.
#[test]
fn targets_are_templates() {
    let folder = tempfile::tempdir().unwrap();
    let shown = memplan(folder.path(), &["targets", "tpu-v5e"]);
    std::fs::write(folder.path().join("mine.toml"), &shown.stdout).unwrap();
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&memplan(folder.path(), &["targets", name, "--format", "json"]).stdout)
            .unwrap()
    };
    assert_eq!(json("mine.toml"), json("tpu-v5e"));
    assert_eq!(json("tpu-v5e")[0]["sources"]["spaces[0].capacity"], "16 GiB (JAX tpu_info: 17.2e9)");
    let all = memplan(folder.path(), &["targets"]).stdout;
    assert!(String::from_utf8(all).unwrap().contains("tpu-v5e"));
}
