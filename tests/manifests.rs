//! What manifests say: what they leave out to build less, which Rust they need, what a registry gets of each crate.

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

/// The version that the workspace promises is enough for all that it depends on, and is the one that other files name.
#[test]
fn the_lowest_rust_is_enough_for_dependencies() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest: toml::Table = fs::read_to_string(root.join("Cargo.toml")).unwrap().parse().unwrap();
    let lowest = manifest["workspace"]["package"]["rust-version"].as_str().unwrap();
    let numbers = |version: &str| version.split('.').map(|part| part.parse().unwrap()).collect::<Vec<u32>>();
    let metadata = metadata(root);
    let packages = metadata["packages"].as_array().unwrap();
    let newer: Vec<String> = packages
        .iter()
        .filter(|package| {
            package["rust_version"].as_str().is_some_and(|version| numbers(version) > numbers(lowest))
        })
        .map(|package| format!("{} {}: {}", package["name"], package["version"], package["rust_version"]))
        .collect();
    assert!(newer.is_empty(), "these need a newer Rust than {lowest}: {newer:?}");
    assert!(packages.len() > 100);
    for (file, text) in [
        ("README.md", format!("Rust toolchain ({lowest} or newer)")),
        ("CONTRIBUTING.md", format!("Rust {lowest} or newer")),
        ("python/README.md", format!("Rust {lowest} or newer")),
        ("python/build_backend.py", format!("MINIMUM = ({})", lowest.replace('.', ", "))),
        (".github/workflows/ci.yml", format!("cargo +{lowest} check")),
    ] {
        assert!(fs::read_to_string(root.join(file)).unwrap().contains(&text), "{file} does not say {text:?}");
    }
}

/// A registry has only what is published: other crates of this repository are named by path alone, and only for tests.
#[test]
fn what_is_published_needs_nothing_else() {
    let metadata = metadata(Path::new(env!("CARGO_MANIFEST_DIR")));
    let packages = metadata["packages"].as_array().unwrap();
    let is_published = |name: &str| {
        let package = packages.iter().find(|package| package["name"] == name).unwrap();
        package["publish"].as_array().is_none_or(|registries| !registries.is_empty())
    };
    let mut seen = 0;
    for package in packages.iter().filter(|package| package["source"].is_null()) {
        let name = package["name"].as_str().unwrap();
        if !is_published(name) {
            continue;
        }
        for dependency in package["dependencies"].as_array().unwrap() {
            let [needed, version] = ["name", "req"].map(|key| dependency[key].as_str().unwrap());
            if dependency["path"].is_null() {
                continue;
            }
            seen += 1;
            let is_for_tests = dependency["kind"] == "dev";
            let by_path = version == "*";
            assert!(!by_path || is_for_tests, "{name} needs {needed}: say which version");
            assert!(by_path || is_published(needed), "{name} needs {needed}, which is not published");
        }
    }
    assert!(seen > 100);
}

fn metadata(root: &Path) -> serde_json::Value {
    let output = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked"])
        .current_dir(root)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What a registry shows of a crate: the head of its documentation, with links as plain code.
fn readme(name: &str, head: &str) -> String {
    let mut text = format!("# {name}\n\n");
    let mut in_code = false;
    for line in head.lines().map_while(|line| line.strip_prefix("//!")) {
        let line = line.strip_prefix(' ').unwrap_or(line);
        match (in_code, line.strip_prefix("```")) {
            // Code in documentation is Rust if it says nothing else.
            (false, Some(language)) => {
                let language = if language.is_empty() || language == "no_run" { "rust" } else { language };
                text += &format!("```{language}\n");
                in_code = true;
            }
            (true, Some(_)) => {
                text += "```\n";
                in_code = false;
            }
            (true, None) if line.starts_with("# ") => {}
            (true, None) => text += &format!("{line}\n"),
            (false, None) => text += &format!("{}\n", without_links(line)),
        }
    }
    text + "\nPart of [memplan](https://github.com/memplan/memplan), a memory planner for tensor programs. \
            Licensed under either MIT or Apache-2.0, as you prefer.\n"
}

/// Links to items, which only rustdoc can follow, as the code that they show.
fn without_links(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("[`") {
        let (item, after) = after.split_once("`]").expect("a link ends on its line");
        text += &format!("{before}`{}`", item.trim_end_matches("()"));
        rest = if after.starts_with('(') { after_parentheses(after) } else { after };
    }
    text + rest
}

/// What follows the parentheses that a text begins with.
fn after_parentheses(text: &str) -> &str {
    let mut depth = 0;
    let end = text.find(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0
    });
    &text[end.expect("a target ends on its line") + 1..]
}

/// After a change of the head of a crate: `MEMPLAN_UPDATE=1 cargo test readmes_are`.
#[test]
fn readmes_are_the_heads_of_crates() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut published = 0;
    for entry in fs::read_dir(root.join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let manifest: toml::Table = fs::read_to_string(folder.join("Cargo.toml")).unwrap().parse().unwrap();
        let package = &manifest["package"];
        let name = package["name"].as_str().unwrap();
        if package.get("publish").and_then(|publish| publish.as_bool()) == Some(false) {
            continue;
        }
        published += 1;
        assert_eq!(package["readme"].as_str(), Some("README.md"), "{name} has a README of its own");
        for license in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let text = fs::read_to_string(folder.join(license));
            assert_eq!(text.ok(), fs::read_to_string(root.join(license)).ok(), "{name} has {license}");
        }
        let expected = readme(name, &fs::read_to_string(folder.join("src/lib.rs")).unwrap());
        let path = folder.join("README.md");
        if std::env::var_os("MEMPLAN_UPDATE").is_some() {
            fs::write(&path, &expected).unwrap();
        }
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == expected,
            "{} is not the head of src/lib.rs: MEMPLAN_UPDATE=1 cargo test readmes_are",
            path.display()
        );
    }
    assert!(published > 0);
}
