//! Prints target, temp, bound and totals of a module's plan, and how long each stage took.
#![allow(clippy::print_stdout, reason = "an example talks")]
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let target = memplan_memory::Target::find(&args[1]).unwrap();
    for path in &args[2..] {
        let text = std::fs::read_to_string(path).unwrap();
        let t0 = std::time::Instant::now();
        let mut module = memplan_hlo::parse(&text).unwrap();
        let parse = t0.elapsed();
        let t0 = std::time::Instant::now();
        let list = [memplan_passes::FLATTEN_CALL_GRAPH, memplan_passes::COPY_INSERTION];
        let n = module.instruction_count();
        if let Err(e) = memplan_passes::run(
            &mut module,
            &list,
            &memplan_passes::Context { target: &target },
            Default::default(),
        ) {
            println!("{path} PASS {e}");
            continue;
        }
        let copies = module.instruction_count() - n;
        let pass = t0.elapsed();
        let t0 = std::time::Instant::now();
        match memplan_plan::plan(&module, &target, &Default::default()) {
            Ok(p) => println!(
                "{path} temp {} bound {} total {} peak {} copies {copies} parse {parse:?} passes {pass:?} plan {:?}",
                p.plan.totals.temp.0,
                p.plan.totals.temp_lower_bound.0,
                p.plan.totals.total.0,
                p.plan.totals.peak_live.0,
                t0.elapsed()
            ),
            Err(e) => println!("{path} ERROR {e}"),
        }
    }
}
