//! `memplan._memplan`, the extension module of the Python package: programs, plans, packing and the command.
//!
//! It is typed in `python/memplan/_memplan.pyi`; what people call is Python, in `python/memplan`.

mod errors;
mod module;
mod packing;
mod planned;
mod rewritten;
mod work;

use pyo3::prelude::*;

#[pymodule]
mod _memplan {
    use std::ffi::OsString;

    use memplan::memory::{Compiler, Target};
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::errors::{DoesNotFit, Error, InputError, Refuted};
    #[pymodule_export]
    use crate::module::Module;
    #[pymodule_export]
    use crate::packing::pack;
    #[pymodule_export]
    use crate::planned::{Planned, check, compile, estimate, plan};
    #[pymodule_export]
    use crate::rewritten::{Rewritten, rewrite};

    /// The version of all of memplan.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    /// Runs the command with its arguments and gives its exit status.
    #[pyfunction]
    fn command(py: Python<'_>, args: Vec<OsString>) -> u8 {
        py.detach(|| memplan_cli::main(args))
    }

    /// A number of bytes, written with a unit.
    #[pyfunction]
    fn parse_bytes(text: &str) -> PyResult<u64> {
        memplan_cli::parse_bytes(text).map(|bytes| bytes.0).map_err(InputError::new_err)
    }

    /// Name of a target, a built-in one or a TOML file; the compiler that people have for it; usable bytes of main memory.
    #[pyfunction]
    fn target(name: &str) -> PyResult<(String, Option<String>, Option<u64>)> {
        let target = crate::planned::target(name)?;
        let is_for = |compiler: &Compiler| {
            Target::find(&compiler.target).is_ok_and(|usual| usual.family == target.family)
        };
        let compiler = Compiler::built_in().into_iter().find(is_for).map(|compiler| compiler.name);
        let usable = target.spaces.first().and_then(|space| space.usable()).map(|bytes| bytes.0);
        Ok((target.name, compiler, usable))
    }

    /// A compiler with its version: the one nearest to a version of jaxlib, or the newest.
    #[pyfunction]
    #[pyo3(signature = (compiler, jaxlib))]
    fn version_of_compiler(compiler: &str, jaxlib: Option<&str>) -> PyResult<String> {
        let found = match jaxlib {
            Some(jaxlib) => Compiler::nearest(compiler, jaxlib),
            None => Compiler::find(compiler),
        };
        found
            .map(|compiler| compiler.name_with_version())
            .map_err(|error| InputError::new_err(error.to_string()))
    }

    /// The machine that a compiler is asked about where nobody names one.
    #[pyfunction]
    fn usual_target(compiler: &str) -> PyResult<String> {
        Ok(crate::planned::compiler(compiler)?.target)
    }
}
