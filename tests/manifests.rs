//! What manifests leave out to build less: tests that nobody would see are not among it.

use std::fs;
use std::path::{Path, PathBuf};

/// The sources below a folder, one after the other.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => open.push(path),
                false if path.extension().is_some_and(|it| it == "rs") => {
                    text.push_str(&fs::read_to_string(path).unwrap());
                }
                false => {}
            }
        }
    }
    text
}

/// Whether documentation has an example that is not marked as text: an odd number of bare fences opens a block, an even
/// one closes it.
fn has_doctest(text: &str) -> bool {
    let fences = text.lines().filter_map(|line| {
        let line = line.trim_start();
        line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))?.trim_start().strip_prefix("```")
    });
    fences.step_by(2).any(|language| language != "text")
}

#[test]
fn crates_without_a_harness_have_no_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let folders: Vec<PathBuf> = crates.chain([root.to_path_buf()]).collect();
    let mut left_out = 0;
    for folder in folders {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let is_off = |key: &str| manifest.get("lib").and_then(|lib| lib.get(key)?.as_bool()) == Some(false);
        let text = sources(&folder.join("src"));
        let name = folder.display();
        if is_off("test") {
            assert!(
                !text.contains("#[test]"),
                "{name} has unit tests: take `test = false` out of its manifest"
            );
            left_out += 1;
        }
        if is_off("doctest") {
            assert!(!has_doctest(&text), "{name} has examples: take `doctest = false` out of its manifest");
            left_out += 1;
        }
    }
    assert!(left_out > 0);
}
