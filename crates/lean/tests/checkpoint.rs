//! Checkpoints of programs with several forward halves.

use memplan_analysis::Phase;
use memplan_ir::{InstructionId, Op};
use memplan_lean::{Borders, CHECKPOINT_LAYERS, Checkpoint, CheckpointLayers, Saved, Saves, checkpoint};
use memplan_memory::Target;
use memplan_rewriter::{Context, Pass};

/// How many barriers a program has after it is checkpointed; it is valid then.
fn barriers_of(text: &str, backward: &[&str], borders: &[&str], gradients_first: bool) -> usize {
    let module = memplan_hlo::parse(text).unwrap();
    let named = |id: InstructionId, names: &[&str]| names.contains(&&*module.instructions[id].name);
    let after = checkpoint(
        &module,
        &Checkpoint {
            phase: &|id| if named(id, backward) { Phase::Backward } else { Phase::Forward },
            is_saved: &|_| false,
            is_border: &|id| named(id, borders),
            gradients_first,
        },
    );
    let after = after.expect("something is computed again");
    assert_eq!(memplan_ir::verify(&after), Ok(()));
    after.instructions.values().filter(|it| it.op == Op::OptimizationBarrier).count()
}

/// The function of `r1` waits for the gradient `g`, `g` for that of `r2a` and `r2b`, which waits for `e`, and that reads
/// `r1`. Seen on a GAN, whose networks have functions of the same levels.
#[test]
fn functions_do_not_wait_for_each_others_gradients() {
    let text = "HloModule two_networks
        ENTRY main {
          x = f32[4,4] parameter(0)
          w = f32[4,4] parameter(1)
          r1 = f32[4,4] sine(x)
          border = f32[4,4] dot(r1, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
          r2a = f32[4,4] cosine(border)
          r2b = f32[4,4] tanh(border)
          y = f32[4,4] dot(r2a, r2b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
          d = f32[4,4] negate(y)
          e = f32[4,4] multiply(d, r1)
          h = f32[4,4] multiply(e, r2b)
          d2 = f32[4,4] abs(d)
          d3 = f32[4,4] negate(d2)
          g = f32[4,4] dot(r2a, d3), lhs_contracting_dims={0}, rhs_contracting_dims={0}
          ROOT t = (f32[4,4], f32[4,4]) tuple(h, g)
        }";
    let backward = ["d", "e", "h", "d2", "d3", "g", "t"];
    assert_eq!(barriers_of(text, &backward, &["border"], true), 2);
}

/// A derivative of a gradient: `r2` is computed forward from the gradient `g`, which reads `r1`. If one function computed both
/// again, its barrier would need `g`, and `g` would need the barrier. Seen on a Hessian times a vector.
#[test]
fn what_is_computed_forward_from_gradients_is_a_function_of_its_own() {
    let text = "HloModule forward_over_reverse
        ENTRY main {
          x = f32[4,4] parameter(0)
          w = f32[4,4] parameter(1)
          r1 = f32[4,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
          y = f32[4,4] tanh(r1)
          g = f32[4,4] multiply(y, r1)
          r2 = f32[4,4] dot(x, g), lhs_contracting_dims={1}, rhs_contracting_dims={0}
          z = f32[4,4] sine(r2)
          h = f32[4,4] dot(z, r2), lhs_contracting_dims={1}, rhs_contracting_dims={0}
          ROOT t = (f32[4,4], f32[4,4]) tuple(h, g)
        }";
    assert_eq!(barriers_of(text, &["g", "h", "t"], &[], false), 2);
}

/// What needs an argument alone is computed again for the last function that reads it, but not for one that begins after
/// gradients: `g` reads `v`, and the function of `r3` saves `r2`, which is computed from `g`. Seen on Gauss-Newton steps, where
/// the program grew until the machine had no memory left.
#[test]
fn what_needs_an_argument_alone_does_not_wait_for_gradients() {
    let text = "HloModule gauss_newton
        ENTRY main {
          x = f32[4,4] parameter(0)
          w = f32[4,4] parameter(1)
          v = f32[4,4] cosine(w)
          g = f32[4,4] multiply(x, v)
          r2 = f32[4,4] dot(g, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
          r3 = f32[4,4] dot(r2, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
          h = f32[4,4] multiply(r3, r2)
          ROOT t = (f32[4,4], f32[4,4]) tuple(h, g)
        }";
    assert_eq!(barriers_of(text, &["g", "h", "t"], &["r2"], false), 2);
}

/// With borders behind products, each activation is computed again by itself, from the product before it.
#[test]
fn functions_end_behind_products() {
    let text = r#"HloModule two_layers
        ENTRY main {
          x = f32[64,32] parameter(0)
          u = f32[32,256] parameter(1)
          v = f32[256,128] parameter(2)
          g = f32[64,256] dot(x, u), lhs_contracting_dims={1}, rhs_contracting_dims={0}
          a = f32[64,256] tanh(g)
          h = f32[64,128] dot(a, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
          b = f32[64,128] tanh(h)
          dh = f32[64,128] multiply(b, b), metadata={op_name="jit(f)/transpose(jvp())/mul"}
          dv = f32[256,128] dot(a, dh), lhs_contracting_dims={0}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/transpose(jvp())/dot_general"}
          da = f32[64,256] dot(dh, v), lhs_contracting_dims={1}, rhs_contracting_dims={1}, metadata={op_name="jit(f)/transpose(jvp())/dot_general"}
          dg = f32[64,256] multiply(da, a), metadata={op_name="jit(f)/transpose(jvp())/mul"}
          du = f32[32,256] dot(x, dg), lhs_contracting_dims={0}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/transpose(jvp())/dot_general"}
          ROOT t = (f32[32,256], f32[256,128]) tuple(du, dv)
        }"#;
    let target = Target::find("gpu-h100").unwrap();
    let mut module = memplan_hlo::parse(text).unwrap();
    let saved = Saved::By(Saves::Dots);
    let pass = CheckpointLayers { borders: Borders::Products, saved, ..CHECKPOINT_LAYERS };
    assert!(pass.run(&mut module, &Context { target: &target }).unwrap().changed);
    assert_eq!(memplan_ir::verify(&module), Ok(()));
    let name = |id: InstructionId| &*module.instructions[id].name;
    let entry = &module.entry_computation().instructions;
    let barriers = entry.iter().filter(|&&id| module.instructions[id].op == Op::OptimizationBarrier);
    let held: Vec<Vec<&str>> = barriers
        .map(|&id| module.instructions[module.instructions[id].operands[0]].operands.iter())
        .map(|held| held.map(|&id| name(id)).collect())
        .collect();
    assert_eq!(held, [vec!["h"], vec!["g", "dh"]]);
}
