//! The memory pools of GPU runtimes.
//!
//! A plan is static; a runtime allocates memory as requests come. [`bfc`] is the pool that XLA's clients allocate when
//! they start, simulated rule by rule. [`replay`](mod@replay) runs an [`Allocator`] on a [`trace`] of requests and
//! frees; [`defragment`] finds the cheapest moves that make a hole; [`process`] describes a planned program in a pool,
//! and whether it fits.
//!
//! ```
//! use memplan_memory::Bytes;
//! use memplan_pool::bfc::{Bfc, Options};
//! use memplan_pool::{Allocator, Request};
//!
//! let mut pool = Bfc::new(Options::preallocated(Bytes(1 << 20)));
//! let first = pool.allocate(Request::new(Bytes(1000))).expect("there is room");
//! let second = pool.allocate(Request::new(Bytes(1000))).expect("there is room");
//! pool.free(first);
//! // The hole is given to the next request that fits into it.
//! assert_eq!(pool.allocate(Request::new(Bytes(500))), Some(first));
//! assert_ne!(first, second);
//! ```

mod allocator;
pub mod bfc;
pub mod defragment;
pub mod process;
pub mod replay;
pub mod trace;

pub use allocator::{Allocator, End, GRANULE, Request, Sample};
