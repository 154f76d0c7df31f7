//! `memplan compile`

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use memplan::advice::OneDevice;
use memplan::driver::{Point, frontier};
use memplan::ir::Module;
use memplan::memory::{Bytes, Target};
use memplan::plan::{AssignOptions, PlanOptions, Planned};
use memplan::{CompileOptions, Effort, Objective, compile};

use crate::check::proof_line;
use crate::devices;
use crate::emit::{Before, PlannedModule};
use crate::estimate::{Usual, beside};
use crate::failure::Failure;
use crate::frontier;
use crate::holders::PeakOptions;
use crate::input::{Form, read_program, target};
use crate::ipu_report;
use crate::needless::{given, refuse};
use crate::options::{Format, PackOptions, ResultArgs, parse_bytes};
use crate::pin::PinOptions;
use crate::plan::plan_module;
use crate::pool::{PoolOptions, paragraph};
use crate::progress;
use crate::report;
use crate::stages;
use crate::verdict::{beyond, fits, verdict};

#[derive(Args)]
pub(crate) struct CompileArgs {
    /// HLO text or protobuf, also `.gz`, or a folder of `--xla_dump_to`; `-` is standard input
    module: String,
    /// Machine to compile for: a name from `memplan targets`, or a TOML file
    #[arg(long)]
    target: String,
    /// Goal: `memory` is the fewest bytes, `time` the least time by the cost model, and `balanced` the fewest bytes
    /// among programs that are no slower than the fastest
    #[arg(long, default_value_t, value_parser = objective())]
    objective: Objective,
    /// Find the fastest program that needs at most this much, e.g. 16GiB; if none does, show the smallest and exit with
    /// status 3
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, allow_negative_numbers = true)]
    memory_limit: Option<Bytes>,
    /// How long to search: `quick` tries one schedule and one way to fuse, `thorough` plans every variant in full
    #[arg(long, default_value_t, value_parser = effort())]
    effort: Effort,
    /// List the possible programs, from fewest bytes to least time
    #[arg(long, conflicts_with = "emit")]
    frontier: bool,
    #[command(flatten)]
    result: ResultArgs,
    /// Show how long each stage took
    #[arg(long)]
    timings: bool,
    /// Explain for each producer and consumer why they were or were not fused
    #[arg(long)]
    explain_fusion: bool,
    /// Show the decisions of each stage: schedules tried, values recomputed, copies and their causes
    #[arg(long)]
    explain_stages: bool,
    #[command(flatten)]
    peak: PeakOptions,
    #[command(flatten)]
    pack: PackOptions,
    #[command(flatten)]
    pin: PinOptions,
    #[command(flatten)]
    pool: PoolOptions,
    #[command(flatten)]
    ipu: ipu_report::TileOptions,
}

pub(crate) fn run(args: &CompileArgs) -> Result<(), Failure> {
    let target = target(&args.target)?;
    args.check(&target)?;
    let OneDevice { mut module, devices } = read_program(&args.module, Form::Given, &target)?;
    let shows_before = args.result.emit.shows_before();
    let original = shows_before.then(|| module.clone());
    let bar = progress::spinner("compiling");
    let reports = args.result.format == Format::Text && !args.frontier;
    let options = args.effort.of(CompileOptions {
        objective: args.objective,
        memory_limit: args.memory_limit,
        watch: Some(progress::stages(&bar)),
        assign: AssignOptions {
            pins: args.pin.of_arguments(&module, &target)?,
            ..args.pack.assign_options()
        },
        measure_stages: reports,
        explain_fusion: args.explain_fusion,
        ..CompileOptions::default()
    });
    // While nothing else is in memory.
    let usual = reports.then(|| Usual::of(&module, &target)).flatten();
    if args.frontier {
        let points = frontier(&module, &target, &options).map_err(|error| Failure::input(&error));
        bar.finish_and_clear();
        return list(args, &module, &target, &points?);
    }
    let compiled = compile(&mut module, &target, &options).map_err(|error| Failure::input(&error));
    bar.finish_and_clear();
    let compiled = compiled?;
    let plan = &compiled.planned.plan;
    let tiles = ipu_report::plan(&args.ipu, &module, &target, &compiled.planned.facts)?;
    let mut program = PlannedModule::new(&module, &target, &compiled.planned);
    program.devices = devices.count;
    program.tiles = tiles.as_ref();
    let given = original.map(|original| as_given(original, &target));
    let given = given.transpose()?;
    program.before = given.as_ref().map(|(module, planned)| Before { module, planned });
    args.result.emit.write(&program)?;
    let placement = args.pool.placement(&target, plan);
    let text = match args.result.format {
        Format::Json => program.plan_json(),
        Format::Text => {
            let screen = args.result.screen();
            let mut text = screen.wrap(&devices::line(&devices));
            text.push_str(&stages::table(&compiled, args.timings));
            text.push('\n');
            text.push_str(&report::render(&module, &target, &compiled.planned, &args.peak, screen));
            text.push_str(&devices::could_be_cut(&devices, plan.totals.total, screen));
            text.push_str(&screen.wrap(&beside(usual.as_ref(), &target, &plan.totals)));
            text.extend(placement.iter().map(|placement| paragraph(placement, screen)));
            text.extend(tiles.as_ref().map(|tiles| ipu_report::render(&module, tiles)));
            text.push_str(&format!("\n{}", screen.wrap(&proof_line(&compiled.proof))));
            text.extend(args.explain_stages.then(|| stages::explain(&compiled)));
            text.extend(compiled.fusion().map(stages::explain_fusion));
            text
        }
    };
    args.result.write(text)?;
    verdict(&module, &target, &compiled.planned, args.memory_limit, &devices)?;
    args.pool.verdict(placement.as_ref(), args.memory_limit)?;
    let facts = &compiled.planned.facts;
    tiles.as_ref().map_or(Ok(()), |tiles| ipu_report::verdict(&args.ipu, &module, &target, facts, tiles))
}

fn effort() -> impl TypedValueParser<Value = Effort> {
    PossibleValuesParser::new(Effort::ALL.map(<&str>::from)).try_map(|name| name.parse::<Effort>())
}

fn objective() -> impl TypedValueParser<Value = Objective> {
    PossibleValuesParser::new(Objective::ALL.map(<&str>::from)).try_map(|name| name.parse::<Objective>())
}

impl CompileArgs {
    /// Rejects flags that have no effect, before any work is done.
    fn check(&self, target: &Target) -> Result<(), Failure> {
        self.result.check(target)?;
        self.pool.check(target)?;
        self.ipu.check(target)?;
        self.peak.check(self.result.format)?;
        let about_one_program = given([
            ("--timings", self.timings),
            ("--explain-fusion", self.explain_fusion),
            ("--explain-stages", self.explain_stages),
        ]);
        if self.result.format == Format::Json {
            refuse(
                &about_one_program,
                "it adds to the text report, and `--format json` writes only the plan file",
            )?;
        }
        if self.frontier {
            let because = "`--frontier` lists programs and shows none of them";
            refuse(&about_one_program, because)?;
            refuse(&self.pool.given(), because)?;
            refuse(&self.ipu.given(), because)?;
            refuse(&self.peak.given(), because)?;
        }
        Ok(())
    }
}

/// Lists the frontier instead of a program.
fn list(args: &CompileArgs, module: &Module, target: &Target, points: &[Point]) -> Result<(), Failure> {
    args.result.write(match args.result.format {
        Format::Json => frontier::json(module, target, points),
        Format::Text => frontier::render(module, target, points, args.result.screen()),
    })?;
    let Some(least) = points.first() else { return Ok(()) };
    fits(least.price.total, target).map_err(|available| {
        Failure::DoesNotFit(format!(
            "error: the smallest program needs {}",
            beyond(least.price.total, available)
        ))
    })
}

/// Plans the input program, to show it beside the compiled one.
fn as_given(mut module: Module, target: &Target) -> Result<(Module, Planned), Failure> {
    let (planned, _) = plan_module(&mut module, target, true, &PlanOptions::default())?;
    Ok((module, planned))
}
