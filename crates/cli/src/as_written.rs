//! The first lines about a program that no compiler has worked on: whose figures follow, and what a compiler will need.

use memplan::advice::explain::Expected;
use memplan::analysis::operation;
use memplan::ir::Module;
use memplan::memory::{Compiler, Target};

/// Says that a program is planned as it was written, and what the usual compiler is expected to need instead. Nothing of
/// programs that a compiler has scheduled: they are what runs.
pub(crate) fn as_written(module: &Module, target: &Target, expected: Option<&Expected>) -> String {
    if module.is_scheduled {
        return String::new();
    }
    let whose = match is_from_jax(module) {
        true => "as JAX wrote it",
        false => "as it was written",
    };
    let instead = match (expected, Compiler::usual_for(target)) {
        (Some(Expected { compiler, estimate }), _) => {
            let command = command(compiler, target);
            format!(
                "{} will need {} instead, as memplan estimates (`{command}`)",
                compiler.name, estimate.total
            )
        }
        (None, Some(compiler)) => {
            format!("`{}` says what that compiler will need instead", command(&compiler, target))
        }
        (None, None) => format!("`memplan compile --target {}` makes the program to run", target.name),
    };
    format!(
        "This is the program {whose}, planned as it stands: no compiler has fused or ordered it.\n{instead}.\n"
    )
}

/// How the estimate is asked for.
fn command(compiler: &Compiler, target: &Target) -> String {
    let usual = format!("memplan estimate --compiler {}", compiler.name);
    match compiler.target == target.name {
        true => usual,
        false => format!("{usual} --target {}", target.name),
    }
}

/// JAX names modules and operations after the functions that it compiles.
fn is_from_jax(module: &Module) -> bool {
    let of_function =
        |name: &str| ["jit(", "pjit(", "pmap("].iter().any(|function| name.starts_with(function));
    let entry = &module.entry_computation().instructions;
    module.name.starts_with("jit_") || entry.iter().any(|&id| of_function(operation(module, id)))
}
