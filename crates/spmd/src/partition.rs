//! Makes the program of one device, given the cut of every value.
//!
//! Each operation computes its part of the result from parts of its operands: along each factor ([`crate::rule`]), all
//! arrays are cut alike. Operands with another cut are moved first; if the devices have summands of a result, these are
//! added up. Operations without factors get whole operands.

use memplan_ir::{
    BinaryOp, ComputationId, Cursor, ElementType, Insert, InstructionId, Module, Names, Op, Operands,
    ReplicaGroups, Shape, SliceDimension,
};
use memplan_rewriter::plain_combiner;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::cut::{Axes, Cut, Grid, Span};
use crate::notes::Call;
use crate::propagate::{Cuts, split};
use crate::reshard::{Resharder, array};
use crate::rule::{Factors, Rule};

/// Rewrites every computation that runs. `scatters` says whether a device gets only its part of a sum.
pub(crate) fn partition(module: &mut Module, cuts: &Cuts, scatters: bool) {
    let mut names = Names::new(module);
    let shapes: FxHashMap<InstructionId, Shape> = cuts
        .computations
        .iter()
        .flat_map(|&computation| module.computations[computation].instructions.clone())
        .map(|id| (id, module.shape(id).clone()))
        .collect();
    let mut adders = FxHashMap::default();
    for &computation in &cuts.computations {
        let mut partitioner = Partitioner {
            cuts,
            shapes: &shapes,
            names: &mut names,
            adders: &mut adders,
            resharder: Resharder::new(&cuts.grid, scatters),
            value: FxHashMap::default(),
        };
        let root = module.computations[computation].root;
        module.edit_in_order(computation, |module, id| partitioner.visit(module, id));
        partitioner.finish(module, computation, root);
    }
    for instruction in module.instructions.values_mut() {
        if let Some(extras) = &mut instruction.extras {
            extras.sharding = None;
            extras.frontend_attributes.retain(|key, _| !key.starts_with("xla.sdy."));
        }
    }
    for instruction in module.instructions.values_mut() {
        number_devices(&mut instruction.op, &cuts.grid);
    }
    module.config.frontend_attributes.shift_remove("xla.sdy.meshes");
    module.config.num_partitions = Some(cuts.grid.devices());
}

/// Names the devices of a collective by numbers rather than axes of a mesh, which is gone.
fn number_devices(op: &mut Op, grid: &Grid) {
    let collective = match op {
        Op::AllGather(it)
        | Op::AllReduce(it)
        | Op::ReduceScatter(it)
        | Op::AllToAll(it)
        | Op::RaggedAllToAll(it)
        | Op::CollectiveBroadcast(it) => it,
        _ => return,
    };
    if let ReplicaGroups::Mesh { mesh, axes } = &collective.replica_groups
        && mesh.devices.is_none()
    {
        let spans: Option<Vec<Span>> = axes.iter().map(|axis| Grid::span_of_axis(&mesh.axes, axis)).collect();
        if let Some(spans) = spans {
            let axes: Axes = spans.into_iter().flat_map(|span| grid.axes_of(span)).collect();
            collective.replica_groups = grid.groups(&axes);
        }
    }
}

struct Partitioner<'a> {
    cuts: &'a Cuts,
    /// Of whole values, before anything was cut.
    shapes: &'a FxHashMap<InstructionId, Shape>,
    names: &'a mut Names,
    /// Computations that add two numbers of a type.
    adders: &'a mut FxHashMap<ElementType, ComputationId>,
    resharder: Resharder<'a>,
    /// What replaces a value, cut as [`Cuts::of`] says.
    value: FxHashMap<InstructionId, InstructionId>,
}

impl Partitioner<'_> {
    fn value(&self, id: InstructionId) -> InstructionId {
        self.value.get(&id).copied().unwrap_or(id)
    }

    fn visit(&mut self, module: &mut Module, id: InstructionId) {
        let original: Operands = module.instructions[id].operands.clone();
        let operands: Operands = original.iter().map(|&operand| self.value(operand)).collect();
        let waits = std::mem::take(&mut module.instructions[id].control_predecessors);
        module.instructions[id].control_predecessors =
            waits.into_iter().map(|other| self.value(other)).collect();
        if let Some(call) = Call::of(&module.instructions[id].op) {
            return self.call(module, id, call, &original, &operands);
        }
        let local = self.cuts.local(id, &self.shapes[&id]);
        match &module.instructions[id].op {
            Op::Parameter { .. } | Op::GetTupleElement { .. } => {
                module.instructions[id].operands = operands;
                module.set_shape(id, local);
                module.list(id);
            }
            Op::Tuple => {
                let cuts: Vec<Cut> = self.cuts.of(id).cloned().collect();
                let mut at = 0;
                let mut parts = Operands::new();
                for (&from, &operand) in original.iter().zip(&operands) {
                    let n = self.cuts.of(from).count();
                    parts.push(self.fit(module, id, operand, from, &cuts[at..at + n]));
                    at += n;
                }
                module.instructions[id].operands = parts;
                module.set_shape(id, local);
                module.list(id);
            }
            Op::OptimizationBarrier => {
                module.instructions[id].operands = operands;
                module.set_shape(id, local);
                module.list(id);
            }
            Op::While => {
                let cuts: Vec<Cut> = self.cuts.of(id).cloned().collect();
                let state = self.fit(module, id, operands[0], original[0], &cuts);
                module.instructions[id].operands = [state].into_iter().collect();
                module.set_shape(id, local);
                module.list(id);
            }
            Op::Conditional => {
                let called = module.instructions[id].called.clone();
                let mut parts: Operands = operands[..1].iter().copied().collect();
                for (i, &callee) in called.iter().enumerate() {
                    let parameter = module.computations[callee].parameters[0];
                    let cuts: Vec<Cut> = self.cuts.of(parameter).cloned().collect();
                    parts.push(self.fit(module, id, operands[i + 1], original[i + 1], &cuts));
                }
                module.instructions[id].operands = parts;
                module.set_shape(id, local);
                module.list(id);
            }
            _ => match self.cuts.rules.get(&id) {
                Some(rule) => self.operation(module, id, &original, &operands, rule),
                None => self.whole(module, id, &original, &operands),
            },
        }
    }

    /// Lets the root of a computation be cut as its callers expect.
    fn finish(&mut self, module: &mut Module, computation: ComputationId, root: InstructionId) {
        let mut value = self.value(root);
        // Loops and conditionals expect what they return themselves.
        let expected = module.instructions.iter().find_map(|(id, instruction)| {
            let is_body = matches!(instruction.op, Op::While) && instruction.called[0] == computation;
            let is_branch =
                matches!(instruction.op, Op::Conditional) && instruction.called.contains(&computation);
            (is_body || is_branch).then_some(id)
        });
        if let Some(caller) = expected {
            let cuts: Vec<Cut> = self.cuts.of(caller).cloned().collect();
            value = self.fit(module, root, value, root, &cuts);
        }
        module.computations[computation].root = value;
    }

    /// A value, an array or a tuple, cut as `to` says; `from` is what it replaces.
    fn fit(
        &mut self,
        module: &mut Module,
        beside: InstructionId,
        value: InstructionId,
        from: InstructionId,
        to: &[Cut],
    ) -> InstructionId {
        let now: Vec<Cut> = self.cuts.of(from).cloned().collect();
        let (fitted, _) = self.fit_part(module, beside, value, &now, to);
        fitted
    }

    /// Returns how many leaves the value has.
    fn fit_part(
        &mut self,
        module: &mut Module,
        beside: InstructionId,
        value: InstructionId,
        now: &[Cut],
        to: &[Cut],
    ) -> (InstructionId, usize) {
        let n = module.shape(value).leaves().len();
        if now[..n] == to[..n] {
            return (value, n);
        }
        if module.shape(value).as_array().is_some() {
            return (self.resharder.reshard(module, self.names, beside, value, &now[0], &to[0]), 1);
        }
        let elements = module.shape(value).as_tuple().map_or(0, <[Shape]>::len) as u32;
        let mut at = 0;
        let mut parts = Vec::new();
        for index in 0..elements {
            let element = Cursor::beside(module, self.names, beside).get_tuple_element(value, index);
            let (part, n) = self.fit_part(module, beside, element, &now[at..], &to[at..]);
            parts.push(part);
            at += n;
        }
        (Cursor::beside(module, self.names, beside).tuple(parts), at)
    }

    fn call(
        &mut self,
        module: &mut Module,
        id: InstructionId,
        call: Call,
        original: &Operands,
        operands: &Operands,
    ) {
        let targets: Vec<Cut> = match call {
            Call::Constraint => self.cuts.of(id).cloned().collect(),
            Call::Enter => self.cuts.borders[&id].iter().map(|&node| self.cuts.at(node).clone()).collect(),
            // The arrays of one device, as they will be seen: without the manual axes.
            Call::Leave => {
                let manual = &self.cuts.manual[&id];
                let without =
                    |axes: &Axes| axes.iter().filter(|axis| !manual.contains(axis)).copied().collect();
                self.cuts.of(id).map(|cut| cut.iter().map(without).collect()).collect()
            }
        };
        let mut at = 0;
        let mut parts = Vec::new();
        for (&from, &operand) in original.iter().zip(operands) {
            let n = self.cuts.of(from).count();
            parts.push(self.fit(module, id, operand, from, &targets[at..at + n]));
            at += n;
        }
        let value = match module.shape(id).is_tuple() {
            false => parts[0],
            true if parts.len() == 1 && module.shape(parts[0]).is_tuple() => parts[0],
            true => Cursor::beside(module, self.names, id).tuple(parts),
        };
        self.value.insert(id, value);
    }

    /// Every device computes all of it, and keeps its part.
    fn whole(&mut self, module: &mut Module, id: InstructionId, original: &Operands, operands: &Operands) {
        let mut wholes = Operands::new();
        for (&from, &operand) in original.iter().zip(operands) {
            let cuts: Vec<Cut> = self.cuts.of(from).map(|cut| uncut(cut.len())).collect();
            wholes.push(self.fit(module, id, operand, from, &cuts));
        }
        module.instructions[id].operands = wholes;
        module.list(id);
        let now: Vec<Cut> = self.cuts.of(id).map(|cut| uncut(cut.len())).collect();
        let to: Vec<Cut> = self.cuts.of(id).cloned().collect();
        let (value, _) = self.fit_part(module, id, id, &now, &to);
        self.value.insert(id, value);
    }

    fn operation(
        &mut self,
        module: &mut Module,
        id: InstructionId,
        original: &Operands,
        operands: &Operands,
        rule: &Rule,
    ) {
        let wanted = self.cuts.first(id).clone();
        let axes = self.axes_of_factors(id, original, rule, &wanted);
        let cut_of = |factors: &Factors| -> Cut { factors.iter().map(|of| join(of, &axes)).collect() };
        let mut parts = Operands::new();
        for ((&from, &operand), factors) in original.iter().zip(operands).zip(&rule.operands) {
            let now = self.cuts.of(from).cloned().collect::<Vec<_>>();
            let to = match factors {
                Some(factors) if factors.len() == now[0].len() => vec![cut_of(factors)],
                _ => now.iter().map(|cut| uncut(cut.len())).collect(),
            };
            parts.push(self.fit(module, id, operand, from, &to));
        }
        let cut = cut_of(&rule.result);
        let of_sums: Axes = (0..axes.len())
            .filter(|factor| {
                rule.is_sum[*factor] && !rule.result.iter().flatten().any(|other| other == factor)
            })
            .flat_map(|factor| axes[factor].clone())
            .collect();
        let local = self.local(&self.shapes[&id], &cut);
        self.fit_attributes(module, id, &parts, &local);
        module.instructions[id].operands = parts;
        module.set_shape(id, local);
        module.list(id);
        let mut value = id;
        let mut now = cut;
        if let (Op::Iota { dimension }, false) = (&module.instructions[id].op, now.is_empty()) {
            let d = *dimension as usize;
            if !now[d].is_empty() {
                value = self.count_from(module, id, &now[d].clone());
            }
        }
        if !of_sums.is_empty() {
            let reducer = match module.instructions[id].called.first() {
                Some(&reducer) if plain_combiner(module, reducer).is_some() => reducer,
                _ => self.adder(module, id),
            };
            (value, now) =
                self.resharder.add_up(module, self.names, id, value, reducer, &of_sums, &now, &wanted);
        }
        let n = self.cuts.of(id).count();
        let (value, _) = self.fit_part(module, id, value, &vec![now; n], &vec![wanted; n]);
        self.value.insert(id, value);
    }

    /// The same cut of each leaf.
    fn local(&self, shape: &Shape, cut: &Cut) -> Shape {
        match shape {
            Shape::Array(array) => Shape::Array(self.cuts.grid.local(array, cut)),
            Shape::Tuple(elements) => {
                Shape::tuple(elements.iter().map(|element| self.local(element, cut)).collect::<Vec<_>>())
            }
            other => other.clone(),
        }
    }

    /// Along which axes devices share the work of an operation, for each factor.
    fn axes_of_factors(
        &self,
        id: InstructionId,
        original: &Operands,
        rule: &Rule,
        wanted: &Cut,
    ) -> Vec<Axes> {
        let grid = &self.cuts.grid;
        let n = rule.sizes.len();
        let of_cut = |factors: &Factors, cut: &Cut| -> Vec<Axes> {
            let mut axes = vec![Axes::new(); n];
            for (of, cut) in factors.iter().zip(cut) {
                for (&factor, part) in of.iter().zip(split(grid, cut, of, &rule.sizes)) {
                    axes[factor] = part;
                }
            }
            axes
        };
        let bytes = |id: InstructionId| self.shapes.get(&id).map_or(0, |shape| shape.dense_bytes() as i64);
        let has: Vec<(i64, &Factors, Vec<Axes>)> = original
            .iter()
            .zip(&rule.operands)
            .filter_map(|(&operand, factors)| {
                let factors = factors.as_ref()?;
                let cut = self.cuts.of(operand).next()?;
                (factors.len() == cut.len()).then(|| (bytes(operand), factors, of_cut(factors, cut)))
            })
            .collect();
        let own = |factors: &Factors, factor: usize| factors.iter().flatten().any(|&other| other == factor);
        let mut axes = of_cut(&rule.result, wanted);
        let in_result: Vec<bool> = (0..n).map(|factor| own(&rule.result, factor)).collect();
        for factor in (0..n).filter(|&factor| !in_result[factor] && rule.is_sum[factor]) {
            let those: Vec<&(i64, &Factors, Vec<Axes>)> =
                has.iter().filter(|(_, factors, _)| own(factors, factor)).collect();
            let longest = those.iter().max_by_key(|(bytes, _, axes)| (axes[factor].len(), *bytes));
            let Some(longest) = longest.map(|(_, _, axes)| axes[factor].clone()) else { continue };
            let is_of_all = those.iter().all(|(_, _, axes)| axes[factor] == longest);
            let is_used = |axis: &u8| axes.iter().flatten().any(|other| other == axis);
            if is_of_all {
                // The sum is over parts of all operands: the result is scattered, if it is to be cut by these axes.
                for of in &mut axes {
                    if let Some(at) = of.iter().position(|axis| longest.contains(axis)) {
                        of.truncate(at);
                    }
                }
                axes[factor] = longest;
            } else if !longest.iter().any(is_used) {
                // One operand is cut: either the others are cut, too, and results are added, or it is gathered.
                let gathered: i64 = those
                    .iter()
                    .filter(|(_, _, axes)| !axes[factor].is_empty())
                    .map(|(bytes, ..)| bytes)
                    .sum();
                if bytes(id) <= gathered || gathered == 0 {
                    axes[factor] = longest;
                }
            }
        }
        // What operands are cut along, and the result is not to be: gather the smaller.
        for factor in (0..n).filter(|&factor| in_result[factor]) {
            if !axes[factor].is_empty() {
                continue;
            }
            let those =
                has.iter().filter(|(_, factors, axes)| own(factors, factor) && !axes[factor].is_empty());
            let those: Vec<&(i64, &Factors, Vec<Axes>)> = those.collect();
            let Some((_, _, first)) = those.first() else { continue };
            let is_used = |axis: &u8| axes.iter().flatten().any(|other| other == axis);
            let gathered: i64 = those.iter().map(|(bytes, ..)| bytes).sum();
            let is_wanted =
                first[factor].iter().any(|axis| wanted.iter().flatten().any(|other| other == axis));
            if !first[factor].iter().any(is_used) && !is_wanted && bytes(id) < gathered {
                axes[factor] = first[factor].clone();
            }
        }
        self.keep_possible(rule, axes)
    }

    /// Drops axes that some array could not be cut by: behind factors that are not cut to single indices.
    fn keep_possible(&self, rule: &Rule, mut axes: Vec<Axes>) -> Vec<Axes> {
        let grid = &self.cuts.grid;
        for (factor, of) in axes.iter_mut().enumerate() {
            let mut pieces = 1;
            let fits = |axis: &&u8| {
                pieces *= grid.extent(**axis);
                rule.sizes[factor] % pieces == 0
            };
            *of = of.iter().take_while(fits).copied().collect();
        }
        loop {
            let arrays = rule.operands.iter().flatten().chain([&rule.result]);
            let cannot = arrays.flatten().find_map(|factors| {
                let full = |factor: usize| grid.pieces(&axes[factor]) == rule.sizes[factor];
                let end = factors.iter().position(|&factor| !full(factor))?;
                factors[end + 1..].iter().copied().find(|&factor| !axes[factor].is_empty())
            });
            match cannot {
                Some(factor) => axes[factor].clear(),
                None => return axes,
            }
        }
    }

    /// Sets attributes that name extents to those of the part.
    fn fit_attributes(&self, module: &mut Module, id: InstructionId, operands: &Operands, local: &Shape) {
        let result: SmallVec<[i64; 4]> =
            local.as_array().map(|array| array.dimensions.iter().copied().collect()).unwrap_or_default();
        let whole = self.shapes[&id].clone();
        let whole = whole.as_array();
        let of_operand = operands.first().map(|&operand| module.shape(operand).clone());
        match &mut module.instructions[id].op {
            Op::Slice { dimensions } => {
                for (d, slice) in dimensions.iter_mut().enumerate() {
                    if whole.is_some_and(|whole| whole.dimensions[d] != result[d]) {
                        *slice = SliceDimension { start: 0, limit: result[d], stride: 1 };
                    }
                }
            }
            Op::DynamicSlice { slice_sizes } => slice_sizes.copy_from_slice(&result),
            Op::Gather(gather) => {
                // Windows are as large as what is left of the operand, where they were all of it.
                let operand = of_operand.expect("a gather has operands");
                let local = &operand.as_array().expect("a gather reads an array").dimensions;
                for (size, &extent) in gather.slice_sizes.iter_mut().zip(local) {
                    *size = (*size).min(extent);
                }
            }
            _ => {}
        }
    }

    /// A count that goes on where that of the device before ends.
    fn count_from(&mut self, module: &mut Module, id: InstructionId, axes: &Axes) -> InstructionId {
        let shape = array(module, id).clone();
        let Op::Iota { dimension } = module.instructions[id].op else { return id };
        let size = shape.dimensions[dimension as usize];
        let start = self.resharder.start(module, self.names, id, axes, size);
        let mut at = Cursor::beside(module, self.names, id);
        let start = at.convert(start, shape.element_type);
        let start = at.broadcast(start, shape.dimensions.iter().copied(), []);
        at.binary(BinaryOp::Add, id, start)
    }

    /// A computation that adds two numbers of the type of a result.
    fn adder(&mut self, module: &mut Module, of: InstructionId) -> ComputationId {
        let element_type = array(module, of).element_type;
        if let Some(&adder) = self.adders.get(&element_type) {
            return adder;
        }
        let parent = module.instructions[of].parent;
        let adder = Cursor::end(module, self.names, parent).combiner("sum", BinaryOp::Add, element_type);
        self.adders.insert(element_type, adder);
        adder
    }
}

fn uncut(rank: usize) -> Cut {
    SmallVec::from_elem(Axes::new(), rank)
}

/// The axes of a dimension with these factors.
fn join(factors: &[usize], axes: &[Axes]) -> Axes {
    factors.iter().flat_map(|&factor| axes[factor].clone()).collect()
}
