//! Recomputation beside the optimum, on training steps small enough to find it.

mod optimum;
mod step;

use std::fmt::Write as _;

use memplan_hlo::parse;
use memplan_ir::{ElementType, Op, UnaryOp};
use memplan_memory::Target;
use memplan_passes::{Context, Products, REMAT, REMAT_BEHIND_BARRIERS, Remat, RunOptions, run};

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

/// A chain of layers whose gradients read what elementwise operations made of each product.
fn activations(layers: usize) -> String {
    let mut text = String::from("HloModule activations\nENTRY main {\n  x0 = f32[512,512] parameter(0)\n");
    for i in 0..layers {
        let next = i + 1;
        writeln!(text, "  w{i} = f32[512,512] parameter({next})").unwrap();
        let product = "lhs_contracting_dims={1}, rhs_contracting_dims={0}";
        writeln!(text, "  h{i} = f32[512,512] dot(x{i}, w{i}), {product}").unwrap();
        writeln!(text, "  x{next} = f32[512,512] tanh(h{i})").unwrap();
    }
    writeln!(text, "  d{layers} = f32[512,512] negate(x{layers})").unwrap();
    for i in (0..layers).rev() {
        let next = i + 1;
        writeln!(text, "  k{i} = f32[512,512] multiply(d{next}, x{next})").unwrap();
        writeln!(text, "  e{i} = f32[512,512] multiply(k{i}, h{i})").unwrap();
        let rows = "lhs_contracting_dims={0}, rhs_contracting_dims={0}";
        writeln!(text, "  g{i} = f32[512,512] dot(x{i}, e{i}), {rows}").unwrap();
        let transposed = "lhs_contracting_dims={1}, rhs_contracting_dims={1}";
        writeln!(text, "  d{i} = f32[512,512] dot(e{i}, w{i}), {transposed}").unwrap();
    }
    let gradients: Vec<String> = (0..layers).map(|i| format!("g{i}")).collect();
    let shapes = vec!["f32[512,512]"; layers].join(", ");
    writeln!(text, "  ROOT t = ({shapes}) tuple({})\n}}", gradients.join(", ")).unwrap();
    text
}

#[test]
fn with_a_smaller_reach_fewer_values_are_recomputed() {
    let target = Target::find("gpu-h100").unwrap();
    let recomputed = [1.0, 0.5, 0.25, 0.0].map(|reach| {
        let mut module = parse(&activations(16)).unwrap();
        let pass = Remat { reach, ..REMAT_BEHIND_BARRIERS };
        let options = RunOptions { verify: true, ..RunOptions::default() };
        run(&mut module, &[&pass], &Context { target: &target }, options).unwrap();
        module.instructions.values().filter(|instruction| instruction.op == Op::Unary(UnaryOp::Tanh)).count()
            - 16
    });
    assert!(recomputed.windows(2).all(|pair| pair[0] > pair[1]), "{recomputed:?}");
    assert_eq!(recomputed[3], 0);
}
