//! What makes small programs fit.

use memplan_advice::fit::{Fit, FitOptions, Lever, fit};
use memplan_hlo::parse;
use memplan_memory::{Bytes, Compiler, Target};

/// Two layers whose activations are kept for the backward half; the weights come back changed, but are not donated.
const STEP: &str = "
HloModule step
ENTRY main {
  w1 = f32[64,64] parameter(0), metadata={op_name=\"params[\'a\']\"}
  w2 = f32[64,64] parameter(1), metadata={op_name=\"params[\'b\']\"}
  x = f32[4096,64] parameter(2), metadata={op_name=\"x\"}
  a = f32[4096,64] dot(x, w1), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name=\"jit(step)/jvp()/dot_general\"}
  b = f32[4096,64] tanh(a), metadata={op_name=\"jit(step)/jvp()/tanh\"}
  c = f32[4096,64] dot(b, w2), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name=\"jit(step)/jvp()/dot_general\"}
  d = f32[4096,64] tanh(c), metadata={op_name=\"jit(step)/jvp()/tanh\"}
  e = f32[4096,64] multiply(d, d), metadata={op_name=\"jit(step)/transpose(jvp())/mul\"}
  f = f32[4096,64] multiply(e, c), metadata={op_name=\"jit(step)/transpose(jvp())/mul\"}
  g2 = f32[64,64] dot(b, f), lhs_contracting_dims={0}, rhs_contracting_dims={0}, metadata={op_name=\"jit(step)/transpose(jvp())/dot_general\"}
  h = f32[4096,64] dot(f, w2), lhs_contracting_dims={1}, rhs_contracting_dims={1}, metadata={op_name=\"jit(step)/transpose(jvp())/dot_general\"}
  i = f32[4096,64] multiply(h, b), metadata={op_name=\"jit(step)/transpose(jvp())/mul\"}
  g1 = f32[64,64] dot(x, i), lhs_contracting_dims={0}, rhs_contracting_dims={0}, metadata={op_name=\"jit(step)/transpose(jvp())/dot_general\"}
  n1 = f32[64,64] subtract(w1, g1), metadata={op_name=\"jit(step)/sub\"}
  n2 = f32[64,64] subtract(w2, g2), metadata={op_name=\"jit(step)/sub\"}
  ROOT r = (f32[64,64], f32[64,64]) tuple(n1, n2)
}";

fn of(limit: u64) -> Fit {
    let (compiler, target) = (Compiler::find("xla-gpu").unwrap(), Target::find("gpu-h100").unwrap());
    let options = FitOptions { limit: Bytes(limit), batch: None, devices: vec![2, 8], threads: 2 };
    fit(&parse(STEP).unwrap(), &compiler, &target, &options).unwrap()
}

#[test]
fn every_lever_is_tried() {
    let found = of(1 << 20);
    assert_eq!(
        found.batch.as_ref().map(|batch| (batch.parameter, batch.dimension, batch.extent)),
        Some((2, 0, 4096))
    );
    for lever in [Lever::Donate, Lever::Recompute, Lever::Batch, Lever::Microbatch, Lever::Shard] {
        assert!(found.changes.iter().any(|change| change.lever == lever), "{lever}: {:?}", found.refused);
    }
    let donation = found.changes.iter().find(|change| change.lever == Lever::Donate).unwrap();
    assert_eq!(donation.apply, "jax.jit(f, donate_argnames=('params',))");
    assert_eq!(donation.total, found.total.saturating_sub(Bytes(2 * 64 * 64 * 4)));
    assert!(found.changes.is_sorted_by_key(|change| change.total));
}

#[test]
fn the_cheapest_set_fits_and_a_lower_limit_costs_no_less() {
    let whole = of(u64::MAX);
    assert!(whole.fits && whole.best.changes.is_empty());
    let mut last = 0.0;
    for part in [2, 4, 16] {
        let limit = whole.total.0 / part;
        let found = of(limit);
        assert!(found.best.fits && found.best.total.0 <= limit, "{part}: {:?}", found.best);
        let cost = found.best.changes.len();
        assert!(cost > 0);
        last = found.best.seconds.max(last);
    }
    let nothing = of(1000);
    assert!(!nothing.best.fits && nothing.best.total < whole.total);
}
