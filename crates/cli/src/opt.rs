//! `memplan opt`

use std::str::FromStr;

use clap::Args;
use memplan::analysis::Dimensions;
use memplan::ir::Module;
use memplan::memory::{Target, did_you_mean};
use memplan::{hlo, passes};

use crate::argument_dimension::ArgumentDimension;
use crate::failure::Failure;
use crate::input::{Form, read_module, target};
use crate::output::write_result;

#[derive(Args)]
pub(crate) struct OptArgs {
    /// HLO text or protobuf, also `.gz`, or a folder of `--xla_dump_to`; `-` is standard input
    module: String,
    /// Passes to run, in order
    #[arg(long, value_delimiter = ',')]
    passes: Vec<String>,
    /// Run only the first N passes
    #[arg(long, value_name = "N", requires = "passes")]
    stop_after: Option<usize>,
    /// Before all passes, change a dimension of the arguments and all shapes that depend on it: `batch=16`, or `2:0=16` for
    /// dimension 0 of parameter 2. Scalars that depend on the old size keep their values
    #[arg(long, value_name = "DIMENSION=N")]
    resize: Option<Resize>,
    /// Machine to compile for
    #[arg(long, default_value = "cpu")]
    target: String,
    /// File to write the result to (default: standard output)
    #[arg(short, value_name = "FILE")]
    output: Option<String>,
}

pub(crate) fn run(args: &OptArgs) -> Result<(), Failure> {
    let target = target(&args.target)?;
    let list = args.passes.iter().map(|name| find(name)).collect::<Result<Vec<_>, _>>()?;
    let mut module = read_module(&args.module, Form::Given)?;
    let options = passes::RunOptions { stop_after: args.stop_after, verify: true };
    if let Some(resize) = &args.resize {
        module = resize.apply(module, &target)?;
    }
    passes::run(&mut module, &list, &passes::Context { target: &target }, options)
        .map_err(|error| Failure::input(&error))?;
    write_result(args.output.as_deref(), hlo::print(&module))
}

/// A dimension of the arguments, and its new extent.
#[derive(Clone, Copy, Debug)]
struct Resize {
    dimension: ArgumentDimension,
    extent: i64,
}

impl FromStr for Resize {
    type Err = String;

    fn from_str(text: &str) -> Result<Resize, String> {
        let (dimension, extent) = text.split_once('=').ok_or("expected DIMENSION=N")?;
        let extent = extent.parse().ok().filter(|&n| n > 0).ok_or("N must be a whole number above zero")?;
        Ok(Resize { dimension: dimension.parse()?, extent })
    }
}

impl Resize {
    fn apply(self, mut module: Module, target: &Target) -> Result<Module, Failure> {
        let context = passes::Context { target };
        passes::run(&mut module, &[&passes::FOLLOWABLE], &context, passes::RunOptions::default())
            .map_err(|error| Failure::input(&error))?;
        let dimensions = Dimensions::follow(&module);
        let found = self.dimension.find(&module, &dimensions)?;
        let old = found.extent(&dimensions);
        let factor = dimensions.extent(found.factor);
        // If the dimension is a product, its slowest factor changes.
        let extent = self.extent.checked_mul(factor).filter(|n| n % old == 0).map(|n| n / old);
        let extent = extent.ok_or_else(|| {
            Failure::Usage(format!(
                "error: the program splits the extent {old}, so it cannot become {}",
                self.extent
            ))
        })?;
        let resized = passes::resize(&module, &dimensions, found.factor, extent);
        Ok(resized.map_err(|error| Failure::input(&error))?.module)
    }
}

fn find(name: &str) -> Result<&'static dyn passes::Pass, Failure> {
    passes::find(name).ok_or_else(|| {
        let known: Vec<&str> = passes::ALL.iter().map(|pass| pass.name()).collect();
        let meant = did_you_mean(name, known.iter().copied());
        Failure::Usage(format!(
            "error: there is no pass `{name}`{meant}\n  the passes are {}",
            known.join(", ")
        ))
    })
}
