//! How to assign fast memory. Every number that decides results is here, with its reason.

use memplan_memory::{Bytes, Target};

/// The objective to minimize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// The bytes that main memory moves.
    Traffic,
    /// The most bytes of main memory that are taken at one moment; then the bytes that it moves.
    Footprint,
}

/// How values find their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// By prices of fast memory, for which all values compete.
    ByPrice,
    /// As XLA does: one after the other, those first that save most for the square root of their size; values that
    /// nobody reads not at all.
    AsXla,
}

/// How to assign fast memory.
#[derive(Clone, Debug, PartialEq)]
pub struct FastMemoryOptions {
    /// The objective to minimize.
    pub objective: Objective,
    /// How values find their places.
    pub selection: Selection,
    /// Numbers of [`Selection::AsXla`].
    pub as_xla: AsXlaOptions,
    /// Bytes of the fast memory that values may take together with the scratch of kernels.
    pub capacity: u64,
    /// Bytes of the largest value that may be in it.
    pub largest: u64,
    /// Bytes of the largest array that a collective reads or writes there, with [`Selection::ByPrice`]. Of arrays up to 8 MiB,
    /// libtpu has most there in the programs of docs/devices.md, and all of those that loops gather.
    pub largest_collective: u64,
    /// The worth of a byte that main memory moves while the cores wait for it, in addition to the byte itself. Below 1,
    /// so that fewer bytes always win over less time.
    pub time_weight: f64,
    /// The most parameters that stay in fast memory from one call of the program to the next.
    pub cross_program_prefetches: usize,
    /// Parameters for which there may be no capacity left before no more are tried: each try is a packing.
    pub refused_residents: usize,
    /// When transfers start, and their worth.
    pub transfers: TransferOptions,
    /// How prices are found.
    pub prices: PriceOptions,
    /// How choices that fit are improved.
    pub search: SearchOptions,
    /// How to repair a packing that exceeds the memory.
    pub repair: RepairOptions,
    /// How main memory is priced for [`Objective::Footprint`].
    pub footprint: FootprintOptions,
}

/// Numbers of XLA's memory space assignment.
#[derive(Clone, Debug, PartialEq)]
pub struct AsXlaOptions {
    /// Bytes of fast memory for values: XLA sets what kernels may reserve apart.
    pub capacity: u64,
    /// The share of main memory's bandwidth that it counts with: libtpu logs 7.38e11 B/s of 8.2e11 on v5e
    /// (`TPU_VMODULE=algorithm=4`).
    pub bandwidth_share: f64,
}

/// When transfers start, and their worth.
#[derive(Clone, Debug, PartialEq)]
pub struct TransferOptions {
    /// The longest that a transfer is under way, in multiples of its own time: where operations leave main memory no
    /// idle time, starting earlier hides nothing, and holds fast memory.
    pub longest_flight: f64,
    /// The longest that a value stays between two uses, in multiples of the time in which a transfer fills the whole memory:
    /// one that is needed much later leaves room for others.
    pub longest_stay: f64,
    /// The steps that a loop counts for in the time that a value stays. XLA's memory space assignment takes five, whatever
    /// the number of steps is.
    pub steps_of_loops: f64,
    /// Bytes of the smallest slice that is copied by itself: a transfer and its wait cost more than smaller ones save.
    pub smallest_slice: u64,
    /// The most operations that are repeated to compute the offset of a slice elsewhere: they run in each iteration.
    pub offset_operations: usize,
}

/// How the prices of fast memory are found (subgradient method).
#[derive(Clone, Debug, PartialEq)]
pub struct PriceOptions {
    /// Rounds of adjusting prices. The bound hardly rises after this many.
    pub rounds: usize,
    /// Rounds without a better bound after which steps are halved.
    pub patience: usize,
    /// The scale of steps below which they change nothing that counts, so that the search for prices ends.
    pub smallest_step: f64,
}

/// How choices that fit are improved (local search).
#[derive(Clone, Debug, PartialEq)]
pub struct SearchOptions {
    /// Steps, in each of which every candidate that is not where it is best off may try.
    pub steps: usize,
    /// Candidates to try in one step: those that would save most. Bounds the time for large programs.
    pub candidates_per_step: usize,
    /// Candidates that one may eject. Ejecting more is hardly worth it, and each must choose again.
    pub ejections: usize,
    /// The share of its price that free capacity costs: just enough to prefer choices that leave more of it.
    pub reserve_price: f64,
    /// The price of one byte for one instant where nothing is scarce: of candidates that save as much, those come first
    /// that hold less. So low that it decides nothing else.
    pub area_price: f64,
    /// The least gain that counts, in bytes moved: half a byte, so that rounding is no gain.
    pub least_gain: f64,
}

/// How to repair a packing that exceeds the memory.
#[derive(Clone, Debug, PartialEq)]
pub struct RepairOptions {
    /// Packings after which candidates in the wrong place choose again. Then all of them get less capacity instead.
    pub attempts: usize,
    /// The part of the capacity by which each of these packings has less, at least, so that there are not many: one in
    /// this many.
    pub retreat: u64,
}

/// How main memory is priced where most of it is taken.
#[derive(Clone, Debug, PartialEq)]
pub struct FootprintOptions {
    /// Rounds of raising prices, each of which assigns anew.
    pub rounds: usize,
    /// The worth of keeping one byte out of main memory at its fullest, in bytes moved: more than moving it in every
    /// iteration of any but the longest loops, since a program that does not fit does not run.
    pub peak_worth: f64,
    /// The share of the most bytes from which on an instant is priced together with the fullest: otherwise each round
    /// would lower one instant and leave its neighbour.
    pub near_peak: f64,
}

impl FastMemoryOptions {
    /// Defaults, for the capacity of a target's fast memory that programs can use; `None` for targets without fast
    /// memory.
    pub fn for_target(target: &Target) -> Option<FastMemoryOptions> {
        let space = target.space(target.fast_memory?.space)?;
        let Bytes(capacity) = space.usable()?;
        let Bytes(reserved) = space.kernel_scratch;
        Some(FastMemoryOptions {
            objective: Objective::Traffic,
            selection: Selection::ByPrice,
            as_xla: AsXlaOptions { capacity: capacity.saturating_sub(reserved), bandwidth_share: 0.9 },
            capacity,
            largest: capacity,
            largest_collective: 8 << 20,
            time_weight: 0.25,
            cross_program_prefetches: 1,
            refused_residents: 8,
            transfers: TransferOptions {
                longest_flight: 2.0,
                longest_stay: f64::INFINITY,
                steps_of_loops: 5.0,
                smallest_slice: 4096,
                offset_operations: 64,
            },
            prices: PriceOptions { rounds: 40, patience: 5, smallest_step: 0.05 },
            search: SearchOptions {
                steps: 4,
                candidates_per_step: 200,
                ejections: 12,
                reserve_price: 1e-3,
                area_price: 1e-12,
                least_gain: 0.5,
            },
            repair: RepairOptions { attempts: 4, retreat: 64 },
            footprint: FootprintOptions { rounds: 4, peak_worth: 1000.0, near_peak: 0.99 },
        })
    }
}
