//! Fast memory: which values, or which parts of their lives, are kept near the cores, and which transfers bring them
//! there and back.
//!
//! [`assign`] rewrites a scheduled module for a target with fast memory. Temporaries are written there and never reach
//! main memory; what is read more than once is fetched once; what is needed soon and then again much later is copied
//! out in between; loops work on state that is there. In the module, layouts say `S(n)`, and transfers are
//! `copy-start` and `copy-done`, so that the checker proves them and the evaluator runs them.
//!
//! ```text
//!   before                                    after
//!   a = f32[1024]{0} exponential(p)           a = f32[1024]{0:S(1)} exponential(p)
//!   b = f32[1024]{0} dot(w, a)                s = (f32[1024,1024]{1,0:S(1)}, ...) copy-start(w)
//!   c = f32[1024]{0} add(a, b)                ...
//!   r = f32[1024]{0} dot(w, c)                b = f32[1024]{0:S(1)} dot(copy-done(s), a)
//! ```
//!
//! A parameter that does not change from call to call, such as a weight, need not be fetched in each of them. Where there
//! is room for one all the time, its copy starts at the very beginning and is marked `cross_program_prefetch_index`; its
//! bytes of fast memory hold nothing else from begin to end, which is part of the live ranges and of what the checker
//! proves (`resident`). A runtime may skip such a copy when the last program on the device was this one, in the same
//! arena, and the parameter is the same buffer with the same contents; otherwise it makes the copy like any other.
//!
//! XLA's memory space assignment takes values one by one, the most promising first, and what is placed stays. Here
//! every instant of fast memory has a price (Lagrangian relaxation, `prices`); at given prices each value finds its
//! best way through its uses exactly (`choice`); prices show what is scarce, and bound what any assignment could do.
//! Choices are then made to fit (`search`), carried out (`rewrite`), and the arena of fast memory is packed like any
//! other; should it come out larger than the memory, what lies beyond its end takes the place of what saves least
//! (`repair`), or goes. Then all is decided again, now that it is known how much time there is for transfers: and kernels
//! that read slices of arrays in main memory are brought the slices alone, in loops one iteration ahead (`parts`).

mod assign;
mod candidates;
mod choice;
mod classes;
mod decisions;
mod footprint;
mod idle;
mod model;
mod options;
mod parts;
mod prices;
mod repair;
mod report;
mod resident;
mod room;
mod search;
mod sharing;
mod trial;
mod worth;

pub use assign::assign;
pub use options::{
    FastMemoryOptions, FootprintOptions, Objective, PriceOptions, RepairOptions, SearchOptions, Selection,
    TransferOptions,
};
pub use report::FastMemoryReport;
pub use trial::{Carrier, Trial};
