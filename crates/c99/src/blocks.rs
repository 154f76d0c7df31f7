//! Blocks of rows: some neighboring rows of a product are computed together, so that what is equal in them is read once, and
//! compilers keep the sums of all in vector registers.
//!
//! ```text
//!   for i { for j in steps of 32 { for k { for lane { sum[lane] += a[i, k] * b[k, j + lane] } } } }
//!
//!   for i {  for j in steps of 32 {  for k {  for lane {
//!       const y = b[k, j + lane]
//!       sum_0[lane] += a[4 i, k] * y;  ...  sum_3[lane] += a[4 i + 3, k] * y
//!   } } } }
//! ```
//!
//! A block is the same nest with copies of its expressions, one for each row. No sum is reordered.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::dag::{Dag, FoldId, Level, Node, NodeId, Type, VarId};
use crate::kernel::{Nest, Store};

/// The fewest rows of a block: with 32 lanes, they have as many sums as 16 registers of 8 numbers.
pub(crate) const ROWS: i64 = 4;

/// The fewest sums of a block. GCC unrolls loops over lanes with fewer before it looks for vectors, and then finds none.
const SUMS: i64 = 64;

/// A nest of a product in blocks of rows, if it is one that gains by it.
pub(crate) fn in_blocks(dag: &mut Dag, nest: &Nest, lanes: i64) -> Option<Nest> {
    if lanes < 8 {
        return None;
    }
    let least = ROWS.max((SUMS + lanes - 1) / lanes);
    let n_rows = |extent: i64| (least..=least + ROWS).find(|n| extent % n == 0);
    let at = rows_of(dag, nest, &n_rows)?;
    let Level::Loop { var, extent } = nest.levels[at] else { return None };
    let rows = n_rows(extent)?;
    let mut block = nest.clone();
    let outer = dag.var(extent / rows);
    block.levels[at] = Level::Loop { var: outer, extent: extent / rows };
    let index = dag.loop_index(outer);
    let nodes = dag.reachable(nest.inputs());
    block.stores.clear();
    for row in 0..rows {
        let by = dag.affine(&[(index, rows)], row);
        let copies = copies(dag, &nodes, var, by)?;
        block.stores.extend(nest.stores.iter().map(|store| Store {
            offset: copies[&store.offset],
            value: copies[&store.value],
            ..*store
        }));
    }
    Some(block)
}

/// The innermost loop over rows: the only fold of the lanes depends on it, and reads something that does not.
fn rows_of(dag: &Dag, nest: &Nest, n_rows: &dyn Fn(i64) -> Option<i64>) -> Option<usize> {
    let (lane, outer) = nest.levels.split_last()?;
    let nodes = dag.reachable(nest.inputs());
    let depends = |node: NodeId, level: &Level| dag.vars(node).contains(&level.var());
    let mut folds: Vec<FoldId> = Vec::new();
    for &node in &nodes {
        if let Node::Folded(fold, _) = dag.nodes[node]
            && depends(node, lane)
            && !folds.contains(&fold)
        {
            folds.push(fold);
        }
    }
    let [fold] = *folds else { return None };
    let of_fold = dag.reachable(dag.folds[fold].next.iter().copied());
    outer.iter().rposition(|level| {
        // Copies of other folds would make long code of little gain.
        let is_bound = |&node: &NodeId| match dag.nodes[node] {
            Node::Under(..) | Node::InRange { .. } | Node::Clamp { .. } => depends(node, level),
            Node::Folded(other, _) => other != fold && depends(node, level),
            _ => false,
        };
        let is_shared = |&node: &NodeId| {
            matches!(dag.nodes[node], Node::Load { .. }) && depends(node, lane) && !depends(node, level)
        };
        let is_own = |&node: &NodeId| matches!(dag.nodes[node], Node::Load { .. }) && depends(node, level);
        matches!(level, Level::Loop { extent, .. } if n_rows(*extent).is_some())
            && !nodes.iter().any(is_bound)
            && of_fold.iter().any(is_shared)
            && of_fold.iter().any(is_own)
    })
}

/// Copies of expressions, operands first, with an index in the place of a variable. `None` if they are bound to it.
fn copies(dag: &mut Dag, nodes: &[NodeId], var: VarId, by: NodeId) -> Option<FxHashMap<NodeId, NodeId>> {
    let mut copies: FxHashMap<NodeId, NodeId> = FxHashMap::default();
    let mut folds: FxHashMap<FoldId, Option<FoldId>> = FxHashMap::default();
    for &node in nodes {
        if let Node::Folded(fold, _) = dag.nodes[node] {
            let copied = dag.vars(node).contains(&var).then(|| {
                let it = &dag.folds[fold];
                let (name, types): (String, Vec<Type>) =
                    (it.name.clone(), it.types.iter().map(|t| t.0).collect());
                dag.open_fold(&name, &types)
            });
            folds.entry(fold).or_insert(copied);
        }
    }
    let mut closed: FxHashMap<FoldId, SmallVec<[NodeId; 2]>> = FxHashMap::default();
    for &node in nodes {
        let of = |node: &NodeId| copies[node];
        let copy = match dag.nodes[node].clone() {
            Node::Var(v) if v == var => by,
            Node::Var(_) | Node::Constant(..) => node,
            Node::Accumulator(fold, k) => match folds[&fold] {
                Some(fold) => dag.accumulator(fold, k as usize),
                None => node,
            },
            Node::Folded(fold, k) => match folds[&fold] {
                Some(copied) if !closed.contains_key(&copied) => {
                    let it = dag.folds[fold].clone();
                    let is_bound = |level: &Level| match level {
                        Level::If { condition, .. } => copies[condition] != *condition,
                        Level::Loop { .. } => false,
                        _ => true,
                    };
                    if it.loops().iter().any(is_bound) {
                        return None;
                    }
                    let initial: Vec<NodeId> = it.initial.iter().map(of).collect();
                    let next: Vec<NodeId> = it.next.iter().map(of).collect();
                    let folded = dag.close_fold(copied, it.loops().to_vec(), &initial, &next);
                    let copy = folded[k as usize];
                    closed.insert(copied, folded);
                    copy
                }
                Some(copied) => closed[&copied][k as usize],
                None => node,
            },
            _ if dag.inputs(node).iter().all(|input| copies[input] == *input) => node,
            Node::Affine { terms, base } => {
                let terms: Vec<(NodeId, i64)> = terms.iter().map(|(x, c)| (of(x), *c)).collect();
                dag.affine(&terms, base)
            }
            Node::Quotient(x, divisor) => dag.quotient(of(&x), divisor),
            Node::Remainder(x, divisor) => dag.remainder(of(&x), divisor),
            Node::Load { array, offset, mark } => match dag.of(node) {
                Type::Element(t) => dag.load(array, t, of(&offset), mark),
                Type::Index => return None,
            },
            Node::Apply(function, inputs) => {
                let inputs: Vec<NodeId> = inputs.iter().map(of).collect();
                dag.apply(function, &inputs)
            }
            Node::Clamp { .. } | Node::InRange { .. } | Node::Under(..) => return None,
        };
        if copy != node
            && let Some(name) = dag.names.get(&node).cloned()
        {
            dag.names.entry(copy).or_insert(name);
        }
        copies.insert(node, copy);
    }
    Some(copies)
}
