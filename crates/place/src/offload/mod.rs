//! `offload-rows`: keeps rows that a loop writes for later loops in the host's memory.
//!
//! The forward loop of a scanned training step writes, for each step, the values that its derivative needs into rows of
//! large arrays, and the backward loop reads the rows. The pass marks the rows as JAX does (`jax.device_put` to
//! `pinned_host`, and policies of `jax.checkpoint` that offload); the compiler inserts the transfers, as `host-offload`
//! of `place` does.
//!
//! ```text
//! forward, step i:  h = tanh(..)                      h = tanh(..)
//!                   kept[i] = h                       kept[i] = annotate_device_placement(h)      pinned_host
//!                                               =>
//! backward, row r:  h = kept[r]                       h = annotate_device_placement(kept[r])      device
//! ```
//!
//! Every byte crosses the host's link twice: out in the forward loop, back in the backward loop. The pass offloads the
//! largest arrays first, as long as their transfers take no longer than the computation. To limit the wait for
//! transfers, a part of every row may stay on the device (`cut`).
//!
//! Left alone: rows of few bytes, for which the start of a transfer takes longer than the transfer; arrays with initial
//! contents, or with readers other than slices; values outside of loops, which XLA's scheduler sends to the host too
//! late (docs/rewrite.md); machines without host memory, scheduled programs, and those for several partitions. Requires
//! inlined calls. Idempotent. *Changed* means that rows are kept on the host.

mod cut;

use std::cmp::Reverse;

use memplan_analysis::{CallGraph, Machine, frequencies, operations};
use memplan_ir::{Cursor, CustomCall, Insert, Instruction, InstructionId, Module, Names, Op, Users};
use memplan_memory::{Bytes, MemorySpaceId, Target};
use memplan_rewriter::loops::{Loop, loops, scalar};
use memplan_rewriter::{Context, Outcome, Pass, PassError, Report, call_graph};
use rustc_hash::FxHashMap;

use cut::Cut;

/// The pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OffloadRows {
    /// The most time that transfers in one direction may take, as a share of the time that the program's products and
    /// convolutions take.
    pub share_of_time: f64,
    /// The fewest bytes of a row. A transfer takes some 10 µs to start, in which a link carries this many.
    pub min_row: Bytes,
    /// How many of 32 parts of each row are kept on the host: for programs that would wait too long for whole ones, some.
    pub parts_of_32: u32,
}

/// The pass with everything on the host, however long that takes.
pub const OFFLOAD_ROWS: OffloadRows =
    OffloadRows { share_of_time: f64::INFINITY, min_row: Bytes(1 << 20), parts_of_32: OffloadRows::WHOLE };

/// The pass with half of everything on the host.
pub const OFFLOAD_HALF_ROWS: OffloadRows =
    OffloadRows { parts_of_32: OffloadRows::WHOLE / 2, ..OFFLOAD_ROWS };

impl Default for OffloadRows {
    fn default() -> OffloadRows {
        OFFLOAD_ROWS
    }
}

/// What waits on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OffloadReport {
    /// Names of the updates that write rows, with the bytes of all rows.
    pub arrays: Vec<(Box<str>, Bytes)>,
}

impl OffloadReport {
    /// The bytes of all arrays.
    pub fn total(&self) -> Bytes {
        self.arrays.iter().fold(Bytes::ZERO, |sum, &(_, bytes)| sum.saturating_add(bytes))
    }
}

impl Pass for OffloadRows {
    fn name(&self) -> &'static str {
        if self.cuts_rows() { "offload-half-rows" } else { "offload-rows" }
    }

    fn description(&self) -> &'static str {
        match self.cuts_rows() {
            true => "Let half of each row that a loop keeps for later loops wait in the host's memory",
            false => "Let rows that a loop keeps for later loops wait in the host's memory",
        }
    }

    fn run(&self, module: &mut Module, context: &Context<'_>) -> Result<Outcome, PassError> {
        let target = context.target;
        let is_partitioned = module.config.num_partitions.is_some_and(|n| n > 1);
        if module.is_scheduled || is_partitioned || target.space(MemorySpaceId::HOST).is_none() {
            return Ok(Outcome::default());
        }
        let graph = call_graph(module, self.name())?;
        let users = Users::new(module);
        let loops = loops(module, &users);
        let mut left = self.bytes_that_fit(module, &graph, target);
        let mut chosen = Vec::new();
        for stack in stacks(module, &users, &loops) {
            let cut = Cut::after(self.parts_of_32, module, &users, &loops, &stack);
            if self.cuts_rows() && cut.is_none() {
                continue;
            }
            let bytes = |id| {
                let all = target.size_of(module.shape(id));
                cut.map_or(all, |cut| Bytes(cut.first_of(all.0)))
            };
            if bytes(module.instructions[stack.update].operands[1]) >= self.min_row {
                chosen.push((bytes(stack.update), stack, cut));
            }
        }
        chosen.sort_by_key(|&(bytes, ..)| Reverse(bytes));
        chosen.retain(|&(bytes, ..)| {
            let needed = bytes.0 as f64;
            let fits = needed <= left;
            left -= if fits { needed } else { 0.0 };
            fits
        });
        if chosen.is_empty() {
            return Ok(Outcome::default());
        }
        let array = |(bytes, stack, _): &(Bytes, Stack, Option<Cut>)| {
            (module.instructions[stack.update].name.clone(), *bytes)
        };
        let report = OffloadReport { arrays: chosen.iter().map(array).collect() };
        let mut names = Names::new(module);
        let stacks: Vec<Stack> = chosen
            .into_iter()
            .map(|(_, stack, cut)| match cut {
                Some(cut) => cut.apply(module, &users, &loops, &stack, &mut names),
                None => stack,
            })
            .collect();
        for &computation in graph.sequential() {
            module.put_operands_first(computation);
        }
        let users = Users::new(module);
        for stack in &stacks {
            offload(module, &users, stack, &mut names);
        }
        for &computation in graph.sequential() {
            module.put_operands_first(computation);
        }
        Ok(Outcome { changed: true, report: Some(Report::new(report)) })
    }
}

impl OffloadRows {
    /// All parts of a row.
    pub const WHOLE: u32 = 32;

    fn cuts_rows(&self) -> bool {
        self.parts_of_32 < OffloadRows::WHOLE
    }

    /// The bytes that the link carries in the given share of the time; any number where nobody knows how fast it is.
    fn bytes_that_fit(&self, module: &Module, graph: &CallGraph, target: &Target) -> f64 {
        let machine = Machine::new(target);
        let runs = frequencies(module, graph);
        let computing = graph.sequential().iter().map(|&computation| {
            let products = module.instructions_of(computation);
            let products = products.filter(|(_, i)| i.op.is_contraction());
            let seconds = products.map(|(id, _)| machine.compute_seconds(&operations(module, id)));
            runs[computation] * seconds.sum::<f64>()
        });
        let seconds_per_byte = machine.transfer_seconds(MemorySpaceId::MAIN, MemorySpaceId::HOST, 1.0);
        match seconds_per_byte > 0.0 && self.share_of_time.is_finite() {
            true => computing.sum::<f64>() * self.share_of_time / seconds_per_byte,
            false => f64::INFINITY,
        }
    }
}

/// Rows that a loop writes, and that only slices read.
#[derive(Clone, Debug)]
struct Stack {
    /// The update that writes a row.
    update: InstructionId,
    /// The slices that read a row.
    slices: Vec<InstructionId>,
    /// Where loops hold the rows: first the one that writes them.
    places: Vec<Place>,
}

/// An element of a loop's state.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The number of the loop.
    of: usize,
    /// The number of the element.
    element: u32,
}

/// The stacks of a module. Linear in the module.
fn stacks(module: &Module, users: &Users, loops: &[Loop]) -> Vec<Stack> {
    let by_init: FxHashMap<InstructionId, usize> =
        loops.iter().enumerate().map(|(i, l)| (l.init, i)).collect();
    let mut stacks = Vec::new();
    for (of, producer) in loops.iter().enumerate() {
        for element in 0..module.instructions[producer.next].operands.len() as u32 {
            let Some(update) = row_written(module, users, producer, element) else { continue };
            let mut stack = Stack { update, slices: Vec::new(), places: vec![Place { of, element }] };
            let mut results = producer.results.get(&element).into_iter().flatten();
            if results.all(|&result| stack.read_from(module, users, loops, &by_init, result))
                && !stack.slices.is_empty()
            {
                stacks.push(stack);
            }
        }
    }
    stacks
}

/// The update that writes a row into an element of a loop's state in each step, if nothing else in the loop uses it.
fn row_written(module: &Module, users: &Users, of: &Loop, element: u32) -> Option<InstructionId> {
    let update = of.only_update(module, users, element)?;
    let row = module.instructions[update].operands[1];
    // The initial rows never exist: they are storage without contents on the host.
    let init = module.instructions[of.init].operands[element as usize];
    let starts_empty = matches!(module.instructions[init].op, Op::Broadcast { .. })
        && scalar(module, module.instructions[init].operands[0]).is_some();
    (starts_empty && is_plain(module, update) && !is_mark(module, row)).then_some(update)
}

impl Stack {
    /// Adds the slices that read rows after the loop, or in other loops; says whether nothing else reads them.
    fn read_from(
        &mut self,
        module: &Module,
        users: &Users,
        loops: &[Loop],
        by_init: &FxHashMap<InstructionId, usize>,
        result: InstructionId,
    ) -> bool {
        let is_slice = |&id: &InstructionId| {
            let op = &module.instructions[id].op;
            let reads_only_rows = matches!(op, Op::DynamicSlice { .. } | Op::Slice { .. });
            reads_only_rows && users.of(id).iter().all(|&user| !is_mark(module, user))
        };
        users.of(result).iter().all(|user| match by_init.get(user) {
            Some(&of) => self.passed_on_by(module, users, &loops[of], of, result).is_some_and(|readers| {
                self.slices.extend(&readers);
                readers.iter().all(is_slice)
            }),
            None => {
                self.slices.push(*user);
                is_slice(user)
            }
        })
    }

    /// The readers of rows that a loop is given and passes on unchanged; `None` if it does something else with them.
    fn passed_on_by(
        &mut self,
        module: &Module,
        users: &Users,
        consumer: &Loop,
        of: usize,
        result: InstructionId,
    ) -> Option<Vec<InstructionId>> {
        let mut readers = Vec::new();
        let init = &module.instructions[consumer.init].operands;
        for element in (0..init.len() as u32).filter(|&i| init[i as usize] == result) {
            let [rows] = *consumer.taken.get(&element)?.as_slice() else { return None };
            if !consumer.becomes_only(module, rows, element)
                || consumer.read_by_condition.contains(&element)
                || consumer.results.contains_key(&element)
            {
                return None;
            }
            self.places.push(Place { of, element });
            readers.extend(users.of(rows).iter().copied().filter(|&user| user != consumer.next));
        }
        Some(readers)
    }
}

/// Lets the rows be on the host: each is marked before it is written, and after it is read.
fn offload(module: &mut Module, users: &Users, stack: &Stack, names: &mut Names) {
    let row = module.instructions[stack.update].operands[1];
    module.instructions[stack.update].operands[1] = mark(module, names, row, Side::PinnedHost);
    for &slice in &stack.slices {
        let there = mark(module, names, slice, Side::Device);
        use_instead(module, users.of(slice), slice, there);
    }
}

/// Lets the users of a value, and the results of its computation, have another one instead.
fn use_instead(module: &mut Module, users: &[InstructionId], value: InstructionId, new: InstructionId) {
    for &user in users {
        module.replace_operand(user, value, new);
    }
    let parent = module.instructions[value].parent;
    if module.computations[parent].root == value {
        module.computations[parent].root = new;
        module.list(new);
    }
}

/// A memory that a mark asks for, in JAX's words.
#[derive(Clone, Copy)]
enum Side {
    PinnedHost,
    Device,
}

/// Marks a value, and lists the mark nowhere yet.
fn mark(module: &mut Module, names: &mut Names, value: InstructionId, side: Side) -> InstructionId {
    let (suffix, placement) = match side {
        Side::PinnedHost => ("to_host", "pinned_host"),
        Side::Device => ("to_device", "device"),
    };
    let Instruction { name, parent, .. } = &module.instructions[value];
    let (stem, parent) = (format!("{name}.{suffix}"), *parent);
    let shape = module.shape(value).clone();
    let call = CustomCall { target: MARK.into(), has_side_effect: true, ..CustomCall::default() };
    let mut at = Cursor::unlisted(module, names, parent).with_metadata_of(value);
    let mark = at.named(&stem).insert_shaped(Op::CustomCall(Box::new(call)), [value], shape);
    let attributes = &mut module.instructions[mark].extras_mut().frontend_attributes;
    attributes.insert("_xla_buffer_placement".into(), placement.into());
    mark
}

/// The call that says in which memory a value is.
const MARK: &str = "annotate_device_placement";

fn is_mark(module: &Module, id: InstructionId) -> bool {
    matches!(&module.instructions[id].op, Op::CustomCall(call) if &*call.target == MARK)
}

/// Whether the bytes of a value are one static array in main memory.
fn is_plain(module: &Module, id: InstructionId) -> bool {
    let array = module.shape(id).as_array();
    array.is_some_and(|array| array.is_plain() && array.rank() > 0)
}
