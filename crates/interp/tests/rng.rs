//! The numbers of `rng`, which HLO leaves open.

use memplan_interp::{Options, evaluate};
use memplan_ir::Literal;

/// A thousand numbers between 0 and 1, and a thousand around 0.
fn numbers(seed: u64) -> (Vec<f32>, Vec<f32>) {
    let text = "HloModule m\n\nENTRY e {\n  zero = f32[] constant(0)\n  one = f32[] constant(1)\n  \
                u = f32[1000] rng(zero, one), distribution=rng_uniform\n  \
                n = f32[1000] rng(zero, one), distribution=rng_normal\n  ROOT r = (f32[1000], f32[1000]) tuple(u, n)\n}\n";
    let module = memplan_hlo::parse(text).expect("the module is valid");
    let result = evaluate(&module, &[], &Options { seed, ..Options::default() }).expect("it is evaluated");
    let Literal::Tuple(parts) = result else { panic!("the result is a pair") };
    let floats = |part: &Literal| -> Vec<f32> {
        let bytes = part.as_array().expect("parts are arrays").bytes();
        bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
    };
    (floats(&parts[0]), floats(&parts[1]))
}

#[test]
fn numbers_have_their_distribution() {
    let (uniform, normal) = numbers(1);
    let mean = |x: &[f32]| x.iter().sum::<f32>() / x.len() as f32;
    let squares = |x: &[f32]| mean(&x.iter().map(|x| x * x).collect::<Vec<_>>());
    assert!(uniform.iter().all(|x| (0.0..=1.0).contains(x)));
    assert!((mean(&uniform) - 0.5).abs() < 0.05, "{}", mean(&uniform));
    assert!((squares(&uniform) - 1.0 / 3.0).abs() < 0.05, "{}", squares(&uniform));
    assert!(mean(&normal).abs() < 0.15, "{}", mean(&normal));
    assert!((squares(&normal) - 1.0).abs() < 0.2, "{}", squares(&normal));
}

#[test]
fn a_seed_decides() {
    assert_eq!(numbers(1), numbers(1));
    assert_ne!(numbers(1), numbers(2));
}
