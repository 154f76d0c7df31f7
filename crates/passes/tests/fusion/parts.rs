//! Parts of the batch: one file per case under `tests/hlo/parts/`, small programs of JAX, and random programs.

use memplan_ir::{ElementType, Module, verify};
use memplan_passes::{Context, PARTS, Parts, Pass, RunOptions, find, run};
use memplan_testkit::corpus;

use crate::fusion::numbers;
use crate::fusion::row_blocks::random::RandomProgram;
use crate::fusion::row_blocks::{parse, target};

#[test]
fn filetests() {
    insta::glob!("../../../../tests/hlo/parts", "*.hlo", |path| {
        let source = std::fs::read_to_string(path).unwrap();
        let name = path.display().to_string();
        let before = parse(&name, &source);
        let (after, _) = in_parts(&name, &before, 2);
        numbers::check_same(&before, &after);
        insta::with_settings!({
            snapshot_path => "../../../../snapshots",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            input_file => path,
        }, {
            insta::assert_snapshot!("parts", memplan_hlo::print(&after));
        });
    });
}

/// Steps of small models, with the results of the whole batch: those of this repository, and of a larger corpus where one is
/// there.
#[test]
fn programs_of_jax_keep_their_meaning_in_parts() {
    let mut cut = Vec::new();
    let is_small = |name: &str| name.contains("tiny") || name.contains("training_step");
    for program in corpus().into_iter().filter(|program| is_small(&program.name)) {
        let mut before = memplan_hlo::parse(&program.text("before")).unwrap();
        let passes =
            ["call-inliner", "flat-loop-state", "tuple-simplifier", "dce"].map(|name| find(name).unwrap());
        run(&mut before, &passes, &Context { target: &target() }, RunOptions::default()).unwrap();
        let (after, is_cut) = in_parts(&program.name, &before, 2);
        if is_cut {
            // Gradients of two parts are added in their own type, in `bf16` with one more rounding.
            let tolerance = if multiplies_bf16(&before) { 2f64.powi(-7) } else { numbers::TOLERANCE };
            numbers::check_same_within(&before, &after, tolerance);
            cut.push(program.name.clone());
        }
    }
    let own =
        "convolution_training_step half_precision_training_step mlp_training_step transformer_training_step";
    let both = format!("{own} gpt_tiny_train mlp_train_tiny moe_tiny resnet_tiny_train");
    assert!([own, &both].contains(&cut.join(" ").as_str()), "{cut:?}");
}

/// Whether a product of the module has numbers of `bf16`.
fn multiplies_bf16(module: &Module) -> bool {
    module.instructions.values().any(|instruction| {
        let array = module.shape_of(instruction.shape).as_array();
        instruction.op.is_contraction() && array.is_some_and(|array| array.element_type == ElementType::Bf16)
    })
}

#[test]
fn random_programs_keep_their_meaning_in_parts() {
    let n_programs = std::env::var("N_PROGRAMS").map_or(300, |n| n.parse().expect("a number"));
    let mut n_cut = 0;
    for seed in 0..n_programs {
        // In f64, since sums over the batch in another order may cancel.
        let source = RandomProgram::new(seed).source().replace("f32", "f64");
        let name = format!("seed {seed}");
        let before = parse(&name, &source);
        let (after, is_cut) = in_parts(&name, &before, 2);
        n_cut += usize::from(is_cut);
        let result = std::panic::catch_unwind(|| numbers::check_same(&before, &after));
        assert!(result.is_ok(), "{name}:\n{source}\nbecame\n{}", memplan_hlo::print(&after));
    }
    eprintln!("{n_cut} of {n_programs} programs are cut");
    assert!(n_cut * 4 > n_programs as usize, "only {n_cut} of {n_programs} programs are cut");
}

/// The program in parts, and whether it has any.
fn in_parts(name: &str, before: &Module, n: i64) -> (Module, bool) {
    let (mut after, pass) = (before.clone(), Parts { n, ..PARTS });
    let context = Context { target: &target() };
    let changed = pass.run(&mut after, &context).unwrap().changed;
    verify(&after).unwrap_or_else(|errors| panic!("{name}: {errors}\n{}", memplan_hlo::print(&after)));
    assert!(!pass.run(&mut after, &context).unwrap().changed, "{name}: cut again");
    (after, changed)
}
