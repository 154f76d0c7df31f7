//! Measures: `cargo run --release -p memplan-pack --example bench -- [--limit S] [--nodes N] [--threads N] CASE...`
//!
//! `--limit` and `--nodes` exclude each other; without either, it is the default number of nodes.
//!
//! A case is `FILE.csv`, `FILE.csv@CAPACITY`, or `SHAPE:N[:SEED]` with a shape among training, inference,
//! random, cut. Each line: instance, items, lower bound, height, gap in percent, seconds, nodes, status.

#![expect(clippy::print_stdout, reason = "a program, not a library")]

use std::time::{Duration, Instant};

use memplan_pack::{Options, Problem, generate, table::Table, validate};

fn main() {
    let mut options = Options::default();
    println!(
        "{:28} {:>8} {:>12} {:>12} {:>8} {:>8} {:>10} status",
        "instance", "items", "bound", "height", "gap %", "s", "nodes"
    );
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value =
            || arguments.next().and_then(|text| text.parse::<f64>().ok()).expect("a number follows the flag");
        match argument.as_str() {
            "--limit" => {
                (options.time_limit, options.node_limit) = (Some(Duration::from_secs_f64(value())), None);
            }
            "--nodes" => (options.time_limit, options.node_limit) = (None, Some(value() as u64)),
            "--threads" => options.threads = value() as usize,
            "--seed" => options.seed = value() as u64,
            case => measure(case, &options),
        }
    }
}

fn measure(case: &str, options: &Options) {
    let problem = problem(case);
    let started = Instant::now();
    let packing = memplan_pack::pack(&problem, options).unwrap_or_else(|error| panic!("{case}: {error}"));
    let seconds = started.elapsed().as_secs_f64();
    let unlimited = Problem { capacity: None, ..problem.clone() };
    assert_eq!(validate(&unlimited, &packing.offsets), Ok(packing.height), "{case}");
    let report = packing.report();
    let gap = 100.0 * (report.height as f64 / report.lower_bound.max(1) as f64 - 1.0);
    let name = case.rsplit('/').next().unwrap_or(case);
    println!(
        "{:28} {:8} {:12} {:12} {:8.3} {:8.3} {:10} {:?}{}",
        name,
        problem.items.len(),
        report.lower_bound,
        report.height,
        gap,
        seconds,
        report.nodes,
        report.status,
        if report.optimal { " optimal" } else { "" },
    );
}

fn problem(case: &str) -> Problem {
    let (case, capacity) = match case.split_once('@') {
        Some((case, capacity)) => (case, Some(capacity.parse().expect("a capacity in bytes follows the @"))),
        None => (case, None),
    };
    let mut parts = case.split(':');
    let shape = parts.next().unwrap_or_default();
    let mut number =
        |default: u64| parts.next().map_or(default, |text| text.parse().expect("a number follows the colon"));
    let problem = match shape {
        "training" => generate::training(number(1000) as usize, number(1)),
        "inference" => generate::inference(number(1000) as usize, number(1)),
        "random" => generate::random(number(1000) as usize, number(1)),
        "cut" => generate::cut_strip(number(1000) as usize, 1_000_000, 1_000_000, number(1)),
        "cut-coarse" => generate::cut_strip(number(1000) as usize, 1_000, 1_000_000, number(1)),
        _ => {
            let text = std::fs::read(case).unwrap_or_else(|error| panic!("{case}: {error}"));
            Table::parse(&text).unwrap_or_else(|error| panic!("{case}:{error}")).problem
        }
    };
    Problem { capacity, ..problem }
}
