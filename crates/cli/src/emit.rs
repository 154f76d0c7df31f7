//! `--emit KIND=FILE`

use std::path::Path;
use std::str::FromStr;

use memplan::hlo;
use memplan::ir::Module;

use crate::failure::Failure;
use crate::output::write_file;

/// Something else to write.
#[derive(Clone, Debug)]
pub(crate) struct Emit {
    kind: Kind,
    path: String,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Hlo,
    Plan,
}

impl FromStr for Emit {
    type Err = String;

    fn from_str(text: &str) -> Result<Emit, String> {
        let kinds = "the kinds are hlo and plan";
        let (kind, path) = text.split_once('=').ok_or_else(|| format!("expected KIND=FILE; {kinds}"))?;
        let kind = match kind {
            "hlo" => Kind::Hlo,
            "plan" => Kind::Plan,
            other => return Err(format!("there is no kind `{other}`; {kinds}")),
        };
        match path.is_empty() {
            true => Err("the file is missing after `=`".to_string()),
            false => Ok(Emit { kind, path: path.to_string() }),
        }
    }
}

impl Emit {
    /// Writes the file.
    pub(crate) fn write(&self, module: &Module, plan_json: &dyn Fn() -> String) -> Result<(), Failure> {
        let contents = match self.kind {
            Kind::Hlo => hlo::print(module),
            Kind::Plan => plan_json(),
        };
        write_file(Path::new(&self.path), contents.as_bytes())
    }
}
