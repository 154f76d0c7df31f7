//! `memplan_pack`.

use std::time::Duration;

use memplan_pack as pack;

use crate::border::{Failure, Posed, check_pointer, guard, reference};
use crate::{BAD_PROBLEM, Error, INFEASIBLE, NONE, Options, Packing, Problem, UNKNOWN};

/// The limits that NULL selects.
#[unsafe(no_mangle)]
pub extern "C" fn memplan_default_options() -> Options {
    let pack::Options { node_limit, seed, threads, .. } = pack::Options::default();
    Options { node_limit: node_limit.unwrap_or(u64::MAX), time_limit_ms: 0, seed, threads: threads as u32 }
}

/// Finds an offset for each item.
///
/// # Safety
/// Pointers are NULL or point to what the header says, which nobody else writes meanwhile; `offsets` and `packing` also not
/// to each other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memplan_pack(
    problem: *const Problem,
    options: *const Options,
    offsets: *mut u64,
    packing: *mut Packing,
    error: *mut Error,
) -> i32 {
    let body = || {
        // SAFETY: the caller says so.
        let posed = unsafe { Posed::read(problem)? };
        let options = match options.is_null() {
            true => memplan_default_options(),
            // SAFETY: the caller says so.
            false => *unsafe { reference(options, "options")? },
        };
        if !posed.items.is_empty() {
            check_pointer(offsets, "offsets")?;
        }
        if !packing.is_null() {
            check_pointer(packing, "packing")?;
        }
        let problem = posed.to_problem();
        let found = pack::pack(&problem, &options.read()).map_err(contradiction)?;
        if !posed.items.is_empty() {
            // SAFETY: there is room for an offset for each item.
            unsafe { offsets.copy_from_nonoverlapping(found.offsets.as_ptr(), found.offsets.len()) };
        }
        if !packing.is_null() {
            let certificate = found.certificate;
            // SAFETY: it points to a packing.
            unsafe {
                packing.write(Packing {
                    height: found.height,
                    lower_bound: certificate.lower_bound,
                    nodes: certificate.nodes,
                    is_optimal: certificate.optimal,
                });
            }
        }
        does_it_fit(&posed, &found)
    };
    // SAFETY: the caller says so.
    unsafe { guard(error, body) }
}

impl Options {
    fn read(&self) -> pack::Options {
        let limit = Duration::from_millis(self.time_limit_ms);
        pack::Options {
            time_limit: Some(limit).filter(|limit| !limit.is_zero()),
            node_limit: Some(self.node_limit).filter(|&limit| limit != u64::MAX),
            seed: self.seed,
            threads: self.threads as usize,
            ..pack::Options::default()
        }
    }
}

impl Posed<'_> {
    fn to_problem(&self) -> pack::Problem {
        let item = |(index, item): (usize, &crate::Item)| pack::Item {
            alignment: item.alignment,
            fixed: self.fixed(index),
            ..pack::Item::new(item.size, item.lower..item.upper)
        };
        let mut problem: pack::Problem = self.items.iter().enumerate().map(item).collect();
        problem.capacity = self.capacity;
        for index in 0..self.items.len() {
            if self.group(index) != index {
                problem.colocate([self.group(index), index]);
            }
        }
        problem
    }

    /// When most bytes are live, and the largest item then. A group counts as its largest item, from its first time to its last.
    fn peak(&self) -> Option<(u64, usize)> {
        let mut largest: Vec<usize> = (0..self.items.len()).collect();
        let mut hulls = pack::Problem::from_iter(
            self.items.iter().map(|it| pack::Item::new(it.size, it.lower..it.upper)),
        );
        for index in 0..self.items.len() {
            let first = self.group(index);
            if first != index {
                let member = std::mem::replace(&mut hulls.items[index].size, 0);
                let hull = &mut hulls.items[first];
                (hull.lower, hull.upper) =
                    (hull.lower.min(self.items[index].lower), hull.upper.max(self.items[index].upper));
                if hull.size < member {
                    (hull.size, largest[first]) = (member, index);
                }
            }
        }
        hulls.peak().map(|peak| (peak.time, largest[peak.items[0]]))
    }
}

/// The culprits of a problem that contradicts itself.
fn contradiction(error: pack::Error) -> Failure {
    let failure = Failure::new(BAD_PROBLEM, &error);
    match error {
        pack::Error::EmptyRange { item, .. }
        | pack::Error::ZeroAlignment { item }
        | pack::Error::Misaligned { item, .. }
        | pack::Error::GroupAlignment { item } => failure.of(item as u64, NONE),
        pack::Error::GroupOffsets { first, second, .. } | pack::Error::FixedOverlap { first, second } => {
            failure.of(first as u64, second as u64)
        }
        _ => failure,
    }
}

/// Nothing, or what takes most of the bytes that are too many.
fn does_it_fit(posed: &Posed<'_>, found: &pack::Packing) -> Result<(), Failure> {
    let pack::Certificate { status, lower_bound, nodes, .. } = found.certificate;
    let capacity = posed.capacity.unwrap_or(u64::MAX);
    let (status, mut message) = match status {
        pack::Status::Packed => return Ok(()),
        pack::Status::Infeasible => {
            (INFEASIBLE, format!("the items need {lower_bound} bytes at least, and there are {capacity}"))
        }
        pack::Status::Unknown => {
            let height = found.height;
            (UNKNOWN, format!("{nodes} decisions led to {height} bytes at best, and there are {capacity}"))
        }
    };
    let Some((time, largest)) = posed.peak() else { return Err(Failure::new(status, message)) };
    let size = posed.items[largest].size;
    message += &format!("; at time {time}, when most are live, item {largest} is the largest with {size}");
    Err(Failure::new(status, message).of(largest as u64, NONE).at(time))
}
