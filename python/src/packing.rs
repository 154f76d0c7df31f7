//! Packing: arrays in, arrays out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memplan::pack::{Item, Options, Problem, Report, Status};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::errors::{InputError, input};
use crate::work;

/// Offsets, status, height, lower bound, whether it is optimal, seconds, nodes.
type Answer<'py> = (Bound<'py, PyArray1<u64>>, &'static str, u64, u64, bool, f64, u64);

/// Sets a flag when it goes out of scope, however that comes about.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Gives every interval an offset. All arrays are of one length; a fixed offset below zero is none.
#[pyfunction]
#[pyo3(signature = (lower, upper, size, alignment=None, fixed=None, capacity=None, seconds=None, steps=None))]
#[allow(clippy::too_many_arguments, reason = "they are the columns of a table, and the limits")]
pub(crate) fn pack<'py>(
    py: Python<'py>,
    lower: PyReadonlyArray1<'py, u64>,
    upper: PyReadonlyArray1<'py, u64>,
    size: PyReadonlyArray1<'py, u64>,
    alignment: Option<PyReadonlyArray1<'py, u64>>,
    fixed: Option<PyReadonlyArray1<'py, i64>>,
    capacity: Option<u64>,
    seconds: Option<f64>,
    steps: Option<u64>,
) -> PyResult<Answer<'py>> {
    let (lower, upper, size) = (lower.as_array(), upper.as_array(), size.as_array());
    let alignment = alignment.as_ref().map(|array| array.as_array());
    let fixed = fixed.as_ref().map(|array| array.as_array());
    let lengths = [Some(upper.len()), Some(size.len()), alignment.map(|a| a.len()), fixed.map(|a| a.len())];
    if lengths.into_iter().flatten().any(|length| length != lower.len()) {
        return Err(InputError::new_err("the columns of a packing problem are of one length"));
    }
    let item = |i: usize| Item {
        alignment: alignment.map_or(1, |column| column[i]),
        fixed: fixed.and_then(|column| u64::try_from(column[i]).ok()),
        ..Item::new(size[i], lower[i]..upper[i])
    };
    let problem = Problem { capacity, ..(0..lower.len()).map(item).collect::<Problem>() };
    let stop = StopOnDrop(Arc::new(AtomicBool::new(false)));
    let limits = match (seconds, steps) {
        (Some(_), Some(_)) => return Err(InputError::new_err("a packing is limited by seconds or by steps")),
        (Some(seconds), None) => Options::within(
            Duration::try_from_secs_f64(seconds)
                .map_err(|_| InputError::new_err(format!("{seconds} seconds is not a time to wait")))?,
        ),
        (None, Some(steps)) => Options { node_limit: Some(steps), ..Options::default() },
        (None, None) => Options::default(),
    };
    let options = Options { stop: Some(Arc::clone(&stop.0)), ..limits };
    let packing = work::run(py, "packing", move || memplan::pack::pack(&problem, &options))?;
    let packing = packing.map_err(|error| input(&error))?;
    let report = packing.report();
    let status = match report.status {
        Status::Packed => "packed",
        Status::Infeasible => "infeasible",
        Status::Unknown => "unknown",
    };
    let Report { height, lower_bound, optimal, seconds, nodes, .. } = report;
    Ok((packing.offsets.into_pyarray(py), status, height, lower_bound, optimal, seconds, nodes))
}
