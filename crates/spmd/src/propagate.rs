//! Finds the cut of every value of a program from the shardings that the program gives for some.
//!
//! As in Shardy, every operation has factors ([`Rule`]). If an array is cut along a factor, the other operands and
//! results with this factor are cut along it, too, until nothing changes. Operations that only pass values on come
//! first. If axes could cut an array in two ways, the cut of the larger array wins.
//!
//! The state of a loop has one cut in all steps, and the result of a conditional one cut in all branches.

use std::collections::BTreeSet;

use cranelift_entity::SecondaryMap;
use memplan_ir::{ComputationId, InstructionId, Module, Op, Shape};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::cut::{Axes, Cut, Grid, is_prefix};
use crate::notes::{Call, Note, Notes};
use crate::rule::{Factors, Rule, rule};

/// Number of an array that is cut in one way, wherever it is seen.
pub(crate) type NodeId = usize;

/// The cuts of a program.
#[derive(Debug)]
pub(crate) struct Cuts {
    pub(crate) grid: Grid,
    nodes: Vec<Node>,
    /// By instruction, one node for each leaf of its shape.
    of: SecondaryMap<InstructionId, SmallVec<[NodeId; 1]>>,
    /// The whole arrays at the borders of manual computations.
    pub(crate) borders: FxHashMap<InstructionId, Vec<NodeId>>,
    /// The axes over which their bodies are written for one device.
    pub(crate) manual: FxHashMap<InstructionId, Axes>,
    /// The factors of operations on arrays.
    pub(crate) rules: FxHashMap<InstructionId, Rule>,
    /// Computations that the program runs, besides reducers and the like.
    pub(crate) computations: Vec<ComputationId>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    extents: SmallVec<[i64; 4]>,
    cut: Cut,
    is_open: SmallVec<[bool; 4]>,
}

/// An array in a relation.
#[derive(Clone, Debug)]
struct Member {
    node: NodeId,
    factors: Factors,
    /// Axes before those that the relation is about, in each dimension.
    skipped: Cut,
}

/// Arrays that are cut along the same factors.
#[derive(Clone, Debug)]
struct Relation {
    members: SmallVec<[Member; 4]>,
    sizes: SmallVec<[i64; 6]>,
    passes_through: bool,
}

impl Cuts {
    /// `None` where values are cut that cannot be: parameters whose extents devices do not divide.
    pub(crate) fn find(module: &Module, notes: Notes) -> Option<Cuts> {
        let Notes { grid, of, borders } = notes;
        let manual = borders.iter().map(|(&id, border)| (id, border.manual.clone())).collect();
        let cuts = Cuts {
            grid,
            nodes: Vec::new(),
            of: SecondaryMap::new(),
            borders: FxHashMap::default(),
            manual,
            rules: FxHashMap::default(),
            computations: Vec::new(),
        };
        let notes_at_borders = borders.into_iter().map(|(id, border)| (id, border.notes)).collect();
        let mut maker = Maker {
            module,
            cuts,
            notes: of,
            notes_at_borders,
            relations: Vec::new(),
            is_known: FxHashMap::default(),
        };
        let entry = module.entry_computation();
        for &parameter in &entry.parameters {
            maker.fresh(parameter)?;
        }
        maker.computation(module.entry)?;
        let Maker { mut cuts, relations, .. } = maker;
        cuts.settle(&relations);
        Some(cuts)
    }

    /// How the leaves of a value are cut.
    pub(crate) fn of(&self, id: InstructionId) -> impl Iterator<Item = &Cut> {
        self.of[id].iter().map(|&node| &self.nodes[node].cut)
    }

    /// How an array, or the first leaf of a tuple, is cut.
    pub(crate) fn first(&self, id: InstructionId) -> &Cut {
        &self.nodes[self.of[id][0]].cut
    }

    pub(crate) fn at(&self, node: NodeId) -> &Cut {
        &self.nodes[node].cut
    }

    /// The shape of a value on one device.
    pub(crate) fn local(&self, id: InstructionId, shape: &Shape) -> Shape {
        let mut cuts = self.of(id);
        self.local_part(shape, &mut cuts)
    }

    fn local_part<'a>(&self, shape: &Shape, cuts: &mut impl Iterator<Item = &'a Cut>) -> Shape {
        match shape {
            Shape::Tuple(elements) => Shape::tuple(
                elements.iter().map(|element| self.local_part(element, cuts)).collect::<Vec<_>>(),
            ),
            _ => {
                let cut = cuts.next();
                match (shape.as_array(), cut) {
                    (Some(array), Some(cut)) => Shape::Array(self.grid.local(array, cut)),
                    _ => shape.clone(),
                }
            }
        }
    }

    /// Cuts arrays along the factors that they share, until nothing changes.
    fn settle(&mut self, relations: &[Relation]) {
        let mut of_node: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        for (number, relation) in relations.iter().enumerate() {
            for member in &relation.members {
                of_node[member.node].push(number);
            }
        }
        // Operations that pass values on come first, and again whenever another one has changed something.
        let turn = |number: usize| (!relations[number].passes_through, number);
        let mut work: BTreeSet<(bool, usize)> = (0..relations.len()).map(turn).collect();
        while let Some((_, number)) = work.pop_first() {
            for node in self.spread(&relations[number]) {
                work.extend(of_node[node].iter().copied().map(turn));
            }
        }
    }

    /// Cuts the arrays of a relation along each other's factors; returns those that changed.
    fn spread(&mut self, relation: &Relation) -> SmallVec<[NodeId; 4]> {
        let mut best: Vec<(i64, usize, Axes)> = Vec::new();
        for factor in 0..relation.sizes.len() {
            let mut found: (i64, Axes) = (-1, Axes::new());
            for member in &relation.members {
                let own = self.axes_of_factor(member, factor, &relation.sizes);
                let weight = self.nodes[member.node].extents.iter().product::<i64>();
                let is_longer = is_prefix(&found.1, &own) && own.len() > found.1.len();
                let is_heavier = !own.is_empty() && weight > found.0 && !is_prefix(&own, &found.1);
                if is_longer || is_heavier {
                    found = (weight, own);
                }
            }
            if !found.1.is_empty() {
                best.push((found.0, factor, found.1));
            }
        }
        best.sort_by_key(|&(weight, factor, _)| (std::cmp::Reverse(weight), factor));
        let mut changed = SmallVec::new();
        for (_, factor, axes) in best {
            for member in &relation.members {
                if self.extend(member, factor, &axes, &relation.sizes) && !changed.contains(&member.node) {
                    changed.push(member.node);
                }
            }
        }
        changed
    }

    /// The axes that cut an array along a factor.
    fn axes_of_factor(&self, member: &Member, factor: usize, sizes: &[i64]) -> Axes {
        let node = &self.nodes[member.node];
        for (d, factors) in member.factors.iter().enumerate() {
            if let Some(place) = factors.iter().position(|&other| other == factor) {
                let Some(axes) = node.cut[d].strip_prefix(&member.skipped[d][..]) else { break };
                return split(&self.grid, axes, factors, sizes).swap_remove(place);
            }
        }
        Axes::new()
    }

    /// Cuts an array further along a factor, as far as it can be.
    fn extend(&mut self, member: &Member, factor: usize, axes: &Axes, sizes: &[i64]) -> bool {
        let found = member
            .factors
            .iter()
            .enumerate()
            .find_map(|(d, factors)| Some((d, factors.iter().position(|&other| other == factor)?)));
        let Some((d, place)) = found else { return false };
        let node = &self.nodes[member.node];
        if !node.is_open[d] {
            return false;
        }
        let skipped = &member.skipped[d];
        let Some(own) = node.cut[d].strip_prefix(&skipped[..]) else { return false };
        let factors = &member.factors[d];
        let parts = split(&self.grid, own, factors, sizes);
        // A factor behind others is cut only where those are cut to single indices, and after it nothing may be cut yet.
        let is_full = |i: usize| self.grid.pieces(&parts[i]) == sizes[factors[i]];
        if !(0..place).all(is_full) || parts[place + 1..].iter().any(|axes| !axes.is_empty()) {
            return false;
        }
        if !is_prefix(&parts[place], axes) || parts.iter().map(|part| part.len()).sum::<usize>() != own.len()
        {
            return false;
        }
        let mut pieces = self.grid.pieces(&node.cut[d]);
        let mut of_factor = self.grid.pieces(&parts[place]);
        let mut added = Axes::new();
        for &axis in &axes[parts[place].len()..] {
            let extent = self.grid.extent(axis);
            (pieces, of_factor) = (pieces * extent, of_factor * extent);
            let is_used = node.cut.iter().flatten().any(|&other| other == axis);
            if is_used || sizes[factor] % of_factor != 0 || node.extents[d] % pieces != 0 {
                break;
            }
            added.push(axis);
        }
        let is_changed = !added.is_empty();
        self.nodes[member.node].cut[d].extend(added);
        is_changed
    }
}

/// The axes of a dimension as those of its factors, as far as they can be told apart.
pub(crate) fn split(grid: &Grid, axes: &[u8], factors: &[usize], sizes: &[i64]) -> Vec<Axes> {
    let mut parts = vec![Axes::new(); factors.len()];
    let mut rest = axes.iter().peekable();
    for (part, &factor) in parts.iter_mut().zip(factors) {
        let mut pieces = 1;
        while let Some(&&axis) = rest.peek() {
            if sizes[factor] % (pieces * grid.extent(axis)) != 0 {
                break;
            }
            pieces *= grid.extent(axis);
            part.push(axis);
            rest.next();
        }
        if pieces != sizes[factor] {
            break;
        }
    }
    parts
}

struct Maker<'a> {
    module: &'a Module,
    cuts: Cuts,
    notes: FxHashMap<InstructionId, Vec<Option<Note>>>,
    notes_at_borders: FxHashMap<InstructionId, Vec<Note>>,
    relations: Vec<Relation>,
    /// Computations that have been visited.
    is_known: FxHashMap<ComputationId, ()>,
}

impl Maker<'_> {
    fn node(&mut self, shape: &Shape, note: Option<&Note>) -> Option<NodeId> {
        let extents: SmallVec<[i64; 4]> =
            shape.as_array().map(|array| array.dimensions.iter().copied().collect()).unwrap_or_default();
        let rank = extents.len();
        let mut node = Node {
            cut: SmallVec::from_elem(Axes::new(), rank),
            is_open: extents.iter().map(|&extent| extent > 1).collect(),
            extents,
        };
        if let Some(note) = note {
            node.cut = note.cut.clone();
            node.cut.resize(rank, Axes::new());
            node.is_open = note.is_open.clone();
            node.is_open.resize(rank, false);
            for d in 0..rank {
                if node.extents[d] % self.cuts.grid.pieces(&node.cut[d]) != 0 {
                    return None;
                }
            }
        }
        self.cuts.nodes.push(node);
        Some(self.cuts.nodes.len() - 1)
    }

    /// New nodes for the leaves of a value, cut as the program says.
    fn fresh(&mut self, id: InstructionId) -> Option<()> {
        let shape = self.module.shape(id).clone();
        let notes = self.notes.get(&id).cloned();
        let mut nodes = SmallVec::new();
        for (leaf, (_, part)) in shape.leaves().into_iter().enumerate() {
            let note = notes.as_ref().and_then(|notes| notes.get(leaf)?.as_ref());
            nodes.push(self.node(part, note)?);
        }
        self.cuts.of[id] = nodes;
        Some(())
    }

    /// The leaves of one element of a tuple.
    fn leaves_of_element(&self, tuple: InstructionId, index: u32) -> SmallVec<[NodeId; 1]> {
        let elements = self.module.shape(tuple).as_tuple().unwrap_or(&[]);
        let count = |shape: &Shape| shape.leaves().len();
        let start: usize = elements[..index as usize].iter().map(count).sum();
        let n = count(&elements[index as usize]);
        self.cuts.of[tuple][start..start + n].iter().copied().collect()
    }

    fn same(&mut self, a: NodeId, b: NodeId) {
        self.relate(a, b, None);
    }

    /// Two arrays are cut alike; the first one, if it is a whole array at a border, behind its manual axes.
    fn relate(&mut self, a: NodeId, b: NodeId, manual: Option<&Axes>) {
        if a == b {
            return;
        }
        let rank = self.cuts.nodes[b].extents.len().min(self.cuts.nodes[a].extents.len());
        let member = |cuts: &Cuts, node: NodeId, manual: Option<&Axes>| Member {
            node,
            factors: (0..rank).map(|d| SmallVec::from_slice(&[d])).collect(),
            skipped: (0..rank)
                .map(|d| {
                    let is_manual = |axis: &&u8| manual.is_some_and(|manual| manual.contains(axis));
                    cuts.nodes[node].cut[d].iter().take_while(is_manual).copied().collect()
                })
                .collect(),
        };
        let sizes = self.cuts.nodes[b].extents.iter().copied().collect();
        let members = [member(&self.cuts, a, manual), member(&self.cuts, b, None)].into_iter().collect();
        self.relations.push(Relation { members, sizes, passes_through: true });
    }

    fn computation(&mut self, id: ComputationId) -> Option<()> {
        if self.is_known.insert(id, ()).is_some() {
            return Some(());
        }
        self.cuts.computations.push(id);
        for &instruction in &self.module.computations[id].instructions {
            self.instruction(instruction)?;
        }
        Some(())
    }

    fn instruction(&mut self, id: InstructionId) -> Option<()> {
        let instruction = &self.module.instructions[id];
        let operands = &instruction.operands;
        if let Some(call) = Call::of(&instruction.op) {
            return self.call(id, call);
        }
        match &instruction.op {
            Op::Parameter { .. } => {}
            Op::GetTupleElement { index } => self.cuts.of[id] = self.leaves_of_element(operands[0], *index),
            Op::Tuple if !self.notes.contains_key(&id) => {
                self.cuts.of[id] =
                    operands.iter().flat_map(|&operand| self.cuts.of[operand].clone()).collect();
            }
            Op::Tuple => {
                self.fresh(id)?;
                let from: Vec<NodeId> =
                    operands.iter().flat_map(|&operand| self.cuts.of[operand].clone()).collect();
                for (from, to) in from.into_iter().zip(self.cuts.of[id].clone()) {
                    self.same(from, to);
                }
            }
            Op::OptimizationBarrier => self.cuts.of[id] = self.cuts.of[operands[0]].clone(),
            Op::While => {
                self.fresh(id)?;
                let state = self.cuts.of[id].clone();
                for &callee in &instruction.called {
                    let parameter = self.module.computations[callee].parameters[0];
                    self.adopt(parameter, &state);
                    self.computation(callee)?;
                }
                let root = self.module.computations[instruction.called[0]].root;
                for from in [operands[0], root] {
                    for (from, to) in self.cuts.of[from].clone().into_iter().zip(state.clone()) {
                        self.same(from, to);
                    }
                }
            }
            Op::Conditional => {
                self.fresh(id)?;
                let result = self.cuts.of[id].clone();
                for (i, &callee) in instruction.called.iter().enumerate() {
                    let parameter = self.module.computations[callee].parameters[0];
                    let given = self.cuts.of[operands[i + 1]].clone();
                    self.adopt(parameter, &given);
                    self.computation(callee)?;
                    let root = self.module.computations[callee].root;
                    for (from, to) in self.cuts.of[root].clone().into_iter().zip(result.clone()) {
                        self.same(from, to);
                    }
                }
            }
            op if op.runs_callees() => return None,
            _ => self.operation(id)?,
        }
        Some(())
    }

    /// Gives a parameter these nodes, or lets those that it has be cut alike.
    fn adopt(&mut self, parameter: InstructionId, nodes: &[NodeId]) {
        if self.cuts.of[parameter].is_empty() {
            self.cuts.of[parameter] = nodes.iter().copied().collect();
        } else {
            for (own, &node) in self.cuts.of[parameter].clone().into_iter().zip(nodes) {
                self.same(node, own);
            }
        }
    }

    fn call(&mut self, id: InstructionId, call: Call) -> Option<()> {
        let operands = self.module.instructions[id].operands.clone();
        let of_operands: Vec<NodeId> =
            operands.iter().flat_map(|&operand| self.cuts.of[operand].clone()).collect();
        if call == Call::Constraint {
            self.fresh(id)?;
            for (from, to) in of_operands.into_iter().zip(self.cuts.of[id].clone()) {
                self.same(from, to);
            }
            return Some(());
        }
        let manual = self.cuts.manual[&id].clone();
        let notes = self.notes_at_borders[&id].clone();
        let whole_shapes: Vec<Shape> = match call {
            Call::Enter => operands
                .iter()
                .flat_map(|&operand| {
                    self.module.shape(operand).leaves().into_iter().map(|(_, leaf)| leaf.clone())
                })
                .collect(),
            _ => self.module.shape(id).leaves().into_iter().map(|(_, leaf)| leaf.clone()).collect(),
        };
        let mut wholes = Vec::new();
        for (shape, note) in whole_shapes.iter().zip(&notes) {
            wholes.push(self.node(shape, Some(note))?);
        }
        if call == Call::Enter {
            self.fresh(id)?;
            for ((from, &whole), local) in of_operands.into_iter().zip(&wholes).zip(self.cuts.of[id].clone())
            {
                self.same(from, whole);
                self.relate(whole, local, Some(&manual));
            }
        } else {
            for (local, &whole) in of_operands.into_iter().zip(&wholes) {
                self.relate(whole, local, Some(&manual));
            }
            self.cuts.of[id] = wholes.iter().copied().collect();
        }
        self.cuts.borders.insert(id, wholes);
        Some(())
    }

    fn operation(&mut self, id: InstructionId) -> Option<()> {
        self.fresh(id)?;
        let module = self.module;
        if module.shape(id).first_array().is_none() {
            return Some(());
        }
        let Some(rule) = rule(module, id) else {
            // Its operands are whole, and so is what it computes.
            for &node in &self.cuts.of[id].clone() {
                self.cuts.nodes[node].is_open.fill(false);
            }
            return Some(());
        };
        // Results of several arrays are alike.
        let first = self.cuts.of[id][0];
        let n = self.cuts.of[id].len();
        self.cuts.of[id] = SmallVec::from_elem(first, n);
        let whole = |factors: &Factors| -> Cut { SmallVec::from_elem(Axes::new(), factors.len()) };
        let mut members: SmallVec<[Member; 4]> = SmallVec::new();
        members.push(Member { node: first, skipped: whole(&rule.result), factors: rule.result.clone() });
        for (&operand, factors) in module.instructions[id].operands.iter().zip(&rule.operands) {
            if let Some(factors) = factors.as_ref().filter(|factors| !factors.is_empty()) {
                let node = self.cuts.of[operand][0];
                members.push(Member { node, skipped: whole(factors), factors: factors.clone() });
            }
        }
        if members.len() > 1 {
            let relation =
                Relation { members, sizes: rule.sizes.clone(), passes_through: rule.passes_through };
            self.relations.push(relation);
        }
        self.cuts.rules.insert(id, rule);
        Some(())
    }
}
