//! Whether layouts name one memory space for every value.
//!
//! ```text
//!   x = f32[8]{0:S(1)} copy(p)
//!   t = (f32[8]{0}) tuple(x)         the element is `x`, which nothing moves to main memory
//! ```
//!
//! XLA's verifier does not check memory spaces, so such a program gets here; it has no correct plan.

use memplan_analysis::Dataflow;
use memplan_ir::{Module, PositionId};
use memplan_memory::{MemorySpaceId, Target, memory_space_of};

/// A value that layouts put into two memories.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the layout of {at} says {said}, but it is the value of {value} in {space}, and nothing moves it: name the same \
     memory, or put a copy between"
)]
pub struct SpaceError {
    /// The position that passes the value on: the name of an instruction, and the part of its result.
    pub at: Box<str>,
    /// The memory that is named there.
    pub said: MemorySpaceId,
    /// The definition of the value.
    pub value: Box<str>,
    /// The memory that is named there.
    pub space: MemorySpaceId,
}

/// Asks that each value is in one memory wherever it appears. Linear in positions; a layout may leave it open, where
/// kernels reach the memory as they reach main memory.
pub(crate) fn agree(module: &Module, flow: &Dataflow, target: &Target) -> Result<(), SpaceError> {
    let space = |position: PositionId| memory_space_of(flow.positions.part(module, position));
    for (id, value) in flow.values.iter() {
        let made = space(value.definition);
        let is_open = target.reaches_directly(made);
        let differs = |&&at: &&PositionId| {
            let said = space(at);
            said != made && !(is_open && said == MemorySpaceId::MAIN)
        };
        if let Some(&at) = flow.positions_of(id).iter().find(differs) {
            let [at_name, value] = [at, value.definition].map(|position| place(module, flow, position));
            return Err(SpaceError { at: at_name, said: space(at), value, space: made });
        }
    }
    Ok(())
}

fn place(module: &Module, flow: &Dataflow, position: PositionId) -> Box<str> {
    let positions = &flow.positions;
    let name = &module.instructions[positions.instruction(position)].name;
    let part = positions.shape_index(position);
    if part.is_root() { format!("`{name}`").into() } else { format!("`{name}`{part}").into() }
}
