//! Results in the memory of donated parameters.
//!
//! Before: a caller donates a parameter without naming a result (JAX does this if no result has its shape). After: a
//! result of equal size lives in it.
//!
//! ```text
//!   buffer_donor={ (0, {}) }                     =>   input_output_alias={ {}: (0, {}, may-alias) }
//!   p = f32[6,2,5] parameter(0)                       p = f32[6,2,5] parameter(0)
//!   ROOT t = f32[6,5,2] transpose(..)                 ROOT t = f32[6,5,2] transpose(..)
//! ```
//!
//! Among equal sizes, the first donor gets the first result, as in XLA's `OptimizeInputOutputBufferAlias`. If the
//! parameter is read after its result is written, copy insertion separates them, at a cost of at most the savings.
//!
//! Requires layouts, since they decide sizes. Leaves alone donors that no result fits, and scheduled modules.

use std::collections::{BTreeMap, VecDeque};

use memplan_ir::{AliasKind, BufferDonor, InputOutputAlias, Module, Shape, ShapeIndex};
use memplan_memory::{Bytes, Target};
use memplan_rewriter::{Context, PassError, PassFn};
use rustc_hash::FxHashSet;

/// The pass.
pub const DONATION: PassFn =
    PassFn { name: "donation", description: "Let results live in donated parameters of their size", run };

/// Properties that must be equal for one array to live in the memory of another: bytes with padding and without, memory
/// space.
type Room = (Bytes, Bytes, i64);

fn run(module: &mut Module, context: &Context<'_>) -> Result<bool, PassError> {
    if module.is_scheduled {
        return Ok(false);
    }
    let aliases = results_in_donors(module, context.target);
    if aliases.is_empty() {
        return Ok(false);
    }
    let used: FxHashSet<(u32, &ShapeIndex)> =
        aliases.iter().map(|a| (a.parameter, &a.parameter_index)).collect();
    module.config.buffer_donors.retain(|donor| !used.contains(&(donor.parameter, &donor.index)));
    module.config.input_output_alias.extend(aliases);
    Ok(true)
}

/// The results that XLA lets live in donated parameters for which no result is named.
pub fn results_in_donors(module: &Module, target: &Target) -> Vec<InputOutputAlias> {
    if module.config.buffer_donors.is_empty() {
        return Vec::new();
    }
    let room = |shape: &Shape| -> Room {
        let space = shape.as_array().and_then(|array| array.layout.as_ref()).map_or(0, |l| l.memory_space);
        (target.size_of(shape), target.unpadded_size_of(shape), space)
    };
    let mut donors: BTreeMap<Room, VecDeque<BufferDonor>> = BTreeMap::new();
    let parameters = &module.entry_computation().parameters;
    for donor in &module.config.buffer_donors {
        let parameter = parameters.get(donor.parameter as usize).map(|&parameter| module.shape(parameter));
        if let Some(shape @ Shape::Array(_)) = parameter.and_then(|shape| shape.subshape(&donor.index)) {
            donors.entry(room(shape)).or_default().push_back(donor.clone());
        }
    }
    let taken: FxHashSet<&ShapeIndex> =
        module.config.input_output_alias.iter().map(|alias| &alias.output_index).collect();
    let mut aliases = Vec::new();
    for (output_index, shape) in module.shape(module.entry_computation().root).leaves() {
        if taken.contains(&output_index) || !matches!(shape, Shape::Array(_)) {
            continue;
        }
        let Some(donor) = donors.get_mut(&room(shape)).and_then(VecDeque::pop_front) else { continue };
        let (parameter, parameter_index) = (donor.parameter, donor.index);
        aliases.push(InputOutputAlias {
            output_index,
            parameter,
            parameter_index,
            kind: AliasKind::MayAlias,
        });
    }
    aliases
}

/// Donating fewer elements saves next to nothing.
const MIN_DONATED: u64 = 1 << 10;

/// Parameters that their caller could give up, by number, each with the index of a result of its shape that lives in no
/// argument yet. Small ones are left out.
pub fn donations(module: &Module) -> Vec<(usize, ShapeIndex)> {
    let entry = module.entry_computation();
    let given: Vec<u32> = module.config.given_up().map(|(parameter, _)| parameter).collect();
    let mut taken: Vec<ShapeIndex> =
        module.config.input_output_alias.iter().map(|alias| alias.output_index.clone()).collect();
    let results = module.shape(entry.root).leaves();
    let mut pairs = Vec::new();
    for (number, &id) in entry.parameters.iter().enumerate() {
        let shape = module.shape(id);
        let is_large = shape.as_array().is_some_and(|array| array.element_count() >= Some(MIN_DONATED));
        if !is_large || given.contains(&(number as u32)) {
            continue;
        }
        let fitting =
            results.iter().find(|(index, leaf)| leaf.same_ignoring_layout(shape) && !taken.contains(index));
        if let Some((index, _)) = fitting {
            taken.push(index.clone());
            pairs.push((number, index.clone()));
        }
    }
    pairs
}

/// Lets results live in parameters that the caller gives up for them.
pub fn donate(module: &mut Module, pairs: &[(usize, ShapeIndex)]) {
    for (parameter, result) in pairs {
        module.config.alias(result.clone(), *parameter as u32, ShapeIndex::root());
    }
}
