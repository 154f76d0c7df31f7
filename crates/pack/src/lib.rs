//! Dynamic storage allocation: buffers with known lifetimes to offsets, with proofs.
//!
//! A [`Problem`] is a set of items with sizes and live ranges; a [`Packing`] gives each an offset such that
//! items that are live together share no byte. [`minimize`] asks for the lowest height, [`fit`] whether a
//! capacity is enough, [`pack`] for whichever the problem says. Every answer carries a [`Certificate`]:
//! a lower bound, and whether the height is proved least or the capacity proved too small.
//! [`validate()`] judges packings and shares no code with the solver. The crate knows nothing of programs.
//!
//! # Method
//!
//! 1. Items become blocks over sections: groups are merged, and of all times only those are kept whose
//!    live set is not contained in a neighbor's (`instance`).
//! 2. A few runs of linearithmic heuristics (`niche`, `first_fit`), which are enough for most programs.
//! 3. Up to a few thousand blocks, exact search for the bound, beside a bisection of what is between the
//!    bound and the best height (`search`, `improve`).
//! 4. Above that, exact search of only those blocks that are live when most bytes are, with the rest filled
//!    in around them (`critical`), beside many heuristic packings that learn from each other (`sample`).
//!
//! # Measured
//!
//! Two cores of a shared machine, 10 s at most, no capacity told:
//!
//! | problem | items | height over bound | seconds |
//! |---|---:|---:|---:|
//! | MiniMalloc A to K, without D and J | 154 to 454 | 0, proved minimal | 0.01 to 0.34 |
//! | MiniMalloc D | 213 | 1.35 % (999,424) | 10 |
//! | MiniMalloc J | 409 | 0, proved minimal (989,184) | 6.3 |
//! | resnet50 | 1,042 | 0, proved minimal | 0.4 |
//! | pangu_2.6B | 18,692 | 0, proved minimal | 0.9 |
//! | cut:1000 | 1,000 | 0, proved minimal | 0.1 |
//! | cut:10000 | 10,000 | 12.3 % | 10 |
//! | cut-coarse:1000 | 1,000 | 6.1 % | 5 |
//! | cut-coarse:10000 | 10,000 | 14.2 % | 10 |
//! | training:1000000 | 1,000,000 | 0, proved minimal | 1.1 |
//! | inference:1000000 | 1,000,000 | 0, proved minimal | 0.8 |
//! | random:1000000 | 1,000,000 | 0, proved minimal | 1.4 |
//!
//! `cargo run --release -p memplan-pack --example bench -- FILE.csv cut:10000 training:1000000 ...`
//! makes such lines; `FILE.csv@CAPACITY` tells a capacity.
//!
//! # Limits
//!
//! Beyond 2^15 pieces or a state of 2^22 (sections times live blocks) there is no search of the whole, so a
//! gap above the bound stays unproved. The skyline heuristic takes a block with gaps for the rectangle
//! around it and puts nothing below fixed blocks; first-fit, which knows better, stops at 2^14 pieces.

mod clique;
mod construct;
mod critical;
mod first_fit;
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
pub mod table;
mod units;
mod validate;

pub use options::{Options, Progress};
pub use packing::{Certificate, Packing, Report, Status};
pub use peak::Peak;
pub use problem::{Error, Item, Problem};
pub use solve::{fit, minimize, pack};
pub use validate::{Violation, validate};
