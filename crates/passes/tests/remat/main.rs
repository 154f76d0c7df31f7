//! Recomputation beside the optimum, on training steps small enough to find it.

mod optimum;
mod step;

use std::fmt::Write as _;

use memplan_hlo::parse;
use memplan_ir::ElementType;
use memplan_memory::Target;
use memplan_passes::{Context, Products, REMAT, Remat, RunOptions, run};

use step::Step;

/// Prices to try, each twice the one before.
const PRICES: i32 = 12;

/// What can be recomputed, from the least on: at prices from that of a byte of a product over 16 features.
fn ladder(target: &Target) -> Vec<Products> {
    let rate = target.rates.get(ElementType::F32).unwrap();
    let prices = (0..PRICES).map(|i| 8.0 * 2f64.powi(i) / rate);
    let segments = [2, 4, 16].map(Products::AllButEvery);
    [Products::Kept].into_iter().chain(prices.map(Products::ForSecondsPerByte)).chain(segments).collect()
}

/// The peaks and times of the programs that recomputation finds.
fn found(step: &Step, target: &Target) -> Vec<(u64, f64)> {
    let programs = ladder(target).into_iter().map(|products| {
        let mut module = parse(&step.text()).unwrap();
        let pass = Remat { products, ..REMAT };
        run(&mut module, &[&pass], &Context { target }, RunOptions { verify: true, ..RunOptions::default() })
            .unwrap();
        step.measure(&module)
    });
    programs.collect()
}

/// A step is compared at every budget between the least that the optimum can do with and what keeping everything takes.
#[test]
fn recomputation_is_close_to_the_optimum() {
    // Only arithmetic takes time, so that the optimum is one of operations.
    let mut target = Target { kernel_overhead: 0.0, ..Target::find("gpu-h100").unwrap() };
    target.spaces[0].bandwidth = Some(1e18);
    let mut text = String::from(
        "step, budget as a share of keeping everything: time of the optimum and of memplan, over keeping everything\n",
    );
    let (mut gaps, mut misses) = (Vec::new(), 0);
    for (name, widths) in [
        ("even", [256, 256, 256, 256, 256]),
        ("widening", [64, 128, 256, 512, 1024]),
        ("narrowing", [1024, 512, 256, 128, 64]),
        ("bottlenecks", [512, 64, 512, 64, 512]),
        ("one wide", [128, 128, 2048, 128, 128]),
    ] {
        let step = Step::new(&widths);
        let (most, time) = step.measure(&parse(&step.text()).unwrap());
        let ours = found(&step, &target);
        let optimum = optimum::times(&step, most);
        write!(text, "\n{name}\n").unwrap();
        for (budget, best) in optimum {
            let fitting = ours.iter().filter(|(peak, _)| *peak <= budget).map(|&(_, seconds)| seconds);
            let share = budget as f64 / most as f64;
            match fitting.min_by(f64::total_cmp) {
                Some(seconds) => {
                    gaps.push(seconds / best);
                    writeln!(text, "  {share:.2}: {:.3} {:.3}", best / time, seconds / time).unwrap();
                }
                None => {
                    misses += 1;
                    writeln!(text, "  {share:.2}: {:.3} -", best / time).unwrap();
                }
            }
        }
    }
    let mean = (gaps.iter().map(|gap| gap.ln()).sum::<f64>() / gaps.len() as f64).exp();
    writeln!(
        text,
        "\n{} budgets: time over the optimum {mean:.3} as a geometric mean, {:.3} at most; {misses} not reached",
        gaps.len() + misses,
        gaps.iter().copied().fold(0.0, f64::max)
    )
    .unwrap();
    insta::with_settings!({
        snapshot_path => "../../../../snapshots",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        insta::assert_snapshot!("remat_beside_the_optimum", text);
    });
    assert!(gaps.iter().all(|&gap| gap > 0.999), "nothing is better than the optimum");
}
