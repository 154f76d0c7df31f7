//! From text to a checked plan: how long each stage takes, on the largest programs of the corpus where there is one, and
//! on programs that are large in one way each, of growing size. `scripts/growth.py` measures the command on those.
//!
//! `cargo bench --bench pipeline`

#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::time::{Duration, Instant};

use memplan::memory::Target;
use memplan::plan::{PlanOptions, plan};
use memplan::{check, hlo, ir, legalize};
use memplan_testkit::{GROWTH_SHAPES, corpus};

fn main() {
    println!(
        "{:<28} {:>10} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "program", "MB", "instructions", "parse", "verify", "plan", "check", "total"
    );
    let forms = [("gpt2_train_unrolled", "tpu"), ("resnet50_train", "gpu")];
    for program in corpus() {
        for (name, form) in forms.iter().filter(|(name, _)| *name == program.name) {
            measure(&format!("{name}/{form}"), &program.text(form));
        }
    }
    for n in [10_000, 100_000, 1_000_000] {
        let (_, training) = GROWTH_SHAPES[0];
        let scheduled = training(n).replacen("growth", "growth, is_scheduled=true", 1);
        measure(&format!("generated {n}"), &scheduled);
    }
    for (name, text) in GROWTH_SHAPES {
        for n in [1_000, 10_000, 100_000] {
            measure(&format!("{name} {n}"), &text(n));
        }
    }
}

/// Best of three runs of each stage.
fn measure(name: &str, text: &str) {
    let target = Target::find("gpu-h100").expect("a built-in target");
    let mut best = [Duration::MAX; 4];
    let mut n = 0;
    for _ in 0..3 {
        let mut times = [Duration::ZERO; 4];
        let mut stage = 0;
        let mut clock = Instant::now();
        let mut lap = || {
            times[stage] = clock.elapsed();
            stage += 1;
            clock = Instant::now();
        };
        let mut module = hlo::parse(text).expect("the program parses");
        lap();
        ir::verify(&module).expect("the program is valid");
        lap();
        legalize(&mut module, &target).expect("it can be made legal");
        let mut planned = plan(&module, &target, &PlanOptions::default()).expect("it can be planned");
        planned.apply(&mut module);
        lap();
        check::check(&module, &planned.schedule, &target, &planned.plan).expect("the plan is right");
        lap();
        n = module.instruction_count();
        for (best, time) in best.iter_mut().zip(times) {
            *best = time.min(*best);
        }
    }
    let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
    let [parse, verify, plan, check] = best.map(ms);
    println!(
        "{name:<28} {:>10.2} {n:>12} {parse:>9} {verify:>9} {plan:>9} {check:>9} {:>9}",
        text.len() as f64 / 1e6,
        ms(best.iter().sum())
    );
}
