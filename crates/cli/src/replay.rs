//! `memplan replay`

use clap::{Args, ColorChoice, ValueEnum};
use comfy_table::{CellAlignment, ColumnConstraint};
use memplan::advice::OneDevice;
use memplan::memory::{Bytes, Target};
use memplan::plan::{PlanOptions, plan};
use memplan::pool::bfc::{Bfc, Growth, Options};
use memplan::pool::process::MemoryFraction;
use memplan::pool::replay::{Outcome, Platform, RETRY_TIME, Replay, replay, smallest_pool};
use memplan::pool::trace::{Event, Trace};
use memplan::pool::{End, Sample};
use memplan::{legalize, trace_of_plan};

use crate::defragment::{self, Defragmentation, Wish, defragment};
use crate::failure::Failure;
use crate::input::{Form, read, read_program, render_at, target};
use crate::needless::{given, refuse};
use crate::options::{Format, PackOptions, parse_bytes, parse_fraction};
use crate::output::{distinct, write_result};
use crate::picture;
use crate::screen::Screen;

#[derive(Args)]
pub(crate) struct ReplayArgs {
    /// A trace: CSV with `event` (alloc, free, sync), `id`, `size` and optionally `alignment`, `tag` and `time`; or,
    /// with --target, a module: each of its values is allocated and freed as it is needed. `-` is standard input
    input: String,
    /// Plan a module for this machine and replay it
    #[arg(long)]
    target: Option<String>,
    /// Allocator that serves the requests
    #[arg(long, value_enum, default_value_t)]
    allocator: AllocatorChoice,
    /// Size of the pool; without it, a share of the target's memory
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, allow_negative_numbers = true)]
    limit: Option<Bytes>,
    /// Share of the target's memory that the pool may use (default 0.75)
    #[arg(long, value_name = "FRACTION", allow_negative_numbers = true)]
    memory_fraction: Option<MemoryFraction>,
    /// Allocate memory when it is needed, in regions of doubling sizes, instead of all at once
    #[arg(long)]
    growth: bool,
    /// Allocate requests tagged `collective` from the lower end of the pool, all others from the upper end
    #[arg(long, conflicts_with = "growth")]
    two_ended: bool,
    /// Return unused regions to the device before a request fails
    #[arg(long)]
    release_regions: bool,
    /// Let requests that do not fit wait up to 10 seconds of the trace's time
    #[arg(long)]
    retry: bool,
    /// Merge a freed chunk with its neighbors only when the device has reached the next `sync` event of the trace. Chunks
    /// without a later `sync` are merged only when a request would fail otherwise
    #[arg(long)]
    timestamps: bool,
    /// Split a chunk whenever this share of the pool would be left over, however large the request is (default: 128 MiB)
    #[arg(long, value_name = "FRACTION", value_parser = parse_fraction)]
    fragmentation_fraction: Option<f64>,
    /// After this event, counted from 0, list the moves that join all free bytes into one hole
    #[arg(long, value_name = "EVENT", conflicts_with_all = ["growth", "two_ended"])]
    defragment_at: Option<usize>,
    /// Make only a hole of at least this size
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, allow_negative_numbers = true, requires = "defragment_at")]
    hole: Option<Bytes>,
    /// Copy in pieces that do not overlap their source
    #[arg(long, requires = "defragment_at")]
    no_overlap: bool,
    /// Also write the replayed trace as CSV
    #[arg(long, value_name = "FILE")]
    trace: Option<String>,
    /// Write text for people, or JSON for programs
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// File to write the result to (default: standard output)
    #[arg(short, value_name = "FILE")]
    output: Option<String>,
    #[command(flatten)]
    pack: PackOptions,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum AllocatorChoice {
    /// XLA's pool: best fit with coalescing
    #[default]
    Bfc,
    /// The platform's own allocator, without a pool
    Platform,
}

/// The input of a replay.
struct Subject {
    name: String,
    trace: Trace,
    /// Bytes of the same program when planned: everything but constants, in main memory.
    planned: Option<Bytes>,
}

impl ReplayArgs {
    /// Rejects flags that have no effect for this input or allocator.
    fn check(&self) -> Result<(), Failure> {
        let fraction = given([("--memory-fraction", self.memory_fraction.is_some())]);
        if self.limit.is_some() {
            refuse(&fraction, "`--limit` already sets the size of the pool")?;
        }
        if self.target.is_none() {
            refuse(&fraction, "it is a share of a target's memory; name one with `--target`")?;
            refuse(&self.pack.given(), "a trace is not planned; with `--target` the input is a module")?;
        }
        if self.allocator == AllocatorChoice::Platform {
            let of_pools = given([
                ("--growth", self.growth),
                ("--two-ended", self.two_ended),
                ("--release-regions", self.release_regions),
                ("--timestamps", self.timestamps),
                ("--fragmentation-fraction", self.fragmentation_fraction.is_some()),
                ("--defragment-at", self.defragment_at.is_some()),
            ]);
            refuse(&of_pools, "it configures a pool, and `--allocator platform` has none")?;
        }
        Ok(())
    }
}

pub(crate) fn run(args: &ReplayArgs) -> Result<(), Failure> {
    args.check()?;
    if let Some(path) = &args.trace {
        distinct([Some(path.as_str()), args.output.as_deref()])?;
    }
    let target = args.target.as_deref().map(target).transpose()?;
    let subject = match &target {
        Some(target) => of_module(args, target)?,
        None => of_trace(&args.input)?,
    };
    if let Some(path) = &args.trace {
        write_result(Some(path), subject.trace.to_csv())?;
    }
    let options = options(args, target.as_ref())?;
    let patience = args.retry.then_some(RETRY_TIME);
    let mut pool = Bfc::new(options);
    let result = match args.allocator {
        AllocatorChoice::Bfc => replay(&mut pool, &subject.trace, patience),
        AllocatorChoice::Platform => replay(&mut Platform::new(options.limit), &subject.trace, patience),
    };
    let figures = Figures::new(args, &subject, options, result);
    let wish = |event| Wish { event, hole: args.hole, allow_overlap: !args.no_overlap };
    let defragmentation =
        args.defragment_at.map(|event| defragment(&subject.trace, options, &wish(event))).transpose()?;
    let text = match args.format {
        Format::Text => {
            let screen = Screen::of(args.output.as_deref(), ColorChoice::Auto);
            let text = figures.text(&pool, screen) + &defragmentation.map_or_else(String::new, |d| d.text());
            screen.wrap(&text)
        }
        Format::Json => {
            let document = figures.document(defragmentation.as_ref());
            serde_json::to_string_pretty(&document).expect("keys of figures are strings") + "\n"
        }
    };
    write_result(args.output.as_deref(), text)?;
    match figures.result.failures() {
        0 => Ok(()),
        _ => Err(Failure::DoesNotFit(figures.shortage())),
    }
}

fn of_trace(path: &str) -> Result<Subject, Failure> {
    let text = read(path)?;
    let trace = Trace::parse(&text)
        .map_err(|error| Failure::Input(render_at(error.line, error.column, &error.kind, path, &text)))?;
    Ok(Subject { name: path.to_string(), trace, planned: None })
}

fn of_module(args: &ReplayArgs, target: &Target) -> Result<Subject, Failure> {
    let OneDevice { mut module, .. } = read_program(&args.input, Form::Compiled, target)?;
    legalize(&mut module, target).map_err(|error| Failure::input(&error))?;
    let options = PlanOptions { assign: args.pack.assign_options(), ..PlanOptions::default() };
    let planned = plan(&module, target, &options).map_err(|error| Failure::input(&error))?;
    let totals = &planned.plan.totals;
    Ok(Subject {
        name: format!("{} on {}", module.name, target.name),
        trace: trace_of_plan(&module, &planned),
        planned: Some(totals.total.saturating_sub(totals.constants)),
    })
}

fn options(args: &ReplayArgs, target: Option<&Target>) -> Result<Options, Failure> {
    let share =
        |target: &Target| Some(args.memory_fraction.unwrap_or_default().of(target.spaces[0].capacity?));
    let limit = args.limit.or_else(|| target.and_then(share)).ok_or_else(|| {
        Failure::Usage(
            "the size of the pool is missing: give --limit, or a --target with a capacity".to_string(),
        )
    })?;
    Ok(Options {
        growth: if args.growth { Growth::Doubling } else { Growth::Never },
        two_ended: args.two_ended,
        release_regions: args.release_regions,
        timestamps: args.timestamps,
        fragmentation_fraction: args.fragmentation_fraction.unwrap_or_default(),
        ..Options::preallocated(limit)
    })
}

/// What `--format json` writes. Sizes are in bytes.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Document<'a> {
    /// Each request of the trace.
    allocations: Vec<Request<'a>>,
    /// With `--defragment-at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    defragmentation: Option<defragment::Document<'a>>,
    /// Requests that were not served.
    failures: usize,
    /// The size of the pool.
    limit: Bytes,
    /// The most of each, over the trace.
    peak: Peak,
    /// What the same program needs planned, arguments and results included; null for traces.
    planned: Option<Bytes>,
    /// The pool after each event.
    samples: Vec<Moment>,
    /// The smallest pool that serves everything, if that was asked of one that can tell.
    smallest_pool: Option<Bytes>,
    /// The trace, or the program and its target.
    subject: &'a str,
    /// Requests that were served only after others were freed.
    waits: usize,
    /// The largest share of free bytes outside of the largest hole.
    worst_fragmentation: f64,
}

#[derive(serde::Serialize, schemars::JsonSchema)]
struct Peak {
    /// With what rounding and splitting lose.
    in_use: Bytes,
    /// What programs asked for.
    requested: Bytes,
    /// What the pool took from the device.
    reserved: Bytes,
}

#[derive(serde::Serialize, schemars::JsonSchema)]
struct Request<'a> {
    /// Where it was served.
    address: Option<u64>,
    alignment: u64,
    /// The end of the pool that it is taken from: `lower`, `upper`.
    end: &'static str,
    id: &'a str,
    size: Bytes,
    /// `served`, `empty` (of no bytes), `failed`.
    status: &'static str,
}

#[derive(serde::Serialize, schemars::JsonSchema)]
struct Moment {
    /// The share of free bytes outside of the largest hole.
    fragmentation: f64,
    in_use: Bytes,
    largest_free: Bytes,
    requested: Bytes,
    reserved: Bytes,
}

/// The figures of one replay.
struct Figures<'a> {
    subject: &'a Subject,
    options: Options,
    result: Replay,
    /// The smallest pool that serves everything.
    smallest: Option<Bytes>,
}

impl Figures<'_> {
    fn new<'a>(args: &ReplayArgs, subject: &'a Subject, options: Options, result: Replay) -> Figures<'a> {
        let is_pool = args.allocator == AllocatorChoice::Bfc && result.failures() == 0;
        let smallest = if is_pool { smallest_pool(&subject.trace, options) } else { None };
        Figures { subject, options, result, smallest }
    }

    fn peaks(&self) -> [(&'static str, Bytes, &'static str); 4] {
        let peak = |figure: fn(&Sample) -> Bytes| self.result.peak(figure).1;
        [
            ("requested", peak(|sample| sample.requested), "most bytes live at once"),
            ("in use", peak(|sample| sample.in_use), "the same, with losses to rounding and splitting"),
            ("held", peak(|sample| sample.reserved), "allocated from the device"),
            ("needed", self.smallest.unwrap_or_default(), "the smallest pool that serves every request"),
        ]
    }

    fn worst_fragmentation(&self) -> (usize, f64) {
        let shares = self.result.samples.iter().map(Sample::fragmentation).enumerate();
        shares.fold((0, 0.0), |worst, next| if next.1 > worst.1 { next } else { worst })
    }

    fn text(&self, pool: &Bfc, screen: Screen) -> String {
        let (events, trace) = (self.result.samples.len(), &self.subject.trace);
        let mut text = format!(
            "{}: {} requests in {events} events, a pool of {}\n\n",
            self.subject.name,
            trace.allocations().len(),
            self.options.limit,
        );
        let mut table = screen.table();
        for (name, bytes, note) in self.peaks().into_iter().filter(|&(_, bytes, _)| bytes > Bytes::ZERO) {
            table.add_row([name.to_string(), bytes.to_string(), format!("{bytes:#}"), note.to_string()]);
        }
        if let Some(planned) = self.subject.planned {
            let note = "the same program planned, in one arena, with arguments and results";
            table.add_row(["planned".into(), planned.to_string(), format!("{planned:#}"), note.to_string()]);
        }
        for column in table.column_iter_mut().skip(1).take(2) {
            column.set_cell_alignment(CellAlignment::Right);
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
        text.push_str(&format!("{}\n\n", table.trim_fmt()));
        if let (Some(planned), Some(smallest)) = (self.subject.planned, self.smallest)
            && planned > Bytes::ZERO
        {
            let extra = 100.0 * (smallest.0 as f64 / planned.0 as f64 - 1.0);
            let than = if extra < 0.0 { "less" } else { "more" };
            let extra = extra.abs();
            text.push_str(&format!("dynamic allocation needs {extra:.2} % {than} than the plan\n"));
        }
        let (event, worst) = self.worst_fragmentation();
        text.push_str(&format!(
            "{} did not fit, {} had to wait; at worst {:.1} % of the free bytes are outside the largest hole, after event {event}\n",
            self.result.failures(),
            self.result.waits(trace),
            100.0 * worst,
        ));
        let in_use: Vec<Bytes> = self.result.samples.iter().map(|sample| sample.in_use).collect();
        let peak = self.result.peak(|sample| sample.in_use).0;
        text.push_str(
            "\nbytes in use over the trace; below, the share of free bytes outside the largest hole\n\n",
        );
        text.push_str(&picture::draw_of(&in_use, peak, "event", screen));
        let shares: Vec<f64> = self.result.samples.iter().map(Sample::fragmentation).collect();
        text.push_str(&format!("{:>12}  {}\n", "in pieces", picture::line(&shares, screen)));
        let strip = pool.strip();
        if !strip.is_empty() {
            let legend = "the pool at the end: _ free, * in use, x lost to rounding and splitting";
            let rows = if strip.len() + 2 > screen.width { 2 } else { 1 };
            let row = |row: &[u8]| String::from_utf8_lossy(row).into_owned();
            let strip: Vec<String> = strip.as_bytes().chunks(strip.len().div_ceil(rows)).map(row).collect();
            text.push_str(&format!("\n{legend}\n[{}]\n", strip.join("\n ")));
        }
        text
    }

    fn document<'d>(&'d self, defragmentation: Option<&'d Defragmentation<'_>>) -> Document<'d> {
        let [asked_for, in_use, held, needed] = self.peaks().map(|(_, bytes, _)| bytes);
        let samples = self.result.samples.iter().map(|sample| Moment {
            fragmentation: sample.fragmentation(),
            in_use: sample.in_use,
            largest_free: sample.largest_free,
            requested: sample.requested,
            reserved: sample.reserved,
        });
        let allocations = self.subject.trace.allocations().iter().zip(&self.result.outcomes);
        let allocations = allocations.map(|(allocation, outcome)| {
            let (status, address) = match *outcome {
                Outcome::Served { address, .. } => ("served", Some(address)),
                Outcome::Empty => ("empty", None),
                Outcome::Failed => ("failed", None),
            };
            let request = allocation.request;
            Request {
                address,
                alignment: request.alignment.bytes(),
                end: if request.end == End::Lower { "lower" } else { "upper" },
                id: &allocation.name,
                size: request.bytes,
                status,
            }
        });
        Document {
            allocations: allocations.collect(),
            defragmentation: defragmentation.map(|it| it.document()),
            failures: self.result.failures(),
            limit: self.options.limit,
            peak: Peak { in_use, requested: asked_for, reserved: held },
            planned: self.subject.planned,
            samples: samples.collect(),
            smallest_pool: self.smallest.map(|_| needed),
            subject: &self.subject.name,
            waits: self.result.waits(&self.subject.trace),
            worst_fragmentation: self.worst_fragmentation().1,
        }
    }

    /// Describes the first request that did not fit, and the pool at that moment.
    fn shortage(&self) -> String {
        let trace = &self.subject.trace;
        let failed = trace.events().iter().enumerate().find_map(|(event, timed)| match timed.event {
            Event::Allocate(index) if self.result.outcomes[index.0] == Outcome::Failed => {
                Some((event, index))
            }
            _ => None,
        });
        let (event, index) = failed.expect("there is a failure to tell of");
        let sample = self.result.samples[event];
        format!(
            "error: {} of {} requests did not fit\n  event {event}, `{}`, asks for {}; the pool of {} has {} in use and \
             {} free, {} in one piece",
            self.result.failures(),
            trace.allocations().len(),
            trace[index].name,
            trace[index].request.bytes,
            self.options.limit,
            sample.in_use,
            sample.free(),
            sample.largest_free,
        )
    }
}
