//! What a kernel computes, as a graph of expressions of scalars.
//!
//! An expression depends on *variables*: those of loops, and marks that bind an expression to a place in the program (below
//! a condition, or beside an accumulator). It has no place of its own: [`schedule`](crate::schedule) puts each into the
//! outermost loop that has all of its variables, so what does not change in a loop is computed before it. Equal expressions
//! are one node, so nothing is computed twice in one place.
//!
//! Indices are sums of other expressions times constants: see [`indices`](crate::indices).

use cranelift_entity::{PrimaryMap, SecondaryMap, entity_impl};
use memplan_ir::ElementType;
use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};

use crate::operations::{Form, Function};

/// An expression.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(u32);
entity_impl!(NodeId, "n");

/// A variable that expressions depend on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct VarId(u32);
entity_impl!(VarId, "v");

/// A loop that combines elements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FoldId(u32);
entity_impl!(FoldId, "fold");

/// An array that the kernel reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ArrayId(u32);
entity_impl!(ArrayId, "array");

/// The type of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Type {
    /// A number of the program.
    Element(ElementType),
    /// An index, or an offset in elements.
    Index,
}

/// An expression.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Node {
    /// The value of a loop's variable.
    Var(VarId),
    /// `base + coefficient * term + ...`, an index.
    Affine { terms: SmallVec<[(NodeId, i64); 4]>, base: i64 },
    /// An index divided by a positive constant.
    Quotient(NodeId, i64),
    /// The remainder of that division.
    Remainder(NodeId, i64),
    /// An integer within `[0, high]`, as an index.
    Clamp { value: NodeId, high: i64 },
    /// Whether `low <= value < high`.
    InRange { value: NodeId, low: i64, high: i64 },
    /// A number, by its bits: those of an `f32` for narrower floats.
    Constant(ElementType, u64),
    /// An element of an array.
    Load { array: ArrayId, offset: NodeId, mark: Option<VarId> },
    /// A function of other expressions.
    Apply(Function, SmallVec<[NodeId; 3]>),
    /// The value of an accumulator while its fold runs.
    Accumulator(FoldId, u32),
    /// The value of an accumulator after that.
    Folded(FoldId, u32),
    /// An expression that may be computed only where a mark is.
    Under(NodeId, VarId),
}

/// A loop or a condition around statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Level {
    /// `for (var = 0; var < extent; ++var)`
    Loop { var: VarId, extent: i64 },
    /// `for (var = from; var > 0; --var)`
    Down { var: VarId, from: NodeId },
    /// `if (condition)`, where `mark` is.
    If { mark: VarId, condition: NodeId },
    /// `if (!condition) break;`
    Unless { mark: VarId, condition: NodeId },
    /// Nothing but a place.
    Here { mark: VarId },
}

impl Level {
    /// The variable or mark of the level.
    pub(crate) fn var(self) -> VarId {
        match self {
            Level::Loop { var, .. } | Level::Down { var, .. } => var,
            Level::If { mark, .. } | Level::Unless { mark, .. } | Level::Here { mark } => mark,
        }
    }
}

/// Accumulators, and the loops in which they take elements.
#[derive(Clone)]
pub(crate) struct Fold {
    pub(crate) levels: Vec<Level>,
    pub(crate) types: SmallVec<[Accumulated; 2]>,
    pub(crate) initial: SmallVec<[NodeId; 2]>,
    /// The next value of each.
    pub(crate) next: SmallVec<[NodeId; 2]>,
    /// The names that accumulators get.
    pub(crate) name: String,
}

impl Fold {
    /// The loops and conditions around the elements.
    pub(crate) fn loops(&self) -> &[Level] {
        let n =
            self.levels.iter().rposition(|level| !matches!(level, Level::Here { .. })).map_or(0, |at| at + 1);
        &self.levels[..n]
    }

    /// The mark of the place within them.
    pub(crate) fn place(&self) -> Option<VarId> {
        self.levels[self.loops().len()..].last().map(|level| level.var())
    }
}

/// The type of an accumulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Accumulated(pub(crate) Type);

/// The variables of an expression, in order.
pub(crate) type Vars = SmallVec<[VarId; 6]>;

struct Facts {
    of: Type,
    vars: Vars,
    /// Least and greatest value of an index.
    range: (i64, i64),
}

/// The expressions of a kernel.
#[derive(Default)]
pub(crate) struct Dag {
    pub(crate) nodes: PrimaryMap<NodeId, Node>,
    facts: Vec<Facts>,
    known: FxHashMap<Node, NodeId>,
    pub(crate) folds: PrimaryMap<FoldId, Fold>,
    /// The mark of each fold's innermost place.
    fold_marks: SecondaryMap<FoldId, Option<VarId>>,
    /// The extents of variables; 1 for marks.
    vars: PrimaryMap<VarId, (i64, i64)>,
    /// Marks of nothing but places.
    here: SecondaryMap<VarId, bool>,
    /// What people may call an expression.
    pub(crate) names: FxHashMap<NodeId, Box<str>>,
}

impl Dag {
    pub(crate) fn of(&self, node: NodeId) -> Type {
        self.facts[node.0 as usize].of
    }

    pub(crate) fn vars(&self, node: NodeId) -> &[VarId] {
        &self.facts[node.0 as usize].vars
    }

    pub(crate) fn range(&self, node: NodeId) -> (i64, i64) {
        self.facts[node.0 as usize].range
    }

    /// The variables of loops and conditions of an expression.
    pub(crate) fn places(&self, node: NodeId) -> impl Iterator<Item = VarId> + '_ {
        self.vars(node).iter().copied().filter(|&var| !self.here[var])
    }

    /// A variable from 0 up to below an extent.
    pub(crate) fn var(&mut self, extent: i64) -> VarId {
        self.vars.push((0, (extent - 1).max(0)))
    }

    /// A mark of a condition.
    pub(crate) fn mark(&mut self) -> VarId {
        self.vars.push((0, 0))
    }

    /// A mark of a place in which there are other expressions, too.
    pub(crate) fn here(&mut self) -> VarId {
        let mark = self.mark();
        self.here[mark] = true;
        mark
    }

    pub(crate) fn insert(&mut self, node: Node, of: Type, vars: Vars, range: (i64, i64)) -> NodeId {
        if let Some(&id) = self.known.get(&node) {
            return id;
        }
        let id = self.nodes.push(node.clone());
        self.facts.push(Facts { of, vars, range });
        self.known.insert(node, id);
        id
    }

    pub(crate) fn joined(&self, nodes: &[NodeId]) -> Vars {
        let mut vars: Vars = nodes.iter().flat_map(|&n| self.vars(n).iter().copied()).collect();
        vars.sort_unstable();
        vars.dedup();
        vars
    }

    pub(crate) fn loop_index(&mut self, var: VarId) -> NodeId {
        let range = self.vars[var];
        match range {
            (0, 0) => self.integer(0),
            _ => self.insert(Node::Var(var), Type::Index, smallvec![var], range),
        }
    }

    pub(crate) fn constant(&mut self, of: ElementType, bits: u64) -> NodeId {
        self.insert(Node::Constant(of, bits), Type::Element(of), smallvec![], (0, 0))
    }

    /// An element of an array, read where the mark is, if there is one.
    pub(crate) fn load(
        &mut self,
        array: ArrayId,
        of: ElementType,
        offset: NodeId,
        mark: Option<VarId>,
    ) -> NodeId {
        let mut vars: Vars = self.vars(offset).into();
        vars.extend(mark);
        vars.sort_unstable();
        vars.dedup();
        self.insert(Node::Load { array, offset, mark }, Type::Element(of), vars, (0, 0))
    }

    pub(crate) fn apply(&mut self, function: Function, inputs: &[NodeId]) -> NodeId {
        let of = function.result;
        let vars = self.joined(inputs);
        let node = Node::Apply(function, inputs.into());
        self.insert(node, of, vars, (i64::MIN / 4, i64::MAX / 4))
    }

    pub(crate) fn under(&mut self, node: NodeId, mark: VarId) -> NodeId {
        if self.as_integer(node).is_some() {
            return node;
        }
        let mut vars: Vars = self.vars(node).into();
        vars.push(mark);
        vars.sort_unstable();
        let (of, range) = (self.of(node), self.range(node));
        self.insert(Node::Under(node, mark), of, vars, range)
    }

    /// As [`Dag::under`], of an index that is known to be in a range there.
    pub(crate) fn within(&mut self, node: NodeId, mark: VarId, high: i64) -> NodeId {
        let id = self.under(node, mark);
        let range = &mut self.facts[id.0 as usize].range;
        *range = (range.0.max(0), range.1.min(high - 1));
        id
    }

    /// A fold whose elements are yet to be said.
    pub(crate) fn open_fold(&mut self, name: &str, types: &[Type]) -> FoldId {
        let mark = self.here();
        let fold = self.folds.push(Fold {
            levels: Vec::new(),
            types: types.iter().map(|&t| Accumulated(t)).collect(),
            initial: SmallVec::new(),
            next: SmallVec::new(),
            name: name.to_string(),
        });
        self.fold_marks[fold] = Some(mark);
        fold
    }

    /// The value of an accumulator within an open fold.
    pub(crate) fn accumulator(&mut self, fold: FoldId, k: usize) -> NodeId {
        let mark = self.fold_marks[fold].expect("folds are made with a mark");
        let Accumulated(of) = self.folds[fold].types[k];
        self.insert(Node::Accumulator(fold, k as u32), of, smallvec![mark], (0, i64::MAX / 4))
    }

    /// Completes a fold, and gives its accumulators' values after the loops.
    pub(crate) fn close_fold(
        &mut self,
        fold: FoldId,
        mut levels: Vec<Level>,
        initial: &[NodeId],
        next: &[NodeId],
    ) -> SmallVec<[NodeId; 2]> {
        levels.push(Level::Here { mark: self.fold_marks[fold].expect("folds are made with a mark") });
        let conditions = levels.iter().filter_map(|level| match level {
            Level::If { condition, .. } => Some(*condition),
            _ => None,
        });
        let inside: Vec<NodeId> = next.iter().copied().chain(conditions).collect();
        let own: Vec<VarId> = levels.iter().map(|level| level.var()).collect();
        let mut vars = self.joined(&inside);
        vars.retain(|var| !own.contains(var));
        vars.extend(self.joined(initial));
        vars.sort_unstable();
        vars.dedup();
        let it = &mut self.folds[fold];
        (it.levels, it.initial, it.next) = (levels, initial.into(), next.into());
        let types = it.types.clone();
        (0..)
            .zip(types)
            .map(|(k, Accumulated(of))| {
                let range = match of {
                    Type::Index => (0, i64::MAX / 4),
                    Type::Element(_) => (0, 0),
                };
                self.insert(Node::Folded(fold, k), of, vars.clone(), range)
            })
            .collect()
    }

    /// What a fold of one accumulator adds up, or finds the extreme of, and by which function.
    pub(crate) fn sum_of(&self, fold: FoldId) -> Option<(Function, NodeId)> {
        let [next] = *self.folds[fold].next else { return None };
        let Node::Apply(function, inputs) = &self.nodes[next] else { return None };
        let [x, y] = **inputs else { return None };
        let is_sum = matches!(function.form, Form::Infix("+") | Form::Helper("max" | "min", ..));
        let is_own = |node: NodeId| self.nodes[node] == Node::Accumulator(fold, 0);
        let element = if is_own(x) { y } else { x };
        (is_sum && is_own(x) != is_own(y)).then_some((*function, element))
    }

    /// The expressions that an expression is made of; for a fold, what its loops compute.
    pub(crate) fn inputs(&self, node: NodeId) -> SmallVec<[NodeId; 4]> {
        match &self.nodes[node] {
            Node::Var(_) | Node::Constant(..) | Node::Accumulator(..) => smallvec![],
            Node::Affine { terms, .. } => terms.iter().map(|t| t.0).collect(),
            Node::Quotient(x, _) | Node::Remainder(x, _) | Node::Under(x, _) => smallvec![*x],
            Node::Clamp { value, .. } | Node::InRange { value, .. } => smallvec![*value],
            Node::Load { offset, .. } => smallvec![*offset],
            Node::Apply(_, inputs) => inputs.iter().copied().collect(),
            Node::Folded(fold, _) => {
                let fold = &self.folds[*fold];
                let conditions = fold.levels.iter().filter_map(|level| match level {
                    Level::If { condition, .. } => Some(*condition),
                    _ => None,
                });
                fold.initial.iter().chain(&fold.next).copied().chain(conditions).collect()
            }
        }
    }

    /// All expressions that some are made of, themselves included, operands first.
    pub(crate) fn reachable(&self, roots: impl IntoIterator<Item = NodeId>) -> Vec<NodeId> {
        let mut seen = vec![false; self.nodes.len()];
        let mut open: Vec<NodeId> = roots.into_iter().collect();
        while let Some(node) = open.pop() {
            if !std::mem::replace(&mut seen[node.0 as usize], true) {
                open.extend(self.inputs(node));
            }
        }
        self.nodes.keys().filter(|n| seen[n.0 as usize]).collect()
    }
}
