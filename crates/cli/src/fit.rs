//! `memplan fit`

use clap::{Args, ColorChoice};
use comfy_table::CellAlignment;
use memplan::advice::Devices;
use memplan::advice::fit::{Code, Fit, FitOptions, MeshAdvice, Padded, PaddingRemedy, Suggestion, fit};
use memplan::codegen::view::{Row, Table};
use memplan::estimate;
use memplan::ir::Module;
use memplan::memory::{Bytes, Compiler, MemorySpaceId, RemedyKind, Target};

use crate::argument_dimension::ArgumentDimension;
use crate::devices;
use crate::emit::{AdviceArgs, AdviceKind, Shown, page_of_two};
use crate::estimate::{check_pair, compiler};
use crate::failure::Failure;
use crate::input::{Form, read_module, target};
use crate::needless::refuse;
use crate::options::{Format, parse_bytes};
use crate::output::write_result;
use crate::pool::PoolOptions;
use crate::progress;
use crate::report::count;
use crate::screen::Screen;
use crate::time::change_in_percent;

#[derive(Args)]
pub(crate) struct FitArgs {
    /// HLO text or protobuf from JAX, also `.gz`, or a folder of `--xla_dump_to`; `-` is standard input
    module: String,
    /// Machine: a name from `memplan targets`, or a TOML file
    #[arg(long)]
    target: String,
    /// Bytes that one device may use, e.g. 12GiB (default: the memory of the machine; on GPUs, that of the process's
    /// pool)
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    memory_limit: Option<Bytes>,
    /// The compiler that will compile the program: xla-gpu, xla-cpu or xla-tpu (default: the one for the machine)
    #[arg(long, value_parser = compiler)]
    compiler: Option<Compiler>,
    /// The dimension that counts examples, as PARAMETER:DIMENSION, both from 0 (default: found automatically)
    #[arg(long, value_name = "DIMENSION", default_value = "batch")]
    batch: ArgumentDimension,
    /// Numbers of devices to try; without 1 among them, only programs that are spread over devices are tried
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2, 4, 8])]
    devices: Vec<i64>,
    #[command(flatten)]
    pool: PoolOptions,
    /// Write text for people, or JSON for programs
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    #[command(flatten)]
    emit: AdviceArgs,
    /// File to write the result to (default: standard output)
    #[arg(short, value_name = "FILE")]
    output: Option<String>,
    /// When to use colors; `auto` uses them on a terminal that has them, unless `NO_COLOR` is set
    #[arg(long, value_name = "WHEN", default_value_t = ColorChoice::Auto)]
    color: ColorChoice,
}

pub(crate) fn run(args: &FitArgs) -> Result<(), Failure> {
    args.emit.check(args.output.as_deref())?;
    let target = target(&args.target)?;
    let compiler = args.compiler.clone().or_else(|| Compiler::usual_for(&target)).ok_or_else(|| {
        Failure::Usage(format!(
            "error: memplan knows no compiler for {}; name one with `--compiler`",
            target.name
        ))
    })?;
    check_pair(&compiler, &target)?;
    args.pool.check(&target)?;
    if args.memory_limit.is_some() {
        refuse(&args.pool.given(), "`--memory-limit` already sets the memory")?;
    }
    let pool = args.pool.settings(&target).filter(|_| args.memory_limit.is_none());
    let space = target.space(MemorySpaceId::MAIN);
    let usable = space.and_then(|space| match &pool {
        Some(pool) => space.capacity.map(|device| pool.limit(device)),
        None => space.usable(),
    });
    let limit = args.memory_limit.or(usable).ok_or_else(|| {
        Failure::Usage(format!(
            "error: the file of {} gives no capacity; set one with `--memory-limit`",
            target.name
        ))
    })?;
    let module = read_module(&args.module, Form::Given)?;
    let options = FitOptions {
        limit,
        pool,
        batch: args.batch.named(),
        devices: args.devices.clone(),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
    };
    let bar = progress::spinner("trying changes");
    let found = fit(&module, &compiler, &target, &options);
    bar.finish_and_clear();
    let found = found.map_err(|error| Failure::input(&error))?;
    args.emit.write(|kind| match kind {
        AdviceKind::Page => page(&module, &compiler, &target, &found),
        AdviceKind::Policy => Ok(python(&module.name, &target, &found)),
    })?;
    let text = match args.format {
        Format::Json => serde_json::to_string_pretty(&found).expect("advice has only string keys") + "\n",
        Format::Text => {
            render(&module.name, &target, &compiler, &found, Screen::of(args.output.as_deref(), args.color))
        }
    };
    write_result(args.output.as_deref(), text)?;
    match found.best.fits {
        true => Ok(()),
        false => Err(Failure::DoesNotFit(format!(
            "error: no set of changes fits {limit}: the smallest needs {}, {} too much",
            found.best.total,
            found.best.total.saturating_sub(limit)
        ))),
    }
}

/// Shows the program's needs, the changes that make it fit, and everything that was tried.
fn render(name: &str, target: &Target, compiler: &Compiler, fit: &Fit, screen: Screen) -> String {
    let verdict = match fit.fits {
        true => screen.good("fits unchanged"),
        false => screen.bad(&format!("{} too much", fit.total.saturating_sub(fit.limit))),
    };
    let one = devices::line(&Devices { count: fit.devices, ..Devices::default() });
    let mut text = screen.wrap(&format!(
        "{one}{name} on {}: {} with {} (estimated), {} a step, {} available: {verdict}\n",
        target.name,
        fit.total,
        compiler.name,
        time(fit.seconds),
        fit.limit
    ));
    if let Some(batch) = &fit.batch {
        text += &format!(
            "the batch is {}: dimension {} of argument {}\n",
            batch.extent, batch.dimension, batch.parameter
        );
    }
    if !fit.fits {
        let heading = match fit.best.fits {
            true => "Changes that make it fit",
            false => "Nothing makes it fit; these changes need the fewest bytes",
        };
        text += &format!("\n{}\n\n{}\n", screen.heading(heading), table(fit, &fit.best.changes, screen));
        for (i, change) in fit.best.changes.iter().enumerate() {
            text += &screen.wrap(&format!("\n {}. {}\n", i + 1, change.apply));
        }
    }
    text += &format!("\n{}\n\n{}\n", screen.heading("Each change alone"), table(fit, &fit.changes, screen));
    text += &padded(fit, screen);
    text += &devices::list(&fit.replicated.iter().collect::<Vec<_>>(), screen);
    if let Some(process) = &fit.process {
        text += &screen.wrap(&format!("\n{process}\n"));
    }
    for refused in &fit.refused {
        text += &screen.wrap(&format!("\nnot tried: {refused}\n"));
    }
    text += &screen.wrap(
        "\nbytes of one device and seconds of one step, by memplan's estimate of the compiler; gradients of micro-batches and transfers that nothing hides are added to it\n",
    );
    text
}

/// Lists shapes that layouts pad, and shapes with less padding.
fn padded(fit: &Fit, screen: Screen) -> String {
    if fit.padded.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{}\n\n", screen.heading("Padding at the peak of the unchanged program"));
    for Padded { shape, count: n, operation, source, size, lost, remedies } in &fit.padded {
        let line = source.as_ref().map(|source| format!(" at {source}")).unwrap_or_default();
        let arrays = count(*n, "array");
        text += &screen
            .wrap(&format!(" {:>10} of {size}: {arrays} {shape}, `{operation}`{line}\n", lost.to_string()));
        for remedy in remedies.iter().take(MOST_REMEDIES) {
            text += &screen.wrap(&format!("             {}\n", cure(remedy)));
        }
    }
    text
}

/// The most remedies to list per shape.
const MOST_REMEDIES: usize = 2;

fn cure(PaddingRemedy { kind, dimensions, shape, size }: &PaddingRemedy) -> String {
    let extents: Vec<String> =
        dimensions.iter().map(|(d, from, to)| format!("dimension {d} from {from} to {to}")).collect();
    match kind {
        RemedyKind::Order => format!("{size} with dimensions in another order: {shape}"),
        RemedyKind::Flatten => format!("{size} flattened: {shape}"),
        RemedyKind::RoundDown => format!("{size} if rounded down: {}", extents.join(", ")),
        RemedyKind::RoundUp => format!("{size}, unchanged, if rounded up: {}", extents.join(", ")),
    }
}

/// A page of the compiler's estimates for the program as it is, and with the best changes.
fn page(module: &Module, compiler: &Compiler, target: &Target, fit: &Fit) -> Result<String, Failure> {
    let expected = |module| estimate(module, compiler, target).map_err(|error| Failure::input(&error));
    let (before, after) = (expected(module)?, expected(&fit.best.module)?);
    let table = |title: &str, changes: &[Suggestion]| Table {
        title: title.to_string(),
        columns: COLUMNS.map(str::to_string).to_vec(),
        rows: changes
            .iter()
            .map(|change| Row { cells: cells(fit, change).to_vec(), query: String::new() })
            .collect(),
    };
    let mut tables =
        vec![table("changes that make it fit", &fit.best.changes), table("each change alone", &fit.changes)];
    tables.retain(|table| !table.rows.is_empty());
    let shown = |name, (module, planned)| Shown { name, module, target, planned };
    let before = shown("unchanged", (&before.module, &before.planned));
    Ok(page_of_two(before, shown("with these changes", (&after.module, &after.planned)), &tables))
}

/// The best changes as a module of Python: checkpoints and micro-batches as functions, others as comments.
fn python(name: &str, target: &Target, fit: &Fit) -> String {
    let Fit { total, best, .. } = fit;
    let changes = if fit.fits && best.changes.is_empty() { "without a change" } else { "with these changes" };
    let mut text = format!(
        "\"\"\"Changes of `{name}` for {}, by `memplan fit`.\n\nXLA is expected to need {total} as it is, and {} {changes}.\n\"\"\"\n\nimport jax\n",
        target.name, best.total
    );
    for (i, change) in (1..).zip(&best.changes) {
        text += &format!("\n# {i}. {}\n#    {}\n", change.what, change.apply);
        match &change.code {
            Some(Code::Policy(policy)) => text += &CHECKPOINT.replace("POLICY", policy),
            Some(Code::MicroBatches(count)) => text += &MICRO_BATCHES.replace("COUNT", &count.to_string()),
            None => {}
        }
        text.extend(change.mesh.as_ref().map(mesh));
    }
    text
}

/// A mesh and specs as values.
fn mesh(advice: &MeshAdvice) -> String {
    let specs: String = advice
        .arguments
        .iter()
        .map(|argument| format!("    {:?}: {},\n", argument.argument, argument.text()))
        .collect();
    format!(
        "\nmesh = {}\nP = jax.sharding.PartitionSpec\n#: By the names of arguments; results that replace them have the same.\n\
         specs = {{\n{specs}}}\n",
        advice.make_mesh()
    )
}

/// A checkpoint as a function.
const CHECKPOINT: &str = r#"
policy = POLICY


def checkpoint(fun):
    """`fun`, which computes again in the backward half what the policy does not save."""
    return jax.checkpoint(fun, policy=policy)

"#;

/// Micro-batches as a function.
const MICRO_BATCHES: &str = r#"

def value_and_grad(loss, parts=COUNT):
    """As `jax.value_and_grad(loss)` of `loss(parameters, *batch)`, a mean over examples, in parts of the batch."""

    def in_parts(parameters, *batch):
        def step(sums, part):
            return jax.tree.map(lambda a, b: a + b, sums, jax.value_and_grad(loss)(parameters, *part)), None

        cut = jax.tree.map(lambda x: x.reshape(parts, x.shape[0] // parts, *x.shape[1:]), batch)
        first = jax.tree.map(lambda x: x[0], cut)
        shapes = jax.eval_shape(jax.value_and_grad(loss), parameters, *first)
        sums, _ = jax.lax.scan(step, jax.tree.map(lambda s: jax.numpy.zeros(s.shape, s.dtype), shapes), cut)
        return jax.tree.map(lambda s: s / parts, sums)

    return in_parts

"#;

const COLUMNS: [&str; 6] = ["lever", "memory", "", "a step", "", "what"];

fn cells(fit: &Fit, change: &Suggestion) -> [String; 6] {
    [
        change.lever.to_string(),
        change.total.to_string(),
        change_in_percent(fit.total.0 as f64, change.total.0 as f64),
        time(change.seconds),
        change_in_percent(fit.seconds, change.seconds),
        format!("{}{}", if change.fits { "fits: " } else { "" }, change.what),
    ]
}

fn table(fit: &Fit, changes: &[Suggestion], screen: Screen) -> String {
    let mut table = screen.table();
    table.set_header(COLUMNS);
    for change in changes {
        table.add_row(cells(fit, change));
    }
    for column in 1..5 {
        table.column_mut(column).expect("six columns").set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

fn time(seconds: f64) -> String {
    format!("{:.3} ms", seconds * 1e3)
}
