//! `--emit KIND=FILE`: every kind from both verbs, files whole or not there.

use crate::{failure, memplan, repository};

const MODULE: &str = "examples/attention.hlo.txt";

#[test]
fn every_kind_from_both_verbs() {
    let module = repository(MODULE).display().to_string();
    for verb in ["plan", "compile"] {
        let folder = tempfile::tempdir().unwrap();
        let emits = [
            "hlo=a.hlo",
            "plan=a.json",
            "layout=a.txt",
            "layout=b.json",
            "c-header=a.h",
            "constants=a.bin",
            "costs=a.tsv",
        ];
        let mut args = vec![verb, &module, "--target", "tpu-v5e", "-o", "report.txt"];
        args.extend(emits.iter().flat_map(|emit| ["--emit", emit]));
        let output = memplan(folder.path(), &args);
        assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let json = |name: &str| serde_json::from_str::<serde_json::Value>(&read(name)).unwrap();
        assert!(read("a.hlo").starts_with("HloModule"));
        assert!(read("a.txt").contains("memory spaces\n"));
        assert!(read("a.h").contains("#ifndef MEMPLAN_ATTENTION_H"));
        assert_eq!(json("b.json")["format"], "memplan.layout");
        // All of them are about one plan of one module.
        assert_eq!(json("a.json")["fingerprint"], json("b.json")["fingerprint"]);
        assert_eq!(json("a.json")["totals"], json("b.json")["totals"]);
        assert_eq!(read("a.bin").len() as u64, json("b.json")["constants_file"].as_u64().unwrap());
        // The seconds of all runs come to those of the program, transfers aside.
        let costs = read("a.tsv");
        let seconds: f64 = costs
            .lines()
            .skip(1)
            .map(|row| {
                let cells: Vec<&str> = row.split('\t').collect();
                cells[2].parse::<f64>().unwrap() * cells[3].parse::<f64>().unwrap()
            })
            .sum();
        let total = json("a.json")["cost"]["seconds"].as_f64().unwrap();
        assert!(seconds > 0.0 && seconds <= total * (1.0 + 1e-9), "{verb}: {seconds} of {total}");
        // And it is proved from the files alone.
        assert!(memplan(folder.path(), &["check", "a.hlo", "a.json"]).status.success(), "{verb}");
        let names = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, emits.len() + 1, "no other files are left");
    }
}

#[test]
fn unknown_kinds_and_missing_files_are_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let module = repository(MODULE).display().to_string();
    for (emit, expected) in [
        ("ptx=a", "there is no kind `ptx`; the kinds are hlo, plan, costs, layout, c-header, constants"),
        ("layout", "expected KIND=FILE; the kinds are hlo, plan"),
        ("layout=", "the file is missing after `=`"),
    ] {
        let (text, status) = failure(folder.path(), &["plan", &module, "--emit", emit]);
        assert!(text.contains(expected), "{text}");
        assert_eq!(status, 2);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Where a file cannot be written, nothing is; where its contents cannot be made, what was there before stays.
#[test]
fn files_are_whole_or_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let module = repository(MODULE).display().to_string();
    let (text, status) = failure(folder.path(), &["plan", &module, "--emit", "layout=no/such/folder/a.json"]);
    assert!(text.contains("cannot write `no/such/folder/a.json`"), "{text}");
    assert_eq!((status, std::fs::read_dir(folder.path()).unwrap().count()), (1, 0));

    let elided = "HloModule m\nENTRY e {\n  c = f32[64] constant({...})\n  ROOT r = f32[64] negate(c)\n}";
    std::fs::write(folder.path().join("m.hlo"), elided).unwrap();
    std::fs::write(folder.path().join("c.bin"), "before").unwrap();
    let (text, status) = failure(folder.path(), &["plan", "m.hlo", "--emit", "constants=c.bin"]);
    assert!(text.contains("the data of constant `c` is not in the program"), "{text}");
    assert_eq!(status, 1);
    assert_eq!(std::fs::read_to_string(folder.path().join("c.bin")).unwrap(), "before");
}
