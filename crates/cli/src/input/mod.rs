//! Reads the user's input: modules in files, compressed or not, in folders of dumps, or on standard input; targets.

mod assigned;
mod dump;
mod foreign;
mod gzip;
mod module;
mod out_of_memory;
mod profile;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use memplan::advice::OneDevice;
use memplan::hlo;
use memplan::hlo::proto::BufferAssignment;
use memplan::ir::Module;
use memplan::memory::{Assigned, Target, TargetError};

use crate::failure::Failure;
use crate::output::say;
use crate::programs;

pub(crate) use dump::Form;
pub(crate) use foreign::JAX_RECIPE;
pub use module::parse_module;

/// A program that a path names.
pub(crate) struct ProgramFiles {
    /// The common part of the names of its files in a folder; or the path of a file.
    pub(crate) name: String,
    /// The file to read.
    pub(crate) file: String,
    assignment: Option<PathBuf>,
    /// The program itself, where it is a part of a file.
    contents: Option<Vec<u8>>,
}

impl ProgramFiles {
    /// Reads and verifies the module.
    pub(crate) fn module(&self) -> Result<Module, Failure> {
        parse_module(self.bytes()?, if self.file == "-" { "<stdin>" } else { &self.file })
    }

    /// Whether its files have the name of a module.
    pub(crate) fn is_called(&self, module: &str) -> bool {
        dump::is_called(&self.name, module)
    }

    /// XLA's buffer assignment of the module, where there is one.
    pub(crate) fn assignment(&self, module: &Module) -> Option<BufferAssignment> {
        match &self.assignment {
            Some(text) => assigned::parse(&read_text(text.to_str()?).ok()?, Some(module)),
            // Standard input is read once.
            None if self.file == "-" => None,
            None => hlo::proto::read_assignment(&self.bytes().ok()?, module).ok()?,
        }
    }

    /// What XLA's buffer assignment needs, where there is one: beside the module as text, or within its protobuf.
    pub(crate) fn assigned(&self) -> Option<Assigned> {
        match &self.assignment {
            Some(text) => {
                assigned::sum(&assigned::parse(&read_text(text.to_str()?).ok()?, None)?.allocations)
            }
            // Standard input is read once.
            None if self.file == "-" => None,
            None => assigned::sum(&hlo::proto::read_allocations(&self.bytes().ok()?).ok()??),
        }
    }

    /// The bytes of the program: its file, or a part of one.
    pub(crate) fn bytes(&self) -> Result<Vec<u8>, Failure> {
        match &self.contents {
            Some(contents) => Ok(contents.clone()),
            None => read(&self.file),
        }
    }
}

/// Reads and verifies a module. Of a folder of dumps, the program that needs most memory, with a note.
pub(crate) fn read_module(path: &str, form: Form) -> Result<Module, Failure> {
    let found = find(path, form)?;
    let i = match found.len() {
        1 => 0,
        _ => programs::largest(&found)?,
    };
    note_choice(path, &found, i);
    found[i].module()
}

/// Reads and verifies a module, for a machine: the program of one device, if shardings spread it over several.
pub(crate) fn read_program(path: &str, form: Form, target: &Target) -> Result<OneDevice, Failure> {
    of_one_device(read_module(path, form)?, target)
}

/// The program of one device that a module comes to.
pub(crate) fn of_one_device(module: Module, target: &Target) -> Result<OneDevice, Failure> {
    OneDevice::of(module, target).map_err(|error| Failure::input(&error))
}

/// Notes which file of a folder was read, and how to choose another.
pub(crate) fn note_choice(path: &str, found: &[ProgramFiles], chosen: usize) {
    let file = &found[chosen].file;
    if found[chosen].contents.is_some() {
        let name = &found[chosen].name;
        if found.len() > 1 {
            let plain = name.split('(').next().unwrap_or_default();
            let other = found.iter().find(|other| !other.is_called(plain) && !other.name.starts_with(plain));
            let other = other.map_or(name, |other| &other.name);
            say(&format!(
                "note: this is {name}, which needs most of {} programs; `{file}/{other}` names another",
                found.len()
            ));
        } else {
            say(&format!("note: this is {name}"));
        }
        return;
    }
    let Some(other) = found.iter().enumerate().find(|&(i, _)| i != chosen).map(|(_, other)| other) else {
        if file != path {
            say(&format!("note: this is {file}"));
        }
        return;
    };
    let folder = Path::new(file).parent().unwrap_or(Path::new("."));
    let other = folder.join(&other.name);
    say(&format!(
        "note: this is {file}, which needs most of {} programs; `{}` names another",
        found.len(),
        other.display()
    ));
}

/// The programs that a path names, at least one: a file, standard input, all programs of a folder of dumps, or those
/// with a name (`FOLDER/jit_step`).
pub(crate) fn find(path: &str, form: Form) -> Result<Vec<ProgramFiles>, Failure> {
    let given = Path::new(path);
    if path == "-" || given.is_file() {
        if let Some(programs) = of_profile(path, None)? {
            return Ok(programs);
        }
        let assignment = dump::assignment_beside(given);
        let (name, file) = (path.to_string(), path.to_string());
        return Ok(vec![ProgramFiles { name, file, assignment, contents: None }]);
    }
    if let (Some(file), Some(name)) = (given.parent().and_then(Path::to_str), given.file_name())
        && Path::new(file).is_file()
        && let Some(programs) = of_profile(file, name.to_str())?
    {
        return Ok(programs);
    }
    let within = |folder: &Path, name: Option<&str>| {
        let programs = dump::programs(folder)
            .map_err(|error| Failure::Input(format!("error: cannot read `{}`: {error}", folder.display())))?;
        let wanted = programs
            .into_iter()
            .filter(|(program, _)| name.is_none_or(|name| dump::is_called(program, name)));
        Ok(wanted.filter_map(|(name, files)| found(name, &files, form)).collect::<Vec<_>>())
    };
    let programs = if given.is_dir() { within(given, None)? } else { Vec::new() };
    if !programs.is_empty() {
        return Ok(programs);
    }
    // XLA also makes folders named after programs, without modules in them.
    let parent =
        given.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
    let name = given.file_name().and_then(|name| name.to_str());
    let named = match (parent, name) {
        (Some(parent), Some(name)) if parent.is_dir() => within(parent, Some(name))?,
        _ => Vec::new(),
    };
    if !named.is_empty() {
        return Ok(named);
    }
    let others = parent.filter(|parent| !given.is_dir() && parent.is_dir());
    let others = others.map_or(Ok(Vec::new()), |parent| within(parent, None))?;
    Err(Failure::Input(match (given.is_dir(), others.is_empty()) {
        (true, _) => format!(
            "error: there is no module in the folder `{path}`\n  help: XLA writes modules there with \
             `XLA_FLAGS=\"--xla_dump_to={path} --xla_dump_hlo_as_text\"`"
        ),
        (false, false) => {
            format!("error: there is no file and no program `{path}`; the folder has {}", names(&others))
        }
        // The attempt to read it reports why it cannot be read.
        (false, true) => {
            return Ok(vec![ProgramFiles {
                name: path.to_string(),
                file: path.to_string(),
                assignment: None,
                contents: None,
            }]);
        }
    }))
}

/// The programs of a profile, or those with a name (`jit_step`, or with its number, `jit_step(7)`); `None` where the file is
/// no profile.
fn of_profile(path: &str, name: Option<&str>) -> Result<Option<Vec<ProgramFiles>>, Failure> {
    if path == "-" || !profile::is_profile(&beginning(path)) {
        return Ok(None);
    }
    let none = || Failure::Input(format!("error: the profile `{path}` has no programs"));
    let all = profile::programs(&read(path)?).ok_or_else(none)?;
    let wanted = |found: &str| name.is_none_or(|name| found == name || found.split('(').next() == Some(name));
    let programs = all.into_iter().filter(|(found, _)| wanted(found)).map(|(name, contents)| ProgramFiles {
        name,
        file: path.to_string(),
        assignment: None,
        contents: Some(contents),
    });
    let programs: Vec<ProgramFiles> = programs.collect();
    match programs.is_empty() {
        true => Err(Failure::Input(format!(
            "error: the profile `{path}` has no program `{}`",
            name.unwrap_or_default()
        ))),
        false => Ok(Some(programs)),
    }
}

/// Whether a file is a TFLite model.
pub(crate) fn is_tflite(path: &str) -> bool {
    path != "-" && memplan::tflite::is_model(&beginning(path))
}

/// The first bytes of a file; none where it cannot be read.
fn beginning(path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = std::fs::File::open(path) {
        // What cannot be read is no profile, and is reported when it is read as a module.
        let _ = file.take(1 << 12).read_to_end(&mut bytes);
    }
    bytes
}

/// The names of a few programs.
fn names(programs: &[ProgramFiles]) -> String {
    const MOST: usize = 8;
    let mut names: Vec<&str> = programs.iter().take(MOST).map(|program| program.name.as_str()).collect();
    if programs.len() > MOST {
        names.push("...");
    }
    names.join(", ")
}

fn found(name: String, files: &dump::Files, form: Form) -> Option<ProgramFiles> {
    let file = files.module(form)?.to_string_lossy().into_owned();
    Some(ProgramFiles { name, file, assignment: files.assignment.clone(), contents: None })
}

/// The target with this name, or from this file.
///
/// # Errors
/// There is no such target, or the file does not describe one.
pub fn target(name: &str) -> Result<Target, Failure> {
    target_and_file(name).map(|(target, _)| target)
}

/// The target with this name, or from this file, and the text of its file.
pub(crate) fn target_and_file(name: &str) -> Result<(Target, String), Failure> {
    if !name.ends_with(".toml") {
        let target = Target::find(name).map_err(|error| Failure::input(&error))?;
        let file = Target::built_in_file(name).expect("built-in targets have files");
        return Ok((target, file.to_string()));
    }
    let text = read_text(name)?;
    let target = Target::parse(&text, name).map_err(|error| match error {
        TargetError::File { span, message, help, .. } => {
            Failure::Input(hlo::render_with_help(&message, help.as_deref(), span, name, &text))
        }
        error => Failure::input(&error),
    })?;
    Ok((target, text))
}

/// Reads a whole file, or standard input for `-`, once; unpacks gzip.
pub(crate) fn read(path: &str) -> Result<Vec<u8>, Failure> {
    static IS_READ: AtomicBool = AtomicBool::new(false);
    if path == "-" && IS_READ.swap(true, Ordering::Relaxed) {
        return Err(Failure::Usage("standard input (`-`) is named twice, but can be read only once".into()));
    }
    let mut bytes = Vec::new();
    let result = match path {
        "-" => std::io::stdin().lock().read_to_end(&mut bytes).map(|_| ()),
        _ => std::fs::read(path).map(|contents| bytes = contents),
    };
    result.map_err(|error| Failure::Input(format!("error: cannot read `{path}`: {error}")))?;
    gzip::unpack(bytes, path).map(without_mark)
}

/// A text without the byte order mark that some editors write.
fn without_mark(mut bytes: Vec<u8>) -> Vec<u8> {
    const MARK: &[u8] = "\u{feff}".as_bytes();
    if bytes.starts_with(MARK) {
        bytes.drain(..MARK.len());
    }
    bytes
}

/// Reads a whole file, or standard input for `-`, as UTF-8 text.
pub(crate) fn read_text(path: &str) -> Result<String, Failure> {
    String::from_utf8(read(path)?).map_err(|error| {
        let text = String::from_utf8_lossy(error.as_bytes());
        // Up to the first wrong byte both texts are equal; there, one has a replacement character.
        let wrong = error.utf8_error().valid_up_to();
        let span = wrong..wrong + char::REPLACEMENT_CHARACTER.len_utf8();
        Failure::Input(hlo::render_message("this is not UTF-8 text", span, path, &text))
    })
}

/// Reports an error at a line and byte column of a file, both from 1, with the line and a caret.
pub(crate) fn render_at(
    line: usize,
    column: usize,
    error: &dyn std::fmt::Display,
    name: &str,
    text: &[u8],
) -> String {
    let source = text.split(|&byte| byte == b'\n').nth(line - 1).unwrap_or_default();
    // Only a window around the column, since a hostile line may be long.
    const BEFORE: usize = 60;
    let from = (column - 1).saturating_sub(BEFORE).min(source.len());
    let to = (column + 40).min(source.len());
    let window = String::from_utf8_lossy(&source[from..to]);
    let before = String::from_utf8_lossy(&source[from..(column - 1).min(source.len())]);
    let blanks = " ".repeat(before.chars().count());
    format!("error: {error}\n --> {name}:{line}:{column}\n  | {}\n  | {blanks}^", window.trim_end())
}
