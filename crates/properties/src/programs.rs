//! Properties of programs: planned, compiled for every machine, proved, and run inside their plans, they compute the
//! same results.

use std::collections::BTreeSet;

use memplan::check::check;
use memplan::driver::{Situation, each_alone};
use memplan::ir::{self, Module};
use memplan::memory::{Bytes, Compiler, Slice, Target};
use memplan::passes::{self, AnyPass, OffloadRows, RowBlocks, SplitConcatenations};
use memplan::plan::Planned;
use memplan::{CompileOptions, Lever, RewriteOptions, compile, hlo, rewrite};
use memplan_testkit::{Family, GenerateOptions, Random, first_difference, generate, generate_from};

use crate::{evaluate_on_devices, explain, inputs_of_devices, plan_to_run, run_in_arena_on_devices};

/// Machines of all kinds: tiled layouts, small fast memories, and none.
pub const TARGETS: [&str; 4] = ["cpu", "gpu-h100", "tpu-v5e", "tpu-v4"];

/// How much results may differ, relative to the largest element: HLO leaves the order of sums open, and sums of equal
/// values are multiplied instead.
const ROUNDING: f64 = 1e-4;

/// Most instructions of a text that is planned: larger ones are no better at finding mistakes.
const MOST_INSTRUCTIONS: usize = 500;

/// A module that random decisions make, through everything.
///
/// # Panics
/// When something does not hold.
pub fn generated(bytes: &[u8]) {
    let source = decided(bytes);
    let target = TARGETS[bytes.len() % TARGETS.len()];
    if let Err(failure) = check_all(&source, &[target]) {
        panic!("{failure}\n{}", hlo::print(&source));
    }
}

/// Reads arbitrary bytes as HLO text. If they are a valid module, it is planned, compiled for some machine, and proved;
/// the only excuses are that it is too large, or nobody knows how large, and that it contradicts itself.
///
/// # Panics
/// When that is not so.
pub fn text(bytes: &[u8]) {
    let source = String::from_utf8_lossy(bytes);
    let Ok(module) = hlo::parse(&source) else { return };
    if ir::verify(&module).is_err() || module.instruction_count() > MOST_INSTRUCTIONS {
        return;
    }
    let toy = find("toy");
    let is_scheduled = module.is_scheduled;
    if let Err(failure) = plan_to_run(&mut module.clone(), &toy) {
        // An impossible order is the caller's mistake.
        assert!(is_scheduled || is_excused(&failure), "planned: {failure}");
    }
    let target = find(TARGETS[bytes.len() % TARGETS.len()]);
    if let Err(error) = compile(&mut module.clone(), &target, &options()) {
        let failure = explain(&error);
        assert!(is_excused(&failure), "{}: {failure}", target.name);
    }
}

/// A right plan of a random module, broken as the bytes say: if the checker still accepts it, it computes the right
/// results.
///
/// # Panics
/// When it does not.
pub fn broken_plan(bytes: &[u8]) {
    let (breaks, decisions) = bytes.split_at(bytes.len().min(12));
    let source = decided(decisions);
    let toy = find("toy");
    let mut module = source.clone();
    let planned = plan_to_run(&mut module, &toy);
    let mut planned = planned.unwrap_or_else(|failure| panic!("{failure}\n{}", hlo::print(&module)));
    break_plan(&module, &mut planned, &mut Random::decided_by(breaks));
    if check(&module, &planned.schedule, &toy, &planned.plan).is_err() {
        return;
    }
    let inputs = inputs_of_devices(&source);
    let Ok(meant) = evaluate_on_devices(&source, &inputs) else { return };
    let found = run_in_arena_on_devices(&module, &planned, &inputs);
    assert_eq!(found, Ok(meant), "accepted, and goes wrong when it runs:\n{}", hlo::print(&module));
}

/// Sends a module through everything: printed and read, planned, compiled for each target, proved each time, and run in
/// the memory of the plan; rewritten for each compiler, and run.
///
/// # Errors
/// What does not hold.
pub fn check_all(source: &Module, targets: &[&str]) -> Result<(), String> {
    let text = hlo::print(source);
    let parsed = hlo::parse(&text).map_err(|error| format!("does not parse: {error}"))?;
    if hlo::print(&parsed) != text || ir::fingerprint(&parsed) != ir::fingerprint(source) {
        return Err("the text is of another module".into());
    }
    let inputs = inputs_of_devices(source);
    let meant = evaluate_on_devices(source, &inputs)?;

    let toy = find("toy");
    let mut module = source.clone();
    let planned = plan_to_run(&mut module, &toy).map_err(|error| format!("planned: {error}"))?;
    if planned.plan.totals.temp < planned.plan.totals.temp_lower_bound {
        return Err("less memory than the lower bound".into());
    }
    let found = run_in_arena_on_devices(&module, &planned, &inputs)?;
    if found != meant {
        let difference = first_difference(&found, &meant, 0.0);
        return Err(format!("planned: {}", difference.unwrap_or("other bits".into())));
    }
    for name in targets {
        let target = find(name);
        let mut module = source.clone();
        compile(&mut module, &target, &options()).map_err(|error| format!("{name}: {}", explain(&error)))?;
        let planned = plan_to_run(&mut module, &target).map_err(|error| format!("{name}: {error}"))?;
        let found = run_in_arena_on_devices(&module, &planned, &inputs)
            .map_err(|error| format!("{name}: {error}"))?;
        if let Some(difference) = first_difference(&found, &meant, ROUNDING) {
            return Err(format!("{name}: {difference}"));
        }
    }
    rewritten(source, &inputs, &meant)
}

/// Rewrites a module for every compiler at any price in time, and runs what comes out.
fn rewritten(source: &Module, inputs: &[Vec<ir::Literal>], meant: &ir::Literal) -> Result<(), String> {
    let options = at_any_price();
    for compiler in Compiler::built_in() {
        let name = &compiler.name;
        let found = rewrite(source.clone(), &compiler, &find(&compiler.target), &options)
            .map_err(|error| format!("rewritten for {name}: {}", explain(&error)))?;
        computes(&found.module, inputs, meant).map_err(|error| format!("rewritten for {name}: {error}"))?;
    }
    Ok(())
}

/// Rewrites a module for every compiler by each form of each lever alone, and runs every program that comes out. Returns
/// the levers that changed it, each with a compiler for which it did.
///
/// # Errors
/// What does not hold.
pub fn check_levers(source: &Module) -> Result<BTreeSet<(String, Lever)>, String> {
    let inputs = inputs_of_devices(source);
    let meant = evaluate_on_devices(source, &inputs)?;
    let options = at_any_price();
    let (mut pulled, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for compiler in Compiler::built_in() {
        let name = &compiler.name;
        let found = each_alone(source.clone(), &compiler, &find(&compiler.target), &options)
            .map_err(|error| format!("rewritten for {name}: {}", explain(&error)))?;
        for (lever, module) in found {
            pulled.insert((name.to_string(), lever));
            if seen.insert(hlo::print(&module)) {
                computes(&module, &inputs, &meant)
                    .map_err(|error| format!("{lever} alone for {name}: {error}"))?;
            }
        }
    }
    Ok(pulled)
}

/// Whether a rewritten module computes what is meant, up to the order of sums.
fn computes(module: &Module, inputs: &[Vec<ir::Literal>], meant: &ir::Literal) -> Result<(), String> {
    let found = evaluate_on_devices(module, inputs)?;
    first_difference(&found, meant, ROUNDING).map_or(Ok(()), Err)
}

/// Every lever, however small arrays are, for a program as small as it gets.
fn at_any_price() -> RewriteOptions {
    let mut options =
        RewriteOptions { memory_limit: Some(Bytes(1)), threads: 1, ..RewriteOptions::default() };
    for rewrite in &mut options.rewrites {
        match rewrite.lever {
            Lever::Blocks => rewrite.ways = small_blocks,
            Lever::Offload => rewrite.ways = small_rows,
            _ => {}
        }
    }
    options
}

fn small_blocks(now: &Situation<'_>) -> Vec<AnyPass> {
    let all = RowBlocks { min_bytes: Bytes(64), min_blocks: 2, ..passes::ROW_BLOCKS };
    let pieces = SplitConcatenations { min_bytes: Bytes::ZERO };
    let ways = [all.into(), RowBlocks { widest_only: true, ..all }.into(), pieces.into()];
    if now.is_partitioned { Vec::new() } else { ways.into() }
}

fn small_rows(now: &Situation<'_>) -> Vec<AnyPass> {
    let all = OffloadRows { min_row: Bytes(4), ..passes::OFFLOAD_ROWS };
    let ways = [all, OffloadRows { parts_of_32: 16, ..all }];
    if now.is_partitioned { Vec::new() } else { ways.map(AnyPass::from).into() }
}

/// The module that the bytes encode: the first byte gives its size, the others its contents.
pub fn decided(bytes: &[u8]) -> Module {
    let (size, decisions) = bytes.split_first().map_or((0, bytes), |(&first, rest)| (first as usize, rest));
    let (steps, depth, unusual) = (2 + size % 16, size / 16 % 3, size / 48 % 2 == 1);
    let family = [Family::Plain, Family::Scans, Family::Rare][size / 96];
    let options = GenerateOptions { steps, depth, unusual, family, ..Default::default() };
    generate_from(Random::decided_by(decisions), "decided", &options)
}

/// The module of a seed. Every other one has what programs rarely have; two of three train a
/// network, stack rows in loops, carry references and dynamic extents, or run on several devices; one of 32 is large. Most are small, since failures of those
/// are the easier to read.
pub fn of_seed(seed: u64) -> Module {
    let family = match seed / 2 % 6 {
        0 => Family::Training,
        1..3 => Family::Plain,
        3 => Family::Scans,
        4 => Family::Rare,
        _ => Family::Devices,
    };
    let steps = 4 + seed as usize % 16;
    let least_depth = usize::from(family != Family::Plain);
    let depth = least_depth.max(seed as usize % 3);
    let (steps, depth) = if seed % 32 == 31 { (4 * steps, 3) } else { (steps, depth) };
    generate(seed, &GenerateOptions { steps, depth, unusual: seed % 2 == 1, family, ..Default::default() })
}

fn break_plan(module: &Module, planned: &mut Planned, random: &mut Random) {
    let mut places: Vec<Slice> = planned.plan.slices.values().copied().collect();
    places.sort_by_key(|slice| (slice.allocation, slice.offset, slice.size));
    places.dedup();
    let n_computations = module.computations.len();
    for _ in 0..1 + random.below(3) {
        if places.is_empty() {
            return;
        }
        let (from, to) = (random.pick(&places), random.pick(&places));
        let to = match random.below(4) {
            0 => Slice { offset: from.offset + Bytes(4 * random.below(64) as u64), ..from },
            1 => Slice { offset: Bytes(from.offset.0.saturating_sub(4 * random.below(64) as u64)), ..from },
            2 => Slice { size: from.size, ..to },
            _ => {
                let computation = ir::EntityRef::new(random.below(n_computations));
                let mut sequence = planned.schedule.sequence(computation).to_vec();
                if sequence.len() > 1 {
                    let at = random.below(sequence.len() - 1);
                    sequence.swap(at, at + 1);
                    planned.schedule.set(computation, sequence);
                }
                continue;
            }
        };
        let slices = planned.plan.slices.values_mut();
        // Everything at that slice moves, or one position alone.
        let most = if random.one_in(2) { usize::MAX } else { 1 };
        slices.filter(|slice| **slice == from).take(most).for_each(|slice| *slice = to);
    }
}

/// One thread: fuzzing runs one process for each core.
fn options() -> CompileOptions {
    CompileOptions { verify_each_pass: true, threads: 1, ..CompileOptions::default() }
}

fn find(name: &str) -> Target {
    Target::find(name).expect("the target is built in")
}

/// Sizes that add up to too much or are not known, one value in two memories, or two results in one operand.
fn is_excused(failure: &str) -> bool {
    let excuses = [
        "more than 2^64 bytes",
        "has no bound",
        "name the same memory",
        "two of its results live in its operand",
    ];
    excuses.iter().any(|excuse| failure.contains(excuse))
}
