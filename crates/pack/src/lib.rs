//! Dynamic storage allocation: assigns offsets to buffers with known lifetimes, with proofs.
//!
//! A [`Problem`] is a set of items with sizes and live ranges; a [`Packing`] gives each an offset such that items that
//! are live together share no byte. [`minimize`] finds the lowest height, [`fit`] answers whether a capacity suffices,
//! [`pack`] does what the problem asks for. Every answer has a [`Certificate`]: a lower bound, and whether the height
//! is proved minimal or the capacity proved too small. The effort is a number of steps, so answers are the same on
//! every machine; [`Options::within`] limits the time instead. A [`Recording`] makes a problem of the allocations of
//! one step of an eager runtime, and replays the offsets. [`validate()`] checks packings and shares no code with the
//! solver. The crate knows nothing of programs.
//!
//! ```
//! use memplan_pack::{Item, Options, Problem, minimize};
//!
//! let mut problem = Problem::new();
//! let a = problem.push(Item::new(64, 0..2));
//! let b = problem.push(Item::new(32, 1..4));
//! let c = problem.push(Item::new(64, 2..5));
//! let packing = minimize(&problem, &Options::default())?;
//! // `c` comes when `a` is gone. 96 bytes are live at once, so no packing is lower.
//! assert_eq!((packing.height, packing.offsets[a]), (96, packing.offsets[c]));
//! # let _ = b;
//! # Ok::<(), memplan_pack::Error>(())
//! ```
//!
//! # Method
//!
//! 1. Items become blocks over sections: groups are merged, and only times remain whose live set is not contained in a
//!    neighbor's (`instance`).
//! 2. A bound: the most bytes live at one time, or a clique of blocks that interfere in pairs but never all at once,
//!    which gaps make possible (`clique`).
//! 3. A few runs of linearithmic heuristics (`niche`) and of first-fit and best-fit (`first_fit`), which are enough
//!    for most programs, and up to 2^14 pieces never worse than the orders of XLA's heap simulator.
//! 4. Up to a few thousand blocks, exact search at the bound, beside a bisection between the bound and the best height
//!    (`search`, `improve`).
//! 5. Above that, exact search of only those blocks that are live when most bytes are, with the rest filled in around
//!    them (`critical`), beside many heuristic packings that learn from each other (`sample`).
//!
//! # Measured
//!
//! On a two-core machine with other jobs (load 3 to 6), so wall-clock times are longer than on an idle one; CPU times
//! are given where they matter.
//!
//! Into 1,048,576 bytes, and the SuperMalloc of `omnimalloc` 1.0 in the same run (load 3.4). memplan has one thread.
//! SuperMalloc races three. It continues below the capacity until its time is up, so it was given the least sufficient
//! time, by doubling from 25 ms:
//!
//! | problem | s | CPU s | nodes | height | SuperMalloc s | CPU s | height |
//! |---|---:|---:|---:|---:|---:|---:|---:|
//! | A | 0.001 | 0.004 | 0 | 1,048,576 | 0.126 | 0.251 | 1,048,576 |
//! | B | 0.002 | 0.004 | 180 | 1,048,576 | 0.116 | 0.230 | 1,048,576 |
//! | C | 0.001 | 0.002 | 0 | 1,039,360 | 0.080 | 0.158 | 1,039,360 |
//! | D | 0.101 | 0.103 | 5,565 | 1,048,576 | 0.111 | 0.214 | 1,048,576 |
//! | E | 0.003 | 0.004 | 505 | 1,048,576 | 0.222 | 0.438 | 1,048,576 |
//! | F | 0.003 | 0.004 | 301 | 1,048,576 | 0.096 | 0.190 | 1,048,576 |
//! | G | 0.079 | 0.081 | 21,403 | 1,048,576 | 0.027 | 0.053 | 1,048,576 |
//! | H | 0.038 | 0.038 | 10,508 | 1,048,576 | 0.098 | 0.194 | 1,048,576 |
//! | I | 0.009 | 0.011 | 491 | 1,048,576 | 0.040 | 0.078 | 1,048,576 |
//! | J | 0.020 | 0.022 | 441 | 1,048,576 | 0.035 | 0.066 | 1,048,576 |
//! | K | 0.010 | 0.012 | 1,630 | 1,048,576 | 0.015 | 0.027 | 1,048,576 |
//! | geometric mean | | 0.012 | | | | 0.133 | |
//!
//! `cargo build --release -p memplan-pack --example bench` and then
//! `python scripts/bench_pack.py --bench target/release/examples/bench --capacity 1048576 ../shared/dsa/?.1048576.csv`
//! make this table.
//!
//! Heuristics only, one thread; seconds, and percent of the height over the bound:
//!
//! | items | training | inference | random |
//! |---:|---:|---:|---:|
//! | 1,000 | 0.000 (0 %) | 0.000 (0 %) | 0.000 (0 %) |
//! | 10,000 | 0.005 (0 %) | 0.004 (0 %) | 0.005 (0 %) |
//! | 20,000 | 0.015 (0 %) | 0.158 (0 %) | 0.171 (2.84 %) |
//! | 100,000 | 0.073 (0 %) | 0.661 (0 %) | 0.066 (0 %) |
//! | 1,000,000 | 1.075 (0 %) | 0.724 (0 %) | 1.084 (0 %) |
//!
//! `bench --threads 1 --nodes 0 training:1000 inference:1000 random:1000 training:10000 ...` makes this table.
//!
//! Lowest height, without a capacity, two threads, 10 s at most (load 5):
//!
//! | problem | items | height over bound | seconds |
//! |---|---:|---:|---:|
//! | MiniMalloc A to K, without D and J | 154 to 454 | 0, proved minimal | 0.001 to 0.37 |
//! | MiniMalloc D | 213 | 1.87 % (1,004,544) | 10 |
//! | MiniMalloc J | 409 | 2.69 % (1,015,808) | 10 |
//! | resnet50 | 1,042 | 0, proved minimal | 1.4 |
//! | pangu_2.6B | 18,692 | 0, proved minimal | 1.7 |
//! | cut:1000 | 1,000 | 0, proved minimal | 0.05 |
//! | cut:10000 | 10,000 | 12.7 % | 10 |
//! | cut-coarse:1000 | 1,000 | 9.5 % | 10 |
//!
//! At load 1 the same code got further: D 0.93 % (995,328) in 10 s; J 0, proved minimal (989,184), after 5.6 s.
//! `bench --limit 10 FILE.csv cut:10000 ...` makes such lines; `FILE.csv@CAPACITY` tells a capacity.
//!
//! # Without `std`
//!
//! With `default-features = false` the crate needs only `alloc`. Answers are equal except for the last bit of powers,
//! which matters in problems with thousands of items at most. Missing are time limits (`Options::time_limit`), measured
//! times (`Certificate::elapsed`, `Report`), and threads: the calling thread does all the work. `examples/no_std` is a
//! program without the standard library.
//!
//! # Limits
//!
//! Beyond 2^15 pieces or a state of 2^22 (sections times live blocks) there is no search of the whole, so a gap above
//! the bound stays unproved, and heuristics alone may leave one: `random:20000:2` ends 10.7 % high. The skyline
//! heuristic treats a block with gaps as the rectangle around it and puts nothing below fixed blocks; first-fit handles
//! both, but stops at 2^14 pieces.

#![no_std]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod clique;
mod construct;
mod critical;
pub mod csv;
mod first_fit;
mod float;
pub mod fuzz;
pub mod generate;
mod improve;
mod instance;
mod niche;
mod options;
mod packing;
mod peak;
mod prefer;
mod problem;
mod profile;
mod rng;
mod sample;
mod search;
mod solve;
mod step;
pub mod table;
mod units;
mod validate;

pub use options::{BestFit, Options, Progress};
#[cfg(feature = "std")]
pub use packing::Report;
pub use packing::{Certificate, Packing, Status};
pub use peak::Peak;
pub use problem::{Error, Item, Problem};
pub use solve::{fit, minimize, pack};
pub use step::{Call, CallError, PackedStep, Placed, Recording, Replay};
pub use validate::{Violation, validate};
