//! What is compared: two plan files, two modules, or the programs of two folders by their names.

use memplan::advice::diff::{Diff, diff};
use memplan::advice::note_peaks;
use memplan::memory::{PlanFile, Target};
use memplan::plan::PlanOptions;

use crate::failure::Failure;
use crate::input::{Form, find, read};
use crate::plan::plan_module;

/// The differences of programs, the largest first.
pub(super) struct Compared {
    pub(super) programs: Vec<Diff>,
    /// Programs that are on one side only.
    pub(super) only_before: Vec<String>,
    pub(super) only_after: Vec<String>,
}

/// Compares what two paths name.
pub(super) fn compare(before: &str, after: &str, target: &Target) -> Result<Compared, Failure> {
    let (mut before, mut after) = (plans(before, target)?, plans(after, target)?);
    let mut programs = Vec::new();
    if let ([before], [after]) = (&before[..], &after[..]) {
        // Two programs are compared, whatever they are called.
        programs.push(diff(before, after));
        return Ok(Compared { programs, only_before: Vec::new(), only_after: Vec::new() });
    }
    before.retain(|a| {
        let same = after.iter().position(|b| a.module == b.module);
        programs.extend(same.map(|i| diff(a, &after.remove(i))));
        same.is_none()
    });
    programs.sort_by_key(|diff| std::cmp::Reverse(diff.bytes().unsigned_abs()));
    let names = |plans: Vec<PlanFile>| plans.into_iter().map(|plan| plan.module).collect();
    match programs.is_empty() {
        true => {
            Err(Failure::Input("error: no program of one folder has the name of one of the other".into()))
        }
        false => Ok(Compared { programs, only_before: names(before), only_after: names(after) }),
    }
}

/// The plans that a path names: that of a plan file, or those of modules, made for the machine.
fn plans(path: &str, target: &Target) -> Result<Vec<PlanFile>, Failure> {
    let found = find(path, Form::Compiled)?;
    if let [file] = &found[..] {
        let bytes = read(&file.file)?;
        if bytes.trim_ascii_start().starts_with(b"{") {
            return Ok(vec![serde_json::from_slice::<PlanFile>(&bytes).map_err(|error| {
                Failure::Input(format!(
                    "error: {path}:{}:{}: not a plan: {error}",
                    error.line(),
                    error.column()
                ))
            })?]);
        }
        return Ok(vec![planned(crate::input::parse_module(bytes, &file.file)?, target)?]);
    }
    found.iter().map(|program| planned(program.module()?, target)).collect()
}

fn planned(mut module: memplan::ir::Module, target: &Target) -> Result<PlanFile, Failure> {
    let (planned, _) = plan_module(&mut module, target, true, &PlanOptions::default())?;
    let mut file = PlanFile::new(&module, &planned.schedule, &planned.plan);
    note_peaks(&module, &planned, &mut file);
    Ok(file)
}
