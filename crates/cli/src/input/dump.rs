//! Folders of XLA's dumps (`--xla_dump_to`): groups files by program, and finds the form of each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The wanted form of a program, if a dump has several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As the framework writes it.
    Given,
    /// As XLA compiled and scheduled it.
    Compiled,
}

/// The files of one program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Files {
    given: Option<PathBuf>,
    compiled: Option<PathBuf>,
    pub(super) assignment: Option<PathBuf>,
}

impl Files {
    /// The file to read for a wanted form: that form, or the one that exists.
    pub(super) fn module(&self, form: Form) -> Option<&PathBuf> {
        match form {
            Form::Given => self.given.as_ref().or(self.compiled.as_ref()),
            Form::Compiled => self.compiled.as_ref().or(self.given.as_ref()),
        }
    }
}

/// The kind of a file in a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Module(Form),
    Assignment,
}

/// The programs of a folder by name. Programs with only other files are left out.
pub(super) fn programs(folder: &Path) -> std::io::Result<BTreeMap<String, Files>> {
    let mut programs: BTreeMap<String, Files> = BTreeMap::new();
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        // Links are followed, since users collect dumps from several places.
        if path.is_file() {
            paths.push(path);
        }
    }
    // If two files have the same module, the later name wins: `.txt` before `.hlo.pb`, which has all constants.
    paths.sort_by_key(|path| (!path.to_string_lossy().contains(".txt"), path.clone()));
    for path in paths {
        let Some(name) = path.file_name() else { continue };
        let Some((program, part)) = classify(&name.to_string_lossy()) else { continue };
        let files = programs.entry(program).or_default();
        match part {
            Part::Module(Form::Given) => files.given = Some(path),
            Part::Module(Form::Compiled) => files.compiled = Some(path),
            Part::Assignment => files.assignment = Some(path),
        }
    }
    programs.retain(|_, files| files.module(Form::Given).is_some());
    Ok(programs)
}

/// Whether a program has this name: the whole name of its files, `module_0001.jit_step`, or only that of the module.
pub(super) fn is_called(program: &str, name: &str) -> bool {
    program == name
        || program
            .rsplit_once("module_")
            .is_some_and(|(_, rest)| rest.split_once('.').is_some_and(|(_, module)| module == name))
}

/// The buffer assignment beside a file of a dump, if it belongs to that file.
pub(super) fn assignment_beside(file: &Path) -> Option<PathBuf> {
    let name = file.file_name()?.to_string_lossy().into_owned();
    let (stem, _) = strip_form(&name)?;
    let (_, Part::Module(Form::Compiled)) = classify(&name)? else { return None };
    ["", ".gz"]
        .map(|end| file.with_file_name(format!("{stem}{ASSIGNMENT}.txt{end}")))
        .into_iter()
        .find(|path| path.is_file())
}

/// The suffix that XLA adds to the name of a module for its buffer assignment.
const ASSIGNMENT: &str = "-buffer-assignment";

/// The program and form of a file, by its name. XLA's names are
/// `[TIME.]module_0001.NAME[.PLATFORM_]before_optimizations.txt`, libtpu's `TIME-TLP-hlo.txt`; files named by users are
/// programs if the name ends like that of a module.
fn classify(file: &str) -> Option<(String, Part)> {
    let (stem, is_named_as_module) = strip_form(file)?;
    if let Some(program) = stem.strip_suffix(".before_optimizations") {
        return Some((program.to_string(), Part::Module(Form::Given)));
    }
    if let Some(rest) = stem.strip_suffix(ASSIGNMENT) {
        return Some((compiled(rest)?.to_string(), Part::Assignment));
    }
    if let Some(program) = compiled(stem) {
        return Some((program.to_string(), Part::Module(Form::Compiled)));
    }
    if let Some(program) = stem.strip_suffix("-hlo").filter(|program| program.ends_with("-TLP")) {
        return Some((program.to_string(), Part::Module(Form::Compiled)));
    }
    // The other files of a dump are modules after single passes, thunks, and code.
    let is_dumped = stem.starts_with("module_") || stem.contains(".module_");
    (is_named_as_module && !is_dumped).then(|| (stem.to_string(), Part::Module(Form::Given)))
}

/// The name without its format suffix, and whether the suffix is for modules only.
fn strip_form(file: &str) -> Option<(&str, bool)> {
    let file = file.strip_suffix(".gz").unwrap_or(file);
    [(".hlo.pb", true), (".hlo.txt", true), (".hlo", true), (".txt", false), (".pb", false)]
        .into_iter()
        .find_map(|(end, is_module)| Some((file.strip_suffix(end)?, is_module)))
}

/// The program of `PROGRAM.PLATFORM_after_optimizations`. Platforms of GPUs may have a dot in them: `sm_9.0a_gpu`.
fn compiled(stem: &str) -> Option<&str> {
    let stem = stem.strip_suffix("after_optimizations")?;
    let gpu =
        [".sm_", ".gfx"].iter().find_map(|gpu| stem.ends_with("_gpu_").then(|| stem.rfind(gpu)).flatten());
    let end = gpu.or_else(|| stem.rfind('.'))?;
    Some(&stem[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_names() {
        let (given, compiled) = (Part::Module(Form::Given), Part::Module(Form::Compiled));
        for (file, expected) in [
            ("module_0001.jit_step.before_optimizations.txt", Some(("module_0001.jit_step", given))),
            ("module_0001.jit_step.before_optimizations.hlo.pb.gz", Some(("module_0001.jit_step", given))),
            ("17.module_0001.f.cpu_after_optimizations.txt", Some(("17.module_0001.f", compiled))),
            ("module_0001.f.sm_9.0a_gpu_after_optimizations.hlo.pb", Some(("module_0001.f", compiled))),
            ("module_0001.f.gfx942_gpu_after_optimizations.txt", Some(("module_0001.f", compiled))),
            ("module_0001.f.after_optimizations.txt", Some(("module_0001.f", compiled))),
            (
                "module_0001.f.sm_9.0a_gpu_after_optimizations-buffer-assignment.txt",
                Some(("module_0001.f", Part::Assignment)),
            ),
            ("module_0001.f.sm_9.0a_gpu_after_optimizations-buffer-assignment-values.txt", None),
            ("module_0001.f.cpu_after_optimizations-memory-usage-report.pb", None),
            ("module_0001.f.thunk_sequence.txt", None),
            ("module_0001.f.after_spmd_partitioner.txt", None),
            ("module_0001.f.0003.simplification.after_dce.before_cse.hlo.pb", None),
            ("1795381989417116131-TLP-hlo.txt", Some(("1795381989417116131-TLP", compiled))),
            ("1795381989417116131-TLP-86-assembly.txt", None),
            ("train.hlo.txt.gz", Some(("train", given))),
            ("notes.txt", None),
        ] {
            let expected = expected.map(|(program, part)| (program.to_string(), part));
            assert_eq!(classify(file), expected, "{file}");
        }
    }
}
