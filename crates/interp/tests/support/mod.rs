//! Plans for modules that are run inside their arenas.

use memplan_interp::{scratch, with_meaningful_layouts};
use memplan_ir::Module;
use memplan_memory::Target;
use memplan_passes::{Context, LAYOUT_ASSIGNMENT, RunOptions, legalize, run};
use memplan_plan_hlo::{AssignOptions, PlanOptions, Planned, plan};

/// A module as it can be planned, and its plan for a target.
pub(crate) fn planned(module: &Module, target: &str) -> Result<(Module, Planned), String> {
    let target = Target::find(target).map_err(|e| e.to_string())?;
    let mut module = with_meaningful_layouts(module).into_owned();
    legalize(&mut module, &target).map_err(|e| e.to_string())?;
    let assign = AssignOptions { scratch: scratch(&module), ..AssignOptions::default() };
    let options = PlanOptions { assign, ..PlanOptions::default() };
    let planned = plan(&module, &target, &options).map_err(|e| e.to_string())?;
    Ok((module, planned))
}

/// A module with the layouts that a target likes.
#[allow(dead_code, reason = "not every test that plans modules lays them out")]
pub(crate) fn laid_out(module: &Module, target: &str) -> Result<Module, String> {
    let target = Target::find(target).map_err(|e| e.to_string())?;
    let mut module = module.clone();
    let context = Context { target: &target };
    run(&mut module, &[&LAYOUT_ASSIGNMENT], &context, RunOptions::default()).map_err(|e| e.to_string())?;
    Ok(module)
}
