//! Lists everything live at the peak of a scheduled module.
#![allow(clippy::print_stdout, reason = "an example talks")]
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let target = memplan_memory::Target::find(&args[1]).unwrap();
    let text = std::fs::read_to_string(&args[2]).unwrap();
    let module = memplan_hlo::parse(&text).unwrap();
    let p = memplan_plan::plan(&module, &target, &Default::default()).unwrap();
    let r = memplan_plan::peak_report(&module, &p.facts, &p.plan);
    for b in r.buffers {
        let i = b.position.instruction;
        println!(
            "{}{} {} {} {:?} {}-{}",
            module.instructions[i].name,
            b.position.index,
            b.slice.size.0,
            b.slice.offset.0,
            p.plan.allocations[b.slice.allocation].kind,
            b.live.start,
            b.live.end
        );
    }
}
