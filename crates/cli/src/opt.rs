//! `memplan opt`

use clap::Args;
use memplan::{hlo, passes};

use crate::failure::Failure;
use crate::input::{read_module, target};
use crate::output::write_result;

#[derive(Args)]
pub(crate) struct OptArgs {
    /// HLO text or protobuf; `-` is standard input
    module: String,
    /// Passes to run, in order
    #[arg(long, value_delimiter = ',')]
    passes: Vec<String>,
    /// Run only the first N passes
    #[arg(long, value_name = "N")]
    stop_after: Option<usize>,
    /// Machine to compile for
    #[arg(long, default_value = "cpu")]
    target: String,
    /// Where to write the result
    #[arg(short, value_name = "FILE")]
    output: Option<String>,
}

pub(crate) fn run(args: &OptArgs) -> Result<(), Failure> {
    let target = target(&args.target)?;
    let list = args.passes.iter().map(|name| find(name)).collect::<Result<Vec<_>, _>>()?;
    let mut module = read_module(&args.module)?;
    let options = passes::RunOptions { stop_after: args.stop_after, verify: true };
    passes::run(&mut module, &list, &passes::Context { target: &target }, options)
        .map_err(|error| Failure::input(&error))?;
    write_result(args.output.as_deref(), hlo::print(&module))
}

fn find(name: &str) -> Result<&'static dyn passes::Pass, Failure> {
    passes::find(name).ok_or_else(|| {
        let known: Vec<&str> = passes::ALL.iter().map(|pass| pass.name()).collect();
        Failure::Usage(format!("error: there is no pass `{name}`; the passes are {}", known.join(", ")))
    })
}
