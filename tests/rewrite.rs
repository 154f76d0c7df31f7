//! Programs rewritten for XLA: one file per case under `tests/hlo/rewrite/`, whose header names the compiler and a lever to
//! leave out, and the examples. The result is valid, has the same interface, and computes the same bits, but for sums in
//! another order.

use memplan::interp::{Devices, Options, evaluate_on};
use memplan::ir::{self, Literal, Module, Op};
use memplan::memory::{Bytes, Compiler, Target};
use memplan::passes::{Context, OfOneDevice, partition};
use memplan::{Lever, RewriteOptions, Rewritten, Step, hlo, rewrite};
use memplan_testkit::{assert_close, leaves, part, random_inputs};

use crate::support::{evaluate, explain};

#[test]
fn rewrite_filetests() {
    insta::glob!("hlo/rewrite/*.hlo", |path| {
        let text = std::fs::read_to_string(path).unwrap();
        let header = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
        let compiler = Compiler::find(header("// compiler: ").expect("a header `// compiler: `")).unwrap();
        let limit = header("// memory-limit: ").map(|bytes| Bytes(bytes.parse().unwrap()));
        let without: Vec<Lever> =
            header("// without: ").iter().map(|lever| lever.parse().expect("a lever")).collect();
        let rewritten = checked(&hlo::parse(&text).unwrap(), &compiler, limit, &without);
        insta::with_settings!({
            snapshot_path => "../snapshots",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            input_file => path,
        }, {
            let text = format!("{}\n{}", summary(&rewritten), hlo::print(&rewritten.module));
            insta::assert_snapshot!("rewrite", text);
        });
    });
}

/// Which rewrites pay for real programs, under every compiler, without a limit and under one that nothing meets.
#[test]
fn rewritten_examples() {
    insta::glob!("../examples", "*.hlo.txt", |path| {
        let source = hlo::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
        let mut text = String::new();
        for compiler in Compiler::built_in() {
            for limit in [None, Some(Bytes(1))] {
                let rewritten = checked(&source, &compiler, limit, &[]);
                let under = if limit.is_some() { ", as few bytes as it can be" } else { "" };
                text.push_str(&format!("{}{under}\n{}\n", compiler.name, summary(&rewritten)));
            }
        }
        insta::with_settings!({
            snapshot_path => "../snapshots",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            input_file => path,
        }, {
            insta::assert_snapshot!("rewrite_example", text);
        });
    });
}

/// The search goes on with three variants of a large program. It must not lose what one rewrite reaches alone.
#[test]
fn all_rewrites_are_no_worse_than_one() {
    let compiler = Compiler::find("xla-gpu").unwrap();
    let target = Target::find(&compiler.target).unwrap();
    let text = std::fs::read_to_string("examples/mlp_training_step.hlo.txt").unwrap();
    let with_many_rows = text.replace("[32,", "[1048576,").replace("[32]", "[1048576]");
    let source = hlo::parse(&with_many_rows).unwrap();
    let as_if_large = RewriteOptions { held_instructions: 0, is_frontier: true, ..RewriteOptions::default() };
    let points = |options: &RewriteOptions| {
        let frontier = rewrite(source.clone(), &compiler, &target, options).unwrap().frontier;
        frontier.into_iter().map(|found| found.price).collect::<Vec<_>>()
    };
    let all = points(&as_if_large);
    for one in as_if_large.rewrites.clone() {
        let name = one.name;
        for point in points(&RewriteOptions { rewrites: vec![one], ..as_if_large.clone() }) {
            let is_reached =
                all.iter().any(|found| found.total <= point.total && found.seconds <= point.seconds);
            assert!(is_reached, "{name} alone reaches {point:?}, all rewrites {all:?}");
        }
    }
}

/// Rewrites, and compares what both compute.
#[track_caller]
fn checked(
    source: &Module,
    compiler: &Compiler,
    memory_limit: Option<Bytes>,
    without: &[Lever],
) -> Rewritten {
    ir::verify(source).unwrap_or_else(|errors| panic!("{}: {errors}", source.name));
    let target = Target::find(&compiler.target).unwrap();
    let mut options = RewriteOptions { memory_limit, ..RewriteOptions::default() };
    options.pull(&[], without);
    let rewritten = rewrite(source.clone(), compiler, &target, &options)
        .unwrap_or_else(|error| panic!("{}: {}", source.name, explain(&error)));
    ir::verify(&rewritten.module).unwrap_or_else(|errors| panic!("{}: {errors}", source.name));
    let inputs = random_inputs(source, 7);
    if let Some(of_one) = of_one_device(&rewritten.module, &target).filter(|_| is_of_one(&rewritten.module)) {
        let meant = evaluate(source, &inputs).unwrap();
        check_on_all_devices(&source.name, &of_one, &inputs, &meant);
        return rewritten;
    }
    let (found, meant) = (evaluate(&rewritten.module, &inputs), evaluate(source, &inputs));
    let sums_in_another_order = |step: &Step| {
        step.lever == Lever::Parts || ["sums in place", "sums in even parts"].contains(&step.name)
    };
    match rewritten.steps.iter().any(|step| step.is_kept && sums_in_another_order(step)) {
        true => assert_close(&source.name, &found.unwrap(), &meant.unwrap(), 2e-5),
        false => assert!(found == meant, "{} for {} computes something else", source.name, compiler.name),
    }
    rewritten
}

/// Whether a program is that of one device, as `shard_map` says it.
fn is_of_one(module: &Module) -> bool {
    let calls = module.instructions.values().filter_map(|instruction| match &instruction.op {
        Op::CustomCall(call) => Some(&*call.target),
        _ => None,
    });
    calls.into_iter().any(|target| target == "xla.sdy.GlobalToLocalShape")
}

fn of_one_device(module: &Module, target: &Target) -> Option<OfOneDevice> {
    partition(module, &Context { target }).unwrap_or_else(|error| panic!("{}: {error}", module.name))
}

/// Runs the program of one device on all of them, each with its parts of the inputs, and compares its parts of the
/// results.
#[track_caller]
fn check_on_all_devices(name: &str, of_one: &OfOneDevice, inputs: &[Literal], meant: &Literal) {
    let parameters = &of_one.module.entry_computation().parameters;
    let of_device = |device: u64| -> Vec<Literal> {
        let parts = parameters.iter().enumerate().map(|(k, &parameter)| {
            let extents = &of_one.module.shape(parameter).as_array().unwrap().dimensions;
            let starts = of_one.parameter_starts(k, device, extents);
            part(inputs[k].as_array().unwrap(), &starts, extents)
        });
        parts.collect()
    };
    let given: Vec<Vec<Literal>> = (0..of_one.devices).map(of_device).collect();
    let devices = Devices { replicas: 1, partitions: of_one.devices as usize };
    let found = evaluate_on(&of_one.module, devices, &given, &Options::default()).unwrap();
    for (device, found) in (0..).zip(&found) {
        for (k, (found, meant)) in leaves(found).into_iter().zip(leaves(meant)).enumerate() {
            let starts = of_one.result_starts(k, device, &found.dimensions);
            let meant = part(meant, &starts, &found.dimensions);
            assert_close(name, &Literal::Array(found.clone()), &meant, 2e-5);
        }
    }
}

fn summary(rewritten: &Rewritten) -> String {
    let mut text = format!("  as it was: {}\n", rewritten.before.price.total);
    for step in &rewritten.steps {
        let verdict = if step.is_kept { "kept" } else { "not kept" };
        text.push_str(&format!("  {}: {}, {verdict}\n", step.name, step.estimated.price.total));
    }
    text
}
