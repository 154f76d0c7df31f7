//! Dynamic storage allocation: buffers with known lifetimes to offsets, with proofs.

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
