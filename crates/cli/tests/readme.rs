//! The README shows what the command prints today: its `console` blocks are run.

use std::process::Command;

use crate::repository;

/// As wide as the README's page shows without a bar to scroll.
const WIDTH: &str = "100";

#[test]
fn readme_shows_what_the_command_prints() {
    let path = repository("README.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let printed = with_outputs(&page);
    if std::env::var_os("MEMPLAN_UPDATE").is_some() {
        std::fs::write(&path, &printed).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(
        printed.contains("$ memplan") && page == printed,
        "README.md shows something else than the command prints: MEMPLAN_UPDATE=1 cargo test -p memplan-cli readme"
    );
}

/// A page whose `console` blocks have below each command what it prints.
fn with_outputs(page: &str) -> String {
    let mut blocks = page.split("```console\n");
    let mut printed = blocks.next().unwrap().to_owned();
    for block in blocks {
        let (block, rest) = block.split_once("\n```").expect("a block ends");
        let commands = block.lines().filter_map(|line| line.strip_prefix("$ memplan "));
        let outputs: Vec<String> =
            commands.map(|command| format!("$ memplan {command}\n\n{}", output(command))).collect();
        printed += &format!("```console\n{}```{rest}", outputs.join("\n"));
    }
    printed
}

/// What a command prints; the files that it reads are the repository's, those that it writes are in a folder of its own.
fn output(command: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(
        repository("examples").canonicalize().unwrap(),
        folder.path().join("examples"),
    )
    .unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_memplan"))
        .current_dir(folder.path())
        .env("COLUMNS", WIDTH)
        .args(command.split_whitespace())
        .output()
        .unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    lines.trim().lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}
