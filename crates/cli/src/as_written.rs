//! The note above reports of unscheduled programs: whose program was planned, and what a compiler will need for it.

use memplan::advice::explain::Expected;
use memplan::analysis::operation;
use memplan::ir::Module;
use memplan::memory::{Compiler, Target};

/// Notes that the plan is of the program as written, and what the usual compiler will need instead. Empty for scheduled
/// programs, since they run as they are.
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
                "{} will need {} instead, by memplan's estimate (`{command}`)",
                compiler.name, estimate.total
            )
        }
        (None, Some(compiler)) => {
            format!("`{}` estimates what that compiler will need instead", command(&compiler, target))
        }
        (None, None) => format!("`memplan compile --target {}` makes the program to run", target.name),
    };
    format!("This is a plan of the program {whose}: no compiler has fused or scheduled it.\n{instead}.\n")
}

/// The command that makes the estimate.
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
