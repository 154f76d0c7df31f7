//! `updates-within-loops`: a loop that makes rows of an array also does what follows for each row, if that replaces
//! arrays that are there before.
//!
//! The backward loop of a scanned training step makes the gradients of all layers, and the optimizer changes weights and
//! moments afterwards. If the loop changes them row by row, as gradients arrive, the gradients of all layers never exist.
//!
//! ```text
//! w = while((0, zeros))                                   w = while((0, zeros, p))
//!   g = dynamic-update-slice(g, row, i, 0)           =>     old = dynamic-slice(p, i, 0)
//! new = subtract(p, multiply(g, 0.1))                       n = dynamic-update-slice(n, subtract(old, multiply(row, 0.1)), i, 0)
//! ```
//!
//! The new rows are written into an array of their own, `n`. [`LoopStateInPlace`] then lets it be the old one where the
//! program allows that, as donated weights do.
//!
//! What follows is elementwise, between arrays of equal extents: the rows of one array that the loop makes, arrays that
//! do not depend on the loop, and scalars that do not. It may have several results. So a factor that depends on all
//! gradients, as clipping by a norm has, keeps everything as it is.
//!
//! Left alone: arrays that something else reads, too; loops with an unknown number of steps, or whose state is sharded;
//! scheduled programs. Requires inlined calls; leaves dead state behind for `while-simplifier`. Idempotent. *Changed* means
//! that a loop does what was done after it.

use memplan_ir::{Cursor, Dimensions, Insert, InstructionId, Module, Names, Op, Shape, Users};
use memplan_rewriter::loops::{Loop, loops, scalar};
use memplan_rewriter::{Context, Outcome, Pass, PassError};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::LoopStateInPlace;
use crate::find::{Made, made_row_by_row};

/// The pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdatesWithinLoops {
    /// The most arrays for which loops do what follows: each is looked for anew.
    pub max_arrays: usize,
    /// What lets the new rows be written over old ones. It runs if there are any.
    pub in_place: LoopStateInPlace,
}

/// The pass as `rewrite` runs it.
pub const UPDATES_WITHIN_LOOPS: UpdatesWithinLoops =
    UpdatesWithinLoops { max_arrays: 128, in_place: crate::LOOP_STATE_IN_PLACE };

impl Default for UpdatesWithinLoops {
    fn default() -> UpdatesWithinLoops {
        UPDATES_WITHIN_LOOPS
    }
}

impl Pass for UpdatesWithinLoops {
    fn name(&self) -> &'static str {
        "updates-within-loops"
    }

    fn description(&self) -> &'static str {
        "let loops that make gradients update what the gradients are of, row by row"
    }

    fn run(&self, module: &mut Module, context: &Context<'_>) -> Result<Outcome, PassError> {
        if module.is_scheduled {
            return Ok(Outcome::default());
        }
        let mut names = Names::new(module);
        let mut changed = false;
        for _ in 0..self.max_arrays {
            if !move_one(module, &mut names) {
                break;
            }
            changed = true;
        }
        if changed {
            self.in_place.run(module, context)?;
        }
        Ok(changed.into())
    }
}

/// Moves what follows the rows of one array into their loop.
fn move_one(module: &mut Module, names: &mut Names) -> bool {
    let users = Users::new(module);
    let loops = loops(module, &users);
    for of in loops.iter().filter(|of| !of.is_sharded(module)) {
        let after = after(module, of);
        for made in made_row_by_row(module, &users, of) {
            if let Some(following) = following(module, &users, of, &made, &after) {
                apply(module, &users, of, &following, names);
                return true;
            }
        }
    }
    false
}

/// What is computed from the result of a loop, the loop included.
fn after(module: &Module, of: &Loop) -> FxHashSet<InstructionId> {
    let mut after = FxHashSet::from_iter([of.id]);
    for &id in &module.computations[module.instructions[of.id].parent].instructions {
        if module.instructions[id].operands.iter().any(|operand| after.contains(operand)) {
            after.insert(id);
        }
    }
    after
}

/// What follows the rows of an array.
struct Following {
    /// The element of the state that is the array.
    element: u32,
    /// Where the array is taken out after the loop.
    result: InstructionId,
    /// Elementwise operations, in order.
    members: Vec<InstructionId>,
    /// Those of them that others read.
    results: Vec<InstructionId>,
}

fn following(
    module: &Module,
    users: &Users,
    of: &Loop,
    made: &Made,
    after: &FxHashSet<InstructionId>,
) -> Option<Following> {
    let &[result] = of.results.get(&made.element)?.as_slice() else { return None };
    let parent = &module.computations[module.instructions[of.id].parent];
    let extents = &module.plain_array(result)?.dimensions;
    let has_extents =
        |id: InstructionId| module.plain_array(id).is_some_and(|array| array.dimensions == *extents);
    let can_be = |id: InstructionId| {
        let instruction = &module.instructions[id];
        let is_plain = instruction.control_predecessors.is_empty() && instruction.extras.is_none();
        instruction.op.is_elementwise() && is_plain && has_extents(id)
    };
    // A value that is there before the loop, or could be.
    let is_given = |id: InstructionId| {
        !after.contains(&id) && (has_extents(id) || is_splat(module, id) || is_scalar(module, id))
    };
    let mut members: FxHashSet<InstructionId> = FxHashSet::default();
    for &id in parent.instructions.iter().filter(|&&id| can_be(id)) {
        let is_member = |operand: &InstructionId| *operand == result || members.contains(operand);
        let operands = &module.instructions[id].operands;
        let follows = operands.iter().any(is_member);
        if follows && operands.iter().all(|operand| is_member(operand) || is_given(*operand)) {
            members.insert(id);
        }
    }
    // What only members read is computed row by row, too, so that the loop need not be given the whole.
    for &id in parent.instructions.iter().rev().filter(|&&id| can_be(id) && !after.contains(&id)) {
        let is_for_members = users.of(id).iter().all(|user| members.contains(user));
        let mut operands = module.instructions[id].operands.iter();
        if is_for_members && !users.of(id).is_empty() && operands.all(|&operand| is_given(operand)) {
            members.insert(id);
        }
    }
    let is_read_by_members = users.of(result).iter().all(|user| members.contains(user));
    let ordered: Vec<InstructionId> =
        parent.instructions.iter().copied().filter(|id| members.contains(id)).collect();
    let is_old = |&id: &InstructionId| !members.contains(&id) && id != result && has_extents(id);
    let replaces_old = ordered.iter().any(|&id| {
        let mut operands = module.instructions[id].operands.iter();
        operands.any(|operand| is_old(operand) && !is_splat(module, *operand))
    });
    let is_result =
        |&id: &InstructionId| parent.root == id || users.of(id).iter().any(|user| !members.contains(user));
    let results: Vec<InstructionId> = ordered.iter().copied().filter(is_result).collect();
    (is_read_by_members && replaces_old && parent.root != result && !results.is_empty())
        .then_some(Following { element: made.element, result, members: ordered, results })
}

/// Whether all elements are one scalar, constant or not.
fn is_splat(module: &Module, id: InstructionId) -> bool {
    module.instructions[id].op.repeats_scalar() || scalar(module, id).is_some()
}

fn is_scalar(module: &Module, id: InstructionId) -> bool {
    module.plain_array(id).is_some_and(|array| array.rank() == 0)
}

/// Does in the loop what followed it.
fn apply(module: &mut Module, users: &Users, of: &Loop, found: &Following, names: &mut Names) {
    let update = module.instructions[of.next].operands[found.element as usize];
    let [rows, row] = [0, 1].map(|i| module.instructions[update].operands[i]);
    let starts = module.instructions[update].operands[2..].to_vec();
    let sizes = module.plain_array(row).expect("rows are arrays").dimensions.clone();
    let body = Body { of, sizes, starts };
    let mut of_row: FxHashMap<InstructionId, InstructionId> = FxHashMap::from_iter([(found.result, row)]);
    for &id in &found.members {
        let mut operands = Vec::new();
        for operand in module.instructions[id].operands.clone() {
            let known = of_row.get(&operand).copied();
            let now = known.unwrap_or_else(|| body.given(module, operand, names));
            of_row.insert(operand, now);
            operands.push(now);
        }
        let shape = body.row_of(module, id);
        let op = module.instructions[id].op.clone();
        let mut at = Cursor::unlisted(module, names, of.body).with_metadata_of(id);
        let now = at.insert_shaped(op, operands, shape);
        of_row.insert(id, now);
    }
    for &id in &found.results {
        let result = body.write(module, id, of_row[&id], names);
        for &user in users.of(id).iter().filter(|user| !found.members.contains(user)) {
            module.replace_operand(user, id, result);
        }
        let parent = module.instructions[id].parent;
        if module.computations[parent].root == id {
            module.computations[parent].root = result;
            module.list(result);
        }
    }
    let parent = module.instructions[of.id].parent;
    module.computations[parent].instructions.retain(|id| !found.members.contains(id));
    // Nobody reads the array any more, so it is not written either.
    module.instructions[of.next].operands[found.element as usize] = rows;
    of.set_shapes(module);
    for computation in [of.body, parent] {
        module.put_operands_first(computation);
    }
}

/// The body of a loop, and the rows at hand.
struct Body<'a> {
    of: &'a Loop,
    sizes: Dimensions,
    starts: Vec<InstructionId>,
}

impl Body<'_> {
    fn row_of(&self, module: &Module, id: InstructionId) -> Shape {
        let element_type = module.plain_array(id).expect("members are arrays").element_type;
        Shape::array(element_type, self.sizes.clone())
    }

    /// The rows of a value from before the loop.
    fn given(&self, module: &mut Module, id: InstructionId, names: &mut Names) -> InstructionId {
        let shape = self.row_of(module, id);
        let is_constant = |id: InstructionId| matches!(module.instructions[id].op, Op::Constant(_));
        if is_scalar(module, id) {
            return match is_constant(id) {
                true => Cursor::unlisted(module, names, self.of.body).copy_of(id, []),
                false => self.carry(module, id, names),
            };
        }
        if let Some(value) = scalar(module, id) {
            let mut at = Cursor::unlisted(module, names, self.of.body);
            let value = at.constant(value.literal());
            return at.fill(value, shape);
        }
        if is_splat(module, id) {
            let value = self.given(module, module.instructions[id].operands[0], names);
            let mut at = Cursor::unlisted(module, names, self.of.body);
            return at.fill(value, shape);
        }
        let whole = self.carry(module, id, names);
        let operands = std::iter::once(whole).chain(self.starts.iter().copied());
        let slice = Op::DynamicSlice { slice_sizes: self.sizes.clone() };
        Cursor::unlisted(module, names, self.of.body)
            .with_metadata_of(id)
            .insert_shaped(slice, operands, shape)
    }

    /// A value from before the loop, within the loop, which passes it on.
    fn carry(&self, module: &mut Module, id: InstructionId, names: &mut Names) -> InstructionId {
        let init = &module.instructions[self.of.init].operands;
        let is_there = |&element: &u32| init[element as usize] == id && self.of.passes_on(module, element);
        let there = self.of.taken.keys().copied().filter(is_there).min();
        there.map_or_else(|| self.take_new(module, id, None, names), |element| self.of.taken[&element][0])
    }

    /// Writes the rows of a result into an element of the state of its own. Returns the result after the loop.
    fn write(
        &self,
        module: &mut Module,
        id: InstructionId,
        row: InstructionId,
        names: &mut Names,
    ) -> InstructionId {
        let whole = module.shape(id).clone();
        let array = whole.as_array().expect("results are arrays").clone();
        let parent = module.instructions[id].parent;
        let mut at = Cursor::unlisted(module, names, parent).with_metadata_of(self.of.id);
        let zero = at.integer(array.element_type, 0);
        let zeros = at.fill(zero, whole.clone());
        let rows = self.take_new(module, zeros, Some(row), names);
        let index = module.instructions[self.of.init].operands.len() as u32 - 1;
        debug_assert_eq!(module.instructions[rows].op, Op::GetTupleElement { index });
        let mut at = Cursor::unlisted(module, names, parent).with_metadata_of(id);
        at.insert_shaped(Op::GetTupleElement { index }, [self.of.id], whole)
    }

    /// Adds an element to the state: it is passed on, or rows are written into it. Returns it in the body.
    fn take_new(
        &self,
        module: &mut Module,
        init: InstructionId,
        row: Option<InstructionId>,
        names: &mut Names,
    ) -> InstructionId {
        let whole = module.shape(init).clone();
        let index = module.instructions[self.of.init].operands.len() as u32;
        let mut at = Cursor::unlisted(module, names, self.of.body).with_metadata_of(init);
        let taken = at.insert_shaped(Op::GetTupleElement { index }, [self.of.state], whole.clone());
        let next = row.map_or(taken, |row| {
            let operands = [taken, row].into_iter().chain(self.starts.iter().copied());
            at.insert_shaped(Op::DynamicUpdateSlice, operands, whole)
        });
        self.of.add_element(module, init, next);
        taken
    }
}
