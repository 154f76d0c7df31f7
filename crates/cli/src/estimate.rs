//! `memplan estimate`

mod compiled;

use clap::Args;
use memplan::advice::OneDevice;
use memplan::advice::beside::Beside;
use memplan::ir::Module;
use memplan::memory::{ByteRange, Bytes, Compiler, Target, Totals};
use memplan::{Estimate, estimate};
use serde::Serialize;

use crate::devices;
use crate::emit::PlannedModule;
use crate::failure::Failure;
use crate::holders::PeakOptions;
use crate::input::{Form, read_program, target};
use crate::needless::refuse;
use crate::options::{Format, ResultArgs};
use crate::report;
use crate::verdict::{fits, verdict_at_least};
use compiled::Compiled;

#[derive(Args)]
pub(crate) struct EstimateArgs {
    /// HLO text or protobuf as JAX hands it over, also `.gz`, or a folder of `--xla_dump_to`; `-` is standard input
    module: String,
    /// The compiler to estimate: xla-gpu, xla-cpu or xla-tpu in the newest version that memplan knows, or in that of a jaxlib:
    /// xla-gpu@0.10
    #[arg(long, value_parser = compiler)]
    compiler: Compiler,
    /// Machine that the compiler compiles for: a name from `memplan targets`, or a TOML file (default: the compiler's usual one)
    #[arg(long)]
    target: Option<String>,
    /// Explain the difference from XLA's own figure, given the scheduled module that XLA compiled from this one (HLO text
    /// or protobuf, also `.gz`), or a folder of `--xla_dump_to`, which also has XLA's buffer assignment
    #[arg(long, value_name = "XLA_MODULE|DUMP")]
    beside: Option<String>,
    #[command(flatten)]
    peak: PeakOptions,
    #[command(flatten)]
    result: ResultArgs,
}

/// What programs read.
#[derive(Serialize, schemars::JsonSchema)]
pub(crate) struct EstimateFile<'a> {
    module: &'a str,
    compiler: &'a str,
    target: &'a str,
    /// How many devices run the program, if it is more than one. All bytes are those of one device.
    #[serde(skip_serializing_if = "Option::is_none")]
    devices: Option<u64>,
    total: Bytes,
    /// Bytes between which the compiler's own figure falls for four programs of five.
    #[serde(flatten)]
    interval: Option<ByteRange>,
    seconds: f64,
    /// Bytes in the host's memory, which are not among the others.
    host: Bytes,
    totals: &'a Totals,
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<&'a Beside>,
}

pub(crate) fn run(args: &EstimateArgs) -> Result<(), Failure> {
    let compiler = &args.compiler;
    let target = machine_of(compiler, args.target.as_deref())?;
    args.result.check(&target)?;
    args.peak.check(args.result.format)?;
    if args.beside.is_some() {
        refuse(&args.peak.given(), "it is about one peak, and `--beside` compares two plans")?;
    }
    let machine = compiler.on(&target);
    let OneDevice { module, devices } = read_program(&args.module, Form::Given, &machine)?;
    let found = estimate(&module, compiler, &target).map_err(|error| Failure::input(&error))?;
    let mut program = PlannedModule::new(&found.module, &machine, &found.planned);
    program.devices = devices.count;
    args.result.emit.write(&program)?;
    let read = |path: &String| Compiled::read(path, &module.name, compiler, &target, found.code());
    let compiled = args.beside.as_ref().map(read).transpose()?;
    let beside = compiled.as_ref().map(|compiled| compiled.beside(&module, &found, &machine)).transpose()?;
    let text = match args.result.format {
        Format::Json => {
            let file = EstimateFile {
                module: &found.module.name,
                compiler: &compiler.name,
                target: &target.name,
                devices: devices.count,
                total: found.total,
                interval: found.interval,
                seconds: found.run.seconds,
                host: found.host(),
                totals: &found.totals,
                beside: beside.as_ref(),
            };
            serde_json::to_string_pretty(&file).expect("an estimate has only string keys") + "\n"
        }
        Format::Text => {
            let screen = args.result.screen();
            let report = match (&compiled, &beside) {
                (Some(compiled), Some(beside)) => compiled.text(beside, screen),
                _ => {
                    report::render(&found.module, &machine, &found.planned, &args.peak, screen)
                        + &devices::could_be_cut(&devices, found.total, screen)
                }
            };
            let expected =
                format!("expected of {}: {}\n", compiler.name_with_version(), compiler.description);
            let one = devices::line(&devices);
            let range = found.interval.map(|range| between(range, &found, compiler, &target));
            let lines = [Some(expected), Some(one), range.filter(|_| devices.of_whole.is_none())];
            lines.into_iter().flatten().map(|line| screen.wrap(&line)).collect::<String>() + &report
        }
    };
    args.result.write(text)?;
    let least = found.interval.map(|range| range.low);
    verdict_at_least(&found.module, &target, &found.planned, least, None, &devices)
}

/// Between which bytes the compiler's own figure is, and whether the machine's memory is among them.
fn between(range: ByteRange, found: &Estimate, compiler: &Compiler, target: &Target) -> String {
    let ByteRange { low, high } = range;
    let mut text = format!("four of five such programs with this estimate need between {low} and {high}\n");
    if let Some(most) = compiler.with_device {
        text.push_str(&format!(
            "on a device, the compiler tries kernels, and nine of ten programs need up to {most} times as much as without one\n"
        ));
    }
    if let (Ok(()), Err(usable)) = (fits(low, target), fits(high, target)) {
        let verb = if fits(found.total, target).is_ok() { "may not fit" } else { "may fit all the same" };
        text.push_str(&format!(
            "this program {verb}: {usable} are usable. To know, compile it with {}, or leave {} more\n",
            compiler.description.split(',').next().unwrap_or(&compiler.name),
            high.saturating_sub(usable),
        ));
    }
    text
}

/// What a compiler that people have needs for a program with its own kernels.
pub(crate) struct Usual {
    compiler: Compiler,
    needs: Result<Bytes, String>,
}

impl Usual {
    /// Asks the compiler that people have for that kind of machine; `None` where none is known.
    pub(crate) fn of(module: &Module, target: &Target) -> Option<Usual> {
        let compiler = Compiler::usual_for(target)?;
        let found = estimate(module, &compiler, target);
        Some(Usual { needs: found.map(|found| found.total).map_err(|error| error.to_string()), compiler })
    }
}

/// Whose kernels a compiled program needs, and what the usual compiler would need.
pub(crate) fn beside(usual: Option<&Usual>, target: &Target, compiled: &Totals) -> String {
    let other = usual.map(|Usual { compiler, needs }| match needs {
        Ok(total) => {
            let own = compiled.total.saturating_sub(compiled.constants);
            let ratio = total.0 as f64 / own.0.max(1) as f64;
            format!("; {} would need {total}, {ratio:.2} times as much (`memplan estimate`)", compiler.name)
        }
        Err(error) => format!("; what {} would need is not known: {error}", compiler.name),
    });
    format!("\nthis is with the kernels that {}'s file promises{}\n", target.name, other.unwrap_or_default())
}

/// The machine that a compiler compiles for: the one with a name, or its usual one.
///
/// # Errors
/// There is no such machine, or the compiler does not compile for it.
pub(crate) fn machine_of(compiler: &Compiler, name: Option<&str>) -> Result<Target, Failure> {
    let target = target(name.unwrap_or(&compiler.target))?;
    check_pair(compiler, &target)?;
    Ok(target)
}

/// Refuses a compiler for a machine that it does not compile for.
pub(crate) fn check_pair(compiler: &Compiler, target: &Target) -> Result<(), Failure> {
    if compiler.compiles_for(target) {
        return Ok(());
    }
    let other = Compiler::usual_for(target);
    let help = other.map(|other| format!("\n  help: `--compiler {}` does", other.name)).unwrap_or_default();
    Err(Failure::Usage(format!("error: {} does not compile for {}{help}", compiler.name, target.name)))
}

/// The compiler with a name.
pub(crate) fn compiler(name: &str) -> Result<Compiler, String> {
    Compiler::find(name).map_err(|error| error.to_string())
}
