//! Layout assignment: chooses the order of dimensions, and the tiles, of every array.
//!
//! Parameters and results of the program have the layouts that the caller declares. Machines that tile arrays have a
//! default rule, which applies unless the caller declares another order. Every other layout is free, as long as values
//! that share memory have the same one. A transpose or reshape gets the layout in which it is a view of its operand; an
//! elementwise result gets that of its operands; all others get the machine's default.
//!
//! ```text
//!   a = f32[64,32]{1,0} dot(...)             a = f32[64,32]{0,1} dot(...)
//!   r = f32[32,64]{1,0} transpose(a)   =>    r = f32[32,64]{1,0} transpose(a)      // moves nothing: a bitcast later
//! ```
//!
//! A copy is inserted only if the caller or a library call requires another layout than a value has. No array gets
//! larger than in the default layout, unless kernels want padded arrays (`windows_outside_tiles` in the rules of fusion):
//! results of convolutions, of products of batches and of lookups, pieces of arrays, and what is computed from these. XLA propagates
//! layout constraints both ways through the graph; here kernels read any layout, so one backward walk from the results
//! and one forward walk suffice.
//!
//! Left alone: modules whose layouts have meaning, because they are scheduled or contain bitcasts.

mod insist;
mod references;
mod sums;
mod updates;

use std::sync::Arc;

use memplan_analysis::{CallGraph, Dataflow, InPlace, dataflow, in_place_values};
use memplan_ir::{
    AliasKind, ArrayShape, BufferDonor, InstructionId, Layout, Module, Names, Op, PositionId, ProgramShape,
    Shape, ShapeIndex, Users, copy_around_library_calls, layouts_asked_for, results_of_library_calls,
};
use memplan_memory::{Bytes, Target};
use memplan_rewriter::rows::is_repetition;
use memplan_rewriter::{Context, Outcome, Pass, PassError, call_graph, cost, views};
use petgraph::unionfind::UnionFind;
use rustc_hash::{FxHashMap, FxHashSet};

/// The pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutAssignment {
    /// How far above an update its product is looked for, where the machine wants updated arrays in the layout of products:
    /// rotations, biases and reshapes are in between.
    pub max_steps_to_product: usize,
}

/// The pass with the limit that `compile` uses.
pub const LAYOUT_ASSIGNMENT: LayoutAssignment = LayoutAssignment { max_steps_to_product: 24 };

impl Default for LayoutAssignment {
    fn default() -> LayoutAssignment {
        LAYOUT_ASSIGNMENT
    }
}

impl Pass for LayoutAssignment {
    fn name(&self) -> &'static str {
        "layout-assignment"
    }

    fn description(&self) -> &'static str {
        "Choose the layout of every array, so that transposes and reshapes move nothing"
    }

    fn run(&self, module: &mut Module, context: &Context<'_>) -> Result<Outcome, PassError> {
        assign_layouts(module, context.target, self).map(Outcome::from)
    }
}

fn assign_layouts(
    module: &mut Module,
    target: &Target,
    options: &LayoutAssignment,
) -> Result<bool, PassError> {
    if module.is_scheduled || module.instructions.values().any(|i| i.op == Op::Bitcast) {
        return Ok(false);
    }
    let graph = call_graph(module, options.name())?;
    let program = program_shape(module, target);
    let mut names = Names::new(module);
    let otherwise = parameters_laid_out_otherwise(module, target, options, &graph, &program);
    updates::copy_parameters(module, &otherwise, &mut names);
    let flow = dataflow(module, &graph);
    let follows = references::follow_calls(module, &graph, &flow);
    let choose = |stacks: &[(InstructionId, Shape)]| {
        let mut choice = Choice::new(module, target, options, &graph, &flow);
        choice.fix_updates();
        choice.fix_convolutions(true);
        choice.fix_interface(&program);
        stacks.iter().for_each(|(id, shape)| choice.fix(*id, shape));
        choice.walk_backward();
        choice.walk_forward();
        choice
    };
    let mut choice = choose(&[]);
    let stacks = choice.wide_stacks();
    if !stacks.is_empty() {
        choice = choose(&stacks);
    }
    let layouts = choice.layouts;
    let returned = results_of_library_calls(module, graph.sequential());
    let mut changed = !otherwise.is_empty() || follows;
    changed |= apply(module, &graph, &flow, &layouts);
    changed |= release_unequal(module, &program, target);
    let lie = |shape: &mut Shape| as_asked(shape, target);
    changed |= copy_around_library_calls(module, graph.sequential(), returned, lie, &mut names);
    changed |= insist::copy_results(module, &program.result, &mut names);
    changed |= module.config.entry_computation_layout.replace(program.clone()) != Some(program);
    if changed {
        module.compact();
    }
    Ok(changed)
}

/// The layouts of parameters and results of the program: the caller's, or the machine's default. A result that lives in
/// a parameter has its layout if another order would be padded differently.
fn program_shape(module: &Module, target: &Target) -> ProgramShape {
    let entry = module.entry_computation();
    let mut program = module.config.entry_computation_layout.clone().unwrap_or_else(|| ProgramShape {
        parameters: entry.parameters.iter().map(|&parameter| module.shape(parameter).clone()).collect(),
        result: module.shape(entry.root).clone(),
    });
    program.parameters.iter_mut().for_each(|shape| as_asked(shape, target));
    as_asked(&mut program.result, target);
    for alias in &module.config.input_output_alias {
        let parameter = program.parameters[alias.parameter as usize].subshape(&alias.parameter_index);
        let result = program.result.subshape(&alias.output_index);
        let (Some(parameter), Some(result)) = (parameter, result) else { continue };
        let is_array = parameter.as_array().is_some() && parameter.same_ignoring_layout(result);
        if is_array && target.size_of(parameter) != target.size_of(result) {
            let layout = parameter.as_array().and_then(|array| array.layout.clone());
            let result = program.result.subshape_mut(&alias.output_index).and_then(Shape::as_array_mut);
            result.expect("it was found to be an array").layout = layout;
        }
    }
    program
}

/// Parameters of the program whose memory is to hold a value with another layout.
fn parameters_laid_out_otherwise(
    module: &Module,
    target: &Target,
    options: &LayoutAssignment,
    graph: &CallGraph,
    program: &ProgramShape,
) -> Vec<InstructionId> {
    if !target.fusion.updates_lie_as_products {
        return Vec::new();
    }
    let flow = dataflow(module, graph);
    let mut choice = Choice::new(module, target, options, graph, &flow);
    choice.fix_updates();
    choice.fix_convolutions(true);
    let parameters = module.entry_computation().parameters.iter().zip(&program.parameters);
    let lies_otherwise = |(&parameter, shape): (&InstructionId, &Shape)| {
        let wish = choice.layouts.at(&flow, flow.positions.root(parameter));
        let has = shape.as_array().and_then(|array| array.layout.as_ref());
        (wish.is_some() && has.is_some() && wish != has).then_some(parameter)
    };
    parameters.filter_map(lies_otherwise).collect()
}

/// Gives memory of their own to results that do not fit the parameter that they may live in: they take another number of
/// bytes, or are in another memory space.
fn release_unequal(module: &mut Module, program: &ProgramShape, target: &Target) -> bool {
    let room = |shape: &Shape, index: &ShapeIndex| {
        let part = shape.subshape(index)?;
        Some((target.size_of(part), part.as_array().map(ArrayShape::memory_space)))
    };
    let config = &mut module.config;
    let (kept, released): (Vec<_>, Vec<_>) =
        std::mem::take(&mut config.input_output_alias).into_iter().partition(|alias| {
            let parameter = &program.parameters[alias.parameter as usize];
            alias.kind != AliasKind::MayAlias
                || room(parameter, &alias.parameter_index) == room(&program.result, &alias.output_index)
        });
    config.input_output_alias = kept;
    let changed = !released.is_empty();
    let donors =
        released.into_iter().map(|a| BufferDonor { parameter: a.parameter, index: a.parameter_index });
    config.buffer_donors.extend(donors);
    changed
}

/// Whether the two dimensions of tiles are a row and a column of a product of batches.
fn covers_no_batch(tiles: &[Vec<i64>; 2], order: &[i64]) -> bool {
    order.len() > 1 && tiles.iter().all(|of| of.contains(&order[0]) || of.contains(&order[1]))
}

/// The layouts that a machine gives to arrays for which somebody asks for an order. On machines
/// that tile arrays, row-major order counts as no request, since front ends write it when they have none.
fn as_asked(shape: &mut Shape, target: &Target) {
    match shape {
        Shape::Tuple(elements) => {
            let mut asked = elements.to_vec();
            asked.iter_mut().for_each(|element| as_asked(element, target));
            // Without changes, the elements stay shared.
            if asked != **elements {
                *elements = asked.into();
            }
        }
        Shape::Array(array) | Shape::Buffer(array) => {
            let layout = array.layout.as_ref();
            if layout.is_none_or(|layout| layout.tiles.is_empty()) {
                array.layout = Some(match layout.filter(|layout| !layout.is_row_major()) {
                    Some(layout) => target.layout_with_order(array, &layout.minor_to_major),
                    None => target.default_layout(array),
                });
            }
        }
        Shape::Token | Shape::Opaque => {}
    }
}

/// The layout of each class of values, once chosen.
struct Layouts {
    class_of: Vec<u32>,
    of_class: Vec<Option<Layout>>,
}

impl Layouts {
    fn class(&self, flow: &Dataflow, position: PositionId) -> Option<usize> {
        Some(self.class_of[flow.value_at(position)?.as_u32() as usize] as usize)
    }

    fn at(&self, flow: &Dataflow, position: PositionId) -> Option<&Layout> {
        self.of_class[self.class(flow, position)?].as_ref()
    }
}

/// The choice of a layout for every class of values that must have the same one.
struct Choice<'a> {
    module: &'a Module,
    target: &'a Target,
    options: &'a LayoutAssignment,
    graph: &'a CallGraph,
    flow: &'a Dataflow,
    users: Users,
    layouts: Layouts,
}

impl<'a> Choice<'a> {
    /// Values that meet in loops and conditionals, or share memory because an operation works in place, have one layout.
    fn new(
        module: &'a Module,
        target: &'a Target,
        options: &'a LayoutAssignment,
        graph: &'a CallGraph,
        flow: &'a Dataflow,
    ) -> Choice<'a> {
        let mut sets: UnionFind<u32> = UnionFind::new(flow.values.len());
        for &(phi, input) in &flow.phi_inputs {
            sets.union(phi.as_u32(), input.as_u32());
        }
        let in_place = InPlace::new(module);
        for id in sequential_instructions(module, graph) {
            // A library call that declares layouts of its operands gets copies where theirs differ.
            let pairs = in_place_values(module, flow, &in_place, id);
            for (source, result) in pairs.filter(|_| layouts_asked_for(module, id).is_none()) {
                sets.union(source.as_u32(), result.as_u32());
            }
            // Only the extents change, even where a dynamic result needs more bytes.
            let instruction = &module.instructions[id];
            if let Op::SetDimensionSize { .. } = instruction.op
                && let Some((source, result)) = flow.value_of(instruction.operands[0]).zip(flow.value_of(id))
            {
                sets.union(source.as_u32(), result.as_u32());
            }
        }
        let class_of = sets.into_labeling();
        let of_class = vec![None; class_of.len()];
        Choice {
            module,
            target,
            options,
            graph,
            flow,
            users: Users::new(module),
            layouts: Layouts { class_of, of_class },
        }
    }

    /// Parameters first: where one is returned, it is the result that is copied. So it is where a library call makes it, or a
    /// convolution in tiles of its own.
    fn fix_interface(&mut self, program: &ProgramShape) {
        let entry = self.module.entry_computation();
        for (&parameter, shape) in entry.parameters.iter().zip(&program.parameters) {
            self.fix(parameter, shape);
        }
        self.fix_library_calls();
        self.fix_convolutions(false);
        self.fix_sorts();
        self.fix_running_sums();
        self.fix_sums();
        self.fix_returned_products(&program.result);
        self.fix(entry.root, &program.result);
    }

    /// Lets products of batches whose tiles would cover a batch in the layout that the caller asks for have their own: they
    /// are copied.
    fn fix_returned_products(&mut self, result: &Shape) {
        let root = self.module.entry_computation().root;
        let mut asked: FxHashMap<usize, Vec<i64>> = FxHashMap::default();
        let mut positions = self.flow.positions.of(root);
        result.for_each_subshape(|_, part| {
            let position = positions.next().expect("the result has the structure of the root");
            if let (Some(class), Some(array)) = (self.layouts.class(self.flow, position), part.as_array()) {
                asked.insert(class, array.minor_to_major().to_vec());
            }
        });
        for id in sequential_instructions(self.module, self.graph) {
            let (Some(tiles), Some(array)) = (self.tiles_of(id), self.module.shape(id).as_array()) else {
                continue;
            };
            let class = self.layouts.class(self.flow, self.flow.positions.root(id));
            if class.and_then(|class| asked.get(&class)).is_some_and(|order| !covers_no_batch(&tiles, order))
            {
                self.fix(id, &views::outside_tiles(array, &tiles, self.target));
            }
        }
    }

    /// Fixes the layouts of operands and results that a library call declares.
    fn fix_library_calls(&mut self) {
        for id in sequential_instructions(self.module, self.graph) {
            let Some(constraints) = layouts_asked_for(self.module, id) else { continue };
            let instruction = &self.module.instructions[id];
            for (&operand, constraint) in instruction.operands.iter().zip(constraints) {
                self.fix_as_asked(operand, constraint);
            }
            self.fix_as_asked(id, self.module.shape(id));
        }
    }

    /// Gives arrays into which pieces of products are written the layout of the products, where kernels store them directly.
    fn fix_updates(&mut self) {
        if !self.target.fusion.updates_lie_as_products {
            return;
        }
        for id in sequential_instructions(self.module, self.graph) {
            if self.module.instructions[id].op != Op::DynamicUpdateSlice {
                continue;
            }
            let array = self.module.shape(id).as_array();
            if let Some((array, order)) = array.zip(updates::order_of_updated(
                self.module,
                self.flow,
                id,
                self.options.max_steps_to_product,
            )) {
                let layout = Some(self.target.layout_with_order(array, &order));
                self.fix(id, &Shape::Array(ArrayShape { layout, ..array.clone() }));
            }
        }
    }

    /// Running sums by one window get that dimension outermost, where windows move outside of tiles.
    fn fix_running_sums(&mut self) {
        if !self.target.fusion.convolution.windows_outside_tiles {
            return;
        }
        for id in sequential_instructions(self.module, self.graph) {
            let Op::ReduceWindow(window) = &self.module.instructions[id].op else { continue };
            let operand = self.module.instructions[id].operands[0];
            let [Some(result), Some(array)] = [id, operand].map(|id| self.module.shape(id).as_array()) else {
                continue;
            };
            let runs = |&d: &usize| window.dimensions[d].is_running(array.dimensions[d]);
            let Some(running) = (0..array.rank()).find(runs) else { continue };
            let others = (0..array.rank()).filter(|&d| d != running).map(|d| d as i64);
            let order: Vec<i64> = others.chain([running as i64]).collect();
            let ways = [result, array].map(|array| views::in_order(array, &order, self.target));
            let computed = self.computed_by_element(id, &mut FxHashSet::default());
            self.fix_in_order_of(&computed, &ways[0]);
            self.fix(operand, &ways[1]);
        }
    }

    /// Convolutions whose windows move outside of tiles make results, and load arrays, of which a tile covers batch and
    /// features. `only_called` leaves out the entry: loops choose first, and the entry copies what they carry.
    fn fix_convolutions(&mut self, only_called: bool) {
        if !self.target.fusion.convolution.windows_outside_tiles {
            return;
        }
        let mut seen: FxHashSet<InstructionId> = FxHashSet::default();
        for id in sequential_instructions(self.module, self.graph) {
            if only_called && self.module.instructions[id].parent == self.module.entry {
                continue;
            }
            let (Op::Convolution(it), Some(array)) =
                (&self.module.instructions[id].op, self.module.shape(id).as_array())
            else {
                continue;
            };
            let numbers = &it.dimensions;
            let result = views::outside_tiles(
                array,
                &[vec![numbers.output_batch], vec![numbers.output_feature]],
                self.target,
            );
            let operand = self.module.instructions[id].operands[0];
            let loaded = self.module.shape(operand).as_array();
            let loaded = loaded.map(|it| {
                views::outside_tiles(
                    it,
                    &[vec![numbers.input_batch], vec![numbers.input_feature]],
                    self.target,
                )
            });
            let computed = self.computed_by_element(id, &mut seen);
            self.fix_in_order_of(&computed, &result);
            if let Some(loaded) = loaded {
                self.fix(operand, &loaded);
            }
        }
    }

    /// Arrays that are sorted along another dimension than the last one have the last one in lanes.
    fn fix_sorts(&mut self) {
        if !self.target.fusion.dot.windows_outside_tiles {
            return;
        }
        for id in sequential_instructions(self.module, self.graph) {
            let instruction = &self.module.instructions[id];
            let Op::Sort { dimension, .. } = instruction.op else { continue };
            let usual: Vec<Shape> =
                instruction.operands.iter().filter_map(|&of| self.usual(of)).map(Shape::Array).collect();
            let is_last =
                |shape: &Shape| shape.as_array().is_some_and(|array| array.rank() as i64 == dimension + 1);
            if usual.len() < instruction.operands.len() || usual.iter().any(is_last) {
                continue;
            }
            instruction.operands.iter().zip(&usual).for_each(|(&operand, shape)| self.fix(operand, shape));
            self.fix(id, &if let [shape] = &usual[..] { shape.clone() } else { Shape::tuple(usual) });
        }
    }

    /// Gives several arrays of the same extents the order of dimensions that one has.
    fn fix_in_order_of(&mut self, ids: &[InstructionId], way: &Shape) {
        let Some(order) = way.as_array().map(ArrayShape::minor_to_major) else { return };
        for &id in ids {
            let array = self.module.shape(id).as_array().filter(|array| array.rank() == order.len());
            let Some(array) = array else { continue };
            self.fix(id, &views::in_order(array, &order, self.target));
        }
    }

    /// An array and what is computed from it element by element, without what was seen before.
    fn computed_by_element(
        &self,
        id: InstructionId,
        seen: &mut FxHashSet<InstructionId>,
    ) -> Vec<InstructionId> {
        let mut found = vec![id];
        let mut at = 0;
        while let Some(&id) = found.get(at) {
            at += 1;
            let pointwise = self.users.of(id).iter().filter(|&&user| cost::is_pointwise(self.module, user));
            found.extend(pointwise.filter(|&&user| seen.insert(user)));
        }
        found
    }

    /// The dimensions of a product of batches, on machines whose tiles cover no batch: rows that come from one operand, and
    /// columns from the other.
    fn tiles_of(&self, id: InstructionId) -> Option<[Vec<i64>; 2]> {
        let (Op::Dot(dot), Some(array)) =
            (&self.module.instructions[id].op, self.module.shape(id).as_array())
        else {
            return None;
        };
        let numbers = &dot.dimensions;
        let lhs = self.module.shape(self.module.instructions[id].operands[0]).as_array()?;
        let n_batches = numbers.lhs_batch.len();
        let columns = lhs.rank() - numbers.lhs_contracting.len();
        let is_long = |&d: &usize| array.dimensions[d] > 1;
        let list = |of: std::ops::Range<usize>| of.filter(is_long).map(|d| d as i64).collect::<Vec<_>>();
        let tiles = [list(n_batches..columns), list(columns..array.rank())];
        let is_of_batches = (0..n_batches).any(|d| is_long(&d)) && tiles.iter().all(|of| !of.is_empty());
        (self.target.fusion.dot.windows_outside_tiles && is_of_batches).then_some(tiles)
    }

    /// Arrays into which loops write rows that are laid out with more padding than usual: so is the whole.
    fn wide_stacks(&self) -> Vec<(InstructionId, Shape)> {
        let stack = |id: InstructionId| {
            let instruction = &self.module.instructions[id];
            let array =
                (instruction.op == Op::DynamicUpdateSlice).then(|| self.module.shape(id).as_array())??;
            let row = self.laid_out(instruction.operands[1]).filter(|row| self.is_wide(row))?;
            let is_inner = |&&d: &&i64| row.dimensions[d as usize] == array.dimensions[d as usize];
            let inner: Vec<i64> = row.minor_to_major().iter().filter(is_inner).copied().collect();
            let outer = (0..array.rank() as i64).rev().filter(|d| !inner.contains(d));
            let order: Vec<i64> = inner.iter().copied().chain(outer).collect();
            let layout = Some(self.target.layout_with_order(array, &order));
            Some((id, Shape::Array(ArrayShape { layout, ..array.clone() })))
        };
        sequential_instructions(self.module, self.graph).filter_map(stack).collect()
    }

    fn fix_as_asked(&mut self, id: InstructionId, shape: &Shape) {
        let mut shape = shape.clone();
        as_asked(&mut shape, self.target);
        self.fix(id, &shape);
    }

    /// Gives the parts of an instruction's result the layouts of a shape, where they have none yet.
    fn fix(&mut self, id: InstructionId, shape: &Shape) {
        let mut positions = self.flow.positions.of(id);
        shape.for_each_subshape(|_, part| {
            let position = positions.next().expect("the shape has the structure of the result");
            let class = self.layouts.class(self.flow, position);
            if let (Some(class), Shape::Array(array) | Shape::Buffer(array)) = (class, part) {
                let layout = &mut self.layouts.of_class[class];
                *layout = layout.take().or_else(|| array.layout.clone());
            }
        });
    }

    /// Lets tiles of the operands of a product of batches cover no batch.
    fn fix_operands_of_batches(&mut self, id: InstructionId) {
        let (Op::Dot(dot), Some(_)) = (&self.module.instructions[id].op, self.tiles_of(id)) else { return };
        let numbers = &dot.dimensions;
        let operands = &self.module.instructions[id].operands;
        let sides =
            [(&numbers.lhs_batch, &numbers.lhs_contracting), (&numbers.rhs_batch, &numbers.rhs_contracting)];
        for (&operand, (batch, contracted)) in operands.iter().zip(sides) {
            let Some(array) = self.module.shape(operand).as_array() else { continue };
            let long =
                (0..array.rank() as i64).filter(|&d| array.dimensions[d as usize] > 1 && !batch.contains(&d));
            let (summed, free): (Vec<i64>, Vec<i64>) = long.partition(|d| contracted.contains(d));
            if !summed.is_empty() && !free.is_empty() {
                let shape = views::outside_tiles(array, &[free, summed], self.target);
                self.fix(operand, &shape);
            }
        }
    }

    /// From results with fixed layouts to the operands that they are views of.
    fn walk_backward(&mut self) {
        for &computation in self.graph.sequential().iter().rev() {
            for &id in self.module.computations[computation].instructions.iter().rev() {
                self.fix_operands_of_batches(id);
                let operation = &self.module.instructions[id].op;
                if !matches!(operation, Op::Transpose { .. } | Op::Reshape { .. }) {
                    continue;
                }
                let operand = self.module.instructions[id].operands[0];
                let Some(class) = self.layouts.class(self.flow, self.flow.positions.root(operand)) else {
                    continue;
                };
                if self.layouts.of_class[class].is_none() {
                    let result = self.laid_out(id);
                    let array = self.module.shape(operand).as_array();
                    self.layouts.of_class[class] = result.zip(array).and_then(|(result, array)| {
                        let order = views::order_of_operand(operation, array, &result)?;
                        let fits = self.tiles_of(operand).is_none_or(|tiles| covers_no_batch(&tiles, &order));
                        self.no_larger(array, &order).filter(|_| fits)
                    });
                }
            }
        }
    }

    /// From operands to results. Callers come first, so that loops take the layouts of their initial state.
    fn walk_forward(&mut self) {
        for &computation in self.graph.sequential().iter().rev() {
            for &id in &self.module.computations[computation].instructions {
                let mut positions = self.flow.positions.of(id);
                self.module.shape(id).for_each_subshape(|_, part| {
                    let position = positions.next().expect("a position for each part");
                    let Some(class) = self.layouts.class(self.flow, position) else { return };
                    let layout = &self.layouts.of_class[class];
                    if let (None, Shape::Array(array) | Shape::Buffer(array)) = (layout, part) {
                        let layout = self.like_operand(id, array);
                        let layout = layout.unwrap_or_else(|| self.target.default_layout(array));
                        self.layouts.of_class[class] = Some(layout);
                    }
                });
            }
        }
    }

    /// The layout that follows from an operand's, so that nothing is moved or elements keep their order.
    fn like_operand(&self, id: InstructionId, array: &ArrayShape) -> Option<Layout> {
        if let Some(tiles) = self.tiles_of(id) {
            return views::outside_tiles(array, &tiles, self.target).as_array()?.layout.clone();
        }
        let instruction = &self.module.instructions[id];
        if let Op::Gather(numbers) = &instruction.op
            && self.target.fusion.dot.windows_outside_tiles
        {
            let usual = |array: &ArrayShape| ArrayShape {
                layout: Some(self.target.default_layout(array)),
                ..array.clone()
            };
            let table = usual(self.module.shape(instruction.operands[0]).as_array()?);
            if !views::looks_up_in_lanes(&table, numbers, self.target) {
                return None;
            }
            let is_looked_up = |d| !numbers.offset_dims.contains(&d);
            return views::rows_in_lanes(&usual(array), &is_looked_up, self.target)?
                .as_array()?
                .layout
                .clone();
        }
        let mut operands = instruction.operands.iter().filter_map(|&operand| self.laid_out(operand));
        let mut is_wide = false;
        let order = match &instruction.op {
            Op::Transpose { .. } | Op::Reshape { .. } => {
                let operand = operands.next()?;
                let order = views::order_of_result(&instruction.op, &operand, array)?;
                // Where the tiles of the result take more bytes, it is no view.
                is_wide = self.is_wide(&operand)
                    && self.size(array, &self.target.layout_with_order(array, &order))
                        <= self.target.size_of(&Shape::Array(operand));
                order
            }
            // A piece lies as the whole does. XLA's TPU compiler pads it for that.
            Op::Slice { .. } | Op::Pad { .. } | Op::Reverse { .. } | Op::Concatenate { .. } => {
                is_wide = self.target.fusion.dot.windows_outside_tiles;
                operands.next()?.minor_to_major()
            }
            Op::DynamicSlice { .. } => operands.next()?.minor_to_major(),
            // The flag of a copy has its own extent.
            Op::CopyStart { .. } => {
                operands.next().filter(|operand| operand.dimensions == array.dimensions)?.minor_to_major()
            }
            _ if cost::is_pointwise(self.module, id) => {
                // Repeated elements can be made in any order.
                let is_repeated =
                    |&&operand: &&InstructionId| is_repetition(&self.module.instructions[operand].op);
                let (repeated, own): (Vec<_>, Vec<_>) = instruction.operands.iter().partition(is_repeated);
                let alike = own.into_iter().chain(repeated).filter_map(|&operand| self.laid_out(operand));
                let alike: Vec<ArrayShape> =
                    alike.filter(|operand| operand.dimensions == array.dimensions).collect();
                let wide = alike.iter().find(|operand| self.is_wide(operand) && !self.is_concatenated(id));
                is_wide = wide.is_some();
                wide.or(alike.first())?.minor_to_major()
            }
            Op::Reduce { dimensions } => {
                let operand = operands.next().filter(|operand| self.is_wide(operand))?;
                is_wide = true;
                let kept: Vec<i64> = (0..operand.rank() as i64).filter(|d| !dimensions.contains(d)).collect();
                let number = |d: &i64| kept.iter().position(|kept| kept == d).map(|at| at as i64);
                operand.minor_to_major().iter().filter_map(number).collect()
            }
            _ => return None,
        };
        if is_wide {
            return Some(self.target.layout_with_order(array, &order));
        }
        self.no_larger(array, &order)
    }

    /// Whether only concatenations read a value: these read all their operands in the layout of the result.
    fn is_concatenated(&self, id: InstructionId) -> bool {
        let users = self.users.of(id);
        let is_joined =
            |&user: &InstructionId| matches!(self.module.instructions[user].op, Op::Concatenate { .. });
        !users.is_empty() && users.iter().all(is_joined)
    }

    /// Whether an array is laid out with more padding than the machine's own layout has, since a kernel wants it so.
    fn is_wide(&self, array: &ArrayShape) -> bool {
        let rules = &self.target.fusion;
        [&rules.dot, &rules.convolution].iter().any(|rules| rules.windows_outside_tiles)
            && self.target.size_of(&Shape::Array(array.clone()))
                > self.size(array, &self.target.default_layout(array))
    }

    /// The layout of an order, if it takes no more bytes than the machine's own.
    fn no_larger(&self, array: &ArrayShape, order: &[i64]) -> Option<Layout> {
        let layout = self.target.layout_with_order(array, order);
        let usual = self.target.default_layout(array);
        (self.size(array, &layout) <= self.size(array, &usual)).then_some(layout)
    }

    /// The bytes of an array in a layout.
    fn size(&self, array: &ArrayShape, layout: &Layout) -> Bytes {
        self.target.size_of(&Shape::Array(ArrayShape { layout: Some(layout.clone()), ..array.clone() }))
    }

    /// The array that an instruction makes, with the layout chosen for it; `None` before one is chosen.
    fn laid_out(&self, id: InstructionId) -> Option<ArrayShape> {
        let Shape::Array(array) = self.module.shape(id) else { return None };
        let layout = self.layouts.at(self.flow, self.flow.positions.root(id))?;
        Some(ArrayShape { layout: Some(layout.clone()), ..array.clone() })
    }
}

fn sequential_instructions<'a>(
    module: &'a Module,
    graph: &'a CallGraph,
) -> impl Iterator<Item = InstructionId> + 'a {
    graph.sequential().iter().flat_map(|&computation| &module.computations[computation].instructions).copied()
}

/// Writes the layouts into the shapes of all instructions that have memory.
fn apply(module: &mut Module, graph: &CallGraph, flow: &Dataflow, layouts: &Layouts) -> bool {
    let mut changed = false;
    for id in sequential_instructions(module, graph).collect::<Vec<_>>() {
        let mut shape = module.shape(id).clone();
        let mut positions = flow.positions.of(id);
        lay_out(&mut shape, &mut || layouts.at(flow, positions.next().expect("a position for each part")));
        if shape != *module.shape(id) {
            module.instructions[id].shape = module.intern(shape);
            changed = true;
        }
    }
    changed
}

/// Gives the parts of a shape, in preorder, the next layouts.
fn lay_out<'l>(shape: &mut Shape, next: &mut impl FnMut() -> Option<&'l Layout>) {
    let layout = next();
    match shape {
        Shape::Tuple(elements) => {
            Arc::make_mut(elements).iter_mut().for_each(|element| lay_out(element, next))
        }
        Shape::Array(array) | Shape::Buffer(array) => {
            array.layout = layout.cloned().or_else(|| array.layout.take());
        }
        Shape::Token | Shape::Opaque => {}
    }
}
