//! Reads HLO text and writes it again: `reprint FILE [OUT]`, or `reprint FOLDER OUT` for every `.txt` and `.hlo` in a
//! folder.

#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use std::{
    error::Error,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let input = arguments.next().ok_or("usage: reprint FILE [OUT] | reprint FOLDER OUT")?;
    let output = arguments.next();
    if !input.is_dir() {
        return match (reprint(&input)?, output) {
            (Some(text), Some(output)) => Ok(fs::write(output, text).map(|()| ExitCode::SUCCESS)?),
            (Some(text), None) => {
                print!("{text}");
                Ok(ExitCode::SUCCESS)
            }
            (None, _) => Ok(ExitCode::FAILURE),
        };
    }
    let output = output.ok_or("a folder needs a folder to write to")?;
    let mut code = ExitCode::SUCCESS;
    for path in files(&input)? {
        let target = output.join(path.strip_prefix(&input)?);
        fs::create_dir_all(target.parent().unwrap_or(&output))?;
        match reprint(&path)? {
            Some(text) => fs::write(target, text)?,
            None => code = ExitCode::FAILURE,
        }
    }
    Ok(code)
}

fn reprint(path: &Path) -> Result<Option<String>, Box<dyn Error>> {
    let source = fs::read_to_string(path)?;
    match memplan_hlo::parse(&source) {
        Ok(module) => Ok(Some(memplan_hlo::print(&module))),
        Err(error) => {
            eprintln!("{}", memplan_hlo::render(&error, &path.display().to_string(), &source));
            Ok(None)
        }
    }
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
