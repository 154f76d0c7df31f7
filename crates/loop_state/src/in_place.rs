//! `loop-state-in-place`: merges an array of which a loop reads rows with an array of which it writes rows.
//!
//! A scan over layers that reads row `i` of a cache, and returns row `i` of the new cache, has both caches in its
//! state. If nobody needs the old one afterwards, each new row can overwrite the row that was read:
//!
//! ```text
//! s = (s32[], f32[9,8], f32[9,8]) tuple(0, zeros, old)     s = (s32[], f32[9,8]) tuple(0, old)
//! w = while(s)                                             w = while(s)
//!   row = dynamic-slice(old, i, 0)                    =>     row = dynamic-slice(old, i, 0)
//!   new = dynamic-update-slice(new, f(row), i, 0)            new = dynamic-update-slice(old, f(row), i, 0)
//! ```
//!
//! The program is the same if
//!
//! * no step reads rows that an earlier step wrote: both rows are lines over the step number, in one dimension, and the
//!   line of the reads is not behind;
//! * every row is written, or the other rows are filled before the loop with the new array's initial value;
//! * nothing else reads either array in the loop, nor the old one after it.
//!
//! Then, a value that is added to all rows after the loop is added to each row inside it ([`accumulate`]), and updates
//! of part of a row become updates of the array ([`part_of_row`]).
//!
//! A compiler other than ours may still copy the array in each step; [`rows_first`](crate::rows_first) prevents that.
//!
//! Memory is saved if the loop may write where the old array is: in an array that the program made, in a donated
//! parameter that receives the new array, or in state of the outer loop that becomes the new array.
//!
//! Left alone: loops with an unknown number of steps, and loops with control dependencies. Requires inlined calls.
//! *Changed* means that state was joined.

use memplan_ir::{Module, Names, Users};
use memplan_rewriter::loops::loops;
use memplan_rewriter::{Context, Outcome, Pass, PassError};

use crate::backing::Backings;
use crate::rows_first::read_rows_first;
use crate::{accumulate, apply, find, part_of_row};

/// The pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopStateInPlace {
    /// Most times that the module is looked at: each time, more may be dead.
    pub max_rounds: usize,
    /// The most operations between a loop and the sum that it takes over: a scale, a decay and a sum are three.
    pub max_operations: usize,
    /// Whether barriers make sure that rows are read before they are overwritten, for compilers that copy the array
    /// otherwise.
    pub has_barriers: bool,
}

/// The pass with the limits that `compile` uses.
pub const LOOP_STATE_IN_PLACE: LoopStateInPlace =
    LoopStateInPlace { max_rounds: 8, max_operations: 8, has_barriers: false };

impl Default for LoopStateInPlace {
    fn default() -> LoopStateInPlace {
        LOOP_STATE_IN_PLACE
    }
}

impl Pass for LoopStateInPlace {
    fn name(&self) -> &'static str {
        "loop-state-in-place"
    }

    fn description(&self) -> &'static str {
        "let loops overwrite rows of old state that they have read with rows of new state"
    }

    fn run(&self, module: &mut Module, _: &Context<'_>) -> Result<Outcome, PassError> {
        let mut changed = false;
        for _ in 0..self.max_rounds {
            let joined = join(module);
            let accumulated = accumulate::run(module, self.max_operations);
            let in_part = part_of_row::run(module);
            if !(joined || accumulated || in_part) {
                break;
            }
            changed = true;
        }
        if changed && self.has_barriers {
            read_rows_first(module);
        }
        Ok(changed.into())
    }
}

fn join(module: &mut Module) -> bool {
    let users = Users::new(module);
    let loops = loops(module, &users);
    let backings = Backings::new(module, &users, &loops);
    let found: Vec<_> = loops.iter().map(|of| find::matches(module, &users, &backings, of)).collect();
    let mut names = Names::new(module);
    let mut changed = false;
    for (of, matches) in loops.iter().zip(found).filter(|(_, matches)| !matches.is_empty()) {
        apply::apply(module, of, &matches, &mut names);
        changed = true;
    }
    changed
}
