//! Constants of the program: arrays that a function captured instead of taking as arguments.

use memplan_ir::{Literal, Op};
use memplan_memory::{AllocationKind, Bytes};
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::Subject;

/// A constant that takes memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ConstantNote {
    /// The instruction.
    pub name: String,
    /// Its shape, as HLO writes it.
    pub shape: String,
    /// Its bytes.
    pub bytes: Bytes,
    /// The line of the user's program that uses it.
    pub source: Option<String>,
    /// Another constant with the same data.
    pub same_as: Option<String>,
}

/// Every constant that takes memory, the largest first. Linear in the plan and in the data of constants.
pub(super) fn constants(subject: &Subject<'_>) -> Vec<ConstantNote> {
    let module = subject.module;
    let mut first: FxHashMap<&Literal, String> = FxHashMap::default();
    let mut notes = Vec::new();
    for (position, slice) in &subject.plan().slices {
        let Op::Constant(literal) = &module.instructions[position.instruction].op else { continue };
        if subject.plan().allocations[slice.allocation].kind != AllocationKind::Constant {
            continue;
        }
        let name = subject.name(position.instruction);
        let same_as = first.get(literal).cloned();
        first.entry(literal).or_insert_with(|| name.clone());
        notes.push(ConstantNote {
            shape: memplan_hlo::shape_text(module.shape(position.instruction)),
            bytes: slice.size,
            source: subject.words.sources.user(position.instruction).map(|frame| frame.to_string()),
            same_as,
            name,
        });
    }
    notes.sort_by_key(|note| std::cmp::Reverse(note.bytes));
    notes
}
