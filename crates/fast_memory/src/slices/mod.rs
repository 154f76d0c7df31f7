//! Slices: kernels that read only a slice of an array need only the slice in fast memory.
//!
//! Loops over layers and over time steps read one slice of a large array per iteration, inside the kernels that use it.
//! Each kernel reads it from main memory, and waits for it. With one copy of the slice for all of them, no kernel waits
//! if the copy starts early. If the slice is needed soon after the iteration begins, the copy starts in the previous
//! iteration (software pipelining), and the loop carries its result: the copy starts after the last use of the previous
//! slice, or, with a second buffer, after the first, so that one slice is read while the next arrives (double
//! buffering).
//!
//! ```text
//!   body(i, stack, a)                         body(i, stack, a, slice)            slice = stack[i], copied before
//!     b = fusion(stack, i, a)  waits            b = fusion(slice, a)
//!     c = dot(b, ..)           computes         start = dynamic-slice-start(stack, i + 1)
//!                                               c = dot(b, ..)                    hides the copy
//!     return (i + 1, stack, c)                  return (i + 1, stack, c, dynamic-slice-done(start))
//! ```
//!
//! A slice is a separate candidate. Its uses then do not count as uses of the array, which stays in main memory; so only
//! arrays that would not be in fast memory are sliced.
//!
//! Transfers move whole tiles: a slice is a candidate only if it cuts dimensions that tiles do not span. The copy in the
//! last iteration fetches a slice that no kernel reads; its cost counts.

mod candidates;
mod classes;

use indexmap::IndexMap;
use memplan_analysis::{Facts, Iteration, ScalarScope, SlicedOperand, Time, ValueId, ValueKind};
use memplan_ir::{ComputationId, EntitySet, Module, ShapeId, Use};
use rustc_hash::{FxBuildHasher, FxHashSet};
use smallvec::SmallVec;

use crate::candidate::SliceCandidate;
use crate::collect::Context;
use candidates::Builder;
use classes::Classes;

/// The slices of a program.
#[derive(Default)]
pub(crate) struct Slices {
    pub(crate) candidates: Vec<SliceCandidate>,
    /// The arrays that are sliced.
    pub(crate) arrays: EntitySet<ValueId>,
    /// The operands that they serve.
    pub(crate) uses: FxHashSet<Use>,
}

/// The common properties of two kernels that read the same slice.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    value: ValueId,
    computation: ComputationId,
    /// Of the array, and of the slice.
    shapes: [ShapeId; 2],
    /// The start of a static slice.
    starts: SmallVec<[i64; 4]>,
    /// Classes of the scalars that say where a dynamic slice begins.
    offsets: SmallVec<[u32; 4]>,
}

/// Finds the slices of all arrays except those of `fast` that may save something. Close to linear in operands.
pub(crate) fn find(context: Context<'_>, fast: &EntitySet<ValueId>) -> Slices {
    let mut slices = Slices::default();
    let mut builder = Builder::new(context);
    for (key, uses) in sliced_uses(context, fast) {
        let sliced = SlicedOperand::of(context.module, context.users, uses[0]).expect("it was sliced before");
        let Some(candidate) = builder.candidate(&key, &uses, &sliced) else { continue };
        slices.candidates.push(candidate);
        slices.arrays.insert(key.value);
        slices.uses.extend(uses);
    }
    slices
}

/// Operands of which kernels read the same slice, in the order of time.
fn sliced_uses(context: Context<'_>, fast: &EntitySet<ValueId>) -> IndexMap<Key, Vec<Use>, FxBuildHasher> {
    let Context { module, facts, users, options, .. } = context;
    let limit = options.transfers.offset_operations;
    let mut classes = Classes::default();
    let mut uses: IndexMap<Key, Vec<Use>, FxBuildHasher> = IndexMap::default();
    for &id in &facts.line.instructions {
        let instruction = &module.instructions[id];
        if !context.reaches_fast_memory(id) {
            continue;
        }
        let in_place = facts.in_place.must_alias(module, id);
        for (k, &operand) in instruction.operands.iter().enumerate() {
            let it = Use { user: id, operand: k as u32 };
            let Some(value) = facts.flow.value_of(operand).filter(|&value| !fast.contains(value)) else {
                continue;
            };
            let Some(sliced) = SlicedOperand::of(module, users, it) else { continue };
            let scope = ScalarScope { facts, kernel: id, around: None };
            let offsets = sliced.offsets(module);
            let is_overwritten = in_place.iter().any(|pair| pair.operand == it.operand);
            if is_overwritten || scope.sources(module, offsets, Iteration::AtKernel, limit).is_none() {
                continue;
            }
            let offsets = offsets.iter().map(|&offset| classes.of(module, scope, offset));
            let key = Key {
                value,
                computation: instruction.parent,
                shapes: [instruction.operands[k], sliced.slice].map(|id| module.instructions[id].shape),
                starts: sliced.starts(module),
                offsets: offsets.collect(),
            };
            uses.entry(key).or_default().push(it);
        }
    }
    uses
}

/// The first instant at which a computation can read a value.
pub(crate) fn exists_from(
    module: &Module,
    facts: &Facts,
    value: ValueId,
    computation: ComputationId,
) -> Time {
    let definition = &facts.flow.values[value];
    let id = facts.flow.positions.instruction(definition.definition);
    match definition.kind {
        ValueKind::Written | ValueKind::ExitPhi if module.instructions[id].parent == computation => {
            facts.line.time(id) + 1
        }
        _ => facts.line.range(computation).0,
    }
}
