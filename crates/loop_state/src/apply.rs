//! Merges two elements of a loop's state.

use memplan_ir::{Cursor, ElementType, Insert, InstructionId, Module, Names, Op, Sharding, SliceDimension};
use memplan_rewriter::loops::Loop;
use rustc_hash::FxHashMap;

use crate::find::Match;

/// Lets the array that is read be the one that is written, for each pair. Linear in the computations concerned.
pub(super) fn apply(module: &mut Module, of: &Loop, matches: &[Match], names: &mut Names) {
    for matching in matches {
        let start = start_with_unwritten(module, of, matching, names);
        module.instructions[of.init].operands[matching.read as usize] = start;
        let update = module.instructions[of.next].operands[matching.written as usize];
        module.instructions[of.next].operands[matching.read as usize] = update;
        let [taken, results] = [&of.taken, &of.results].map(|sites| sites.get(&matching.written));
        for &site in taken.into_iter().chain(results).flatten() {
            module.instructions[site].op = Op::GetTupleElement { index: matching.read };
        }
    }
    let is_gone = |element: u32| matches.iter().any(|matching| matching.written == element);
    let n_elements = module.instructions[of.init].operands.len() as u32;
    drop_elements(module, of, &(0..n_elements).map(is_gone).collect::<Vec<_>>());
}

/// The initial value of the loop: the array that is read, except for rows that it never writes.
fn start_with_unwritten(
    module: &mut Module,
    of: &Loop,
    matching: &Match,
    names: &mut Names,
) -> InstructionId {
    let [array, left] = [matching.read, matching.written]
        .map(|element| module.instructions[of.init].operands[element as usize]);
    let whole = module.shape(array).as_array().expect("rows are of arrays").clone();
    let mut at = Cursor::before(module, names, of.init).with_metadata_of(of.id);
    let mut start = array;
    for &(from, to) in &matching.unwritten {
        let dimensions = whole.dimensions.iter().enumerate().map(|(d, &extent)| {
            let (start, limit) = if d == matching.dimension { (from, to) } else { (0, extent) };
            SliceDimension { start, limit, stride: 1 }
        });
        let dimensions = dimensions.collect();
        let mut part = whole.clone();
        part.dimensions[matching.dimension] = to - from;
        let rows = at.insert_shaped(Op::Slice { dimensions }, [left], part);
        let begins = (0..whole.rank()).map(|d| if d == matching.dimension { from } else { 0 });
        let begins: Vec<InstructionId> = begins.map(|begin| at.integer(ElementType::S32, begin)).collect();
        start = at.dynamic_update_slice(start, rows, begins);
    }
    start
}

/// Takes elements that nothing uses any more out of the state.
fn drop_elements(module: &mut Module, of: &Loop, is_gone: &[bool]) {
    let mut new_index = Vec::with_capacity(is_gone.len());
    let mut n_kept = 0;
    for &is_gone in is_gone {
        new_index.push(n_kept);
        n_kept += u32::from(!is_gone);
    }
    let states = [of.id, of.state, of.condition_state(module)];
    for computation in [module.instructions[of.id].parent, of.body, of.condition] {
        let mut list = std::mem::take(&mut module.computations[computation].instructions);
        list.retain(|&id| {
            let instruction = &mut module.instructions[id];
            let taken = match &mut instruction.op {
                Op::GetTupleElement { index } if states.contains(&instruction.operands[0]) => index,
                _ => return true,
            };
            let is_kept = !is_gone[*taken as usize];
            *taken = new_index[*taken as usize];
            is_kept
        });
        module.computations[computation].instructions = list;
    }
    for tuple in [of.init, of.next] {
        let mut i = 0..is_gone.len();
        let operands = &mut module.instructions[tuple].operands;
        operands.retain(|_| i.next().is_some_and(|i| !is_gone[i]));
    }
    of.set_shapes(module);
    for id in of.tuples(module) {
        let instruction = &mut module.instructions[id];
        if let Some(extras) = &mut instruction.extras {
            // It says where all of the state comes from, which this no longer is.
            extras.origin = None;
            if let Some(Sharding::Tuple(leaves)) = &mut extras.sharding {
                let mut i = 0..is_gone.len();
                leaves.retain(|_| i.next().is_some_and(|i| !is_gone[i]));
            }
        }
    }
}

/// Replaces instructions for all their users, and lists the replacements early enough. Linear in the computations
/// concerned.
pub(super) fn use_instead(module: &mut Module, stands_for: &FxHashMap<InstructionId, InstructionId>) {
    let mut computations: Vec<_> = stands_for.keys().map(|&id| module.instructions[id].parent).collect();
    computations.sort_unstable();
    computations.dedup();
    for computation in computations {
        for id in module.computations[computation].instructions.clone() {
            for operand in &mut module.instructions[id].operands {
                *operand = stands_for.get(operand).copied().unwrap_or(*operand);
            }
        }
        let root = module.computations[computation].root;
        if let Some(&new) = stands_for.get(&root) {
            module.computations[computation].root = new;
            module.list(new);
        }
        module.put_operands_first(computation);
    }
}
