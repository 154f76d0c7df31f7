//! The frontier: the best programs from fewest bytes to least time.

use memplan_check as check;
use memplan_ir::Module;
use memplan_memory::Target;
use memplan_plan_hlo::Planned;

use crate::candidates::Purpose;
use crate::compile::{CompileError, CompileOptions, affordable, checked};
use crate::objective::{Price, undominated};
use crate::priced_module::Request;
use crate::search::Search;

/// One program of a frontier.
#[derive(Clone, Debug)]
pub struct Point {
    /// Its price.
    pub price: Price,
    /// The name of the variant of the stages that led to it.
    pub variant: &'static str,
    /// How that variant differs from the usual way.
    pub description: &'static str,
    /// The pass that fused it; `None` if nothing is fused.
    pub fusion: Option<&'static str>,
    /// The program, scheduled.
    pub module: Module,
    /// Its plan.
    pub planned: Planned,
    /// The checker's proof of the plan.
    pub proof: check::Proof,
}

/// Finds programs that trade bytes for time: each needs more bytes than the one before it and is faster. With
/// [`CompileOptions::memory_limit`] set to the total of a point, [`compile()`](crate::compile()) finds that point
/// again.
///
/// # Errors
/// See [`CompileError`].
pub fn frontier(
    module: &Module,
    target: &Target,
    options: &CompileOptions,
) -> Result<Vec<Point>, CompileError> {
    let options = &affordable(options, module);
    let request = Request { target, options };
    let mut search = Search::new(checked(module, options)?, request);
    search.lay_out(Purpose::Smaller)?;
    search.choose_order()?;
    let mut found = search.all()?;
    let prices: Vec<Price> = found.iter().map(|(_, found)| found.price).collect();
    let mut points = Vec::new();
    for i in undominated(&prices) {
        let (number, found) = &mut found[i];
        let proof = request.check(found)?;
        let candidate = search.candidate(*number);
        points.push(Point {
            price: found.price,
            variant: candidate.variant,
            description: candidate.description,
            fusion: candidate.fusion,
            module: found.module.clone(),
            planned: found.planned.clone(),
            proof,
        });
    }
    Ok(points)
}
