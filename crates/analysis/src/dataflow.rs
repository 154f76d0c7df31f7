//! Dataflow: which value appears at which position.
//!
//! A *value* is one definition: the result of an instruction, an entry parameter, or the state that enters a loop
//! iteration or leaves a conditional, where different definitions meet (a *phi*). Many positions have the same value:
//! tuples, get-tuple-element, bitcast, calls, loops that pass a state element on unchanged, the done half of an
//! asynchronous operation, ... move no bytes.
//!
//! ```text
//!   init = f32[4] negate(p)            value A
//!   w = (f32[4]) while((init)), ...    phi: body parameter = A or the body's root
//!       body: r = f32[4] add(x, x)     value R
//!   g = f32[4] get-tuple-element(w)    phi: w{0} = the state when the condition says no
//! ```
//!
//! Values that meet in a phi must share a buffer; that is [`Buffers`](crate::Buffers).

use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap, packed_option::PackedOption};
use memplan_ir::{
    ComputationId, Effect, InstructionId, Module, Op, OutputOperandAlias, PositionId, Positions, Role,
    ShapeIndex,
};
use memplan_program::ValueId;
use petgraph::unionfind::UnionFind;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::CallGraph;

/// A value: one definition, seen at many positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// Its definition: the position that reports show.
    pub definition: PositionId,
    /// The kind of definition.
    pub kind: ValueKind,
}

/// The kind of a value's definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// An instruction writes it.
    Written,
    /// The caller of the program passes it.
    Parameter,
    /// State at the start of a loop iteration: the initial one, or the one that the body left.
    LoopPhi,
    /// State after a loop or a conditional.
    ExitPhi,
}

/// Values and where they appear.
#[derive(Clone, Debug)]
pub struct Dataflow {
    /// The dense numbering of positions.
    pub positions: Positions,
    /// All values, by the order of their defining positions.
    pub values: PrimaryMap<ValueId, Value>,
    value_at: SecondaryMap<PositionId, PackedOption<ValueId>>,
    /// Positions by value: value `v` has `order[starts[v]..starts[v + 1]]`.
    starts: Vec<u32>,
    order: Vec<PositionId>,
    /// Values that meet in a phi: (phi, a value that flows into it).
    pub phi_inputs: Vec<(ValueId, ValueId)>,
}

/// Finds the value at every position of every sequential computation. Close to linear in the number of positions.
pub fn dataflow(module: &Module, graph: &CallGraph) -> Dataflow {
    let positions = Positions::new(module);
    let mut flow = Flow {
        module,
        classes: UnionFind::new(positions.len()),
        positions,
        phis: SecondaryMap::new(),
        inputs: Vec::new(),
    };
    // Callees first, so that a loop body is settled before the loop.
    for &computation in graph.sequential() {
        for &instruction in &module.computations[computation].instructions {
            flow.connect(instruction);
        }
    }
    flow.into_dataflow(graph)
}

impl Dataflow {
    /// The value at a position; `None` in computations that are not sequential.
    pub fn value_at(&self, position: PositionId) -> Option<ValueId> {
        self.value_at[position].expand()
    }

    /// The value that an instruction's whole result is, or whose table it is for a tuple.
    pub fn value_of(&self, instruction: InstructionId) -> Option<ValueId> {
        self.value_at(self.positions.root(instruction))
    }

    /// The value at a shape index of an instruction.
    pub fn find(&self, instruction: InstructionId, index: &ShapeIndex) -> Option<ValueId> {
        self.value_at(self.positions.find(instruction, index)?)
    }

    /// The positions of a value, in ascending order.
    pub fn positions_of(&self, value: ValueId) -> &[PositionId] {
        &self.order[self.starts[value.index()] as usize..self.starts[value.index() + 1] as usize]
    }
}

/// The union-find under construction.
struct Flow<'m> {
    module: &'m Module,
    positions: Positions,
    classes: UnionFind<u32>,
    /// Positions at which different values meet.
    phis: SecondaryMap<PositionId, Option<ValueKind>>,
    /// Positions whose values flow into a phi.
    inputs: Vec<(PositionId, PositionId)>,
}

impl Flow<'_> {
    /// Joins the positions that show the same value because of one instruction.
    fn connect(&mut self, id: InstructionId) {
        let module = self.module;
        let instruction = &module.instructions[id];
        let root = self.positions.root(id);
        match &instruction.op {
            Op::Tuple => {
                for (i, &element) in instruction.operands.iter().enumerate() {
                    let at = self.child(root, i);
                    let from = self.positions.root(element);
                    self.join(at, from);
                }
            }
            Op::GetTupleElement { index } => {
                let from = self.positions.root(instruction.operands[0]);
                let from = self.child(from, *index as usize);
                self.join(root, from);
            }
            op if op.traits().role == Role::PassesOn => {
                let from = self.positions.root(instruction.operands[0]);
                self.join(root, from);
            }
            // A tuple is copied by its table; its elements stay in place.
            Op::Copy => {
                let from = self.positions.root(instruction.operands[0]);
                for i in 0..self.children(root) {
                    let (at, from) = (self.child(root, i), self.child(from, i));
                    self.join(at, from);
                }
            }
            Op::Call { .. } => {
                self.pass_arguments(instruction.called[0], &instruction.operands);
                let result = self.positions.root(module.computations[instruction.called[0]].root);
                self.join(root, result);
            }
            Op::While => self.connect_while(id),
            Op::Conditional => self.connect_conditional(id),
            Op::AsyncStart(start) => {
                let sources = self.child(root, 0);
                for (i, &source) in instruction.operands.iter().enumerate() {
                    let at = self.child(sources, i);
                    let from = self.positions.root(source);
                    self.join_sources(at, from, i, &start.output_operand_aliasing);
                }
                if let Some(&wrapped) = instruction.called.first() {
                    self.pass_arguments(wrapped, &instruction.operands);
                    let (result, from) =
                        (self.child(root, 1), self.positions.root(module.computations[wrapped].root));
                    self.join(result, from);
                }
            }
            Op::AsyncUpdate(_) => {
                let from = self.positions.root(instruction.operands[0]);
                self.join(root, from);
            }
            Op::AsyncDone(_) | Op::AllGatherDone(_) | Op::CollectivePermuteDone(_) => {
                let start = self.positions.root(instruction.operands[0]);
                let from = self.child(start, 1);
                self.join(root, from);
            }
            Op::CopyDone | Op::RecvDone(_) => {
                let start = self.positions.root(instruction.operands[0]);
                let from = self.child(start, 0);
                let to = if matches!(instruction.op, Op::RecvDone(_)) { self.child(root, 0) } else { root };
                self.join(to, from);
            }
            Op::AllReduceDone(_) => {
                let start = self.positions.root(instruction.operands[0]);
                self.join(root, start);
            }
            Op::CopyStart { .. } => {
                let (at, from) = (self.child(root, 1), self.positions.root(instruction.operands[0]));
                self.join(at, from);
            }
            Op::Fusion(fusion) => self.connect_collective_in_flight(id, &fusion.output_operand_aliasing),
            Op::Send(_) => {
                let (at, from) = (self.child(root, 0), self.positions.root(instruction.operands[0]));
                self.join(at, from);
            }
            Op::AllGatherStart(_) | Op::CollectivePermuteStart(_) => {
                let sources = self.child(root, 0);
                match instruction.operands.as_slice() {
                    // Several operands come as a tuple of sources.
                    operands @ [_, _, ..] if !instruction.op.permutes_in_place() => {
                        for (i, &source) in operands.iter().enumerate().take(self.children(sources)) {
                            let (at, from) = (self.child(sources, i), self.positions.root(source));
                            self.join(at, from);
                        }
                    }
                    operands => {
                        let from = self.positions.root(operands[0]);
                        self.join(sources, from);
                    }
                }
            }
            _ => {}
        }
    }

    /// libtpu fuses an asynchronous collective with arithmetic. The fusion returns the buffer that the collective fills twice:
    /// as an operand that it passes on, and as the collective's result. Nothing reads the old contents of the buffer, so both
    /// are one value.
    fn connect_collective_in_flight(&mut self, id: InstructionId, aliases: &[OutputOperandAlias]) {
        let module = self.module;
        let Some(&fused) = module.instructions[id].called.first() else { return };
        let root = &module.instructions[module.computations[fused].root];
        let element = |alias: &OutputOperandAlias| match (&root.op, alias.output_index.0.as_slice()) {
            (Op::Tuple, &[i]) => root.operands.get(i as usize).map(|&id| &module.instructions[id].op),
            _ => None,
        };
        for filled in
            aliases.iter().filter(|&alias| element(alias).is_some_and(|op| op.collective().is_some()))
        {
            let place = |alias: &OutputOperandAlias| (alias.operand, alias.operand_index.clone());
            let is_passed_on = |alias: &&OutputOperandAlias| match element(alias) {
                Some(Op::Parameter { number }) => *number == alias.operand && place(alias) == place(filled),
                _ => false,
            };
            let at = |alias: &OutputOperandAlias| self.positions.find(id, &alias.output_index);
            if let (Some(from), Some(to)) = (at(filled), aliases.iter().find(is_passed_on).and_then(at)) {
                self.join(to, from);
            }
        }
    }

    /// State enters and leaves a loop: passed through if the body does not change it, otherwise a phi.
    fn connect_while(&mut self, id: InstructionId) {
        let module = self.module;
        let instruction = &module.instructions[id];
        let (body, condition) =
            (&module.computations[instruction.called[0]], &module.computations[instruction.called[1]]);
        let init = self.positions.root(instruction.operands[0]);
        let state = self.positions.root(body.parameters[0]);
        let tested = self.positions.root(condition.parameters[0]);
        let next = self.positions.root(body.root);
        let exit = self.positions.root(id);
        self.join(tested, state);
        let is_kept = self.kept_state([init, state, next], self.positions.count_of(id));
        for (i, is_kept) in is_kept.into_iter().enumerate() {
            let [init, state, next, exit] = [init, state, next, exit].map(|p| PositionId::new(p.index() + i));
            if is_kept {
                self.classes.union(state.as_u32(), init.as_u32());
                self.classes.union(state.as_u32(), exit.as_u32());
            } else {
                self.phis[state] = Some(ValueKind::LoopPhi);
                self.phis[exit] = Some(ValueKind::ExitPhi);
                self.inputs.extend([(state, init), (state, next), (exit, state)]);
            }
        }
    }

    /// Which of the first `n` parts of a loop's state keep their initial value in every iteration: the body passes them
    /// through, or another such part with the same initial value.
    fn kept_state(&mut self, [init, state, next]: [PositionId; 3], n: usize) -> Vec<bool> {
        let mut class = |from: PositionId, i: usize| self.classes.find_mut(from.as_u32() + i as u32);
        let part_of_class: FxHashMap<u32, usize> = (0..n).map(|i| (class(state, i), i)).collect();
        let handed_on: Vec<Option<usize>> =
            (0..n).map(|i| part_of_class.get(&class(next, i)).copied()).collect();
        let begins_as: Vec<u32> = (0..n).map(|i| class(init, i)).collect();
        // Every part is kept until something changes it, which propagates to the parts that depend on it.
        let mut becomes: Vec<SmallVec<[usize; 1]>> = vec![SmallVec::new(); n];
        let mut is_kept = vec![true; n];
        let mut changed: Vec<usize> = Vec::new();
        for (i, &from) in handed_on.iter().enumerate() {
            match from {
                Some(from) if begins_as[from] == begins_as[i] => becomes[from].push(i),
                _ => changed.push(i),
            }
        }
        while let Some(i) = changed.pop() {
            if std::mem::replace(&mut is_kept[i], false) {
                changed.extend(&becomes[i]);
            }
        }
        is_kept
    }

    /// A conditional passes one operand to each branch; its result is a phi unless all branches return one value.
    fn connect_conditional(&mut self, id: InstructionId) {
        let module = self.module;
        let instruction = &module.instructions[id];
        let exit = self.positions.root(id);
        let mut roots = Vec::with_capacity(instruction.called.len());
        for (&branch, &argument) in instruction.called.iter().zip(&instruction.operands[1..]) {
            self.pass_arguments(branch, &[argument]);
            roots.push(self.positions.root(module.computations[branch].root));
        }
        for i in 0..self.positions.count_of(id) {
            let at = |p: PositionId| PositionId::new(p.index() + i);
            let Some((&first, others)) = roots.split_first() else { return };
            if others.iter().all(|&other| self.same(at(first), at(other))) {
                self.classes.union(at(first).as_u32(), at(exit).as_u32());
            } else {
                self.phis[at(exit)] = Some(ValueKind::ExitPhi);
                self.inputs.extend(roots.iter().map(|&root| (at(exit), at(root))));
            }
        }
    }

    fn pass_arguments(&mut self, callee: ComputationId, arguments: &[InstructionId]) {
        let parameters = &self.module.computations[callee].parameters;
        for (&parameter, &argument) in parameters.iter().zip(arguments) {
            let (to, from) = (self.positions.root(parameter), self.positions.root(argument));
            self.join(to, from);
        }
    }

    /// Joins two subtrees of the same structure, part by part.
    fn join(&mut self, a: PositionId, b: PositionId) {
        for (a, b) in self.positions.subtree(a).zip(self.positions.subtree(b)) {
            self.classes.union(a.as_u32(), b.as_u32());
        }
    }

    /// The part of a start's result that represents operand `number` has its value: the operand, or, for an in-place
    /// operation, its result.
    fn join_sources(
        &mut self,
        at: PositionId,
        from: PositionId,
        number: usize,
        aliases: &[OutputOperandAlias],
    ) {
        let id = self.positions.instruction(at);
        let whole = ShapeIndex::from([0, number as u32]);
        let aliased: Vec<_> = aliases
            .iter()
            .filter(|alias| alias.operand as usize == number)
            .filter_map(|alias| {
                let part = self.positions.find(id, &whole.join(&alias.operand_index))?;
                Some((part, self.positions.find(id, &alias.output_index)?))
            })
            .collect();
        for (at, from) in self.positions.subtree(at).zip(self.positions.subtree(from)) {
            if !aliased.iter().any(|&(part, _)| self.positions.subtree(part).any(|p| p == at)) {
                self.classes.union(at.as_u32(), from.as_u32());
            }
        }
        aliased.into_iter().for_each(|(part, result)| self.join(part, result));
    }

    fn same(&mut self, a: PositionId, b: PositionId) -> bool {
        self.classes.find_mut(a.as_u32()) == self.classes.find_mut(b.as_u32())
    }

    fn child(&self, position: PositionId, i: usize) -> PositionId {
        let id = self.positions.instruction(position);
        let child = self.positions.tree(id).children(self.positions.preorder(position))[i];
        PositionId::new(self.positions.root(id).index() + child as usize)
    }

    fn children(&self, position: PositionId) -> usize {
        let id = self.positions.instruction(position);
        self.positions.tree(id).children(self.positions.preorder(position)).len()
    }

    /// Numbers the classes and finds what defines each.
    fn into_dataflow(mut self, graph: &CallGraph) -> Dataflow {
        let module = self.module;
        let mut values: PrimaryMap<ValueId, Value> = PrimaryMap::new();
        let mut value_of_class: Vec<PackedOption<ValueId>> = vec![None.into(); self.positions.len()];
        let mut value_at = SecondaryMap::with_default(PackedOption::default());
        value_at.resize(self.positions.len());
        let mut counts: Vec<u32> = Vec::new();
        let mut computations = graph.sequential().to_vec();
        computations.sort();
        let in_order = || computations.iter().flat_map(|&c| &module.computations[c].instructions);
        for &id in in_order() {
            for position in self.positions.of(id) {
                let class = self.classes.find_mut(position.as_u32()) as usize;
                let value = value_of_class[class].expand().unwrap_or_else(|| {
                    counts.push(0);
                    values.push(Value { definition: position, kind: ValueKind::Written })
                });
                value_of_class[class] = value.into();
                value_at[position] = value.into();
                counts[value.index()] += 1;
                if let Some(kind) = self.definition(graph, position) {
                    values[value] = Value { definition: position, kind };
                }
            }
        }
        let mut starts = vec![0u32; values.len() + 1];
        for (v, count) in counts.iter().enumerate() {
            starts[v + 1] = starts[v] + count;
        }
        let mut at = starts.clone();
        let mut order = vec![PositionId::new(0); starts[values.len()] as usize];
        for &id in in_order() {
            for position in self.positions.of(id) {
                let value =
                    value_at[position].expect("every position of a sequential computation has a value");
                order[at[value.index()] as usize] = position;
                at[value.index()] += 1;
            }
        }
        let value = |p: PositionId| value_at[p].expect("phis are in sequential computations");
        let phi_inputs = self.inputs.iter().map(|&(phi, input)| (value(phi), value(input))).collect();
        Dataflow { positions: self.positions, values, value_at, starts, order, phi_inputs }
    }

    /// The definition at a position; `None` if a value only passes through.
    fn definition(&self, graph: &CallGraph, position: PositionId) -> Option<ValueKind> {
        if let Some(kind) = self.phis[position] {
            return Some(kind);
        }
        let id = self.positions.instruction(position);
        let instruction = &self.module.instructions[id];
        let index = self.positions.shape_index(position);
        let first = index.0.first().copied();
        let passes_by = match &instruction.op {
            Op::Parameter { .. } if graph.caller(instruction.parent).is_none() => {
                return Some(ValueKind::Parameter);
            }
            Op::Parameter { .. } | Op::GetTupleElement { .. } => true,
            Op::Tuple | Op::Copy => !index.is_root(),
            Op::AsyncStart(_) => match first {
                Some(0) => index.0.len() > 1,
                Some(1) => !instruction.called.is_empty(),
                _ => false,
            },
            Op::CopyStart { .. } => first == Some(1),
            Op::Send(_) | Op::RecvDone(_) => first == Some(0),
            // The tuple of several sources is a table of its own; a single source is the operand itself.
            op @ (Op::AllGatherStart(_) | Op::CollectivePermuteStart(_)) => {
                let is_single = self.children(position) == 0 || op.permutes_in_place();
                first == Some(0) && (index.0.len() > 1 || is_single)
            }
            op => match op.traits().role {
                Role::PassesOn | Role::Calls | Role::Continues => true,
                Role::Ends => op.traits().effect != Effect::Host,
                _ => false,
            },
        };
        (!passes_by).then_some(ValueKind::Written)
    }
}
