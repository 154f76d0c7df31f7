//! `memplan estimate`

use clap::Args;
use memplan::estimate;
use memplan::ir::Module;
use memplan::memory::{Bytes, Compiler, Target, Totals};
use serde::Serialize;

use crate::emit::Program;
use crate::failure::Failure;
use crate::input::{read_module, target};
use crate::options::{Format, ResultArgs};
use crate::report;

#[derive(Args)]
pub(crate) struct EstimateArgs {
    /// HLO text or protobuf, as JAX hands it over; `-` is standard input
    module: String,
    /// Whose: xla-gpu, xla-cpu or xla-tpu
    #[arg(long, value_parser = compiler)]
    compiler: Compiler,
    /// Machine that it compiles for: a name from `memplan targets`, or a TOML file (default: the compiler's usual one)
    #[arg(long)]
    target: Option<String>,
    #[command(flatten)]
    result: ResultArgs,
}

/// What programs read.
#[derive(Serialize)]
struct EstimateFile<'a> {
    module: &'a str,
    compiler: &'a str,
    target: &'a str,
    total: Bytes,
    seconds: f64,
    totals: &'a Totals,
}

pub(crate) fn run(args: &EstimateArgs) -> Result<(), Failure> {
    args.result.check()?;
    let compiler = &args.compiler;
    let target = target(args.target.as_ref().unwrap_or(&compiler.target))?;
    let module = read_module(&args.module)?;
    let per_device = report::per_device(&module, &target);
    let found = estimate(&module, compiler, &target).map_err(|error| Failure::input(&error))?;
    args.result.emit.write(&Program::new(&found.module, &target, &found.planned))?;
    let text = match args.result.format {
        Format::Json => {
            let file = EstimateFile {
                module: &found.module.name,
                compiler: &compiler.name,
                target: &target.name,
                total: found.total,
                seconds: found.run.seconds,
                totals: &found.totals,
            };
            serde_json::to_string_pretty(&file).expect("an estimate has only string keys") + "\n"
        }
        Format::Text => {
            let (plan, screen) = (&found.planned.plan, args.result.screen());
            let report =
                report::render(&found.module, &target, &found.planned.facts, plan, per_device, screen);
            let expected = format!("expected of {}: {}\n", compiler.name, compiler.description);
            screen.wrap(&expected) + &report
        }
    };
    args.result.write(text)
}

/// What a compiler that people have would need where a plan assumes other kernels than it makes; nothing for machines of
/// which no compiler is known.
pub(crate) fn beside(module: &Module, target: &Target) -> Option<String> {
    let is_for =
        |compiler: &Compiler| Target::find(&compiler.target).is_ok_and(|usual| usual.family == target.family);
    let compiler = Compiler::built_in().into_iter().find(is_for)?;
    let other = match estimate(module, &compiler, target) {
        Ok(found) => format!("{} would need {} (`memplan estimate`)", compiler.name, found.total),
        Err(error) => format!("what {} would need is not known: {error}", compiler.name),
    };
    Some(format!("\nthis is with the kernels that {}'s file promises; {other}\n", target.name))
}

/// The compiler with a name.
pub(crate) fn compiler(name: &str) -> Result<Compiler, String> {
    Compiler::find(name).map_err(|error| error.to_string())
}
