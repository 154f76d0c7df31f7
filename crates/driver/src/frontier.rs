//! The frontier: what a program can be had for, from fewest bytes to least time.

use memplan_check as check;
use memplan_ir::Module;
use memplan_memory::Target;
use memplan_planner::Planned;

use crate::compile::{CompileError, CompileOptions, affordable, checked};
use crate::objective::{Price, undominated};
use crate::search::Search;
use crate::variants::Ways;

/// One program of a frontier.
#[derive(Clone, Debug)]
pub struct Point {
    /// What it costs.
    pub price: Price,
    /// The name of the variant of the stages that led to it.
    pub variant: &'static str,
    /// What that does differently, for people.
    pub description: &'static str,
    /// The pass that fused it; `None` where nothing is fused.
    pub fusion: Option<&'static str>,
    /// The program, in the order of its schedule.
    pub module: Module,
    /// Its plan.
    pub planned: Planned,
    /// What the checker did to prove the plan.
    pub proof: check::Proof,
}

/// Finds programs that differ in what they give for bytes: each needs more than the one before it and is faster. With
/// [`CompileOptions::memory_limit`] set to the total of a point, [`compile()`](crate::compile()) finds that point again.
///
/// # Errors
/// See [`CompileError`].
pub fn frontier(
    module: &Module,
    target: &Target,
    options: &CompileOptions,
) -> Result<Vec<Point>, CompileError> {
    let options = &affordable(options, module);
    let module = checked(module, options)?;
    let ways = Ways::new(options, &module, target);
    let mut found = Search::begin(module, target, options, &ways)?.all()?;
    let prices: Vec<Price> = found.iter().map(|found| found.price).collect();
    let mut points = Vec::new();
    for i in undominated(&prices) {
        let found = &mut found[i];
        let proof = found.program.check(&found.planned)?;
        let program = &found.program;
        points.push(Point {
            price: found.price,
            variant: program.way.name,
            description: program.way.description,
            fusion: program.fusion,
            module: program.module.clone(),
            planned: found.planned.clone(),
            proof,
        });
    }
    Ok(points)
}
