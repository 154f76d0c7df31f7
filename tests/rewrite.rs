//! Programs rewritten for XLA: one file per case under `tests/hlo/rewrite/`, whose header names the compiler, and the
//! examples. The result is valid, has the same interface, and computes the same bits, but for sums over a batch in parts.

use memplan::ir::{self, Module};
use memplan::memory::{Bytes, Compiler, Target};
use memplan::{Lever, RewriteOptions, Rewritten, hlo, rewrite};
use memplan_testkit::{assert_close, random_inputs};

use crate::support::{evaluate, explain};

#[test]
fn rewrite_filetests() {
    insta::glob!("hlo/rewrite/*.hlo", |path| {
        let text = std::fs::read_to_string(path).unwrap();
        let header = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
        let compiler = Compiler::find(header("// compiler: ").expect("a header `// compiler: `")).unwrap();
        let limit = header("// memory-limit: ").map(|bytes| Bytes(bytes.parse().unwrap()));
        let rewritten = checked(&hlo::parse(&text).unwrap(), &compiler, limit);
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
                let rewritten = checked(&source, &compiler, limit);
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

/// Rewrites, and compares what both compute.
#[track_caller]
fn checked(source: &Module, compiler: &Compiler, memory_limit: Option<Bytes>) -> Rewritten {
    ir::verify(source).unwrap_or_else(|errors| panic!("{}: {errors}", source.name));
    let target = Target::find(&compiler.target).unwrap();
    let rewritten = rewrite(
        source.clone(),
        compiler,
        &target,
        &RewriteOptions { memory_limit, ..RewriteOptions::default() },
    )
    .unwrap_or_else(|error| panic!("{}: {}", source.name, explain(&error)));
    ir::verify(&rewritten.module).unwrap_or_else(|errors| panic!("{}: {errors}", source.name));
    let inputs = random_inputs(source, 7);
    let (found, meant) = (evaluate(&rewritten.module, &inputs), evaluate(source, &inputs));
    match rewritten.steps.iter().any(|step| step.is_kept && step.lever == Lever::Parts) {
        // Sums over the batch are sums over parts.
        true => assert_close(&source.name, &found.unwrap(), &meant.unwrap(), 2e-5),
        false => assert!(found == meant, "{} for {} computes something else", source.name, compiler.name),
    }
    rewritten
}

fn summary(rewritten: &Rewritten) -> String {
    let mut text = format!("  as it was: {}\n", rewritten.before.price.total);
    for step in &rewritten.steps {
        let verdict = if step.is_kept { "kept" } else { "not kept" };
        text.push_str(&format!("  {}: {}, {verdict}\n", step.name, step.estimated.price.total));
    }
    text
}
