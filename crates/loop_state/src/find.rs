//! Finds an array of which a loop reads a row, and an array of which it writes a row, that can be one.

use memplan_analysis::trip_count;
use memplan_ir::{ArrayShape, Extras, InstructionId, Module, Op, ShapeId, Sharding, Users};
use memplan_rewriter::loops::Loop;

use crate::backing::{Backing, Backings};
use crate::line::{Line, Lines};

/// Two elements of a loop's state that one array can be.
#[derive(Clone, Debug)]
pub(super) struct Match {
    /// The element whose rows are read. It stays.
    pub(super) read: u32,
    /// The element whose rows are written.
    pub(super) written: u32,
    /// The dimension that rows are counted in.
    pub(super) dimension: usize,
    /// Rows that are never written, so that the loop leaves in them what the written array starts with: `[from, to)`.
    pub(super) unwritten: Vec<(i64, i64)>,
}

/// Which rows of an array a step touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    pub(super) dimension: usize,
    /// How many in one step.
    pub(super) count: i128,
    pub(super) first: Line,
}

/// An element of the state that does nothing but have rows read, or rows written.
pub(super) struct Candidate {
    pub(super) element: u32,
    pub(super) shape: ShapeId,
    pub(super) rows: Vec<Rows>,
}

/// An element of the state of which the loop writes every row once, and reads none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Made {
    pub(super) element: u32,
    pub(super) shape: ShapeId,
    pub(super) rows: Rows,
    /// How often the loop runs.
    pub(super) n_steps: i64,
}

impl Made {
    /// The instruction that writes the rows of a step.
    pub(super) fn update(&self, module: &Module, of: &Loop) -> InstructionId {
        module.instructions[of.next].operands[self.element as usize]
    }

    /// The rows of a step.
    pub(super) fn row(&self, module: &Module, of: &Loop) -> InstructionId {
        module.instructions[self.update(module, of)].operands[1]
    }
}

/// The pairs that one array each can be. Every element is in one pair at most. Linear in the loop, but for elements of
/// equal shape, which are compared with each other.
pub(super) fn matches(module: &Module, users: &Users, backings: &Backings<'_>, of: &Loop) -> Vec<Match> {
    let Some(n_steps) = trip_count(module, of.id).filter(|&n| n > 0) else { return Vec::new() };
    let mut lines = Lines::new(module, of, n_steps);
    let n_elements = module.instructions[of.init].operands.len() as u32;
    let mut written: Vec<Candidate> =
        (0..n_elements).filter_map(|element| written(module, users, of, &mut lines, element)).collect();
    if written.is_empty() {
        return Vec::new();
    }
    let read = (0..n_elements).filter_map(|element| read(module, users, of, &mut lines, element));
    let given = |read: &Candidate| module.instructions[of.init].operands[read.element as usize];
    let results = |element: u32| of.results.get(&element).map_or(&[][..], Vec::as_slice);
    let mut read: Vec<(Candidate, Backing)> = read
        .filter_map(|read| Some((backings.of(given(&read), &[of.init])?, read)))
        .map(|(backing, read)| (read, backing))
        .collect();
    let mut found = Vec::new();
    // Arrays whose result goes to where the old one came from come first.
    for goes_home in [true, false] {
        written.retain(|written| {
            let alike = read.iter().enumerate().filter(|(_, (read, _))| {
                read.shape == written.shape && are_sharded_alike(module, of, read.element, written.element)
            });
            let mut at_home = alike.filter(|(_, (_, backing))| {
                backings.goes_to(results(written.element), backing) == Some(goes_home)
            });
            let matching =
                at_home.find_map(|(i, (read, _))| Some((i, in_place(module, of, &lines, read, written)?)));
            let Some((i, matching)) = matching else { return true };
            read.remove(i);
            found.push(matching);
            false
        });
    }
    found
}

/// The elements of which the loop writes every row, and reads none.
pub(super) fn made_row_by_row(module: &Module, users: &Users, of: &Loop) -> Vec<Made> {
    let Some(n_steps) = trip_count(module, of.id).filter(|&n| n > 0) else { return Vec::new() };
    let mut lines = Lines::new(module, of, n_steps);
    let n_elements = module.instructions[of.init].operands.len() as u32;
    let made_whole = |written: Candidate, n_steps: i128| {
        let &[rows] = written.rows.as_slice() else { return None };
        let n_rows = module.shape_of(written.shape).as_array()?.dimensions[rows.dimension];
        let is_whole = rows.first.step.abs() == rows.count && rows.count * n_steps == i128::from(n_rows);
        let n_steps = i64::try_from(n_steps).ok()?;
        is_whole.then_some(Made { element: written.element, shape: written.shape, rows, n_steps })
    };
    (0..n_elements)
        .filter_map(|element| {
            made_whole(written(module, users, of, &mut lines, element)?, i128::from(n_steps))
        })
        .collect()
}

/// An element into which each step writes rows, and which nothing in the loop reads.
fn written(
    module: &Module,
    users: &Users,
    of: &Loop,
    lines: &mut Lines<'_>,
    element: u32,
) -> Option<Candidate> {
    let update = &module.instructions[of.only_update(module, users, element)?];
    if !update.control_predecessors.is_empty() {
        return None;
    }
    let &[array, part, ref starts @ ..] = update.operands.as_slice() else { return None };
    let rows = rows(lines, module.plain_array(array)?, module.plain_array(part)?, starts)?;
    Some(Candidate { element, shape: module.instructions[array].shape, rows: vec![rows] })
}

/// An element of which each step reads rows, and which is the same before and after.
pub(super) fn read(
    module: &Module,
    users: &Users,
    of: &Loop,
    lines: &mut Lines<'_>,
    element: u32,
) -> Option<Candidate> {
    let is_plain = of.passes_on(module, element)
        && !of.read_by_condition.contains(&element)
        && !of.results.contains_key(&element);
    let taken = of.taken.get(&element).filter(|_| is_plain)?;
    let mut all = Vec::new();
    for (&array, &user) in
        taken.iter().flat_map(|array| users.of(*array).iter().map(move |user| (array, user)))
    {
        let slice = &module.instructions[user];
        match slice.op {
            Op::DynamicSlice { .. } if slice.operands[1..].contains(&array) => return None,
            Op::DynamicSlice { .. } => {
                all.push(rows(
                    lines,
                    module.plain_array(array)?,
                    module.plain_array(user)?,
                    &slice.operands[1..],
                )?);
            }
            _ if user == of.next && of.becomes_only(module, array, element) => {}
            _ => return None,
        }
    }
    all.dedup();
    Some(Candidate { element, shape: module.instructions[*taken.first()?].shape, rows: all })
}

/// Which rows a slice takes out or an update writes: part of one dimension, all of the others.
fn rows(
    lines: &mut Lines<'_>,
    whole: &ArrayShape,
    part: &ArrayShape,
    starts: &[InstructionId],
) -> Option<Rows> {
    if starts.len() != whole.dimensions.len() {
        return None;
    }
    let mut cut = (0..starts.len()).filter(|&d| part.dimensions[d] != whole.dimensions[d]);
    let (Some(dimension), None) = (cut.next(), cut.next()) else { return None };
    let first = lines.of(starts[dimension])?;
    let count = i128::from(part.dimensions[dimension]);
    // Slices beyond the end would be moved back.
    let (least, most) = lines.bounds(first)?;
    let is_inside = least >= 0 && most + count <= i128::from(whole.dimensions[dimension]);
    (is_inside && count > 0).then_some(Rows { dimension, count, first })
}

/// Whether new rows can overwrite read rows: no step reads a row that an earlier one wrote.
fn in_place(
    module: &Module,
    of: &Loop,
    lines: &Lines<'_>,
    read: &Candidate,
    written: &Candidate,
) -> Option<Match> {
    let &[write] = written.rows.as_slice() else { return None };
    let Line { start, step } = write.first;
    let is_ahead = |rows: &Rows| {
        let is_parallel = rows.dimension == write.dimension && rows.first.step == step;
        is_parallel
            && match step {
                1.. => rows.first.start >= start + write.count - step,
                _ => rows.first.start + rows.count <= start - step,
            }
    };
    if step == 0 && lines.n_steps > 1 || !read.rows.iter().all(is_ahead) {
        return None;
    }
    // The rows written are without gaps, or it is hard to say which are not written.
    let (least, most) = lines.bounds(write.first)?;
    if lines.n_steps > 1 && step.abs() != write.count {
        return None;
    }
    let written_rows = (i64::try_from(least).ok()?, i64::try_from(most + write.count).ok()?);
    let n_rows = module.shape_of(written.shape).as_array()?.dimensions[write.dimension];
    let init = &module.instructions[of.init].operands;
    let starts_alike = init[read.element as usize] == init[written.element as usize];
    let unwritten: Vec<(i64, i64)> = [(0, written_rows.0), (written_rows.1, n_rows)]
        .into_iter()
        .filter(|(from, to)| from < to && !starts_alike)
        .collect();
    // The loop then writes read rows in time, so that the other rows may change before.
    let is_written_in_time = |rows: &Rows| {
        let (least, most) = lines.bounds(rows.first).expect("rows are inside of the array");
        least >= i128::from(written_rows.0) && most + rows.count <= i128::from(written_rows.1)
    };
    if !unwritten.is_empty() && !read.rows.iter().all(is_written_in_time) {
        return None;
    }
    Some(Match { read: read.element, written: written.element, dimension: write.dimension, unwritten })
}

/// Whether one sharding can serve both elements, and be left out for one.
fn are_sharded_alike(module: &Module, of: &Loop, a: u32, b: u32) -> bool {
    let n = module.instructions[of.init].operands.len();
    of.tuples(module).into_iter().all(|id| match module.instructions[id].extras.as_deref() {
        Some(Extras { sharding: Some(Sharding::Tuple(leaves)), .. }) => {
            leaves.len() == n && leaves[a as usize] == leaves[b as usize]
        }
        _ => true,
    })
}
