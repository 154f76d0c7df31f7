//! Training steps over micro-batches.

use memplan_analysis::{CallGraph, Dimensions, Phases};
use memplan_hlo::{parse, print};
use memplan_ir::Module;
use memplan_memory::Target;
use memplan_passes::{Context, FOLLOWABLE, RunOptions, micro_batches, resize, run};
use memplan_testkit::corpus;

use crate::fusion::numbers;

/// The step as it can be followed, and over two micro-batches.
fn in_two(text: &str) -> (Module, Option<Module>) {
    let mut whole = parse(text).unwrap();
    let target = Target::find("cpu").unwrap();
    run(&mut whole, &[&FOLLOWABLE], &Context { target: &target }, RunOptions::default()).unwrap();
    let dimensions = Dimensions::follow(&whole);
    let batch = dimensions.batch(&whole).unwrap();
    let half = resize(&whole, &dimensions, batch.factor, dimensions.extent(batch.factor) / 2).unwrap().module;
    let phases = Phases::new(&whole, &CallGraph::new(&whole).unwrap());
    let found = micro_batches(&whole, &half, &phases);
    (whole, found)
}

/// Scalars such as the number of examples stay those of the whole batch, so that gradients add up to the same.
#[test]
fn gradients_of_micro_batches_add_up() {
    let steps = ["mlp_training_step", "transformer_training_step"];
    for program in corpus().into_iter().filter(|program| steps.contains(&program.name.as_str())) {
        let (whole, found) = in_two(&program.text("before"));
        numbers::check_same(&whole, &found.expect("the step trains"));
    }
}

const NORMALIZED: &str = "
HloModule m
sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
ENTRY main {
  w = f32[8,4] parameter(0)
  x = f32[64,8] parameter(1)
  h = f32[64,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name=\"jvp(f)/dot\"}
  zero = f32[] constant(0)
  mean = f32[4] reduce(h, zero), dimensions={0}, to_apply=sum, metadata={op_name=\"jvp(f)/mean\"}
  means = f32[64,4] broadcast(mean), dimensions={1}, metadata={op_name=\"jvp(f)/mean\"}
  centered = f32[64,4] subtract(h, means), metadata={op_name=\"jvp(f)/sub\"}
  loss = f32[] reduce(centered, zero), dimensions={0,1}, to_apply=sum, metadata={op_name=\"jvp(f)/loss\"}
  g = f32[8,4] dot(x, centered), lhs_contracting_dims={0}, rhs_contracting_dims={0}, metadata={op_name=\"transpose(jvp(f))/dot\"}
  new = f32[8,4] subtract(w, g), metadata={op_name=\"update\"}
  ROOT results = (f32[8,4], f32[], f32[64,4]) tuple(new, loss, centered)
}";

#[test]
fn what_mixes_examples_mixes_those_of_a_micro_batch() {
    let (_, found) = in_two(NORMALIZED);
    insta::with_settings!({
        snapshot_path => "../../../snapshots",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        insta::assert_snapshot!("micro_batches", print(&found.unwrap()));
    });
}

#[test]
fn an_update_that_reads_examples_is_left() {
    let update = "new = f32[8,4] subtract(w, g)";
    let with_examples = "first = f32[8,4] slice(x), slice={[0:8], [0:4]}, metadata={op_name=\"update\"}
  decayed = f32[8,4] multiply(w, first), metadata={op_name=\"update\"}
  new = f32[8,4] subtract(decayed, g)";
    assert!(in_two(NORMALIZED).1.is_some());
    assert!(in_two(&NORMALIZED.replace(update, with_examples)).1.is_none());
}

/// Only arrays are added up.
#[test]
fn a_tuple_of_gradients_is_left() {
    let update = "new = f32[8,4] subtract(w, g)";
    let behind_a_barrier = "pair = (f32[8,4], f32[]) tuple(g, loss), metadata={op_name=\"transpose(jvp(f))\"}
  done = (f32[8,4], f32[]) opt-barrier(pair), metadata={op_name=\"update\"}
  h2 = f32[8,4] get-tuple-element(done), index=0, metadata={op_name=\"update\"}
  new = f32[8,4] subtract(w, h2)";
    assert!(in_two(&NORMALIZED.replace(update, behind_a_barrier)).1.is_none());
}
