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
//! No sum is reordered, and compilers find vector registers for the loops over lanes.

use crate::dag::{FoldId, Node, NodeId, VarId};
use crate::expression::Expression;
use crate::kernel::Nest;
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
    /// The innermost loop in steps of several results, which are computed together.
    pub(crate) fn lanes(
        &mut self,
        nest: &Nest,
        nodes: &[NodeId],
        outer: &[VarId],
        (var, extent, lanes): (VarId, i64, i64),
    ) {
        let scope = self.scope();
        let path: Vec<VarId> = outer.iter().copied().chain([var]).collect();
        let is_single = lanes == extent;
        let lane = self.identifiers.unique("lane");
        let (mut bound, mut index) = (lanes.to_string(), Expression::atom(&lane));
        if !is_single {
            let first = self.identifiers.counter(path.len());
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
        let together = Lanes { lane, bound, lanes, var };
        for &node in nodes {
            if let Node::Folded(fold, _) = self.dag.nodes[node]
                && !self.known.contains_key(&node)
                && self.dag.vars(node).iter().all(|v| path.contains(v))
            {
                self.fold_together(fold, &path, &together);
            }
        }
        self.each_lane(&together, nest.inputs(), &path, &mut |writer| writer.stores(&nest.stores));
        if !is_single {
            self.close();
        }
        self.leave(scope);
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
        self.leave(scope);
    }

    /// The loops of a fold with an accumulator for each lane.
    fn fold_together(&mut self, id: FoldId, path: &[VarId], together: &Lanes) {
        let dag = self.dag;
        let fold = &dag.folds[id];
        let names = self.accumulators(id, &together.lanes.to_string());
        let elements: Vec<String> = names.iter().map(|name| format!("{name}[{}]", together.lane)).collect();
        self.each_lane(together, fold.initial.iter().copied(), path, &mut |writer| {
            for (element, &initial) in elements.iter().zip(&fold.initial) {
                let initial = writer.expression(initial).text;
                writer.line(&format!("{element} = {initial};"));
            }
        });
        self.know_accumulators(id, &elements);
        // What differs between lanes, as accumulators do, is computed in a loop over them, within all others.
        let mut nodes = self.of_fold(id);
        let own = fold.levels.last().map(|level| level.var());
        nodes.retain(|&node| {
            let vars = dag.vars(node);
            !vars.contains(&together.var) && !own.is_some_and(|own| vars.contains(&own))
        });
        let outside: Vec<VarId> = path.iter().copied().filter(|&var| var != together.var).collect();
        let inner: Vec<VarId> = path.iter().copied().chain(fold.levels.iter().map(|l| l.var())).collect();
        self.level(&fold.levels, &outside, &nodes, false, &mut |writer| {
            writer.each_lane(together, fold.next.iter().copied(), &inner, &mut |writer| {
                writer.accumulate(&fold.next, &elements);
            });
        });
    }
}
