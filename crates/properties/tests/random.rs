//! Random modules through everything: verified, printed and parsed, planned, compiled, proved, run.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use memplan::Lever;
use memplan_properties::programs::{TARGETS, check_all, check_levers, of_seed};
use memplan_testkit::{Features, features};

/// How long random modules are tested. `examples/random_modules.rs` tests as many as there is time for.
const TIME: Duration = Duration::from_secs(30);

/// A thousand modules in every run of the tests, fewer on a machine that is slow.
#[test]
fn random_modules() {
    run(0..1000, TIME, |seed| vec![TARGETS[seed as usize % TARGETS.len()]]);
}

/// Every lever changes some modules, and these compute the same.
#[test]
fn each_lever_alone() {
    // Options of a compiler change no module.
    let levers: BTreeSet<String> =
        Lever::names().iter().filter(|&&name| name != "flags").map(ToString::to_string).collect();
    let (start, mut pulled) = (Instant::now(), BTreeSet::new());
    for seed in 0..400 {
        if pulled == levers && start.elapsed() > TIME {
            break;
        }
        match check_levers(&of_seed(seed)) {
            Ok(levers) => pulled.extend(levers.into_iter().map(|(_, lever)| lever.to_string())),
            Err(failure) => panic!("seed {seed}: {failure}"),
        }
    }
    assert_eq!(pulled, levers);
}

/// What a loop stacks five times is multiplied by five when it is rewritten, and rounded otherwise than the sum.
#[test]
fn sum_of_equal_rows() {
    assert_eq!(check_all(&of_seed(30931), &[]), Ok(()));
}

#[track_caller]
fn run(seeds: std::ops::Range<u64>, limit: Duration, targets: fn(u64) -> Vec<&'static str>) {
    let start = Instant::now();
    let (mut all, mut interesting, mut done) = (Features::default(), 0, 0);
    let mut failures = Vec::new();
    for seed in seeds.take_while(|_| start.elapsed() < limit) {
        let source = of_seed(seed);
        // A panic is a failure like others, and the seed is what is needed to find it again.
        let outcome = std::panic::catch_unwind(|| check_all(&source, &targets(seed)));
        if let Err(failure) = outcome.unwrap_or_else(|panic| Err(message(&*panic))) {
            eprintln!("seed {seed}: {failure}");
            failures.push(format!("seed {seed}: {failure}"));
        }
        let features = features(&source);
        all = all.plus(features);
        interesting += usize::from(features.is_interesting());
        done += 1;
    }
    eprintln!("{done} modules in {:.1?}, {interesting} interesting: {all:?}", start.elapsed());
    assert!(failures.is_empty(), "{} of {done} modules fail:\n{}", failures.len(), failures.join("\n"));
    assert!(interesting * 2 > done, "most modules have loops, aliases and the like");
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    format!("panics: {}", text.unwrap_or("no message"))
}
