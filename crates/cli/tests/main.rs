//! The command from outside: its output, where it goes, and how it fails.

#[path = "../../../tests/agreement.rs"]
mod agreement;
mod as_written;
#[cfg(unix)]
mod budget;
mod completions;
mod devices;
mod diff;
mod emit;
mod estimate;
mod inputs;
#[cfg(unix)]
mod interrupted;
mod needless;
mod outputs;
mod questions;
#[cfg(unix)]
mod readme;
mod resident;
mod rewrite;
mod run;
mod schemas;
mod screens;
mod stages;
mod targets;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs the command in a folder.
fn memplan(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_memplan")).current_dir(folder).args(args).output().unwrap()
}

/// What the command says on standard error, and its exit status.
fn failure(folder: &Path, args: &[&str]) -> (String, i32) {
    let output = memplan(folder, args);
    assert!(output.stdout.is_empty(), "a failure has no result");
    (String::from_utf8(output.stderr).unwrap(), output.status.code().unwrap())
}

/// A file of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}
