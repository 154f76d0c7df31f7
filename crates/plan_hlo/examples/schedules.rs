//! Prints, for each module, the peak under every order tried, and what planning makes of the best:
//! `cargo run --release -p memplan-plan-hlo --example schedules -- TARGET FILE...`
#![allow(clippy::print_stdout, reason = "a table for people")]

use std::error::Error;
use std::time::Instant;

use memplan_memory::Target;
use memplan_plan_hlo::{Planned, ScheduleOptions, plan, schedule};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [target, files @ ..] = arguments.as_slice() else {
        return Err("usage: schedules TARGET FILE...".into());
    };
    let target = Target::find(target)?;
    for file in files {
        if let Err(error) = row(file, &target) {
            println!("{file}: {error}");
        }
    }
    Ok(())
}

fn row(file: &str, target: &Target) -> Result<(), Box<dyn Error>> {
    let mut module = memplan_hlo::parse(&std::fs::read_to_string(file)?)?;
    if !module.is_scheduled {
        memplan_passes::legalize(&mut module, target)?;
    }
    module.is_scheduled = true;
    let before = plan(&module, target, &Default::default())?;
    let start = Instant::now();
    let (order, report) = schedule(&module, target, &ScheduleOptions::default())?;
    let time = start.elapsed();
    order.apply(&mut module);
    let after = plan(&module, target, &Default::default())?;
    let (_, entry) = report.computations.last().ok_or("a module has an entry")?;
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let line = |planned: &Planned| {
        let totals = &planned.plan.totals;
        format!("{:>10.3} {:>10.3} {:>10.3}", mb(totals.peak_live.0), mb(totals.temp.0), mb(totals.total.0))
    };
    let name: Vec<&str> = file.rsplit('/').take(2).collect();
    println!(
        "{} {}: {} nodes, {time:.1?}, {} steps, {}",
        name[name.len() - 1],
        name[0],
        entry.n_nodes,
        entry.steps,
        if entry.is_optimal { "optimal" } else { "not proved" }
    );
    for (method, peak) in &entry.candidates {
        println!("  {method:?} {:.3}", mb(peak.0));
    }
    println!("  chosen {:?}, peak {:.3}", entry.chosen, mb(report.peak.0));
    println!("  as it was: peak, temp, total {}", line(&before));
    println!("  now:       peak, temp, total {}", line(&after));
    if let Err(violations) = memplan_check::check(&module, &after.schedule, target, &after.plan) {
        println!("  WRONG: {}", violations[0]);
    }
    if after.plan.totals.total > before.plan.totals.total {
        println!("  WORSE total by {}", after.plan.totals.total - before.plan.totals.total);
    }
    if after.plan.totals.peak_live > before.plan.totals.peak_live {
        println!("  WORSE peak by {}", after.plan.totals.peak_live - before.plan.totals.peak_live);
    }
    Ok(())
}
