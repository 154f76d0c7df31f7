//! Objectives are reached: bytes, time, limits, and the choices in between.

use memplan::driver::{Point, StageReport, exceeded, frontier};
use memplan::ir::Module;
use memplan::memory::{Bytes, Target};
use memplan::plan::ProgramCost;
use memplan::{CompileOptions, Effort, Objective, compile, hlo};
use memplan_testkit::corpus;

use crate::support::{explain, prove};

const TARGETS: [&str; 3] = ["cpu", "gpu-h100", "tpu-v5e"];

/// Some programs of the repository, among them training steps.
fn programs() -> Vec<Module> {
    let ours = corpus().into_iter().filter(|program| program.is_ours);
    ours.map(|program| hlo::parse(&program.text("before")).unwrap()).collect()
}

/// Bytes and seconds of a program that is proved.
fn compiled(module: &Module, target: &Target, options: &CompileOptions) -> (u64, f64) {
    let mut module = module.clone();
    let compiled = compile(&mut module, target, options)
        .unwrap_or_else(|error| panic!("{} for {}: {}", module.name, target.name, explain(&error)));
    prove(&module, &compiled.planned, target)
        .unwrap_or_else(|error| panic!("{} for {}: {error}", module.name, target.name));
    let cost = ProgramCost::new(&module, &compiled.planned.facts, &compiled.planned.plan, target);
    (compiled.planned.plan.totals.total.0, cost.run.seconds)
}

fn to_reach(objective: Objective) -> CompileOptions {
    CompileOptions { objective, ..CompileOptions::default() }
}

#[test]
fn bytes_and_time_are_as_the_objective_says() {
    for target in TARGETS.map(|name| Target::find(name).unwrap()) {
        for module in programs() {
            let of = |objective| compiled(&module, &target, &to_reach(objective));
            let [balanced, time] = [Objective::Balanced, Objective::Time].map(of);
            let what = format!("{} for {}: {balanced:?} {time:?}", module.name, target.name);
            assert!(target.fast_memory.is_some() || balanced.0 <= time.0, "{what}");
            // Both know how long a program takes only after fast memory was assigned.
            assert!(target.fast_memory.is_some() || time.1 <= balanced.1, "{what}");
            assert!(target.fast_memory.is_some() || balanced.1 <= time.1 * 1.01, "{what}");
        }
    }
}

#[test]
fn each_point_of_a_frontier_is_had_again_by_its_bytes() {
    let target = Target::find("gpu-h100").unwrap();
    for module in programs() {
        let points = frontier(&module, &target, &CompileOptions::default()).unwrap();
        let price = |point: &Point| (point.price.total.0, point.price.seconds);
        for pair in points.windows(2) {
            assert!(price(&pair[0]).0 < price(&pair[1]).0 && price(&pair[0]).1 > price(&pair[1]).1);
        }
        for point in points.iter().take(3).chain(points.last()) {
            let limited =
                CompileOptions { memory_limit: Some(point.price.total), ..CompileOptions::default() };
            assert_eq!(compiled(&module, &target, &limited), price(point), "{}", module.name);
        }
    }
}

#[test]
fn more_memory_is_never_slower() {
    for target in TARGETS.map(|name| Target::find(name).unwrap()) {
        for module in programs() {
            let (total, seconds) = compiled(&module, &target, &CompileOptions::default());
            let mut fastest = seconds;
            let (least, _) = compiled(&module, &target, &within(1));
            for share in [100, 85, 70, 50, 30] {
                let limit = total * share / 100;
                let (bytes, seconds) = compiled(&module, &target, &within(limit));
                assert!(bytes <= limit || bytes == least, "{}: {bytes} of {limit}", module.name);
                assert!(seconds >= fastest || share == 100, "{}: {share} %", module.name);
                assert!(seconds <= fastest || share < 100, "{}: the default is one of them", module.name);
                fastest = seconds;
            }
        }
    }
}

fn within(limit: u64) -> CompileOptions {
    CompileOptions { memory_limit: Some(Bytes(limit)), ..CompileOptions::default() }
}

#[test]
fn what_fits_no_machine_is_as_small_as_it_gets() {
    let mut target = Target::find("gpu-h100").unwrap();
    let module = &programs()[0];
    let fits = |target: &Target| {
        let mut module = module.clone();
        let compiled = compile(&mut module, target, &CompileOptions::default()).unwrap();
        let plan = compiled.planned.plan;
        (plan.totals.total, exceeded(&plan, target, None))
    };
    let (total, limit) = fits(&target);
    assert_eq!(limit, None);
    target.spaces[0].capacity = Some(Bytes(1));
    let (least, limit) = fits(&target);
    assert_eq!(limit.map(|excess| excess.available), Some(Bytes(1)));
    assert!(least <= total);
}

#[test]
fn effort_bounds_the_search() {
    let target = Target::find("gpu-h100").unwrap();
    for module in programs().iter().take(3) {
        for effort in Effort::ALL {
            compiled(module, &target, &effort.of(CompileOptions::default()));
        }
    }
}

/// Loops of three rounds within one another: the innermost runs more often than numbers can say.
#[test]
fn what_takes_nobody_knows_how_long_is_compiled_in_the_usual_way() {
    let n = 700;
    let body = |k: usize| {
        let state = if k == 0 { "next" } else { "loop" };
        let inner = format!("loop = s32[] while(next), condition=more, body=body{}", k.saturating_sub(1));
        let [inner, next] = [(state == "loop").then_some(inner), Some("next = s32[] add(i, one)".into())];
        let lines: Vec<String> = next.into_iter().chain(inner).collect();
        let lines = lines.join("\n").replace(&format!("{state} ="), &format!("ROOT {state} ="));
        format!("body{k} {{\n i = s32[] parameter(0)\n one = s32[] constant(1)\n {lines}\n}}\n")
    };
    let more = "more {\n i = s32[] parameter(0)\n end = s32[] constant(3)\n ROOT less = pred[] compare(i, end), \
                direction=LT\n}\n";
    let bodies: String = (0..n).map(body).collect();
    let entry = format!(
        "ENTRY main {{\n i = s32[] parameter(0)\n ROOT r = s32[] while(i), condition=more, body=body{}\n}}\n",
        n - 1
    );
    let mut module = hlo::parse(&format!("HloModule deep\n{more}{bodies}{entry}")).unwrap();
    let target = Target::find("gpu-h100").unwrap();
    let compiled = compile(&mut module, &target, &CompileOptions::default()).unwrap();
    let tried = compiled.stages.iter().find_map(|stage| match &stage.report {
        StageReport::Programs(tried) => Some(&tried.programs),
        _ => None,
    });
    let tried = tried.expect("what was tried is told");
    assert!(tried.iter().all(|program| program.variant == "usual"), "{tried:?}");
    prove(&module, &compiled.planned, &target).unwrap();
}
