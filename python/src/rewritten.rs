//! Programs rewritten for another compiler.

use std::sync::Arc;

use memplan::memory::{Bytes, Compiler};
use memplan::{Lever, RewriteOptions, Step};
use pyo3::prelude::*;

use crate::errors::input;
use crate::module::Module;
use crate::planned::{compiler, target};
use crate::work;

/// A rewritten program, and what each rewrite brings.
#[pyclass(frozen, module = "memplan")]
pub(crate) struct Rewritten {
    rewritten: memplan::Rewritten,
    compiler: Compiler,
    target: String,
}

#[pymethods]
impl Rewritten {
    /// The program as it is now.
    #[getter]
    fn module(&self) -> Module {
        Module(Arc::new(self.rewritten.module.clone()))
    }

    #[getter]
    fn compiler(&self) -> &str {
        &self.compiler.name
    }

    #[getter]
    fn target(&self) -> &str {
        &self.target
    }

    /// Bytes and seconds that the compiler is expected to need for the program as it was.
    #[getter]
    fn before(&self) -> (u64, f64) {
        price(&self.rewritten.before.price)
    }

    /// The same for the program as it is now.
    #[getter]
    fn after(&self) -> (u64, f64) {
        price(&self.rewritten.after().price)
    }

    /// Every rewrite that would change something: name, description, bytes and seconds with it, and whether it was kept.
    #[getter]
    fn steps(&self) -> Vec<(&'static str, &'static str, u64, f64, bool)> {
        let row = |step: &Step| {
            let price = step.estimated.price;
            (step.name, step.description, price.total.0, price.seconds, step.is_kept)
        };
        self.rewritten.steps.iter().map(row).collect()
    }

    fn __str__(&self) -> String {
        memplan_cli::rewrite_report(&self.rewritten, &self.compiler, memplan_cli::Screen::PLAIN)
    }
}

fn price(price: &memplan::Price) -> (u64, f64) {
    (price.total.0, price.seconds)
}

fn levers(names: Vec<String>) -> PyResult<Vec<Lever>> {
    names.into_iter().map(|name| Lever::find(&name).map_err(|error| input(&error))).collect()
}

/// Rewrites a program so that a compiler needs less memory for it.
#[pyfunction]
#[pyo3(signature = (module, compiler_name, target_name=None, memory_limit=None, max_slowdown=None, only=vec![], without=vec![]))]
#[allow(clippy::too_many_arguments, reason = "they have names in Python")]
pub(crate) fn rewrite(
    py: Python<'_>,
    module: &Module,
    compiler_name: &str,
    target_name: Option<&str>,
    memory_limit: Option<u64>,
    max_slowdown: Option<f64>,
    only: Vec<String>,
    without: Vec<String>,
) -> PyResult<Rewritten> {
    let compiler = compiler(compiler_name)?;
    let machine = target(target_name.unwrap_or(&compiler.target))?;
    let name = machine.name.clone();
    let mut options =
        RewriteOptions { memory_limit: memory_limit.map(Bytes), max_slowdown, ..RewriteOptions::default() };
    options.pull(&levers(only)?, &levers(without)?);
    let (module, of) = (Arc::clone(&module.0), compiler.clone());
    let job = move || memplan::rewrite(Arc::unwrap_or_clone(module), &of, &machine, &options);
    let rewritten = work::run(py, "rewriting", job)?.map_err(|error| input(&error))?;
    Ok(Rewritten { rewritten, compiler, target: name })
}
