//! Pairs of loops, the first of which keeps rows for the second.

use memplan_analysis::trip_count;
use memplan_ir::{BinaryOp, InstructionId, Module, Op, Users};
use memplan_rewriter::loops::{Loop, loops, scalar};
use rustc_hash::{FxHashMap, FxHashSet};

/// Two loops, and the rows that the first keeps for the second.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) producer: Loop,
    pub(super) consumer: Loop,
    /// The number of steps of the first loop, which is the number of rows.
    pub(super) n_rows: u64,
    /// The element of the first loop's state that counts its steps from 0.
    pub(super) counter: u32,
    /// In the second loop's body, the number of the row that it reads.
    pub(super) row: InstructionId,
    pub(super) residuals: Vec<Residual>,
}

/// Rows that the first loop writes, one in each step, and the second reads.
#[derive(Clone, Debug)]
pub(super) struct Residual {
    /// The element of the first loop's state that holds the rows.
    pub(super) element: u32,
    /// The row that the first loop's body writes: an array with a leading extent of 1.
    pub(super) row: InstructionId,
    /// The element of the second loop's state that holds the rows.
    pub(super) read_as: u32,
    /// The instructions of the second loop's body that read a row.
    pub(super) slices: Vec<InstructionId>,
}

/// Pairs of loops in which no loop occurs twice. Linear in the module.
pub(super) fn pairs(module: &Module, users: &Users) -> Vec<Pair> {
    let loops = loops(module, users);
    let by_init: FxHashMap<InstructionId, &Loop> = loops.iter().map(|l| (l.init, l)).collect();
    let mut is_paired: FxHashSet<InstructionId> = FxHashSet::default();
    let mut pairs = Vec::new();
    for producer in &loops {
        let Some((n_rows, counter)) = steps(module, producer) else { continue };
        let readers = producer.results.values().flatten().flat_map(|&result| users.of(result));
        let mut consumers: Vec<&Loop> = readers.filter_map(|reader| by_init.get(reader).copied()).collect();
        consumers.sort_unstable_by_key(|consumer| consumer.id);
        consumers.dedup_by_key(|consumer| consumer.id);
        for consumer in consumers {
            if is_paired.contains(&producer.id) || is_paired.contains(&consumer.id) {
                continue;
            }
            if let Some((row, residuals)) = residuals(module, users, producer, consumer, counter, n_rows) {
                is_paired.extend([producer.id, consumer.id]);
                let (producer, consumer) = (producer.clone(), consumer.clone());
                pairs.push(Pair { producer, consumer, n_rows, counter, row, residuals });
            }
        }
    }
    pairs
}

/// The number of steps of a loop, and the element of its state that counts them from 0.
fn steps(module: &Module, of: &Loop) -> Option<(u64, u32)> {
    let n = trip_count(module, of.id)?;
    let next = &module.instructions[of.next].operands;
    let init = &module.instructions[of.init].operands;
    let counts = |element: u32| {
        let step = &module.instructions[next[element as usize]];
        let is_counter = |id: &InstructionId| of.element_at(module, *id) == Some(element);
        step.op == Op::Binary(BinaryOp::Add)
            && step.operands.iter().any(is_counter)
            && step.operands.iter().any(|&id| scalar(module, id).is_some_and(|step| step.is_one()))
            && scalar(module, init[element as usize]).is_some_and(|start| start.is_zero())
    };
    let mut counters: Vec<u32> = of.read_by_condition.iter().copied().filter(|&i| counts(i)).collect();
    counters.sort_unstable();
    counters.first().map(|&counter| (n, counter))
}

fn residuals(
    module: &Module,
    users: &Users,
    producer: &Loop,
    consumer: &Loop,
    counter: u32,
    n_rows: u64,
) -> Option<(InstructionId, Vec<Residual>)> {
    let mut row_number: Option<InstructionId> = None;
    let mut found = Vec::new();
    for element in 0..module.instructions[producer.next].operands.len() as u32 {
        let Some(row) = row_written(module, users, producer, element, counter, n_rows) else { continue };
        let Some((read_as, slices, number)) = rows_read(module, users, producer, consumer, element, row)
        else {
            continue;
        };
        // All rows are read with the same number.
        if *row_number.get_or_insert(number) == number {
            found.push(Residual { element, row, read_as, slices });
        }
    }
    let number = row_number?;
    let counter = module.instructions[producer.init].operands[counter as usize];
    (module.shape(number) == module.shape(counter)).then_some((number, found))
}

/// The row that each step of a loop writes into an element of its state, where that element is used for nothing else.
fn row_written(
    module: &Module,
    users: &Users,
    of: &Loop,
    element: u32,
    counter: u32,
    n_rows: u64,
) -> Option<InstructionId> {
    let update_id = module.instructions[of.next].operands[element as usize];
    let update = &module.instructions[update_id];
    if update.op != Op::DynamicUpdateSlice {
        return None;
    }
    let &[rows, row, start, ref rest @ ..] = update.operands.as_slice() else { return None };
    let whole = module.shape(update_id).as_array()?;
    let part = module.shape(row).as_array()?;
    let is_whole_row = part.dimensions[0] == 1
        && part.dimensions[1..] == whole.dimensions[1..]
        && u64::try_from(whole.dimensions[0]).is_ok_and(|n| n == n_rows)
        && rest.iter().all(|&id| scalar(module, id).is_some_and(|start| start.is_zero()));
    let is_plain = whole.is_plain() && update.control_predecessors.is_empty();
    let is_own = of.element_at(module, rows) == Some(element)
        && of.taken.get(&element).is_some_and(|taken| taken[..] == [rows])
        && users.of(rows) == [update_id]
        && users.of(update_id) == [of.next]
        && of.becomes_only(module, update_id, element)
        && !of.read_by_condition.contains(&element);
    let counts = of.element_at(module, start) == Some(counter);
    (is_whole_row && is_plain && is_own && counts).then_some(row)
}

/// How the second loop reads rows that nothing else reads: the element of its state, the slices, and the number of the
/// row.
fn rows_read(
    module: &Module,
    users: &Users,
    producer: &Loop,
    consumer: &Loop,
    element: u32,
    row: InstructionId,
) -> Option<(u32, Vec<InstructionId>, InstructionId)> {
    let &[result] = producer.results.get(&element)?.as_slice() else { return None };
    if users.of(result) != [consumer.init] {
        return None;
    }
    let init = &module.instructions[consumer.init].operands;
    let mut read_as = (0..init.len() as u32).filter(|&i| init[i as usize] == result);
    let (Some(read_as), None) = (read_as.next(), read_as.next()) else { return None };
    let &[rows] = consumer.taken.get(&read_as)?.as_slice() else { return None };
    if !consumer.becomes_only(module, rows, read_as)
        || consumer.read_by_condition.contains(&read_as)
        || consumer.results.contains_key(&read_as)
    {
        return None;
    }
    let slices: Vec<InstructionId> =
        users.of(rows).iter().copied().filter(|&user| user != consumer.next).collect();
    let number = *module.instructions[*slices.first()?].operands.get(1)?;
    let takes_row = |&id: &InstructionId| {
        let slice = &module.instructions[id];
        matches!(slice.op, Op::DynamicSlice { .. })
            && slice.control_predecessors.is_empty()
            && slice.operands[0] == rows
            && slice.operands[1] == number
            && slice.operands[2..].iter().all(|&id| scalar(module, id).is_some_and(|start| start.is_zero()))
            && module.shape(id) == module.shape(row)
    };
    slices.iter().all(takes_row).then_some((read_as, slices, number))
}
