//! Whether a result may overwrite an operand: no element may be read after its bytes were overwritten.
//!
//! A kernel writes its results while it still reads its operands, in an unspecified order. Overwriting an operand is
//! safe if result element *k* (counted in memory order) depends on no other element of that operand than its own *k*:
//! the writer of element *k* has then done all reads of it. This holds for elementwise operations, for operations that
//! update an array by definition (dynamic-update-slice, scatter, all-reduce, ...), and for fusions in which every path
//! from the parameter to any result consists of such steps. A fusion computes all results of one size in one loop,
//! element by element, so a parameter may reach several results, each at the same *k*.
//!
//! A reduction beside such results is a second reader of the operand. Kernels that compute both, as XLA's reduction
//! emitters do, read each element once, and both store its result and fold it, so [`Reach::Folded`] is harmless for
//! *other* results of that loop that overwrite the operand. A result that depends on the finished reduction needs a
//! second pass, and separate bytes.
//!
//! The same holds for the update of a dynamic-update-slice into another parameter: its kernel iterates over the update,
//! reads element *k* in iteration *k*, and stores it elsewhere.
//!
//! One more step is common: `dynamic-update-slice(p, f(dynamic-slice(p, i)), i)` reads from `p` only the elements that
//! it replaces, at the same position. Such a [`Reach::Window`] is safe if both slices have equal start and size. A
//! slice with a constant start is a window too.

use memplan_ir::{
    ArrayShape, ComputationId, Instruction, InstructionId, Literal, Module, Op, OutputOperandAlias, Shape,
    ShapeIndex,
};
use rustc_hash::FxHashMap;

use crate::effective_layout::{bits, order, tiles};

/// Fusions nested deeper than this are taken to read their operands in any order.
const DEEPEST_FUSION: u32 = 16;

/// How an instruction in a fusion depends on one part of one parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Not at all.
    No,
    /// It is a tuple that contains it this many steps down the index, and depends on nothing else of it.
    Inside(usize),
    /// Element *k* depends on element *k*.
    Same,
    /// Element *k* depends on element *k* of the window that this slice or dynamic-slice cuts out of it.
    Window(InstructionId),
    /// It is the tuple of arrays that a scatter updates, of which it is this one.
    Updated(u32),
    /// It is another element of such a tuple.
    Beside,
    /// It is a reduction or an update of another array, or follows from one, that reads element *k* once, when *k* is
    /// its turn.
    Folded,
    /// In some other way.
    Any,
}

/// How a leaf of a fusion's result depends on part of a parameter.
#[derive(Clone, Debug)]
struct Leaf {
    index: ShapeIndex,
    /// Its instruction, and the index into the instruction's result.
    id: InstructionId,
    at: ShapeIndex,
    reach: Reach,
}

/// Answers about fusions that were worked out.
#[derive(Default)]
pub(crate) struct Memo {
    reaches: FxHashMap<(ComputationId, usize, ShapeIndex), Vec<Leaf>>,
    /// Which parameters of a fusion's body something reads.
    used: FxHashMap<ComputationId, Vec<bool>>,
}

/// Whether part `output` of an instruction's result may take exactly the bytes of part `index` of an operand.
pub(crate) fn may_overwrite(
    module: &Module,
    memo: &mut Memo,
    id: InstructionId,
    operand: usize,
    index: &ShapeIndex,
    output: &ShapeIndex,
) -> bool {
    let instruction = &module.instructions[id];
    let read = instruction.operands.get(operand).and_then(|&o| module.shape(o).subshape(index));
    let (Some(read), Some(written)) = (read, module.shape(id).subshape(output)) else { return false };
    if declared(&instruction.op).iter().any(|alias| is_pair(alias, operand, index, output)) {
        return true;
    }
    let (Some(read), Some(written)) = (read.as_array(), written.as_array()) else { return false };
    let updates_first = operand == 0 && output.is_root();
    let is_fusion = matches!(instruction.op, Op::Fusion(_));
    // With dynamic extents, an elementwise operation runs as several, which move elements or mask them.
    let in_one_loop = !written.is_dynamic();
    same_storage(read, written)
        && (is_fusion || same_order(read, written))
        && match &instruction.op {
            Op::Fusion(_) => {
                in_one_loop && fusion_may_overwrite(module, memo, instruction, operand, index, output)
            }
            Op::DynamicUpdateSlice | Op::SetDimensionSize { .. } => updates_first,
            Op::Scatter(_) => updates_element(module, id, operand, output, instruction.operands.len() / 2),
            Op::AllReduce(_) | Op::AllReduceStart(_) => {
                index.is_root() && updates_element(module, id, operand, output, instruction.operands.len())
            }
            // Sorting moves operands to results first, unless they are there, and sorts the results in place.
            Op::Sort { .. } => updates_element(module, id, operand, output, instruction.operands.len()),
            // Solvers move the right-hand side to the result, unless it is there, and solve in place.
            Op::TriangularSolve(_) => operand == 1,
            Op::CollectivePermute(_) => in_place_permute(instruction) && operand == 1 && output == index,
            Op::CollectivePermuteStart(_) => {
                let destination = ShapeIndex::from([1]).join(index);
                in_place_permute(instruction) && operand == 1 && *output == destination
            }
            Op::RaggedAllToAll(_) => operand == 1 && output.is_root(),
            op => in_one_loop && is_elementwise(op) && index.is_root() && output.is_root(),
        }
}

/// Whether the start of an asynchronous operation declares the pair for `id`, the last instruction that it runs.
pub(crate) fn start_declares(
    module: &Module,
    start: InstructionId,
    id: InstructionId,
    operand: usize,
    index: &ShapeIndex,
    output: &ShapeIndex,
) -> bool {
    let operand = module.instructions[id].operands.get(operand).map(|&o| &module.instructions[o].op);
    let Some(Op::Parameter { number }) = operand else { return false };
    let output = ShapeIndex::from([1]).join(output);
    declared(&module.instructions[start].op)
        .iter()
        .any(|alias| is_pair(alias, *number as usize, index, &output))
}

/// The in-place pairs that an instruction declares.
pub(crate) fn declared(op: &Op) -> &[OutputOperandAlias] {
    match op {
        Op::Fusion(fusion) => &fusion.output_operand_aliasing,
        Op::CustomCall(call) => &call.output_operand_aliasing,
        Op::AsyncStart(start) => &start.output_operand_aliasing,
        _ => &[],
    }
}

/// Whether a collective-permute updates slices of its second operand.
pub(crate) fn in_place_permute(instruction: &Instruction) -> bool {
    instruction.operands.len() == 4 && !instruction.op.collective().is_none_or(|c| c.slice_sizes.is_empty())
}

/// Which operands a fusion reads: not those whose parameter nothing in the body uses.
pub(crate) fn used_parameters<'m>(module: &Module, memo: &'m mut Memo, body: ComputationId) -> &'m [bool] {
    memo.used.entry(body).or_insert_with(|| {
        let body = &module.computations[body];
        let mut used = vec![false; body.parameters.len()];
        let operands = body.instructions.iter().flat_map(|&user| &module.instructions[user].operands);
        for &used_by_one in operands.chain([&body.root]) {
            if let Op::Parameter { number } = module.instructions[used_by_one].op
                && let Some(flag) = used.get_mut(number as usize)
            {
                *flag = true;
            }
        }
        used
    })
}

/// Whether result element *k* is computed from elements *k* of operands of the same shape. `ir::Op::is_elementwise` says
/// nearly the same to the planner; the checker has a list of its own, so that a wrong entry there is found here.
fn is_elementwise(op: &Op) -> bool {
    matches!(
        op,
        Op::Unary(_)
            | Op::Binary(_)
            | Op::Compare { .. }
            | Op::Select
            | Op::Clamp
            | Op::Convert
            | Op::BitcastConvert
            | Op::StochasticConvert
            | Op::ReducePrecision { .. }
            | Op::Copy
            | Op::Map { .. }
    )
}

fn is_pair(alias: &OutputOperandAlias, operand: usize, index: &ShapeIndex, output: &ShapeIndex) -> bool {
    // A pair of tuples pairs their parts.
    alias.operand as usize == operand
        && index
            .strip_prefix(&alias.operand_index)
            .is_some_and(|rest| alias.output_index.join(&rest) == *output)
}

/// Operand `i` of the first `n` is updated by result `i`: the whole result when `n` is one.
fn updates_element(
    module: &Module,
    id: InstructionId,
    operand: usize,
    output: &ShapeIndex,
    n: usize,
) -> bool {
    let element = match module.shape(id).is_tuple() {
        true => ShapeIndex::from([operand as u32]),
        false => ShapeIndex::root(),
    };
    operand < n.max(1) && *output == element
}

/// Whether element *k* of both arrays is the same bytes when they start at the same address.
fn same_storage(a: &ArrayShape, b: &ArrayShape) -> bool {
    bits(a) == bits(b) && a.element_count() == b.element_count() && same_tiles(a, b) && same_rare(a, b)
}

fn same_rare(a: &ArrayShape, b: &ArrayShape) -> bool {
    let rare = |array: &ArrayShape| array.layout.as_ref().and_then(|l| l.rare.clone());
    rare(a) == rare(b) && a.is_dynamic() == b.is_dynamic()
}

/// Equal extents and equal order of elements in memory, for any element types.
fn same_order(a: &ArrayShape, b: &ArrayShape) -> bool {
    a.dimensions == b.dimensions && order(a) == order(b) && same_tiles(a, b)
}

/// Tiles of elements of one width; how narrower elements on the way are tiled is of no account.
fn same_tiles(a: &ArrayShape, b: &ArrayShape) -> bool {
    a.element_type.bits() != b.element_type.bits() || tiles(a) == tiles(b)
}

fn is_tiled(array: &ArrayShape) -> bool {
    !tiles(array).is_empty()
}

/// Whether two names of one array agree on the positions of its elements.
fn lie_alike(a: Option<&Shape>, b: Option<&Shape>) -> bool {
    match (a, b) {
        (Some(Shape::Tuple(a)), Some(Shape::Tuple(b))) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| lie_alike(Some(a), Some(b)))
        }
        (Some(a), Some(b)) => match (a.as_array(), b.as_array()) {
            (Some(a), Some(b)) => same_order(a, b),
            _ => a == b,
        },
        _ => false,
    }
}

/// Every result that the operand reaches must be reached element by element, in the loop that makes `output`.
fn fusion_may_overwrite(
    module: &Module,
    memo: &mut Memo,
    fusion: &Instruction,
    operand: usize,
    index: &ShapeIndex,
    output: &ShapeIndex,
) -> bool {
    let Some(&body) = fusion.called.first() else { return false };
    // The body's own layouts are used, so its arrays must have the same layouts outside.
    let part = |id: InstructionId, index: &ShapeIndex| module.shape(id).subshape(index);
    let parameter = module.computations[body].parameters.get(operand);
    if !lie_alike(part(fusion.operands[operand], index), parameter.and_then(|&p| part(p, index))) {
        return false;
    }
    let written = module.shape_of(fusion.shape).subshape(output);
    // One loop writes results of equal extents; others are written before or after.
    let extents =
        |shape: Option<&Shape>| shape.and_then(Shape::as_array).map(|array| array.dimensions.clone());
    let size = extents(written);
    let leaves = result_reaches(module, memo, body, operand, index, 0);
    let made_by =
        |leaf: &Leaf| output.strip_prefix(&leaf.index).and_then(|rest| part(leaf.id, &leaf.at.join(&rest)));
    let replaces = leaves.iter().any(|leaf| made_by(leaf).is_some() && leaf.reach == Reach::Same);
    // The loop that folds elements must be the one that stores their results.
    let stores = leaves.iter().any(|leaf| leaf.reach == Reach::Same);
    let lies_as_made = leaves.iter().filter_map(made_by).all(|made| lie_alike(written, Some(made)));
    lies_as_made
        && leaves.iter().all(|leaf| match leaf.reach {
            Reach::No => true,
            Reach::Same => size.is_some() && extents(part(leaf.id, &leaf.at)) == size,
            Reach::Folded => stores,
            Reach::Beside => replaces,
            _ => false,
        })
}

/// How each leaf of a fusion's result depends on part `index` of a parameter.
fn result_reaches(
    module: &Module,
    memo: &mut Memo,
    body: ComputationId,
    parameter: usize,
    index: &ShapeIndex,
    depth: u32,
) -> Vec<Leaf> {
    let key = (body, parameter, index.clone());
    if let Some(known) = memo.reaches.get(&key) {
        return known.clone();
    }
    let reaches = reaches_in(module, memo, body, parameter, index, depth);
    let mut leaves = Vec::new();
    let mut open = vec![(ShapeIndex::root(), module.computations[body].root)];
    while let Some((index, id)) = open.pop() {
        match &module.instructions[id] {
            // Nested tuples of a hostile fusion could name one leaf exponentially often.
            tuple if tuple.op == Op::Tuple && leaves.len() + open.len() < module.instructions.len() => {
                open.extend((0..).zip(&tuple.operands).map(|(i, &element)| (index.child(i), element)));
            }
            made => {
                let reach = reaches.get(&id).copied().unwrap_or(Reach::No);
                match (reach, module.shape_of(made.shape)) {
                    (Reach::Updated(_), Shape::Tuple(parts)) => {
                        leaves.extend((0..parts.len() as u32).map(|i| {
                            let (index, at) = (index.child(i), ShapeIndex::from([i]));
                            Leaf { index, id, at, reach: element_of(reach, i) }
                        }))
                    }
                    _ => leaves.push(Leaf { index, id, at: ShapeIndex::root(), reach }),
                }
            }
        }
    }
    memo.reaches.insert(key, leaves.clone());
    leaves
}

/// How each instruction of a fusion's body depends on part `index` of a parameter; absent: not at all.
fn reaches_in(
    module: &Module,
    memo: &mut Memo,
    body: ComputationId,
    parameter: usize,
    index: &ShapeIndex,
    depth: u32,
) -> FxHashMap<InstructionId, Reach> {
    let mut reaches: FxHashMap<InstructionId, Reach> = FxHashMap::default();
    let parameter_shape = module.computations[body].parameters.get(parameter).map(|&p| module.shape(p));
    let width = parameter_shape.and_then(|s| s.subshape(index)).and_then(Shape::as_array).map_or(0, bits);
    let mut walk = Walk { module, memo, index, width, depth };
    for (id, instruction) in module.instructions_of(body) {
        let reach = match &instruction.op {
            Op::Parameter { number } if *number as usize == parameter => match index.0.len() {
                0 => Reach::Same,
                _ => Reach::Inside(0),
            },
            _ => {
                let of = |&operand: &InstructionId| reaches.get(&operand).copied().unwrap_or(Reach::No);
                let operands: Vec<Reach> = instruction.operands.iter().map(of).collect();
                match all_no(&operands) {
                    true => Reach::No,
                    false => walk.step(id, &operands),
                }
            }
        };
        if reach != Reach::No {
            reaches.insert(id, reach);
        }
    }
    reaches
}

/// A walk through a fusion's body, which follows part `index` of a parameter.
struct Walk<'a> {
    module: &'a Module,
    memo: &'a mut Memo,
    index: &'a ShapeIndex,
    /// Bits of an element of that part; 0 for a tuple.
    width: i64,
    /// How many fusions the body is nested in.
    depth: u32,
}

impl Walk<'_> {
    /// How an instruction depends on the parameter when its operands, of which one does at least, depend as given.
    fn step(&mut self, id: InstructionId, operands: &[Reach]) -> Reach {
        match &self.module.instructions[id].op {
            Op::GetTupleElement { .. }
            | Op::Tuple
            | Op::OptimizationBarrier
            | Op::Domain(_)
            | Op::AddDependency => self.handed_on(id, operands),
            Op::Bitcast => self.renamed(id, operands[0]),
            Op::Reduce { .. } => folded(operands),
            op if is_elementwise(op) => elementwise(self.module, id, operands),
            op @ (Op::DynamicSlice { .. } | Op::Slice { .. }) => window(op, id, operands),
            Op::DynamicUpdateSlice => slice_updated(self.module, id, operands),
            Op::Scatter(_) => scattered(self.module, id, operands),
            Op::Fusion(_) => self.fused(id, operands),
            _ => Reach::Any,
        }
    }

    /// The result of an operation that moves no bytes: tuples, elements of tuples, and names for the operand.
    fn handed_on(&self, id: InstructionId, operands: &[Reach]) -> Reach {
        let steps = &self.index.0;
        match (&self.module.instructions[id].op, operands[0]) {
            _ if !hands_on_as_it_lies(self.module, id) => Reach::Any,
            (Op::Tuple, _) => join(operands),
            (Op::GetTupleElement { index: element }, Reach::Inside(d)) => match steps.get(d) == Some(element)
            {
                false => Reach::No,
                true if d + 1 == steps.len() => Reach::Same,
                true => Reach::Inside(d + 1),
            },
            (Op::GetTupleElement { index: element }, tuple) => element_of(tuple, *element),
            (_, first) => first,
        }
    }

    /// Bytes stay in place under any name; but narrower elements have other tiles than wide ones.
    fn renamed(&self, id: InstructionId, operand: Reach) -> Reach {
        let array = |id: InstructionId| self.module.shape(id).as_array();
        let (Some(a), Some(b)) = (array(self.module.instructions[id].operands[0]), array(id)) else {
            return Reach::Any;
        };
        let is_renamed = a.element_count() == b.element_count() && bits(a) == bits(b);
        match is_renamed && (bits(a) == self.width || !is_tiled(a) && !is_tiled(b)) {
            true => operand,
            false => Reach::Any,
        }
    }

    /// The result of a fusion in the fusion, which may only do element by element what its leaves do.
    fn fused(&mut self, id: InstructionId, operands: &[Reach]) -> Reach {
        let module = self.module;
        let fusion = &module.instructions[id];
        let Some(&body) = fusion.called.first().filter(|_| self.depth < DEEPEST_FUSION) else {
            return Reach::Any;
        };
        let body_of = &module.computations[body];
        let lie_alike = |a, b| lie_alike(Some(module.shape(a)), Some(module.shape(b)));
        let result_lies_as_made = lie_alike(id, body_of.root);
        let mut through = |number: usize, reach: Reach| {
            let parameter = body_of.parameters.get(number);
            let lies_as_given = parameter.is_some_and(|&p| lie_alike(fusion.operands[number], p));
            let is_followed = matches!(reach, Reach::Same | Reach::Window(_));
            match is_followed && lies_as_given && result_lies_as_made && self.keeps_elements(id, number) {
                true => reach,
                false => Reach::Any,
            }
        };
        let reached = operands.iter().enumerate().filter(|(_, reach)| **reach != Reach::No);
        join(&reached.map(|(number, &reach)| through(number, reach)).collect::<Vec<_>>())
    }

    /// Whether every leaf of a fusion's result that depends on an operand has its elements one by one.
    fn keeps_elements(&mut self, fusion: InstructionId, operand: usize) -> bool {
        let module = self.module;
        let fusion = &module.instructions[fusion];
        let root = ShapeIndex::root();
        let leaves = result_reaches(module, self.memo, fusion.called[0], operand, &root, self.depth + 1);
        let count = |id: InstructionId| module.shape(id).as_array().and_then(ArrayShape::element_count);
        let size = count(fusion.operands[operand]);
        leaves.iter().all(|leaf| match leaf.reach {
            Reach::No => true,
            Reach::Same => count(leaf.id) == size,
            _ => false,
        })
    }
}

/// A reduction of arrays that are read element by element, from initial values that do not depend on the parameter.
fn folded(operands: &[Reach]) -> Reach {
    let (arrays, initial) = operands.split_at(operands.len() / 2);
    match join(arrays) == Reach::Same && all_no(initial) {
        true => Reach::Folded,
        false => Reach::Any,
    }
}

/// Element *k* of the result depends on what element *k* of the operands depends on.
fn elementwise(module: &Module, id: InstructionId, operands: &[Reach]) -> Reach {
    let mut reached =
        module.instructions[id].operands.iter().zip(operands).filter(|(_, reach)| **reach != Reach::No);
    match join(operands) {
        Reach::Updated(_) | Reach::Beside => Reach::Any,
        joined if reached.all(|(&operand, _)| arrays_lie_alike(module, operand, id)) => joined,
        _ => Reach::Any,
    }
}

/// A slice of neighboring elements, at a place that does not depend on the parameter.
fn window(op: &Op, id: InstructionId, operands: &[Reach]) -> Reach {
    let has_no_strides = match op {
        Op::Slice { dimensions } => dimensions.iter().all(|d| d.stride == 1),
        _ => true,
    };
    match operands[0] == Reach::Same && all_no(&operands[1..]) && has_no_strides {
        true => Reach::Window(id),
        false => Reach::Any,
    }
}

/// A dynamic-update-slice: the array that is updated, or another one that the update is read from.
fn slice_updated(module: &Module, id: InstructionId, operands: &[Reach]) -> Reach {
    let &[array, update, ref starts @ ..] = operands else { return Reach::Any };
    let base = module.instructions[id].operands[0];
    let update_fits = match update {
        Reach::No => true,
        Reach::Window(slice) => replaces(module, id, slice),
        _ => false,
    };
    match array {
        _ if starts.is_empty() || !all_no(starts) => Reach::Any,
        Reach::No if update == Reach::Same && is_updated_in_place(module, base) => Reach::Folded,
        Reach::No | Reach::Same if update_fits && arrays_lie_alike(module, base, id) => Reach::Same,
        _ => Reach::Any,
    }
}

/// A scatter into one array. One array in two places would be updated in one while it is copied to the other.
fn scattered(module: &Module, id: InstructionId, operands: &[Reach]) -> Reach {
    let (arrays, rest) = operands.split_at(operands.len() / 2);
    let mut reached = (0..).zip(arrays).filter(|(_, reach)| **reach != Reach::No);
    match (reached.next(), reached.next()) {
        (Some((i, Reach::Same)), None) if all_no(rest) => match module.shape(id).is_tuple() {
            true => Reach::Updated(i),
            false => Reach::Same,
        },
        _ => Reach::Any,
    }
}

/// How one element of a tuple depends on the parameter when the tuple does as given.
fn element_of(tuple: Reach, element: u32) -> Reach {
    match tuple {
        Reach::Updated(updated) if updated == element => Reach::Same,
        Reach::Updated(_) => Reach::Beside,
        other => other,
    }
}

/// Whether an instruction that moves no bytes calls them by layouts that agree.
fn hands_on_as_it_lies(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let shape = module.shape(id);
    let operand = |i: usize| module.shape(instruction.operands[i]);
    match instruction.op {
        Op::GetTupleElement { index } => {
            lie_alike(operand(0).subshape(&ShapeIndex::from([index])), Some(shape))
        }
        Op::Tuple => (0..instruction.operands.len())
            .all(|i| lie_alike(shape.subshape(&ShapeIndex::from([i as u32])), Some(operand(i)))),
        _ => lie_alike(Some(operand(0)), Some(shape)),
    }
}

/// Whether an array is a parameter, updates of it aside: then the kernel that updates it runs over the update alone.
fn is_updated_in_place(module: &Module, mut base: InstructionId) -> bool {
    loop {
        let instruction = &module.instructions[base];
        match instruction.op {
            Op::Parameter { .. } => return true,
            Op::Bitcast | Op::DynamicUpdateSlice => base = instruction.operands[0],
            _ => return false,
        }
    }
}

/// Whether a dynamic-update-slice puts its update where a slice or dynamic-slice cut out a piece of the same size.
fn replaces(module: &Module, update: InstructionId, window: InstructionId) -> bool {
    let (update, cut) = (&module.instructions[update].operands, &module.instructions[window]);
    let (Some(&source), [array, piece, starts @ ..]) = (cut.operands.first(), &update[..]) else {
        return false;
    };
    let same = |a: InstructionId, b: InstructionId| arrays_lie_alike(module, a, b);
    let same_starts = match &cut.op {
        Op::Slice { dimensions } => {
            let known: Vec<Option<i64>> = starts.iter().map(|&start| number(module, start)).collect();
            known == dimensions.iter().map(|d| Some(d.start)).collect::<Vec<_>>()
        }
        _ => {
            let others = &cut.operands[1..];
            starts.len() == others.len()
                && starts.iter().zip(others).all(|(&a, &b)| a == b || same_scalar(module, a, b))
        }
    };
    same_starts && same(*array, source) && same(*piece, window)
}

/// The number that a constant is.
fn number(module: &Module, id: InstructionId) -> Option<i64> {
    match &module.instructions[id].op {
        Op::Constant(literal) => literal.as_array()?.as_integer(),
        _ => None,
    }
}

/// Whether two start indices are constants of the same number.
fn same_scalar(module: &Module, a: InstructionId, b: InstructionId) -> bool {
    let constant = |id: InstructionId| match &module.instructions[id].op {
        Op::Constant(literal @ Literal::Array(_)) => Some(literal),
        _ => None,
    };
    constant(a).is_some() && constant(a) == constant(b)
}

/// Whether two instructions make arrays of the same extents and the same order of elements in memory.
fn arrays_lie_alike(module: &Module, a: InstructionId, b: InstructionId) -> bool {
    matches!((module.shape(a).as_array(), module.shape(b).as_array()), (Some(a), Some(b)) if same_order(a, b))
}

fn all_no(reaches: &[Reach]) -> bool {
    reaches.iter().all(|&reach| reach == Reach::No)
}

/// The dependence of something that depends on all of these, element by element.
fn join(reaches: &[Reach]) -> Reach {
    reaches.iter().fold(Reach::No, |all, &reach| match (all, reach) {
        (Reach::No, other) | (other, Reach::No) => other,
        (a, b) if a == b => a,
        _ => Reach::Any,
    })
}
