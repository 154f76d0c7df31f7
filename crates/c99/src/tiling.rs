//! How a nest uses registers and the stack: lanes, and buffers.
//!
//! *Lanes*: some neighboring results of the innermost loop are computed together, each with an accumulator of its own, so that
//! what is equal for all is read once, and compilers use vector registers without reordering any sum.
//!
//! *Parts* of a sum of floats: where its elements are neighbors in memory, and those of neighboring results are not, each lane
//! adds up every 16th element. A compiler may not change the order of a sum; this one is as good as another, and nearer to
//! the exact sum.
//!
//! *Buffers*: what is costly and is needed again for other results, or by another fold, is computed once into a small array
//! on the stack. A row of scores, say:
//!
//! ```text
//!   for i { for j { sum = fold over k of exp(a[i, k]) * b[k, j] } }     exp is computed for each j
//!   for i { for k { buffer[k] = exp(a[i, k]) }  for j { sum = fold over k of buffer[k] * b[k, j] } }
//! ```

use std::collections::BTreeSet;

use memplan_memory::{Family, Target};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::dag::{Dag, FoldId, Level, Node, NodeId, Type, VarId};
use crate::kernel::Nest;
use crate::operations::Form;

/// What the machine has for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Elements of one buffer.
    buffer: i64,
    /// Results that are computed together; 1 for machines without vector registers.
    lanes: i64,
}

impl Limits {
    /// On a host a stack has room for pages, on a microcontroller for a row.
    pub(crate) fn of(target: &Target) -> Limits {
        match target.family {
            Family::Cpu => Limits { buffer: 16384, lanes: 32 },
            _ => Limits { buffer: 128, lanes: 1 },
        }
    }

    /// No use of either.
    pub(crate) fn none() -> Limits {
        Limits { buffer: 0, lanes: 1 }
    }

    /// Whether neighboring results are to be computed together.
    pub(crate) fn has_vectors(self) -> bool {
        self.lanes > 1
    }
}

/// Operations, counted as simple ones, from which on an expression is kept rather than computed again.
const COSTLY: u64 = 8;

/// Parts of a sum: two registers of 8 floats, so that one sum need not wait for the other.
const PARTS: i64 = 16;

/// A buffer that holds an expression for each step of some loops of a fold.
#[derive(Clone, Debug)]
pub(crate) struct Buffer {
    /// How many levels of the nest are around it.
    pub(crate) depth: usize,
    pub(crate) levels: Vec<Level>,
    pub(crate) offset: NodeId,
    pub(crate) size: i64,
    /// Elements of its innermost loop that are computed together.
    pub(crate) lanes: Option<i64>,
}

/// The use of registers and stack.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tiling {
    pub(crate) buffers: FxHashMap<NodeId, Buffer>,
    /// Results of the innermost loop that are computed together.
    pub(crate) lanes: Option<i64>,
    /// Parts of a sum's innermost loop that are added up together.
    pub(crate) parts: FxHashMap<FoldId, i64>,
}

impl Tiling {
    pub(crate) fn new(dag: &mut Dag, nest: &Nest, limits: Limits) -> Tiling {
        let is_plain = |level: &Level| matches!(level, Level::Loop { .. });
        if !nest.levels.iter().all(is_plain) {
            return Tiling::default();
        }
        let mut chooser = Chooser::new(dag, nest, limits);
        chooser.keep_for_other_results();
        chooser.keep_for_other_folds();
        chooser.leave_out_late();
        let chosen = chooser.chosen.clone();
        let lanes = chooser.lanes();
        let folds = chooser.dag.reachable(nest.inputs()).into_iter().filter_map(|node| {
            match chooser.dag.nodes[node] {
                Node::Folded(fold, _) => Some(fold),
                _ => None,
            }
        });
        let parts = folds.filter_map(|fold| Some((fold, chooser.parts(fold)?))).collect();
        let lanes_of_buffers: Vec<Option<i64>> =
            chosen.iter().map(|(node, _, levels)| chooser.lanes_of_buffer(*node, levels)).collect();
        let mut buffers = FxHashMap::default();
        for ((node, depth, levels), lanes) in chosen.into_iter().zip(lanes_of_buffers) {
            let mut size = 1;
            let mut terms = Vec::new();
            for level in levels.iter().rev() {
                if let Level::Loop { var, extent } = *level {
                    terms.push((dag.loop_index(var), size));
                    size *= extent;
                }
            }
            let offset = dag.affine(&terms, 0);
            buffers.insert(node, Buffer { depth, levels, offset, size, lanes });
        }
        Tiling { buffers, lanes, parts }
    }
}

/// The loops around an expression: first some levels of the nest, then those of folds and buffers.
#[derive(Clone)]
struct Around {
    n_nest: usize,
    loops: Vec<Level>,
}

struct Chooser<'d> {
    dag: &'d Dag,
    nest: &'d Nest,
    limits: Limits,
    /// The folds that no other fold contains, and how many levels are around each.
    folds: Vec<(FoldId, usize)>,
    cost: FxHashMap<NodeId, u64>,
    /// Expressions to keep, with the number of levels around and the loops of their buffers.
    chosen: Vec<(NodeId, usize, Vec<Level>)>,
}

impl<'d> Chooser<'d> {
    fn new(dag: &'d Dag, nest: &'d Nest, limits: Limits) -> Chooser<'d> {
        let mut folds = Vec::new();
        let mut cost: FxHashMap<NodeId, u64> = FxHashMap::default();
        let nodes = dag.reachable(nest.inputs());
        for &node in &nodes {
            let of_inputs: u64 = dag.inputs(node).iter().map(|n| cost.get(n).copied().unwrap_or(0)).sum();
            let own = match &dag.nodes[node] {
                Node::Apply(function, _) => match function.form {
                    Form::Math(_) => 20,
                    Form::Helper(
                        "exp" | "tanh" | "rsqrt" | "logistic" | "divide" | "remainder" | "power" | "threefry"
                        | "philox",
                        ..,
                    ) => 20,
                    Form::Helper(..) => 2,
                    Form::Infix("/") => 5,
                    _ => 1,
                },
                Node::Load { .. } => 1,
                _ => 0,
            };
            let steps = match dag.nodes[node] {
                Node::Folded(fold, _) => dag.folds[fold]
                    .levels
                    .iter()
                    .map(|level| match level {
                        Level::Loop { extent, .. } => *extent as u64,
                        _ => 1,
                    })
                    .product(),
                _ => 1u64,
            };
            cost.insert(node, of_inputs.saturating_add(own).saturating_mul(steps).min(1 << 40));
        }
        let is_outer = |var: &VarId| nest.levels.iter().any(|level| level.var() == *var);
        for &node in &nodes {
            if let Node::Folded(fold, _) = dag.nodes[node]
                && dag.vars(node).iter().all(is_outer)
                && !folds.iter().any(|&(known, _)| known == fold)
            {
                folds.push((fold, depth(dag, nest, node)));
            }
        }
        Chooser { dag, nest, limits, folds, cost, chosen: Vec::new() }
    }

    fn is_chosen(&self, node: NodeId) -> bool {
        self.chosen.iter().any(|chosen| chosen.0 == node)
    }

    /// Whether neighboring elements of a kept expression are those of neighboring steps of a loop.
    fn is_kept_along(&self, node: NodeId, var: VarId) -> bool {
        let kept = self.chosen.iter().find(|chosen| chosen.0 == node);
        kept.and_then(|(.., levels)| levels.last()).is_some_and(|level| level.var() == var)
    }

    /// The loops of a buffer for an expression in a fold, if it can have one.
    fn loops(&self, node: NodeId, fold: FoldId) -> Option<Vec<Level>> {
        let vars = self.dag.vars(node);
        let levels: Vec<Level> =
            self.dag.folds[fold].levels.iter().copied().filter(|level| vars.contains(&level.var())).collect();
        let outer = self.nest.levels.iter().map(|level| level.var());
        let known: FxHashSet<VarId> = outer.chain(levels.iter().map(|level| level.var())).collect();
        let size: i64 = levels
            .iter()
            .map(|level| match level {
                Level::Loop { extent, .. } => *extent,
                _ => i64::MAX / 2,
            })
            .fold(1, |size: i64, extent| size.saturating_mul(extent));
        let is_plain = levels.iter().all(|level| matches!(level, Level::Loop { .. }));
        let is_fine = is_plain
            && !levels.is_empty()
            && vars.iter().all(|var| known.contains(var))
            && size <= self.limits.buffer
            && self.dag.of(node) != Type::Index
            && self.cost[&node] >= COSTLY;
        is_fine.then_some(levels)
    }

    /// What folds, and the loops that fill buffers, compute again for each step of loops on which it does not depend.
    fn keep_for_other_results(&mut self) {
        for (fold, _) in self.folds.clone() {
            let around = Around { n_nest: self.nest.levels.len(), loops: self.nest.levels.clone() };
            let mut open: Vec<(NodeId, Around)> = Vec::new();
            self.open_fold(fold, &around, &mut open);
            let mut seen = FxHashSet::default();
            while let Some((node, around)) = open.pop() {
                if !seen.insert(node) || self.is_chosen(node) {
                    continue;
                }
                let mut around = around;
                if let Some((depth, levels)) = self.place(node, &around) {
                    around.n_nest = depth;
                    around.loops.truncate(depth);
                    around.loops.extend_from_slice(&levels);
                    self.chosen.push((node, depth, levels));
                }
                if let Node::Folded(inner, _) = self.dag.nodes[node] {
                    self.open_fold(inner, &around, &mut open);
                } else {
                    open.extend(self.dag.inputs(node).into_iter().map(|node| (node, around.clone())));
                }
            }
        }
    }

    fn open_fold(&self, fold: FoldId, around: &Around, open: &mut Vec<(NodeId, Around)>) {
        let fold = &self.dag.folds[fold];
        let loops = around.loops.iter().chain(&fold.levels).copied().collect();
        let within = Around { loops, ..*around };
        open.extend(fold.next.iter().map(|&node| (node, within.clone())));
    }

    /// Where to keep what is computed in some loops: outside of those on which it does not depend, as far as there is room.
    fn place(&self, node: NodeId, around: &Around) -> Option<(usize, Vec<Level>)> {
        let vars = self.dag.vars(node);
        let loops = &around.loops;
        let extent = |level: &Level| match *level {
            Level::Loop { extent, .. } => Some(extent),
            _ => None,
        };
        let is_known = |var: &VarId| loops.iter().any(|l| l.var() == *var && extent(l).is_some());
        if !vars.iter().all(is_known) || self.dag.of(node) == Type::Index || self.cost[&node] < COSTLY {
            return None;
        }
        let product = |from: usize, depends: bool| {
            let own = loops[from..].iter().filter(|l| vars.contains(&l.var()) == depends);
            own.filter_map(extent).fold(1i64, i64::saturating_mul)
        };
        let places = (0..=around.n_nest).rev().filter(|&depth| product(depth, true) <= self.limits.buffer);
        let depth = places.max_by_key(|&depth| (product(depth, false), depth))?;
        let mut levels: Vec<Level> =
            loops[depth..].iter().copied().filter(|l| vars.contains(&l.var())).collect();
        // Neighboring results read neighbors.
        let lane = self.nest.levels.last().map(|level| level.var());
        levels.sort_by_key(|level| self.limits.has_vectors() && Some(level.var()) == lane);
        (product(depth, false) > 1 && !levels.is_empty()).then_some((depth, levels))
    }

    /// What several folds compute, or a fold and what is kept.
    fn keep_for_other_folds(&mut self) {
        loop {
            let mut regions: Vec<(BTreeSet<NodeId>, FoldId)> = Vec::new();
            for &(fold, _) in &self.folds {
                regions.push((self.live(self.dag.folds[fold].next.to_vec()), fold));
            }
            for (node, ..) in &self.chosen {
                let of = self.folds.iter().find(|(fold, _)| self.loops(*node, *fold).is_some());
                let Some(&(fold, _)) = of else { continue };
                regions.push((self.live(self.dag.inputs(*node).to_vec()), fold));
            }
            let mut shared: Vec<(NodeId, FoldId)> = Vec::new();
            for (region, fold) in &regions {
                for &node in region {
                    let n = regions.iter().filter(|(other, _)| other.contains(&node)).count();
                    if n > 1 && !self.is_chosen(node) && self.loops(node, *fold).is_some() {
                        shared.push((node, *fold));
                    }
                }
            }
            // The greatest part first: what it is made of need not be kept, too.
            let Some((node, fold)) = shared.into_iter().max_by_key(|shared| shared.0) else { return };
            let levels = self.loops(node, fold).expect("it was found to have some");
            self.chosen.push((node, depth(self.dag, self.nest, node), levels));
        }
    }

    /// Leaves out what would be kept only after something else needs it: within loops of the nest in which that is not.
    fn leave_out_late(&mut self) {
        let needs: Vec<(usize, Vec<NodeId>)> = self
            .chosen
            .iter()
            .map(|&(node, depth, _)| (depth, self.dag.reachable(self.dag.inputs(node))))
            .collect();
        self.chosen.retain(|&(node, depth, _)| {
            !needs.iter().any(|(before, needed)| *before < depth && needed.binary_search(&node).is_ok())
        });
    }

    /// What is computed for some expressions, up to what is kept or is another fold's.
    fn live(&self, roots: Vec<NodeId>) -> BTreeSet<NodeId> {
        let mut live = BTreeSet::new();
        let mut open = roots;
        while let Some(node) = open.pop() {
            if live.insert(node) && !self.is_chosen(node) && !matches!(self.dag.nodes[node], Node::Folded(..))
            {
                open.extend(self.dag.inputs(node));
            }
        }
        live
    }

    /// How many results of the innermost loop to compute together.
    fn lanes(&self) -> Option<i64> {
        let &Level::Loop { var, extent } = self.nest.levels.last()? else { return None };
        let all = self.nest.levels.len();
        if self.chosen.iter().any(|&(_, depth, _)| depth == all) {
            return None;
        }
        let folds = self.folds.iter().filter(|&&(_, around)| around == all).map(|&(fold, _)| fold);
        self.lanes_of(var, extent, folds)
    }

    /// How many elements of a buffer to compute together.
    fn lanes_of_buffer(&self, node: NodeId, levels: &[Level]) -> Option<i64> {
        let &Level::Loop { var, extent } = levels.last()? else { return None };
        let live = match self.dag.nodes[node] {
            Node::Folded(..) => BTreeSet::from([node]),
            _ => self.live(self.dag.inputs(node).to_vec()),
        };
        let folds = live.into_iter().filter(|n| *n == node || !self.is_chosen(*n)).filter_map(|n| match self
            .dag
            .nodes[n]
        {
            Node::Folded(fold, _) if self.dag.vars(n).contains(&var) => Some(fold),
            _ => None,
        });
        self.lanes_of(var, extent, folds)
    }

    /// How many steps of a loop to run together, of all folds that depend on its variable.
    fn lanes_of(&self, var: VarId, extent: i64, folds: impl Iterator<Item = FoldId>) -> Option<i64> {
        if extent < 4 || self.limits.lanes < 2 {
            return None;
        }
        let mut is_useful = false;
        for fold in folds {
            let it = &self.dag.folds[fold];
            let depends = |node: NodeId| self.dag.vars(node).contains(&var);
            let is_fixed = it.levels.iter().all(|level| match level {
                Level::If { condition, .. } => !depends(*condition),
                Level::Loop { .. } | Level::Here { .. } => true,
                Level::Down { .. } | Level::Unless { .. } => false,
            });
            let live = self.live(it.next.to_vec());
            let has_fold = live.iter().any(|&node| {
                matches!(self.dag.nodes[node], Node::Folded(..)) && depends(node) && !self.is_chosen(node)
            });
            if !is_fixed || has_fold {
                return None;
            }
            let is_neighbor = |node: &NodeId| match &self.dag.nodes[*node] {
                _ if self.is_chosen(*node) => self.is_kept_along(*node, var),
                Node::Load { offset, .. } => self.step(*offset, var) == Some(1),
                _ => false,
            };
            let is_float = matches!(self.dag.of(it.next[0]), Type::Element(t) if t.is_floating());
            is_useful |= is_float && !self.is_contiguous(fold) || live.iter().any(is_neighbor);
        }
        let most = self.limits.lanes;
        let divisor = (4..=most).rev().find(|lanes| extent % lanes == 0 && (*lanes >= 8 || extent < 8));
        is_useful.then(|| if extent <= most { extent } else { divisor.unwrap_or(most / 2) })
    }

    /// How many parts of a fold to add up together: if there are enough elements for the parts to be worth adding up at the
    /// end.
    fn parts(&self, fold: FoldId) -> Option<i64> {
        let enough = |level: &Level| matches!(level, Level::Loop { extent, .. } if *extent >= 4 * PARTS);
        let is_long = self.dag.folds[fold].loops().last().is_some_and(enough);
        (self.limits.lanes > 1 && is_long && self.is_contiguous(fold)).then_some(PARTS)
    }

    /// Whether a fold is a sum of floats, or their extreme, of elements that are neighbors in memory.
    fn is_contiguous(&self, fold: FoldId) -> bool {
        let it = &self.dag.folds[fold];
        let Some(&Level::Loop { var, .. }) = it.loops().last() else { return false };
        let Some((function, element)) = self.dag.sum_of(fold) else { return false };
        let depends = |node: NodeId| self.dag.vars(node).contains(&var);
        let live = self.live(vec![element]);
        let is_apart = |node: &NodeId| match &self.dag.nodes[*node] {
            _ if self.is_chosen(*node) => depends(*node) && !self.is_kept_along(*node, var),
            Node::Load { offset, .. } => depends(*offset) && self.step(*offset, var) != Some(1),
            Node::Folded(..) => depends(*node),
            Node::Accumulator(..) => true,
            _ => false,
        };
        let is_read = |node: &NodeId| {
            depends(*node) && (matches!(self.dag.nodes[*node], Node::Load { .. }) || self.is_chosen(*node))
        };
        matches!(function.result, Type::Element(t) if t.is_floating())
            && live.iter().any(is_read)
            && !live.iter().any(is_apart)
    }

    /// How far apart the places of neighboring results are in an index.
    fn step(&self, index: NodeId, var: VarId) -> Option<i64> {
        let is_var = |node: NodeId| matches!(self.dag.nodes[node], Node::Var(v) if v == var);
        match &self.dag.nodes[index] {
            Node::Affine { terms, .. } => terms.iter().find(|term| is_var(term.0)).map(|term| term.1),
            _ if is_var(index) => Some(1),
            _ => None,
        }
    }
}

/// How many levels of a nest are around an expression.
fn depth(dag: &Dag, nest: &Nest, node: NodeId) -> usize {
    let vars = dag.vars(node);
    nest.levels.iter().rposition(|level| vars.contains(&level.var())).map_or(0, |at| at + 1)
}
