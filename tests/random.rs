//! Random modules through everything: verified, printed and parsed, planned, proved, run.

use std::time::{Duration, Instant};

use memplan::memory::Target;
use memplan::{CompileOptions, compile, hlo, ir};
use memplan_testkit::{Features, GenerateOptions, features, first_difference, generate, random_inputs};

use crate::support::{evaluate, explain, plan_to_run, run_in_arena};

/// Two thousand modules in every run of the tests, fewer on a machine that is slow.
#[test]
fn random_modules() {
    run(0..2000, Duration::from_secs(90));
}

/// As many as the variable `MEMPLAN_RANDOM_MODULES` says, 20000 without.
#[test]
#[ignore = "takes minutes"]
fn many_random_modules() {
    let count = std::env::var("MEMPLAN_RANDOM_MODULES").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    run(1000..1000 + count, Duration::from_secs(3600));
}

#[track_caller]
fn run(seeds: std::ops::Range<u64>, limit: Duration) {
    let start = Instant::now();
    let (mut all, mut interesting, mut done) = (Features::default(), 0, 0);
    let mut failures = Vec::new();
    for seed in seeds.take_while(|_| start.elapsed() < limit) {
        // A panic is a failure like others, and the seed is what is needed to find it again.
        let outcome = std::panic::catch_unwind(|| check(seed)).unwrap_or_else(|panic| Err(message(&*panic)));
        match outcome {
            Ok(features) => {
                all = all.plus(features);
                interesting += usize::from(features.is_interesting());
            }
            Err(failure) => failures.push(format!("seed {seed}: {failure}")),
        }
        done += 1;
    }
    eprintln!("{done} modules in {:.1?}, {interesting} interesting: {all:?}", start.elapsed());
    assert!(failures.is_empty(), "{} of {done} modules fail:\n{}", failures.len(), failures.join("\n"));
    assert!(interesting * 2 > done, "most modules have loops, aliases and the like");
}

/// One module through everything.
fn check(seed: u64) -> Result<Features, String> {
    // Small ones too, since failures of those are the easier to read.
    let options =
        GenerateOptions { steps: 4 + seed as usize % 16, depth: seed as usize % 3, ..Default::default() };
    let source = generate(seed, &options);
    let text = hlo::print(&source);
    let parsed = hlo::parse(&text).map_err(|error| format!("does not parse: {error}"))?;
    if hlo::print(&parsed) != text || ir::fingerprint(&parsed) != ir::fingerprint(&source) {
        return Err("the text is of another module".into());
    }
    let inputs = random_inputs(&source, seed);
    let meant = evaluate(&source, &inputs)?;

    let toy = Target::find("toy").map_err(|error| explain(&error))?;
    let mut module = source.clone();
    let planned = plan_to_run(&mut module, &toy).map_err(|error| format!("planned: {error}"))?;
    if planned.plan.totals.temp < planned.plan.totals.temp_lower_bound {
        return Err("less memory than the lower bound".into());
    }
    let found = run_in_arena(&module, &planned, &inputs)?;
    if found != meant {
        let difference = first_difference(&found, &meant, 0.0);
        return Err(format!("planned: {}", difference.unwrap_or("other bits".into())));
    }

    // Compiled for machines of all kinds, tiled layouts and small fast memories included.
    const TARGETS: [&str; 4] = ["gpu-h100", "tpu-v5e", "cpu", "tpu-v3"];
    let name = TARGETS[seed as usize % TARGETS.len()];
    let target = Target::find(name).map_err(|error| explain(&error))?;
    let mut module = source.clone();
    let options = CompileOptions { verify_each_pass: true, ..CompileOptions::default() };
    compile(&mut module, &target, &options).map_err(|error| format!("{name}: {}", explain(&error)))?;
    let planned = plan_to_run(&mut module, &target).map_err(|error| format!("{name}: {error}"))?;
    let found = run_in_arena(&module, &planned, &inputs).map_err(|error| format!("{name}: {error}"))?;
    match first_difference(&found, &meant, 1e-4) {
        Some(difference) => Err(format!("{name}: {difference}")),
        None => Ok(features(&source)),
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    format!("panics: {}", text.unwrap_or("no message"))
}
