//! The trait that assignment uses.

use crate::{Scratch, Time, Value, ValueId};

/// A scheduled program for a memory planner: values with bytes and live ranges, and which of them may or must share. A
/// compiler answers from tables that it has; every method is called a bounded number of times for each instant, value,
/// or pair of an operand and a result.
pub trait Program {
    /// How many instants the run has.
    fn end(&self) -> Time;

    /// How many values there are: their ids count from zero.
    fn n_values(&self) -> usize;

    /// The facts about a value.
    fn value(&self, value: ValueId) -> Value;

    /// The first of the values that must have the same place as this one to preserve the program's meaning: loop state
    /// before and after a step, an array before and after an update in place. Itself if none precedes it.
    fn group(&self, value: ValueId) -> ValueId {
        value
    }

    /// Where a value comes in the order of equally large ones: asked by those who share as XLA does, which orders them by its
    /// walk over the program.
    fn turn(&self, value: ValueId) -> (u32, u32) {
        (0, value.as_u32())
    }

    /// The values that an instant reads, in the order in which results try to take over their bytes.
    fn reads(&self, time: Time) -> impl Iterator<Item = ValueId>;

    /// The values that an instant writes, in the order in which they try to take over bytes.
    fn writes(&self, time: Time) -> impl Iterator<Item = ValueId>;

    /// Whether an instant may write a result over an operand that is not needed afterwards: each byte is read before, and
    /// only for, the one that replaces it.
    fn may_overwrite(&self, time: Time, operand: ValueId, result: ValueId) -> bool {
        let _ = (time, operand, result);
        false
    }

    /// Whether an instant reads a value from where it was written, rather than through something that passes it on: asked by
    /// those who share as XLA does, which does not look through that.
    fn reads_directly(&self, time: Time, operand: ValueId) -> bool {
        let _ = (time, operand);
        true
    }

    /// Whether an instant reads a value directly from an instant that wrote nothing else: asked by those who share as XLA's TPU
    /// compiler does, which writes over no element of a tuple and through no view.
    fn reads_alone(&self, time: Time, operand: ValueId) -> bool {
        let _ = (time, operand);
        true
    }

    /// Whether some result of an instant could be written over an operand. A quick no spares the questions above, which
    /// matters where instants read and write very many values.
    fn may_reuse(&self, time: Time) -> bool {
        let _ = time;
        true
    }

    /// Whether an operand and a result of an instant have one shape: asked by those who share as XLA's CPU compiler does,
    /// which reuses only such.
    fn is_same_shape(&self, time: Time, operand: ValueId, result: ValueId) -> bool {
        let _ = time;
        self.value(operand).size == self.value(result).size
    }

    /// Working memory of operations, in any order; where an instant has several entries for a memory space, the largest size
    /// counts, and the last end.
    fn scratch(&self) -> impl Iterator<Item = Scratch> {
        core::iter::empty()
    }
}
