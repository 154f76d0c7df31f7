//! Passes that change what loops and conditionals carry: arrays that are updated in place, sums instead of stacks.

mod accumulate;
mod apply;
mod backing;
mod conditional_in_place;
mod counters;
mod find;
mod flat;
mod in_place;
mod line;
mod part_of_row;
mod rows_first;
mod rows_within_loops;
mod summed;
mod sums_in_place;
mod unchanging;
mod uninitialized;
mod updates;
mod within;

pub use conditional_in_place::CONDITIONAL_IN_PLACE;
pub use counters::COUNTERS_PAST_BARRIERS;
pub use flat::FLAT_LOOP_STATE;
pub use in_place::{LOOP_STATE_IN_PLACE, LoopStateInPlace};
pub use rows_within_loops::{ROWS_WITHIN_LOOPS, RowsWithinLoops};
pub use sums_in_place::SUMS_IN_PLACE;
pub use uninitialized::{UNINITIALIZED_RESULTS, UNINITIALIZED_STACKS};
pub use updates::{UPDATES_WITHIN_LOOPS, UpdatesWithinLoops};
pub use within::KeepWithinLoops;
