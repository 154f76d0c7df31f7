//! The inputs of `diff`: two plan files, two modules, or the programs of two folders by name.

use memplan::advice::OneDevice;
use memplan::advice::diff::{Diff, PlannedModule, diff, diff_programs};
use memplan::advice::note_peaks;
use memplan::ir::Module;
use memplan::memory::{Compiler, PlanFile, Target};
use memplan::plan::{PlanOptions, Planned};
use memplan::{CompileOptions, compile, estimate};

use crate::failure::Failure;
use crate::input::{Form, find, of_one_device, parse_module};
use crate::plan::plan_module;

/// What to do with modules before comparing them.
#[derive(Clone, Debug, Default)]
pub(crate) enum Preparation {
    /// Plan them as they are.
    #[default]
    Planned,
    /// Compile them with memplan.
    Compiled,
    /// Estimate another compiler.
    Estimated(Box<Compiler>),
}

/// How to make plans of modules.
pub(crate) struct Setting {
    pub(crate) way: Preparation,
    pub(crate) target: Target,
    /// Whether to keep modules beside their plans, for pages.
    pub(crate) keeps_modules: bool,
}

/// A plan, and its module, if that is known.
struct Side {
    file: PlanFile,
    program: Option<(Module, Planned)>,
}

/// A module with its plan on each side, if they are kept.
pub(crate) type Modules = Option<[(Module, Planned); 2]>;

/// The differences of programs, the largest first.
pub(crate) struct Compared {
    pub(crate) programs: Vec<Diff>,
    /// The modules of the first.
    pub(crate) modules: Modules,
    /// Programs that are on one side only.
    pub(crate) only_before: Vec<String>,
    pub(crate) only_after: Vec<String>,
}

/// Compares what two paths name.
pub(crate) fn compare(before: &str, after: &str, setting: &Setting) -> Result<Compared, Failure> {
    let (mut before, mut after) = (setting.plans(before)?, setting.plans(after)?);
    let compare_two = |before, after| compare_two(before, after, setting.keeps_modules);
    let mut programs = Vec::new();
    if before.len() == 1 && after.len() == 1 {
        // Two single programs are compared whatever their names.
        programs.push(compare_two(before.remove(0), after.remove(0)));
    }
    let mut only_before = Vec::new();
    for a in before {
        match after.iter().position(|b| a.file.module == b.file.module) {
            Some(i) => programs.push(compare_two(a, after.remove(i))),
            None => only_before.push(a.file.module),
        }
    }
    programs.sort_by_key(|(diff, _)| std::cmp::Reverse(diff.bytes().unsigned_abs()));
    let only_after = after.into_iter().map(|plan| plan.file.module).collect();
    let modules = programs.first_mut().map(|(_, modules)| modules.take()).ok_or_else(|| {
        Failure::Input("error: no program of one folder has the name of one of the other".into())
    })?;
    let programs = programs.into_iter().map(|(diff, _)| diff).collect();
    Ok(Compared { programs, modules, only_before, only_after })
}

fn compare_two(before: Side, after: Side, keeps_modules: bool) -> (Diff, Modules) {
    let modules = before.program.zip(after.program).map(<[_; 2]>::from);
    let diff = match &modules {
        None => diff(&before.file, &after.file),
        Some(modules) => {
            let [a, b] = modules.each_ref().map(|(module, planned)| PlannedModule { module, planned });
            diff_programs((&before.file, a), (&after.file, b))
        }
    };
    (diff, modules.filter(|_| keeps_modules))
}

impl Setting {
    /// The plans that a path names: that of a plan file, or those of modules.
    fn plans(&self, path: &str) -> Result<Vec<Side>, Failure> {
        let form = match self.way {
            Preparation::Planned => Form::Compiled,
            Preparation::Compiled | Preparation::Estimated(_) => Form::Given,
        };
        let found = find(path, form)?;
        if let [file] = &found[..] {
            let bytes = file.bytes()?;
            if bytes.trim_ascii_start().starts_with(b"{") {
                let file = serde_json::from_slice::<PlanFile>(&bytes).map_err(|error| {
                    let at = format!("{path}:{}:{}", error.line(), error.column());
                    Failure::Input(format!("error: {at}: not a plan: {error}"))
                })?;
                return Ok(vec![Side { file, program: None }]);
            }
            return Ok(vec![self.plan(parse_module(bytes, &file.file)?)?]);
        }
        found.iter().map(|program| self.plan(program.module()?)).collect()
    }

    fn plan(&self, module: Module) -> Result<Side, Failure> {
        let OneDevice { module, devices } = of_one_device(module, &self.target)?;
        let (module, planned) = self.program(module)?;
        let mut file = PlanFile::new(&module, &planned.schedule, &planned.plan);
        file.devices = devices.count;
        note_peaks(&module, &planned, &mut file);
        Ok(Side { file, program: Some((module, planned)) })
    }

    /// The module after this step, with a plan.
    pub(crate) fn program(&self, mut module: Module) -> Result<(Module, Planned), Failure> {
        match &self.way {
            Preparation::Planned => {
                let (planned, _) = plan_module(&mut module, &self.target, true, &PlanOptions::default())?;
                Ok((module, planned))
            }
            Preparation::Compiled => {
                let compiled = compile(&mut module, &self.target, &CompileOptions::default());
                Ok((module, compiled.map_err(|error| Failure::input(&error))?.planned))
            }
            Preparation::Estimated(compiler) => {
                let found = estimate(&module, compiler, &self.target);
                let found = found.map_err(|error| Failure::input(&error))?;
                Ok((found.module, found.planned))
            }
        }
    }
}
