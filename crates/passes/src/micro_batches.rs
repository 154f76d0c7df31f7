//! A training step over micro-batches, as a person writes it in JAX: `jax.lax.scan` over parts of the batch, with a sum
//! of the gradients as its state.
//!
//! ```text
//!   x = f32[256,512] parameter(0)                  x = f32[256,512] parameter(0)
//!   h = f32[256,512] dot(x, w)     forward         for i in 0..4:
//!   g = f32[512,512] dot(x, l)     backward   =>     h = f32[64,512] dot(x[i], w)
//!   v = f32[512,512] subtract(w, g)  update          g = g + dot(x[i], l)
//!                                                  v = f32[512,512] subtract(w, g)
//! ```
//!
//! Unlike [`PARTS`](crate::PARTS) this may change results: what mixes examples (a batch norm) mixes those of a
//! micro-batch, as it does in the person's program. So it is no pass: the program that it makes is planned, not run.

use cranelift_entity::SecondaryMap;
use memplan_analysis::{Phase, Phases};
use memplan_ir::{
    BinaryOp, ComparisonDirection, Cursor, ElementType, Insert, InstructionId, Module, Names, Op,
};
use memplan_rewriter::rows::{Rows, block_of};
use rustc_hash::FxHashMap;

/// The step over micro-batches, from the step as written, `whole`, and the step on one micro-batch, `part`, which
/// [`resize`](crate::resize()) made of it, with its phases: the forward and the backward half in a loop, the update after
/// it. Linear in the module.
///
/// `None` if the step has no such halves (the update reads examples or a tuple, or one half needs an update), or if the
/// batch is no multiple of the micro-batch.
pub fn micro_batches(whole: &Module, part: &Module, phases: &Phases) -> Option<Module> {
    let halves = Halves::find(whole, part, phases)?;
    let mut module = part.clone();
    for &id in &whole.entry_computation().parameters {
        module.set_shape(id, whole.shape(id).clone());
    }
    let results = halves.write_loop(&mut module, whole);
    halves.replace(&mut module, &results);
    let root = module.entry_computation().root;
    if module.instructions[root].op == Op::Tuple {
        module.set_shape(root, whole.shape(root).clone());
    }
    module.config.entry_computation_layout.clone_from(&whole.config.entry_computation_layout);
    module.compact();
    memplan_ir::verify(&module).is_ok().then_some(module)
}

/// What a step does before it updates parameters.
struct Halves {
    /// The number of micro-batches.
    n: i64,
    /// What runs in the loop, operands first.
    inside: Vec<InstructionId>,
    /// What runs only in the loop. Other values inside do not depend on the batch, and may be computed outside too.
    depends: SecondaryMap<InstructionId, bool>,
    /// What the loop reads.
    inputs: Vec<(InstructionId, Option<Rows>)>,
    /// What is read after the loop.
    results: Vec<(InstructionId, Option<Rows>)>,
}

impl Halves {
    fn find(whole: &Module, part: &Module, phases: &Phases) -> Option<Halves> {
        let entry = part.entry_computation();
        let n = entry.parameters.iter().find_map(|&id| times(whole, part, id))?;
        let mut batch: SecondaryMap<InstructionId, Option<Rows>> = SecondaryMap::new();
        for &id in &entry.parameters {
            batch[id] = rows(whole, part, n, id)?;
        }
        let mut depends: SecondaryMap<InstructionId, bool> = SecondaryMap::new();
        let mut is_after: SecondaryMap<InstructionId, bool> = SecondaryMap::new();
        for &id in &entry.instructions {
            let operands = &part.instructions[id].operands;
            let is_element = matches!(part.instructions[id].op, Op::GetTupleElement { .. });
            let is_results = id == entry.root && part.instructions[id].op == Op::Tuple;
            is_after[id] = is_results
                || !is_element && phases.of(id) == Phase::Update
                || operands.iter().any(|&operand| is_after[operand]);
            let reads_batch = operands.iter().any(|&operand| batch[operand].is_some() || depends[operand]);
            depends[id] = reads_batch && !is_after[id];
        }
        let is_copied = |id: InstructionId| {
            let instruction = &part.instructions[id];
            let is_table = matches!(instruction.op, Op::Constant(_)) && !is_scalar(part, id);
            let is_simple = instruction.called.is_empty() && !instruction.op.has_side_effect();
            is_simple && !is_table && !is_after[id] && !matches!(instruction.op, Op::Parameter { .. })
        };
        let mut is_needed = depends.clone();
        let (mut inside, mut inputs, mut results) = (Vec::new(), Vec::new(), Vec::new());
        for &id in entry.instructions.iter().rev() {
            let operands = &part.instructions[id].operands;
            if depends[id] || is_needed[id] && is_copied(id) {
                inside.push(id);
                operands.iter().for_each(|&operand| is_needed[operand] = true);
            } else if is_needed[id] {
                inputs.push((id, batch[id]));
            }
            if depends[id] {
                continue;
            }
            if id != entry.root && operands.iter().any(|&operand| batch[operand].is_some()) {
                return None;
            }
            for &operand in operands.iter().filter(|&&operand| depends[operand]) {
                let rows = rows(whole, part, n, operand)?;
                if rows.is_some() && id != entry.root {
                    return None;
                }
                results.push((operand, rows));
            }
        }
        if depends[entry.root] {
            results.push((entry.root, rows(whole, part, n, entry.root)?));
        }
        inside.reverse();
        results.sort_unstable_by_key(|(id, _)| *id);
        results.dedup_by_key(|(id, _)| *id);
        let are_arrays = results.iter().all(|(id, _)| part.shape(*id).as_array().is_some());
        (are_arrays && !results.is_empty()).then_some(Halves { n, inside, depends, inputs, results })
    }

    /// Writes the loop at the end of the entry. Returns the loop's element for each of the results.
    fn write_loop(&self, module: &mut Module, whole: &Module) -> FxHashMap<InstructionId, InstructionId> {
        let mut names = Names::new(module);
        let entry = module.entry;
        let mut at = Cursor::end(module, &mut names, entry);
        let mut initial = vec![at.integer(ElementType::S32, 0)];
        for &(id, _) in &self.results {
            let shape = whole.shape(id).as_array().expect("results are arrays").clone();
            let zero = at.integer(shape.element_type, 0);
            initial.push(at.fill(zero, shape));
        }
        initial.extend(self.inputs.iter().map(|(id, _)| *id));
        let is_left = |at: &mut Cursor<'_>, state: &[InstructionId]| {
            let n = at.integer(ElementType::S32, self.n);
            at.compare(ComparisonDirection::Lt, state[0], n)
        };
        let last = at.loop_over("micro_batches", &initial, is_left, |at, state| self.write_body(at, state));
        self.results.iter().map(|(id, _)| *id).zip(last.into_iter().skip(1)).collect()
    }

    fn write_body(&self, at: &mut Cursor<'_>, state: &[InstructionId]) -> Vec<InstructionId> {
        let (&counter, elements) = state.split_first().expect("the state has a counter");
        let (sums, inputs) = elements.split_at(self.results.len());
        let mut known: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
        for (&(id, rows), &input) in self.inputs.iter().zip(inputs) {
            let value = match rows {
                Some(rows) => {
                    let block = block_of(at.module().shape(input), rows);
                    let slice_sizes = block.as_array().expect("rows are of arrays").dimensions.clone();
                    let starts = starts(at, counter, rows, slice_sizes.len());
                    let operands = [input].into_iter().chain(starts);
                    at.insert_shaped(Op::DynamicSlice { slice_sizes }, operands, block)
                }
                None => input,
            };
            known.insert(id, value);
        }
        for &id in &self.inside {
            let operands = at.module().instructions[id].operands.clone();
            let copy = at.copy_of(id, operands.iter().map(|operand| known[operand]));
            known.insert(id, copy);
        }
        let one = at.integer(ElementType::S32, 1);
        let mut next = vec![at.binary(BinaryOp::Add, counter, one)];
        for (&(id, rows), &sum) in self.results.iter().zip(sums) {
            let value = known[&id];
            let array = at.module().shape(value).as_array().expect("results are arrays");
            let (of, rank) = (array.element_type, array.rank());
            let is_number = of.is_floating() || of.is_complex();
            next.push(match rows {
                Some(rows) => {
                    let starts = starts(at, counter, rows, rank);
                    at.dynamic_update_slice(sum, value, starts)
                }
                None if is_number => at.binary(BinaryOp::Add, sum, value),
                None => value,
            });
        }
        next.extend(inputs);
        next
    }

    /// Lets everything after the loop read its results.
    fn replace(&self, module: &mut Module, results: &FxHashMap<InstructionId, InstructionId>) {
        let entry = module.entry;
        module.computations[entry].instructions.retain(|&id| !self.depends[id]);
        let new = |id: InstructionId| results.get(&id).copied().unwrap_or(id);
        for id in module.computations[entry].instructions.clone() {
            module.instructions[id].operands.iter_mut().for_each(|operand| *operand = new(*operand));
        }
        module.computations[entry].root = new(module.computations[entry].root);
        module.put_operands_first(entry);
    }
}

/// How many times an array of the micro-batch the whole array is, in the first dimension in which they differ.
fn times(whole: &Module, part: &Module, id: InstructionId) -> Option<i64> {
    let (whole, part) = (whole.shape(id).as_array()?, part.shape(id).as_array()?);
    let mut extents = whole.dimensions.iter().zip(&part.dimensions);
    extents.find(|(all, in_part)| all != in_part).and_then(|(all, in_part)| all.checked_div(*in_part))
}

/// The rows of an array that make `n` micro-batches: `Some(None)` if the array is the same in each of them, `None` if it
/// differs in another way.
fn rows(whole: &Module, part: &Module, n: i64, id: InstructionId) -> Option<Option<Rows>> {
    let (whole, part) = (whole.shape(id), part.shape(id));
    let (Some(all), Some(in_part)) = (whole.as_array(), part.as_array()) else {
        return (whole == part).then_some(None);
    };
    let mut differing = (0..in_part.rank()).filter(|&d| all.dimensions[d] != in_part.dimensions[d]);
    let Some(dimension) = differing.next() else { return Some(None) };
    let unit = in_part.dimensions[dimension];
    let is_cut = differing.next().is_none() && unit.checked_mul(n) == Some(all.dimensions[dimension]);
    is_cut.then_some(Some(Rows { dimension, unit }))
}

/// Where the rows of a micro-batch start, in each dimension.
fn starts(at: &mut Cursor<'_>, counter: InstructionId, rows: Rows, rank: usize) -> Vec<InstructionId> {
    let unit = at.integer(ElementType::S32, rows.unit);
    let start = at.binary(BinaryOp::Multiply, counter, unit);
    let zero = at.integer(ElementType::S32, 0);
    (0..rank).map(|d| if d == rows.dimension { start } else { zero }).collect()
}

fn is_scalar(module: &Module, id: InstructionId) -> bool {
    module.shape(id).as_array().is_some_and(|array| array.rank() == 0)
}
