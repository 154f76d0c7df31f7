//! `rows-within-loops`: a loop computes the rows that it reads, so that the array is never whole in memory.
//!
//! ```text
//! a = bf16[9,8] convert(w)
//! u = while((0, a))                =>      u = while((0, w))
//!   row = dynamic-slice(a, j, 0)             row = convert(dynamic-slice(w, j, 0))
//! ```
//!
//! A scan over weights of another type, over batches that are gathered in random order, over sequences with time first, or
//! over noise: the array is made of others element by element, or row by row, and only the loop reads it.
//!
//! The values to carry are chosen by a sweep over the operands of all such arrays, from the last instruction to the first:
//! each is replaced by its own operands, and the set of fewest bytes is taken. Values that others read as well, and
//! parameters, count nothing, since they exist anyway. Linear in the module.
//!
//! Left alone: loops with an unknown number of steps or shardings, parts of rows, and arrays with other readers.
//! Requires inlined calls and flat loop state; leaves dead state behind for `while-simplifier`. *Changed* means that a loop
//! computes a row.

use std::collections::BTreeMap;

use memplan_analysis::trip_count;
use memplan_ir::{
    BinaryOp, ComputationId, Cursor, Insert, InstructionId, Module, Names, Op, Operands, Users,
};
use memplan_memory::Target;
use memplan_rewriter::cost::{CostClass, Hero, class_of, result_bytes};
use memplan_rewriter::loops::{Loop, loops};
use memplan_rewriter::rows::{Rows, Treatment, block_of, by_result, count_from, cut_rows, on_block};
use memplan_rewriter::{Context, Outcome, Pass, PassError};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::apply::use_instead;
use crate::find::read;
use crate::line::Lines;

/// The pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowsWithinLoops {
    /// Whether loops compute matrix products, too: one of few rows in each step is slower than one of all.
    pub products: bool,
    /// The most operations that the rows of one loop are computed by.
    pub max_operations: usize,
    /// The share of the bytes that must be saved at least.
    pub min_gain: f64,
    /// Most times that the loops are looked at: loops within loops take one for each.
    pub max_rounds: usize,
}

/// The pass without matrix products.
pub const ROWS_WITHIN_LOOPS: RowsWithinLoops =
    RowsWithinLoops { products: false, max_operations: 128, min_gain: 1.0 / 4.0, max_rounds: 4 };

impl Pass for RowsWithinLoops {
    fn name(&self) -> &'static str {
        "rows-within-loops"
    }

    fn description(&self) -> &'static str {
        "let loops compute the rows that they read, so that the array is never whole in memory"
    }

    fn run(&self, module: &mut Module, context: &Context<'_>) -> Result<Outcome, PassError> {
        if module.is_scheduled {
            return Ok(Outcome::default());
        }
        let mut names = Names::new(module);
        let mut changed = false;
        for _ in 0..self.max_rounds {
            let choices = self.choices(module, context.target);
            if choices.is_empty() {
                break;
            }
            changed = true;
            let mut edited: FxHashSet<ComputationId> = FxHashSet::default();
            for (of, choice) in &choices {
                // What the choice says about the instructions beside the loop may no longer be true.
                if edited.contains(&module.instructions[of.id].parent) {
                    continue;
                }
                edited.insert(of.body);
                Writer { module, names: &mut names, of, choice, known: FxHashMap::default() }.write();
            }
        }
        Ok(changed.into())
    }
}

/// An element of a loop's state, and the slices that read it: each takes one of `n` equal parts.
struct Reads {
    element: u32,
    slices: Vec<InstructionId>,
    rows: Rows,
    n: i64,
}

/// What one loop computes by itself.
struct Choice {
    reads: Vec<Reads>,
    /// Instructions from before the loop. The loop computes their rows.
    computed: FxHashSet<InstructionId>,
}

impl RowsWithinLoops {
    fn choices(&self, module: &Module, target: &Target) -> Vec<(Loop, Choice)> {
        let users = Users::new(module);
        let loops = loops(module, &users);
        let reads: Vec<Vec<Reads>> = loops.iter().map(|of| reads(module, &users, of)).collect();
        // How many loops read each value only row by row.
        let mut by_rows: FxHashMap<InstructionId, usize> = FxHashMap::default();
        for (of, reads) in loops.iter().zip(&reads) {
            for read in reads {
                *by_rows.entry(module.instructions[of.init].operands[read.element as usize]).or_default() +=
                    1;
            }
        }
        let sweep = Sweep { module, target, users: &users, by_rows: &by_rows, options: self };
        let choices = loops.into_iter().zip(reads);
        choices.filter_map(|(of, reads)| sweep.choose(&of, reads).map(|choice| (of, choice))).collect()
    }

    /// Whether a loop may compute rows of an instruction.
    fn computes(&self, module: &Module, id: InstructionId) -> bool {
        let is_cheap = match class_of(module, id) {
            CostClass::Cheap | CostClass::Hero(Hero::Reduction) => true,
            CostClass::Hero(Hero::Dot) => self.products,
            // A view, and nothing else that is free.
            _ => matches!(module.instructions[id].op, Op::Reshape { .. }),
        };
        is_cheap && module.instructions[id].control_predecessors.is_empty()
    }
}

/// The elements of its state that a loop only reads row by row.
fn reads(module: &Module, users: &Users, of: &Loop) -> Vec<Reads> {
    let Some(n_steps) = trip_count(module, of.id).filter(|&n| n > 1) else { return Vec::new() };
    if of.is_sharded(module) {
        return Vec::new();
    }
    let mut lines = Lines::new(module, of, n_steps);
    let elements = 0..module.instructions[of.init].operands.len() as u32;
    let of_element = |element: u32| {
        let found = read(module, users, of, &mut lines, element)?;
        let &first = found.rows.first()?;
        let extent = module.shape_of(found.shape).as_array()?.dimensions[first.dimension];
        let unit = i64::try_from(first.count).ok()?;
        let is_aligned = |rows: &crate::find::Rows| {
            (rows.dimension, rows.count) == (first.dimension, first.count)
                && rows.first.start % rows.count == 0
                && rows.first.step % rows.count == 0
        };
        if extent % unit != 0 || !found.rows.iter().all(is_aligned) {
            return None;
        }
        let slices = of.taken.get(&element)?.iter().flat_map(|&taken| users.of(taken)).copied();
        let slices = slices.filter(|&user| user != of.next).collect();
        Some(Reads { element, slices, rows: Rows { dimension: first.dimension, unit }, n: extent / unit })
    };
    elements.filter_map(of_element).collect()
}

/// Looks for the values of fewest bytes that rows can be computed from.
struct Sweep<'a> {
    module: &'a Module,
    target: &'a Target,
    users: &'a Users,
    /// How many times a value is state of a loop that only reads rows of it.
    by_rows: &'a FxHashMap<InstructionId, usize>,
    options: &'a RowsWithinLoops,
}

/// The rows of a value that are needed, and their number; `None`: the whole value.
type Part = Option<(Rows, i64)>;

/// A value that rows are computed from.
#[derive(Default)]
struct Carried {
    parts: Vec<Part>,
    bytes: u64,
}

/// The values that rows are computed from so far.
struct State {
    /// Those to look at, in the order of the text.
    open: BTreeMap<(usize, InstructionId), Carried>,
    /// The bytes of all.
    bytes: u64,
    computed: Vec<InstructionId>,
    is_computed: FxHashSet<InstructionId>,
}

impl Sweep<'_> {
    fn choose(&self, of: &Loop, reads: Vec<Reads>) -> Option<Choice> {
        if reads.is_empty() {
            return None;
        }
        let text = &self.module.computations[self.module.instructions[of.id].parent].instructions;
        let place: FxHashMap<InstructionId, usize> =
            text.iter().enumerate().map(|(i, &id)| (id, i)).collect();
        let mut state = State {
            open: BTreeMap::new(),
            bytes: 0,
            computed: Vec::new(),
            is_computed: FxHashSet::default(),
        };
        for read in &reads {
            let given = self.module.instructions[of.init].operands[read.element as usize];
            self.need(&mut state, place[&given], given, Some((read.rows, read.n)));
        }
        let before = state.bytes;
        let mut best = (before, 0);
        while let Some(((_, id), carried)) = state.open.pop_last() {
            let Some(treatments) = self.treatments(id, &carried.parts) else { continue };
            if state.computed.len() == self.options.max_operations {
                break;
            }
            state.bytes -= carried.bytes;
            state.computed.push(id);
            state.is_computed.insert(id);
            for (treatment, n) in treatments {
                for (&operand, rows) in self.module.instructions[id].operands.iter().zip(treatment.operands) {
                    self.need(&mut state, place[&operand], operand, rows.map(|rows| (rows, n)));
                }
            }
            if state.bytes < best.0 {
                best = (state.bytes, state.computed.len());
            }
        }
        let (after, n_computed) = best;
        let is_worth_it = n_computed > 0 && after as f64 <= before as f64 * (1.0 - self.options.min_gain);
        is_worth_it.then(|| Choice { reads, computed: state.computed.drain(..n_computed).collect() })
    }

    /// Adds a part of a value. Its bytes may count now if all others that read it are computed.
    fn need(&self, state: &mut State, place: usize, id: InstructionId, part: Part) {
        let bytes = self.bytes(id, &state.is_computed);
        let carried = state.open.entry((place, id)).or_default();
        state.bytes = state.bytes - carried.bytes + bytes;
        carried.bytes = bytes;
        if !carried.parts.contains(&part) {
            carried.parts.push(part);
        }
    }

    /// How the needed parts of a value are computed, if a loop may compute them.
    fn treatments(&self, id: InstructionId, parts: &[Part]) -> Option<Vec<(Treatment, i64)>> {
        if !self.options.computes(self.module, id) {
            return None;
        }
        let of_part = |part: &Part| {
            let (rows, n) = (*part)?;
            Some((by_result(self.module, id, n, rows)?, n))
        };
        parts.iter().map(of_part).collect()
    }

    /// The bytes that it takes to carry a value: none if it exists anyway.
    fn bytes(&self, id: InstructionId, computed: &FxHashSet<InstructionId>) -> u64 {
        let mut base = id;
        loop {
            let instruction = &self.module.instructions[base];
            let is_given = |id: InstructionId| {
                matches!(self.module.instructions[id].op, Op::Parameter { .. } | Op::Constant(_))
            };
            let is_view =
                matches!(instruction.op, Op::Reshape { .. } | Op::Bitcast | Op::GetTupleElement { .. });
            if is_given(base) || self.is_read_elsewhere(base, computed) {
                return 0;
            }
            match is_view {
                true => base = instruction.operands[0],
                false => return result_bytes(self.module, self.target, id),
            }
        }
    }

    /// Whether something reads a value, or a view of it, besides the instructions computed by row and loops that read rows.
    fn is_read_elsewhere(&self, id: InstructionId, computed: &FxHashSet<InstructionId>) -> bool {
        let mut in_tuples = 0;
        let by_another = self.users.of(id).iter().any(|user| match self.module.instructions[*user].op {
            _ if computed.contains(user) => false,
            Op::Tuple => {
                in_tuples += 1;
                false
            }
            Op::Reshape { .. } | Op::Bitcast | Op::GetTupleElement { .. } => {
                self.is_read_elsewhere(*user, computed)
            }
            _ => true,
        });
        by_another || in_tuples > self.by_rows.get(&id).copied().unwrap_or(0)
    }
}

/// Lets a loop compute rows.
struct Writer<'a> {
    module: &'a mut Module,
    names: &'a mut Names,
    of: &'a Loop,
    choice: &'a Choice,
    /// Values in the body, by the one beside the loop, its rows and the start of the part that is read.
    known: FxHashMap<(InstructionId, Option<Rows>, InstructionId), InstructionId>,
}

/// A part that the loop reads.
#[derive(Clone, Copy)]
struct PartRead {
    /// Its first element in the array that was read, an integer of the body.
    start: InstructionId,
    /// Elements of that dimension in a part.
    unit: i64,
}

impl Writer<'_> {
    fn write(mut self) {
        let mut stands_for: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
        for read in &self.choice.reads {
            let given = self.module.instructions[self.of.init].operands[read.element as usize];
            if !self.choice.computed.contains(&given) {
                continue;
            }
            for &slice in &read.slices {
                let start = self.module.instructions[slice].operands[1 + read.rows.dimension];
                let row = self.rows(given, read.rows, PartRead { start, unit: read.rows.unit });
                stands_for.insert(slice, row);
            }
        }
        self.of.set_shapes(self.module);
        self.module.computations[self.of.body].instructions.retain(|id| !stands_for.contains_key(id));
        use_instead(self.module, &stands_for);
    }

    /// Rows of a value in the body: computed, or cut out of what the loop carries.
    fn rows(&mut self, id: InstructionId, rows: Rows, part: PartRead) -> InstructionId {
        if let Some(&known) = self.known.get(&(id, Some(rows), part.start)) {
            return known;
        }
        let new = if self.choice.computed.contains(&id) {
            let n = self.n_of(id, rows);
            let treatment =
                by_result(self.module, id, n, rows).expect("the choice has rows that can be computed");
            let operands = self.module.instructions[id].operands.clone();
            let operands: Operands = (operands.iter().zip(&treatment.operands))
                .map(|(&operand, rows)| match rows {
                    Some(rows) => self.rows(operand, *rows, part),
                    None => self.whole(operand),
                })
                .collect();
            let op = on_block(&self.module.instructions[id].op, &treatment, rows.unit);
            let new = self.at(id).copy_of(id, operands);
            let block = block_of(self.module.shape(id), rows);
            self.module.set_shape(new, block);
            let counts = matches!(op, Op::Iota { dimension } if dimension == rows.dimension as i64);
            self.module.instructions[new].op = op;
            if counts {
                let start = self.start(rows.unit, part, new);
                count_from(&mut self.at(new), new, start)
            } else {
                new
            }
        } else {
            let whole = self.whole(id);
            let start = self.start(rows.unit, part, id);
            let element_type = self.module.shape(start).as_array().expect("an integer").element_type;
            let mut at = self.at(id);
            let zero = at.integer(element_type, 0);
            cut_rows(&mut at, whole, rows, start, zero)
        };
        self.known.insert((id, Some(rows), part.start), new);
        new
    }

    fn n_of(&self, id: InstructionId, rows: Rows) -> i64 {
        let array = self.module.shape(id).as_array().expect("rows are of arrays");
        array.dimensions[rows.dimension] / rows.unit
    }

    /// A value from beside the loop, in its state.
    fn whole(&mut self, id: InstructionId) -> InstructionId {
        let key = (id, None, self.of.state);
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        let is_scalar = self.module.shape(id).as_array().is_some_and(|array| array.rank() == 0);
        let new = if is_scalar && matches!(self.module.instructions[id].op, Op::Constant(_)) {
            self.at(id).copy_of(id, [])
        } else {
            let state = self.of.state;
            let init = &self.module.instructions[self.of.init].operands;
            let n_elements = init.len() as u32;
            let is_it = |&i: &u32| init[i as usize] == id && self.of.passes_on(self.module, i);
            let carried = (0..n_elements).find(is_it);
            let index = carried.unwrap_or(n_elements);
            let shape = self.module.shape(id).clone();
            let new = self.at(id).insert_shaped(Op::GetTupleElement { index }, [state], shape);
            if carried.is_none() {
                self.of.add_element(self.module, id, new);
            }
            new
        };
        self.known.insert(key, new);
        new
    }

    /// The first element of a part in an array with so many elements in each.
    fn start(&mut self, unit: i64, part: PartRead, note: InstructionId) -> InstructionId {
        let mut start = part.start;
        if unit == part.unit {
            return start;
        }
        let element_type = self.module.shape(start).as_array().expect("an integer").element_type;
        let mut at = self.at(note);
        if part.unit != 1 {
            let elements = at.integer(element_type, part.unit);
            start = at.binary(BinaryOp::Divide, start, elements);
        }
        if unit != 1 {
            let elements = at.integer(element_type, unit);
            start = at.binary(BinaryOp::Multiply, start, elements);
        }
        start
    }

    fn at(&mut self, id: InstructionId) -> Cursor<'_> {
        Cursor::unlisted(self.module, self.names, self.of.body).with_metadata_of(id)
    }
}
