//! Every text of the corpus parses, and what is printed parses to the same text again.

use std::path::{Path, PathBuf};

use memplan_hlo::{parse, print, render};

#[test]
fn printing_is_a_fixed_point() {
    let Some(files) = corpus() else {
        eprintln!("skipped: no corpus");
        return;
    };
    assert!(!files.is_empty(), "the corpus has modules");
    for path in files {
        let source = std::fs::read_to_string(&path).expect("the corpus is readable");
        let module = parse(&source)
            .unwrap_or_else(|error| panic!("{}", render(&error, &path.display().to_string(), &source)));
        // XLA wrote these texts, and we write what XLA writes; but for negative zero, which it does not read back.
        let (source, printed) = (source.replace("constant(-0)", "constant(0)"), print(&module));
        assert_eq!(first_difference(&source, &printed), None, "{}", path.display());
    }
}

/// The first line in which two texts differ.
fn first_difference<'a>(a: &'a str, b: &'a str) -> Option<(&'a str, &'a str)> {
    if a == b {
        return None;
    }
    let same = a.lines().zip(b.lines()).find(|(a, b)| a != b);
    Some(same.unwrap_or(("", "one text is longer")))
}

/// The HLO texts of the corpus, if it is there.
fn corpus() -> Option<Vec<PathBuf>> {
    let shared = std::env::var_os("MEMPLAN_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"), PathBuf::from);
    let mut files = Vec::new();
    for program in std::fs::read_dir(shared.join("corpus")).ok()? {
        let program = program.ok()?.path();
        for kind in ["before", "cpu", "gpu", "tpu"] {
            files.push(program.join(format!("{kind}.hlo.txt")));
        }
    }
    files.retain(|file| file.is_file());
    files.sort();
    Some(files)
}
