//! `memplan pack`: buffers with lifetimes from a CSV file to offsets.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use memplan_pack::{Options, Packing, Status, table::Table};

/// Packs buffers with known lifetimes into as few bytes as possible, or into a given capacity.
///
/// PROBLEM is CSV with the header `id,lower,upper,size` and optionally `alignment` and `offset` (fixed);
/// a buffer is live in [lower, upper). The answer is the same table with an `offset` column.
#[derive(Debug, clap::Args)]
pub struct PackArgs {
    /// The problem; `-` is standard input.
    problem: PathBuf,
    /// Ask whether everything fits this many bytes, instead of for the lowest height.
    #[arg(long, value_name = "BYTES")]
    capacity: Option<u64>,
    /// Stop improving after this many seconds.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    time_limit: Duration,
    /// Write the table with offsets here instead of to standard output.
    #[arg(short, value_name = "OUT.csv")]
    output: Option<PathBuf>,
    /// `text`: the table, and figures on standard error; `json`: figures on standard output.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Runs the command and returns its exit status: 0 packed, 1 the input is wrong, 3 it does not fit (or
/// that was not decided in time).
pub fn run(args: &PackArgs) -> u8 {
    match pack(args) {
        Ok(packing) if packing.certificate.status == Status::Packed => 0,
        Ok(_) => 3,
        Err(message) => {
            eprintln!("error: {message}");
            1
        }
    }
}

fn pack(args: &PackArgs) -> Result<Packing, String> {
    let name = args.problem.display();
    let text = read(&args.problem).map_err(|error| format!("{name}: {error}"))?;
    let mut table = Table::parse(&text).map_err(|error| format!("{name}:{error}"))?;
    table.problem.capacity = args.capacity;
    let options = Options::within(args.time_limit);
    let packing = memplan_pack::pack(&table.problem, &options).map_err(|error| format!("{name}: {error}"))?;
    let is_packed = packing.certificate.status == Status::Packed;
    let report = packing.report();
    let rows = is_packed.then(|| table.with_offsets(&packing.offsets));
    let written = match (&args.output, rows) {
        (Some(path), Some(rows)) => write(path, rows.as_bytes()).map_err(|error| format!("{}: {error}", path.display())),
        (None, Some(rows)) if args.format == Format::Text => print(&rows),
        _ => Ok(()),
    };
    written?;
    match args.format {
        Format::Text => eprintln!("{report}"),
        Format::Json => print(&(serde_json::to_string_pretty(&report).expect("figures are valid JSON") + "\n"))?,
    }
    if let Some(capacity) = args.capacity.filter(|_| !is_packed) {
        let over = packing.height.saturating_sub(capacity);
        eprintln!("the best packing found is {over} bytes above the capacity of {capacity}");
    }
    Ok(packing)
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    if path != Path::new("-") {
        return std::fs::read(path);
    }
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text)?;
    Ok(text)
}

/// To a temporary file first: there is never half a file under the name.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path)?;
    Ok(())
}

fn print(text: &str) -> Result<(), String> {
    std::io::stdout().lock().write_all(text.as_bytes()).map_err(|error| format!("standard output: {error}"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| String::from("not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}
