//! `memplan run`

mod parts;

use std::fs::File;
use std::io::Cursor;

use clap::Args;
use memplan::advice;
use memplan::interp::{self, Devices, Options, npz};
use memplan::ir::{Instruction, Literal, Module, Op};
use memplan::memory::Target;
use memplan::passes::{Context, partition};
use memplan::plan::{AssignOptions, Pin, PlanOptions, Planned, plan};
use memplan::{CompileOptions, compile, legalize};

use crate::failure::Failure;
use crate::input::{Form, read_module, target};
use crate::needless::{given, refuse};
use crate::output::{say, write_result};
use crate::pin::PinOptions;
use crate::verdict::verdict;

#[derive(Args)]
pub(crate) struct RunArgs {
    /// HLO text or protobuf, also `.gz`, or a folder of `--xla_dump_to`; `-` is standard input
    module: String,
    /// Arrays p0, p1, ... for the leaves of the parameters, in order; bfloat16 as uint16 bits
    ///
    /// A module with replica_count or num_partitions runs on replicas times partitions devices; device r * partitions +
    /// p is partition p of replica r. An array of the parameter's shape goes to every device; an array with a leading
    /// dimension for the devices gives each its part. If shardings spread a module over devices, arrays are whole: each
    /// device gets its part of the inputs, and `run` puts the results together.
    #[arg(long, value_name = "IN.npz")]
    inputs: String,
    /// File for the arrays o0, o1, ... of the result
    ///
    /// With several devices, each array has a leading dimension for the devices.
    #[arg(long, value_name = "OUT.npz")]
    outputs: Option<String>,
    /// Also run inside the memory of a plan, watching every byte, and compare bit for bit
    #[arg(long)]
    arena: bool,
    /// Machine to plan for: a name from `memplan targets`, or a TOML file (default: cpu)
    #[arg(long)]
    target: Option<String>,
    /// Optimize first
    #[arg(long)]
    optimize: bool,
    #[command(flatten)]
    pin: PinOptions,
    /// Seed of the random numbers of `rng`
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

impl RunArgs {
    /// Rejects flags about a plan if there is none.
    fn check(&self) -> Result<(), Failure> {
        if !self.arena && !self.optimize {
            refuse(
                &given([("--target", self.target.is_some())]),
                "only `--arena` and `--optimize` use a machine",
            )?;
        }
        if !self.arena {
            refuse(&self.pin.given(), "only `--arena` makes a plan")?;
        }
        Ok(())
    }
}

pub(crate) fn run(args: &RunArgs) -> Result<(), Failure> {
    args.check()?;
    let target = target(args.target.as_deref().unwrap_or("cpu"))?;
    let module = read_module(&args.module, Form::Given)?;
    let file = File::open(&args.inputs)
        .map_err(|error| Failure::Input(format!("error: cannot read `{}`: {error}", args.inputs)))?;
    let of_one = partition(&module, &Context { target: &target }).map_err(|error| Failure::input(&error))?;
    let devices = of_one.as_ref().map_or_else(|| Devices::of(&module), |of_one| Devices::of(&of_one.module));
    let options = Options { seed: args.seed, ..Options::default() };
    let wrong = |error| Failure::Input(format!("error: `{}`: {error}", args.inputs));
    let inputs = match &of_one {
        Some(of_one) => {
            let whole = npz::read_inputs(&module, file).map_err(wrong)?;
            parts::of_inputs(of_one, &of_one.module, &whole)
        }
        None => npz::read_inputs_on(&module, devices.count(), file).map_err(wrong)?,
    };
    warn_of_elided_constants(&module);
    let of_device = of_one.as_ref().map_or(&module, |of_one| &of_one.module);
    let whole = of_one.as_ref().map(|of_one| (of_one, &module));
    let mut local = interp::with_meaningful_layouts(of_device).into_owned();
    let pins = args.pin.find(&local, &target)?;
    if args.optimize {
        // The plan is made below, with the working memory of the kernels.
        let assign =
            AssignOptions { pins: args.pin.of_arguments(&local, &target)?, ..AssignOptions::default() };
        let options = CompileOptions { assign, ..CompileOptions::default() };
        compile(&mut local, &target, &options).map_err(|error| Failure::input(&error))?;
    }
    let results = interp::evaluate_on(&local, devices, &inputs, &options);
    let results = results.map_err(|error| Failure::input(&error))?;
    let planned = args.arena.then(|| plan_to_run(&mut local, &target, pins)).transpose()?;
    if let Some(planned) = &planned
        && in_arena(&local, planned, devices, &inputs, &options)? != results
    {
        let text =
            "error: the program computes different numbers inside its arena than with separate buffers";
        return Err(Failure::Refuted(text.to_string()));
    }
    if let Some(path) = &args.outputs {
        match whole {
            Some((of_one, whole)) => write(path, &[parts::put_together(of_one, whole, &results)])?,
            None => write(path, &results)?,
        }
    }
    planned.map_or(Ok(()), |planned| verdict(&local, &target, &planned, None, &advice::Devices::default()))
}

/// Text may omit the elements of constants, `constant({...})`. The results are then right for the module as XLA's
/// parser fills it in, but not for the original program.
fn warn_of_elided_constants(module: &Module) {
    let is_elided = |instruction: &&Instruction| matches!(&instruction.op, Op::Constant(c) if c.is_elided());
    let mut elided = module.instructions.values().filter(is_elided);
    let Some(first) = elided.next() else { return };
    let others = match elided.count() {
        0 => String::new(),
        n => format!(" and of {n} more"),
    };
    say(&format!(
        "warning: the elements of constant `{}`{others} are not in the module (`{{...}}`): the results are not those of \
         the program that it was printed from",
        first.name
    ));
}

/// Plans the module with the working memory of the evaluator's kernels.
fn plan_to_run(module: &mut Module, target: &Target, pins: Vec<Pin>) -> Result<Planned, Failure> {
    legalize(module, target).map_err(|error| Failure::input(&error))?;
    let assign = AssignOptions { scratch: interp::scratch(module), pins, ..AssignOptions::default() };
    let options = PlanOptions { assign, ..PlanOptions::default() };
    plan(module, target, &options).map_err(|error| Failure::input(&error))
}

/// Runs the module inside its plan.
fn in_arena(
    module: &Module,
    planned: &Planned,
    devices: Devices,
    inputs: &[Vec<Literal>],
    options: &Options,
) -> Result<Vec<Literal>, Failure> {
    interp::run_in_arena_on(module, &planned.schedule, &planned.plan, devices, inputs, options)
        .map_err(|error| Failure::Refuted(format!("error: {error}")))
}

/// Builds the whole archive before writing any of it.
fn write(path: &str, results: &[Literal]) -> Result<(), Failure> {
    let mut archive = Cursor::new(Vec::new());
    npz::write_outputs_of(results, &mut archive)
        .map_err(|error| Failure::Input(format!("error: cannot write `{path}`: {error}")))?;
    write_result(Some(path), archive.into_inner())
}
