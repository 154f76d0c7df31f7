//! Neighboring results of the innermost loop, computed together: an accumulator for each, in a small array.
//!
//! ```text
//!   for j in steps of 32 {
//!     f32 sum[32] = 0
//!     for k { const x = a[k];  for lane { sum[lane] += x * b[k * n + j + lane] } }
//!     for lane { c[j + lane] = sum[lane] }
//!   }
//! ```
//!
//! Sums with equal loops share them, such as those of neighboring rows ([blocks](crate::blocks)). Compilers find vector
//! registers for the loops over lanes, without reordering any sum. Where the elements of a sum are neighbors and those of
//! neighboring results are not, lanes are parts of one sum instead.

use crate::dag::{FoldId, Level, Node, NodeId, VarId};
use crate::expression::Expression;
use crate::operations::Form;
use crate::schedule::Writer;

/// Results that are computed together.
struct Lanes {
    /// The name of the loop's variable over them.
    lane: String,
    /// How many they are.
    bound: String,
    lanes: i64,
    var: VarId,
}

impl Writer<'_> {
    /// An innermost loop in steps of several results, which are computed together: what `inside` writes, and what it needs of
    /// `nodes`.
    pub(crate) fn lanes(
        &mut self,
        nodes: &[NodeId],
        needed: &[NodeId],
        outer: &[VarId],
        (var, extent, lanes): (VarId, i64, i64),
        inside: &mut dyn FnMut(&mut Self),
    ) {
        let path: Vec<VarId> = outer.iter().copied().chain([var]).collect();
        self.steps((var, extent, lanes), path.len(), &mut |writer, together| {
            writer.folds_together(nodes, &path, together);
            writer.each_lane(together, needed.iter().copied(), &path, inside);
        });
    }

    /// A loop in steps of several, unless one step is all.
    fn steps(
        &mut self,
        (var, extent, lanes): (VarId, i64, i64),
        depth: usize,
        inside: &mut dyn FnMut(&mut Self, &Lanes),
    ) {
        let scope = self.scope();
        let is_single = lanes == extent;
        let lane = self.identifiers.unique("lane");
        let (mut bound, mut index) = (lanes.to_string(), Expression::atom(&lane));
        if !is_single {
            let first = self.identifiers.counter(depth);
            self.open(&format!("for (ptrdiff_t {first} = 0; {first} < {extent}; {first} += {lanes})"));
            if extent % lanes != 0 {
                bound = self.identifiers.unique("n");
                self.line(&format!(
                    "const ptrdiff_t {bound} = {extent} - {first} < {lanes} ? {extent} - {first} : {lanes};"
                ));
            }
            index = Expression::infix(&Expression::atom(first), "+", &index);
        }
        self.vars.insert(var, index);
        inside(self, &Lanes { lane, bound, lanes, var });
        if !is_single {
            self.close();
        }
        self.leave(scope, !is_single);
    }

    /// The folds that are not yet known. Those with equal loops share them.
    fn folds_together(&mut self, nodes: &[NodeId], path: &[VarId], together: &Lanes) {
        let mut folds: Vec<Vec<FoldId>> = Vec::new();
        for &node in nodes {
            if let Node::Folded(fold, _) = self.dag.nodes[node]
                && !self.known.contains_key(&node)
                && self.dag.vars(node).iter().all(|v| path.contains(v))
                && !folds.iter().flatten().any(|&other| other == fold)
            {
                let needed = self.dag.reachable(self.dag.inputs(node));
                let needs = |group: &Vec<FoldId>| {
                    let is_in = |&node: &NodeId| matches!(self.dag.nodes[node], Node::Folded(f, _) if group.contains(&f));
                    needed.iter().any(is_in)
                };
                let after = folds.iter().rposition(needs).map_or(0, |at| at + 1);
                let loops = self.dag.folds[fold].loops();
                match folds[after..].iter_mut().find(|group| self.dag.folds[group[0]].loops() == loops) {
                    Some(group) => group.push(fold),
                    None => folds.push(vec![fold]),
                }
            }
        }
        for group in folds {
            self.fold_together(&group, path, together);
        }
    }

    /// The loops of a sum, of which each lane adds up a part.
    pub(crate) fn fold_in_parts(&mut self, id: FoldId, path: &[VarId], parts: i64) {
        let dag = self.dag;
        let fold = &dag.folds[id];
        let (function, _) = dag.sum_of(id).expect("parts are of sums");
        let Some((&Level::Loop { var, extent }, outer)) = fold.loops().split_last() else {
            unreachable!("the innermost level of a sum in parts is a loop")
        };
        let part = self.identifiers.unique("part");
        self.array(dag.of(fold.next[0]), &part, parts);
        // Nothing is 0 to a sum; an extreme may begin with the same number in every part.
        let initial = self.expression(fold.initial[0]).text;
        let zero = if function.form == Form::Infix("+") { "0" } else { &initial };
        let lane = self.identifiers.unique("lane");
        self.open(&format!("for (ptrdiff_t {lane} = 0; {lane} < {parts}; ++{lane})"));
        self.line(&format!("{part}[{lane}] = {zero};"));
        self.close();
        let nodes = self.of_fold(id);
        let around: Vec<VarId> = path.iter().copied().chain(outer.iter().map(|l| l.var())).collect();
        let inner: Vec<VarId> = around.iter().copied().chain([var]).chain(fold.place()).collect();
        self.level(outer, path, &nodes, false, &mut |writer| {
            writer.steps((var, extent, parts), inner.len(), &mut |writer, together| {
                let element = [format!("{part}[{}]", together.lane)];
                writer.know_accumulators(id, &element);
                writer.each_lane(together, fold.next.iter().copied(), &inner, &mut |writer| {
                    writer.accumulate(&fold.next, &element);
                });
            });
        });
        let names = self.accumulators(id, None);
        self.open(&format!("for (ptrdiff_t {lane} = 0; {lane} < {parts}; ++{lane})"));
        let (x, y) = (Expression::atom(&names[0]), Expression::atom(format!("{part}[{lane}]")));
        let sum = self.applied(&function, &[x, y], dag.of(fold.next[0]));
        self.line(&format!("{} = {};", names[0], sum.text));
        self.close();
        self.know_accumulators(id, &names);
    }

    /// A loop over lanes, with all that some expressions need in each.
    fn each_lane(
        &mut self,
        together: &Lanes,
        roots: impl IntoIterator<Item = NodeId>,
        path: &[VarId],
        inside: &mut dyn FnMut(&mut Self),
    ) {
        let Lanes { lane, bound, .. } = together;
        let scope = self.scope();
        self.open(&format!("for (ptrdiff_t {lane} = 0; {lane} < {bound}; ++{lane})"));
        for node in self.live(roots) {
            self.define(node, path);
        }
        inside(self);
        self.close();
        self.leave(scope, true);
    }

    /// The loops of some folds with an accumulator of each for each lane.
    fn fold_together(&mut self, ids: &[FoldId], path: &[VarId], together: &Lanes) {
        let dag = self.dag;
        let mut elements: Vec<Vec<String>> = Vec::new();
        for &id in ids {
            let names = self.accumulators(id, Some(together.lanes));
            elements.push(names.iter().map(|name| format!("{name}[{}]", together.lane)).collect());
        }
        let initial: Vec<NodeId> = ids.iter().flat_map(|&id| dag.folds[id].initial.iter().copied()).collect();
        self.each_lane(together, initial.iter().copied(), path, &mut |writer| {
            for (element, &initial) in elements.iter().flatten().zip(&initial) {
                let initial = writer.expression(initial).text;
                writer.line(&format!("{element} = {initial};"));
            }
        });
        for (&id, elements) in ids.iter().zip(&elements) {
            self.know_accumulators(id, elements);
        }
        // What differs between lanes, as accumulators do, is computed in a loop over them, within all others.
        let mut nodes: Vec<NodeId> = ids.iter().flat_map(|&id| self.of_fold(id)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let places: Vec<VarId> = ids.iter().filter_map(|&id| dag.folds[id].place()).collect();
        nodes.retain(|&node| {
            let vars = dag.vars(node);
            !vars.contains(&together.var) && !vars.iter().any(|var| places.contains(var))
        });
        let outside: Vec<VarId> = path.iter().copied().filter(|&var| var != together.var).collect();
        let levels = dag.folds[ids[0]].loops();
        let of_levels = levels.iter().map(|level| level.var());
        let inner: Vec<VarId> = path.iter().copied().chain(of_levels).chain(places).collect();
        let next: Vec<NodeId> = ids.iter().flat_map(|&id| dag.folds[id].next.iter().copied()).collect();
        self.level(levels, &outside, &nodes, false, &mut |writer| {
            writer.each_lane(together, next.iter().copied(), &inner, &mut |writer| {
                for (&id, elements) in ids.iter().zip(&elements) {
                    writer.accumulate(&dag.folds[id].next, elements);
                }
            });
        });
    }
}
