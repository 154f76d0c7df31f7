//! Steps of an eager runtime: records and packs one step, and replays it from then on.
//!
//! A runtime without a graph learns the allocations of a training step only while running it. If steps are alike, one
//! of them is a [`Problem`]: each allocation is live from the call that makes it to the call that frees it.
//!
//! ```
//! use memplan_pack::{Options, Recording};
//!
//! // The first step runs with any allocator, and tells what it does.
//! let mut recording = Recording::new(64);
//! let a = recording.allocate(1000);
//! let b = recording.allocate(500);
//! recording.free(a)?;
//! let c = recording.allocate(900);
//! recording.free(b)?;
//! recording.free(c)?;
//! let step = recording.pack(&Options::default())?;
//! assert_eq!(step.bytes(), 1512, "the third allocation is where the first was");
//!
//! // The steps after it take one block of that size, and offsets in it.
//! let mut replay = step.replay();
//! let a = replay.allocate(1000)?;
//! let b = replay.allocate(500)?;
//! replay.free(a.number)?;
//! assert_eq!(replay.allocate(900)?.offset, a.offset);
//! # replay.free(b.number)?;
//! // A step that does something else is told so, and goes on with an allocator of its own.
//! assert!(replay.allocate(10).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use alloc::format;
use alloc::string::ToString as _;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::{Error, Item, Options, Packing, Problem, minimize};

/// The allocations and frees of a step, while it is recorded.
#[derive(Clone, Debug)]
pub struct Recording {
    alignment: u64,
    calls: Vec<Call>,
    /// The size of each allocation, and the calls between which it is live.
    items: Vec<Item>,
}

/// A call of an allocator. Allocations are numbered in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A request for this many bytes.
    Allocate {
        /// The bytes.
        bytes: u64,
    },
    /// An allocation is given back.
    Free {
        /// Its number.
        number: usize,
    },
}

/// Why a call cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// An allocation is freed that was never made.
    #[error("allocation {number} is freed, and there are {made} so far")]
    NeverMade {
        /// Its number.
        number: usize,
        /// How many allocations there are.
        made: usize,
    },
    /// An allocation is freed twice.
    #[error("allocation {number} is freed a second time")]
    FreedTwice {
        /// Its number.
        number: usize,
    },
    /// A step does something else than the one that was recorded.
    #[error("call {index} of the step is {found:?}, and {} was recorded", .recorded.map_or("none".to_string(), |call| format!("{call:?}")))]
    Differs {
        /// Which call, counted from zero.
        index: usize,
        /// The call.
        found: Call,
        /// The recorded call; `None` after the last one.
        recorded: Option<Call>,
    },
}

impl Recording {
    /// A step that has done nothing yet, whose allocations are at multiples of `alignment`.
    pub fn new(alignment: u64) -> Recording {
        Recording { alignment, calls: Vec::new(), items: Vec::new() }
    }

    /// Notes an allocation. Returns its number.
    pub fn allocate(&mut self, bytes: u64) -> usize {
        let now = self.calls.len() as u64;
        self.calls.push(Call::Allocate { bytes });
        self.items.push(Item::new(bytes, now..u64::MAX).aligned(self.alignment));
        self.items.len() - 1
    }

    /// Records that an allocation is freed. An allocation that is never freed is needed to the end of the step.
    ///
    /// # Errors
    /// When there is no such allocation, or it was given back before.
    pub fn free(&mut self, number: usize) -> Result<(), CallError> {
        let made = self.items.len();
        let item = self.items.get_mut(number).ok_or(CallError::NeverMade { number, made })?;
        if item.upper != u64::MAX {
            return Err(CallError::FreedTwice { number });
        }
        item.upper = self.calls.len() as u64;
        self.calls.push(Call::Free { number });
        Ok(())
    }

    /// Finds an offset for each allocation, as [`minimize`] does.
    ///
    /// # Errors
    /// As [`minimize`].
    pub fn pack(mut self, options: &Options) -> Result<PackedStep, Error> {
        let end = self.calls.len() as u64;
        self.items.iter_mut().for_each(|item| item.upper = item.upper.min(end));
        let problem = Problem { items: self.items, ..Problem::new() };
        let packing = minimize(&problem, options)?;
        Ok(PackedStep(Arc::new(Packed { calls: self.calls, packing })))
    }
}

/// A recorded step with an offset for each allocation. Clones share it, and so do replays.
#[derive(Clone, Debug)]
pub struct PackedStep(Arc<Packed>);

#[derive(Debug)]
struct Packed {
    calls: Vec<Call>,
    packing: Packing,
}

impl PackedStep {
    /// The bytes of the block that all allocations of the step are in.
    pub fn bytes(&self) -> u64 {
        self.0.packing.height
    }

    /// The offsets of all allocations by number, and how good they are.
    pub fn packing(&self) -> &Packing {
        &self.0.packing
    }

    /// Starts another step.
    pub fn replay(&self) -> Replay {
        Replay { step: self.0.clone(), n_calls: 0, n_allocations: 0 }
    }
}

/// A step that repeats the recorded one. Any other call is refused, since the memory that it would overwrite may still
/// be needed.
#[derive(Clone, Debug)]
pub struct Replay {
    step: Arc<Packed>,
    n_calls: usize,
    n_allocations: usize,
}

/// The place of an allocation in a replayed step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its number, to free it by.
    pub number: usize,
    /// From the start of the block.
    pub offset: u64,
}

impl Replay {
    /// The place of the next allocation.
    ///
    /// # Errors
    /// When the recorded step did something else here.
    pub fn allocate(&mut self, bytes: u64) -> Result<Placed, CallError> {
        self.next(Call::Allocate { bytes })?;
        let number = self.n_allocations;
        self.n_allocations += 1;
        Ok(Placed { number, offset: self.step.packing.offsets[number] })
    }

    /// Gives an allocation back.
    ///
    /// # Errors
    /// When the recorded step did something else here.
    pub fn free(&mut self, number: usize) -> Result<(), CallError> {
        self.next(Call::Free { number })
    }

    fn next(&mut self, found: Call) -> Result<(), CallError> {
        let (index, recorded) = (self.n_calls, self.step.calls.get(self.n_calls).copied());
        if recorded != Some(found) {
            return Err(CallError::Differs { index, found, recorded });
        }
        self.n_calls += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_calls_are_named() {
        let mut recording = Recording::new(1);
        let a = recording.allocate(8);
        assert_eq!(recording.free(1), Err(CallError::NeverMade { number: 1, made: 1 }));
        assert_eq!(recording.free(a), Ok(()));
        assert_eq!(recording.free(a), Err(CallError::FreedTwice { number: a }));
        let step = recording.pack(&Options::default()).unwrap();
        let mut replay = step.replay();
        let found = Call::Allocate { bytes: 9 };
        let recorded = Some(Call::Allocate { bytes: 8 });
        assert_eq!(replay.allocate(9), Err(CallError::Differs { index: 0, found, recorded }));
        assert_eq!(replay.allocate(8), Ok(Placed { number: 0, offset: 0 }), "nothing happened before");
        replay.free(a).unwrap();
        let beyond = replay.free(a).unwrap_err().to_string();
        assert_eq!(beyond, "call 2 of the step is Free { number: 0 }, and none was recorded");
    }
}
