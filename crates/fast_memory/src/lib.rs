//! Fast memory: which values are in the memory near the cores, for which segments of their live ranges, and when copies
//! transfer them. On TPUs this memory is VMEM, and XLA calls the task memory space assignment.
//!
//! This crate only decides. [`assign()`] returns decisions as data ([`FastMemoryDecision`]): temporaries that are
//! written to fast memory never reach main memory; values that are read more than once are prefetched once; values that
//! are needed soon and again much later are evicted in between; loops keep state in fast memory. The price of decisions
//! is known only after they are applied and packed. The search calls a [`Carrier`] for that: the one of `memplan-driver`
//! consists of the pass that inserts copies and the planner.
//!
//! # How it decides
//!
//! XLA assigns values one by one, the most promising first, and never revises an assignment. Here every instant of fast
//! memory has a price (Lagrangian relaxation, `prices`). At given prices, the best placement of each candidate over its
//! uses is found exactly (a shortest path, `choice`). Prices measure scarcity, and bound the savings of any assignment.
//! Choices are then reduced until they fit (`search`), applied and packed. If the packing exceeds the memory, the
//! candidates that save least are ejected (`repair`).
//!
//! Then a second round decides everything again, with known times for transfers: for kernels that read slices of arrays
//! in main memory, it prefetches only the slices, in loops one iteration ahead (`slices`).
//!
//! A parameter that does not change from call to call, such as a weight, need not be copied in each call. If there is
//! room for one at all times, its copy starts at the very beginning and is marked `cross_program_prefetch_index`. Its
//! bytes of fast memory hold nothing else for the whole program; the live ranges say so, and the checker proves it
//! (`resident`). A runtime may skip such a copy if the last program on the device was this one, in the same arena, and
//! the parameter is the same buffer with the same contents; otherwise it makes the copy like any other.
//!
//! # Words
//!
//! | word | meaning | in XLA |
//! |---|---|---|
//! | main memory, fast memory | the default memory; the memory near the cores | default and alternate memory |
//! | candidate | a value, or values that must share memory, or a slice of an array, that may be in fast memory | buffer interval, colocated intervals |
//! | view, event | the uses of a value in one computation; one such use | – |
//! | pin | keep in fast memory during the whole live range | pinned allocation |
//! | prefetch | copy into fast memory before a use | copy allocation, prefetch |
//! | evict | copy to main memory, and free fast memory | eviction |
//! | segment | the part of a live range that one prefetch serves | allocation segment |
//! | slice | the part of an array that a kernel reads, prefetched without the rest | sliced prefetch |
//! | pipelined | of a slice: prefetched by a loop one iteration ahead; with two buffers, double-buffered | – |
//! | resident | a parameter that stays in fast memory from one call to the next | cross-program prefetch |
//! | scratch | bytes of fast memory that a kernel reserves while it runs | reserved scoped memory |
//! | price | the cost of a byte of a memory at an instant, in bytes moved (a Lagrange multiplier) | – |
//! | traffic | bytes that main memory moves, weighed by how often, and by time that the cores wait | – |
//! | eject | give a candidate's fast memory to another one | – |
//!
//! # Example
//!
//! ```
//! use std::convert::Infallible;
//!
//! use memplan_analysis::Facts;
//! use memplan_fast_memory::{Carrier, FastMemoryOptions, Residence, Trial, assign};
//! use memplan_ir::{Module, Schedule};
//! use memplan_memory::{Bytes, FastMemoryDecision, MemoryPlan, Target};
//!
//! /// Takes every decision as it is: nothing is carried out or packed.
//! struct Unpacked<'a>(&'a Module, &'a Facts);
//!
//! impl Carrier for Unpacked<'_> {
//!     type Error = Infallible;
//!
//!     fn carry_out(&self, _: &[FastMemoryDecision]) -> Result<Trial, Infallible> {
//!         Ok(Trial {
//!             module: self.0.clone(),
//!             facts: self.1.clone(),
//!             placed: Vec::new(),
//!             plan: MemoryPlan::default(),
//!             height: Bytes::ZERO,
//!             total: Bytes::ZERO,
//!         })
//!     }
//!
//!     fn temp_load(&self) -> Result<Vec<Bytes>, Infallible> {
//!         Ok(Vec::new())
//!     }
//! }
//!
//! let module = memplan_hlo::parse(
//!     "HloModule twice, is_scheduled=true
//!      ENTRY main {
//!        w = f32[1024,1024]{1,0} parameter(0)
//!        x = f32[1024]{0} parameter(1)
//!        a = f32[1024]{0} dot(w, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
//!        ROOT r = f32[1024]{0} dot(w, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
//!      }",
//! )?;
//! let target = Target::find("tpu-v5e")?;
//! let options = FastMemoryOptions::for_target(&target).expect("it has fast memory");
//! let facts = Facts::new(&module, &Schedule::in_textual_order(&module))?;
//! let assigned = assign(&module, &facts, &target, &options, &Unpacked(&module, &facts))?;
//! // `a` never reaches main memory, and `w` is read there once instead of twice.
//! let names: Vec<(&str, Residence)> =
//!     assigned.report.assigned.iter().map(|entry| (&*entry.name, entry.residence)).collect();
//! assert!(names.contains(&("a", Residence::Pinned)));
//! assert_eq!(assigned.report.assigned.len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`FastMemoryDecision`]: memplan_memory::FastMemoryDecision

mod assign;
mod benefit;
mod candidate;
mod choice;
mod collect;
mod decisions;
mod footprint;
mod heap;
mod idle;
mod model;
mod occupancy;
mod options;
mod prices;
mod repair;
mod report;
mod resident;
mod search;
mod sharing;
mod slices;
mod trial;

pub use assign::{Assigned, assign};
pub use options::{
    AsXlaOptions, FastMemoryOptions, FootprintOptions, Objective, PriceOptions, RepairOptions, SearchOptions,
    Selection, TransferOptions,
};
pub use report::{FastMemoryEntry, FastMemoryReport, Residence};
pub use trial::{Carrier, Trial};
