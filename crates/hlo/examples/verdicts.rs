//! What memplan says of every HLO text in a folder: `verdicts FOLDER [OUT]`.
//!
//! One line a text on standard output, in order of names: the name, `accept`, or which of `parse`, `verify`, `panic`
//! refuses it, and why. Under OUT what was accepted by the parser is written again, as text and as protobuf (`.pb`).
//! `scripts/compare_verdicts.py` compares with XLA.

#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use std::{
    error::Error,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use memplan_hlo::proto;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let input = arguments.next().ok_or("usage: verdicts FOLDER [OUT]")?;
    let output = arguments.next();
    for path in files(&input)? {
        let name = path.strip_prefix(&input)?;
        let copy = output.as_ref().map(|folder| folder.join(name));
        let verdict = catch_unwind(AssertUnwindSafe(|| verdict(&path, copy.as_deref())));
        let (stage, why) = verdict.unwrap_or_else(|_| Ok(("panic", String::new())))?;
        println!("{}\t{stage}\t{}", name.display(), why.replace(['\n', '\t'], " "));
    }
    Ok(())
}

/// Which stage refuses a text, and why.
fn verdict(path: &Path, copy: Option<&Path>) -> Result<(&'static str, String), Box<dyn Error>> {
    let source = String::from_utf8_lossy(&fs::read(path)?).into_owned();
    let module = match memplan_hlo::parse(&source) {
        Ok(module) => module,
        Err(error) => {
            let line = 1 + source[..error.span.start].matches('\n').count();
            return Ok(("parse", format!("{line}: {error}")));
        }
    };
    let verified = memplan_ir::verify(&module);
    if let Some(copy) = copy {
        fs::create_dir_all(copy.parent().unwrap_or(copy))?;
        fs::write(copy, memplan_hlo::print(&module))?;
        if let Ok(bytes) = proto::write_module(&module) {
            fs::write(copy.with_extension("pb"), bytes)?;
        }
    }
    Ok(match verified {
        Ok(()) => ("accept", String::new()),
        Err(errors) => ("verify", errors.to_string()),
    })
}

/// The HLO texts below a folder, sorted.
fn files(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else if name.ends_with(".hlo.txt") || name.ends_with(".hlo") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
