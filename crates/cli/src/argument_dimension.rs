//! Names of dimensions of a program's arguments.

use std::str::FromStr;

use memplan::analysis::{Batch, Dimensions};
use memplan::ir::Module;

use crate::failure::Failure;

/// A dimension of the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArgumentDimension {
    /// The dimension that counts examples, if it can be found: `batch`.
    Batch,
    /// `PARAMETER:DIMENSION`
    At { parameter: usize, dimension: usize },
}

impl FromStr for ArgumentDimension {
    type Err = String;

    fn from_str(text: &str) -> Result<ArgumentDimension, String> {
        if text == "batch" {
            return Ok(ArgumentDimension::Batch);
        }
        let numbers = text.split_once(':').and_then(|(p, d)| Some((p.parse().ok()?, d.parse().ok()?)));
        let (parameter, dimension) =
            numbers.ok_or("a dimension is `batch`, or PARAMETER:DIMENSION, as in `2:0`, both from 0")?;
        Ok(ArgumentDimension::At { parameter, dimension })
    }
}

impl ArgumentDimension {
    /// Parameter and dimension, if the user named them.
    pub(crate) fn named(self) -> Option<(usize, usize)> {
        match self {
            ArgumentDimension::Batch => None,
            ArgumentDimension::At { parameter, dimension } => Some((parameter, dimension)),
        }
    }

    /// Its factor in a program.
    pub(crate) fn find(self, module: &Module, dimensions: &Dimensions) -> Result<Batch, Failure> {
        match self {
            ArgumentDimension::Batch => dimensions.batch(module).ok_or_else(|| {
                Failure::Usage(
                    "error: no dimension of the arguments looks like a batch; name one as PARAMETER:DIMENSION"
                        .into(),
                )
            }),
            ArgumentDimension::At { parameter, dimension } => {
                dimensions.batch_at(module, parameter, 0, dimension).ok_or_else(|| {
                    Failure::Usage(format!(
                        "error: parameter {parameter} has no dimension {dimension} of more than one element"
                    ))
                })
            }
        }
    }
}
