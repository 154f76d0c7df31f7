//! Regions to compute in blocks of rows: their instructions, and the number of their loops.
//!
//! A region grows from one wide array, the *seed*, along edges that keep rows: over all equally wide arrays among its
//! operands and results, and over narrow arrays between wide ones, such as the sums of a softmax. Broadcasts of narrow
//! arrays belong to every region that reads them.
//!
//! The rest of the program may use results of the region and lead back into it, as the backward half of a training step
//! does. Then the region has several loops, its *stages*: a stage can start when all its inputs from outside exist.
//!
//! ```text
//!   stage 0   s = dot(q, k)   p = softmax(s)   o = dot(p, v)
//!             ...  the rest of the program makes g of o
//!   stage 1   d = dot(g, v)   t = multiply(p, d)   dq = dot(t, k)
//! ```
//!
//! A stage keeps no wide arrays for a later one: stage 1 recomputes `p` from `q`, `k` and the narrow arrays of stage 0.
//! It also computes sums of rows again that it computes all summands of: one kernel makes all of a softmax.

use cranelift_entity::SecondaryMap;
use memplan_ir::{ArrayShape, InstructionId, Module, Op, Users};
use memplan_memory::Target;
use memplan_rewriter::cost::{self, CostClass, Hero};
use rustc_hash::{FxHashMap, FxHashSet};

use super::RowBlocks;
use crate::remat::is_recomputable;
use memplan_rewriter::rows::{Outcome, Rows, Treatment, by_operand, by_result, is_repetition};

/// Instructions that are computed block by block.
#[derive(Clone, Debug)]
pub(super) struct Region {
    /// How many blocks.
    pub(super) n: i64,
    /// How each instruction of the region treats its blocks.
    pub(super) treatments: FxHashMap<InstructionId, Treatment>,
    /// The loops, in the order in which they run.
    pub(super) stages: Vec<Stage>,
    /// Arrays with at least this many elements are wide.
    wide_from: u64,
    /// The wide arrays from which it would have grown in the same way.
    seeds: Vec<InstructionId>,
}

/// One loop.
#[derive(Clone, Debug, Default)]
pub(super) struct Stage {
    /// The instructions of an iteration, operands first.
    pub(super) body: Vec<InstructionId>,
    /// Those of the body that are read outside the loop.
    pub(super) results: Vec<InstructionId>,
}

impl Region {
    /// Whether an array is as wide as the seed, more or less.
    pub(super) fn is_wide(&self, module: &Module, id: InstructionId) -> bool {
        element_count(module, id) >= self.wide_from
    }

    /// The wide arrays from which it would have grown in the same way, and their rows.
    pub(super) fn seeds(&self) -> impl Iterator<Item = (InstructionId, Rows)> {
        self.seeds.iter().filter_map(|&id| Some((id, self.treatments.get(&id)?.rows()?)))
    }

    /// A stage's operands from outside, except scalar constants, which its loop has itself.
    pub(super) fn inputs(&self, module: &Module, stage: &Stage) -> Vec<InstructionId> {
        let is_inside: FxHashSet<InstructionId> = stage.body.iter().copied().collect();
        let is_scalar_constant = |id: InstructionId| {
            matches!(module.instructions[id].op, Op::Constant(_))
                && module.shape(id).as_array().is_some_and(|array| array.rank() == 0)
        };
        let mut seen: FxHashSet<InstructionId> = FxHashSet::default();
        let mut inputs = Vec::new();
        for &id in &stage.body {
            for (number, &operand) in module.instructions[id].operands.iter().enumerate() {
                let is_inner =
                    is_inside.contains(&operand) && is_inner_edge(&self.treatments, id, number, operand);
                if !is_inner && !is_scalar_constant(operand) && seen.insert(operand) {
                    inputs.push(operand);
                }
            }
        }
        inputs
    }
}

/// The program in which regions are found.
#[derive(Clone, Copy)]
pub(super) struct RegionContext<'a> {
    pub(super) module: &'a Module,
    pub(super) target: &'a Target,
    pub(super) places: &'a Places,
    pub(super) options: &'a RowBlocks,
}

/// Users and places of instructions.
pub(super) struct Places {
    pub(super) users: Users,
    /// The place of each instruction in its computation.
    positions: SecondaryMap<InstructionId, u32>,
}

impl Places {
    /// Linear.
    pub(super) fn new(module: &Module) -> Places {
        let mut positions = SecondaryMap::with_capacity(module.instructions.len());
        for computation in module.computations.values() {
            for (position, &id) in computation.instructions.iter().enumerate() {
                positions[id] = position as u32;
            }
        }
        Places { users: Users::new(module), positions }
    }

    /// Instructions of one computation in the order of the text.
    fn in_order(&self, ids: impl Iterator<Item = InstructionId>) -> Vec<InstructionId> {
        let mut ids: Vec<InstructionId> = ids.collect();
        ids.sort_unstable_by_key(|&id| self.positions[id]);
        ids
    }
}

/// The region of `seed` that is cut into `n` blocks along `rows` of it; `None` where nothing wide becomes smaller.
pub(super) fn region(program: RegionContext<'_>, seed: InstructionId, n: i64, rows: Rows) -> Option<Region> {
    let mut growth = Growth::new(program, seed, n);
    growth.propose(None, by_result(program.module, seed, n, rows).map(|treatment| (seed, treatment)));
    growth.grow()?;
    growth.leave_out_what_is_brought(seed);
    let levels = growth.levels(seed);
    let seeds = growth.seeds(seed);
    let Growth { mut treatments, is_wide, wide_from, .. } = growth;
    drop_loose_ends(program, &is_wide, &levels, &mut treatments);
    let stages = stages(program, &treatments, &is_wide, &levels);
    Some(Region { n, treatments, stages, wide_from, seeds })
}

/// From how many elements on arrays are as wide as a seed.
pub(super) fn wide_from(program: RegionContext<'_>, seed: InstructionId) -> u64 {
    element_count(program.module, seed).div_ceil(program.options.wide.0.max(1))
}

/// Whether an operand of a member is another member, cut the way the reader needs it.
pub(super) fn is_inner_edge(
    treatments: &FxHashMap<InstructionId, Treatment>,
    reader: InstructionId,
    number: usize,
    operand: InstructionId,
) -> bool {
    let made = treatments.get(&operand).and_then(Treatment::rows);
    made.is_some() && treatments.get(&reader).is_some_and(|treatment| treatment.operands[number] == made)
}

/// Whether an array must be in memory as a whole with any fusion: only its own kernel makes or reads its operands.
pub(super) fn is_materialized(program: RegionContext<'_>, id: InstructionId) -> bool {
    let is_fused = |id| {
        matches!(
            cost::class_of(program.module, id),
            CostClass::Cheap | CostClass::Free | CostClass::Hero(Hero::Reduction)
        ) && !matches!(program.module.instructions[id].op, Op::Gather(_))
    };
    // The kernel of a scatter computes its updates, so they are not stored.
    let scatters = |user: InstructionId| {
        let instruction = &program.module.instructions[user];
        let n_updated = instruction.operands.len() / 2;
        matches!(instruction.op, Op::Scatter(_)) && !instruction.operands[..=n_updated].contains(&id)
    };
    !is_fused(id) || program.places.users.of(id).iter().any(|&user| !is_fused(user) && !scatters(user))
}

/// A region while it grows.
struct Growth<'a> {
    program: RegionContext<'a>,
    n: i64,
    /// Arrays with at least this many elements are wide.
    wide_from: u64,
    is_wide: FxHashMap<InstructionId, bool>,
    treatments: FxHashMap<InstructionId, Treatment>,
    open: Vec<InstructionId>,
    /// Who leads to whom, the members that lead to each.
    ways: FxHashMap<InstructionId, Vec<InstructionId>>,
    /// Whether other seeds in it might cut it in another way, or leave out this one.
    depends_on_seed: bool,
}

impl<'a> Growth<'a> {
    fn new(program: RegionContext<'a>, seed: InstructionId, n: i64) -> Growth<'a> {
        Growth {
            program,
            n,
            wide_from: wide_from(program, seed),
            is_wide: FxHashMap::default(),
            treatments: FxHashMap::default(),
            open: Vec::new(),
            ways: FxHashMap::default(),
            depends_on_seed: false,
        }
    }

    fn is_wide(&self, id: InstructionId) -> bool {
        element_count(self.program.module, id) >= self.wide_from
    }

    /// Adds a member to which others lead, except the first one.
    fn propose(&mut self, from: Option<InstructionId>, member: Option<(InstructionId, Treatment)>) {
        let Some((id, treatment)) = member else { return };
        let instruction = &self.program.module.instructions[id];
        // A tuple comes from a member, since loops take arrays.
        let is_open_tuple = matches!(instruction.op, Op::GetTupleElement { .. })
            && !self.treatments.contains_key(&instruction.operands[0]);
        let known = self.treatments.get(&id);
        self.depends_on_seed |= is_open_tuple || known.is_some_and(|known| *known != treatment);
        if known.is_some() {
            self.ways.entry(id).or_default().extend(from);
        }
        if !instruction.control_predecessors.is_empty() || is_open_tuple || known.is_some() {
            return;
        }
        self.ways.entry(id).or_default().extend(from);
        self.is_wide.insert(id, self.is_wide(id));
        self.treatments.insert(id, treatment);
        self.open.push(id);
    }

    fn grow(&mut self) -> Option<()> {
        while let Some(id) = self.open.pop() {
            self.add_operands(id);
            let Some(rows) = self.treatments[&id].rows() else { continue };
            if self.is_wide[&id] {
                if !is_repetition(&self.program.module.instructions[id].op) {
                    self.add_users(id, rows, |_| true);
                }
            } else {
                // From narrow to narrow only cheap operations, and no sums: a value that depends on all rows is not in
                // between.
                self.add_users(id, rows, |user| user.is_wide || user.is_cheap);
            }
            if self.treatments.len() > self.program.options.max_members {
                return None;
            }
        }
        Some(())
    }

    fn add_operands(&mut self, id: InstructionId) {
        let module = self.program.module;
        for number in 0..module.instructions[id].operands.len() {
            let operand = module.instructions[id].operands[number];
            let Some(rows) = self.treatments[&id].operands[number] else { continue };
            if self.is_wide(operand) {
                let treatment = by_result(module, operand, self.n, rows);
                self.propose(Some(id), treatment.map(|treatment| (operand, treatment)));
            }
        }
    }

    fn add_users(&mut self, id: InstructionId, rows: Rows, is_wanted: impl Fn(Candidate) -> bool) {
        let RegionContext { module, places, .. } = self.program;
        for &user in places.users.of(id) {
            let numbers = 0..module.instructions[user].operands.len();
            for number in numbers.filter(|&i| module.instructions[user].operands[i] == id) {
                let Some(treatment) = by_operand(module, user, self.n, number, rows) else { continue };
                let class = cost::class_of(module, user);
                let is_between =
                    matches!(class, CostClass::Cheap | CostClass::Free | CostClass::Hero(Hero::Reduction));
                let candidate = Candidate {
                    is_wide: self.is_wide(user),
                    is_cheap: is_between && treatment.rows().is_some(),
                };
                if is_wanted(candidate) {
                    self.propose(Some(id), Some((user, treatment)));
                    break;
                }
            }
        }
    }

    /// The wide members that lead to the seed, as it leads to them. Not all do: a region grows from a narrow array to a wide
    /// one that reads it, but not back.
    fn seeds(&self, seed: InstructionId) -> Vec<InstructionId> {
        let mut found: FxHashSet<InstructionId> = FxHashSet::default();
        let mut open = vec![seed];
        while let Some(id) = open.pop().filter(|_| !self.depends_on_seed) {
            if found.insert(id) {
                open.extend(self.ways.get(&id).into_iter().flatten());
            }
        }
        found.into_iter().filter(|id| self.is_wide.get(id) == Some(&true)).collect()
    }

    /// Removes instructions that depend only on narrow values of the region and on values from outside, if they are no
    /// larger than those: for instance the mask of a dropout instead of its random numbers.
    fn leave_out_what_is_brought(&mut self, seed: InstructionId) {
        let RegionContext { module, target, .. } = self.program;
        let bytes = |id: InstructionId| cost::result_bytes(module, target, id);
        for id in self.program.places.in_order(self.treatments.keys().copied()) {
            let instruction = &module.instructions[id];
            if !self.is_wide[&id] || cost::class_of(module, id) != CostClass::Cheap {
                continue;
            }
            let is_made_here = |&operand: &InstructionId| {
                self.treatments.contains_key(&operand) && !is_repetition(&module.instructions[operand].op)
            };
            let is_brought = |&operand: &InstructionId| {
                self.is_wide(operand)
                    && !self.treatments.contains_key(&operand)
                    && !matches!(module.instructions[operand].op, Op::Parameter { .. })
            };
            let brought: u64 = instruction
                .operands
                .iter()
                .copied()
                .filter(is_brought)
                .map(bytes)
                .fold(0, u64::saturating_add);
            if bytes(id) <= brought && !instruction.operands.iter().any(is_made_here) {
                match id == seed {
                    true => self.depends_on_seed = true,
                    false => drop(self.treatments.remove(&id)),
                }
            }
        }
    }

    /// In which stage each instruction from the first member to the last is: that of the members that it needs, and one
    /// more for each time that the way from there leads out of the region and in again.
    fn levels(&self, seed: InstructionId) -> FxHashMap<InstructionId, u32> {
        let RegionContext { module, places, .. } = self.program;
        let positions = || self.treatments.keys().map(|&id| places.positions[id] as usize);
        let first = positions().min().unwrap_or(0);
        let last = positions().max().unwrap_or(0);
        let instructions = &module.computations[module.instructions[seed].parent].instructions;
        let mut levels: FxHashMap<InstructionId, u32> = FxHashMap::default();
        for &id in &instructions[first..=last] {
            let instruction = &module.instructions[id];
            let is_member = self.treatments.contains_key(&id);
            let through_operands = instruction.operands.iter().enumerate().map(|(number, &operand)| {
                let leaves = self.treatments.contains_key(&operand)
                    && !(is_member && is_inner_edge(&self.treatments, id, number, operand));
                levels.get(&operand).copied().unwrap_or(0) + u32::from(leaves)
            });
            let through_control = instruction.control_predecessors.iter().map(|before| {
                levels.get(before).copied().unwrap_or(0) + u32::from(self.treatments.contains_key(before))
            });
            let level = through_operands.chain(through_control).max().unwrap_or(0);
            if is_member || level > 0 {
                levels.insert(id, level);
            }
        }
        levels
    }
}

/// An instruction that reads a member.
#[derive(Clone, Copy)]
struct Candidate {
    is_wide: bool,
    /// Whether it computes little, and rows of rows.
    is_cheap: bool,
}

/// Drops narrow members that nothing wide of their stage is made of, unless they read something wide.
fn drop_loose_ends(
    program: RegionContext<'_>,
    is_wide: &FxHashMap<InstructionId, bool>,
    levels: &FxHashMap<InstructionId, u32>,
    treatments: &mut FxHashMap<InstructionId, Treatment>,
) {
    let module = program.module;
    for id in program.places.in_order(treatments.keys().copied()).into_iter().rev() {
        let instruction = &module.instructions[id];
        let reads_wide = (instruction.operands.iter().enumerate()).any(|(number, &operand)| {
            is_inner_edge(treatments, id, number, operand)
                && (is_wide[&operand] || matches!(instruction.op, Op::GetTupleElement { .. }))
        });
        let is_between = || {
            program.places.users.of(id).iter().any(|&user| {
                let operands = &module.instructions[user].operands;
                let is_inner = |number| is_inner_edge(treatments, user, number, id);
                levels.get(&user) == levels.get(&id)
                    && (0..operands.len()).any(|number| operands[number] == id && is_inner(number))
            })
        };
        if !is_wide[&id] && !reads_wide && !is_between() {
            treatments.remove(&id);
        }
    }
}

/// Divides members among stages: from the last to the first, so that what a stage wants of an earlier one is known
/// when that one's turn comes.
fn stages(
    program: RegionContext<'_>,
    treatments: &FxHashMap<InstructionId, Treatment>,
    is_wide: &FxHashMap<InstructionId, bool>,
    levels: &FxHashMap<InstructionId, u32>,
) -> Vec<Stage> {
    let module = program.module;
    let members = program.places.in_order(treatments.keys().copied());
    let n_stages = members.iter().map(|id| levels[id] + 1).max().unwrap_or(0);
    let mut wanted: FxHashSet<InstructionId> = FxHashSet::default();
    let mut found = Vec::new();
    for level in (0..n_stages).rev() {
        let own: Vec<InstructionId> = members.iter().copied().filter(|id| levels[id] == level).collect();
        let is_result = |id: &InstructionId| {
            wanted.contains(id)
                || (!is_repetition(&module.instructions[*id].op) && is_read_outside(program, treatments, *id))
        };
        let results: Vec<InstructionId> = own.into_iter().filter(is_result).collect();
        let mut needed: FxHashSet<InstructionId> = results.iter().copied().collect();
        let mut kept: Vec<InstructionId> = Vec::new();
        let mut open = results.clone();
        while let Some(id) = open.pop() {
            for (number, &operand) in module.instructions[id].operands.iter().enumerate() {
                if !is_inner_edge(treatments, id, number, operand) || needed.contains(&operand) {
                    continue;
                }
                let is_again = is_wide[&operand] && is_cheap_again(program, operand);
                if levels[&operand] == level || is_again {
                    needed.insert(operand);
                    open.push(operand);
                } else {
                    kept.push(operand);
                }
            }
            if open.is_empty() {
                kept.retain(|&id| {
                    let again = sums_again(program, treatments, is_wide, &needed, id);
                    needed.extend(again.iter().flatten().copied());
                    open.extend(again.iter().flatten().copied());
                    again.is_none()
                });
            }
        }
        wanted.extend(kept);
        if !results.is_empty() {
            found.push(Stage { body: program.places.in_order(needed.into_iter()), results });
        }
    }
    found.reverse();
    found
}

/// Sums of rows, and what follows from them up to a narrow value of an earlier stage, if a stage computes all wide arrays
/// again that they are made of. One kernel computes a softmax, unless its sums are there already.
fn sums_again(
    program: RegionContext<'_>,
    treatments: &FxHashMap<InstructionId, Treatment>,
    is_wide: &FxHashMap<InstructionId, bool>,
    needed: &FxHashSet<InstructionId>,
    narrow: InstructionId,
) -> Option<Vec<InstructionId>> {
    let module = program.module;
    let mut again = Vec::new();
    let mut open = vec![narrow];
    while let Some(id) = open.pop() {
        if needed.contains(&id) {
            continue;
        }
        let is_cheap = match cost::class_of(module, id) {
            CostClass::Hero(Hero::Reduction) => is_sum_of_a_row(module, id),
            class => matches!(class, CostClass::Cheap | CostClass::Free),
        };
        let operands = module.instructions[id].operands.iter().enumerate();
        let is_inner =
            |&(number, &operand): &(usize, &InstructionId)| is_inner_edge(treatments, id, number, operand);
        let inner: Vec<InstructionId> = operands.filter(is_inner).map(|(_, &operand)| operand).collect();
        if is_wide[&id] || !is_cheap || treatments[&id].rows().is_none() || inner.is_empty() {
            return None;
        }
        again.push(id);
        open.extend(inner);
    }
    Some(again)
}

/// Whether a reduction is along the last dimension, and one kernel may hold a row.
fn is_sum_of_a_row(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let Op::Reduce { dimensions, .. } = &instruction.op else { return false };
    let extents = |id| module.shape(id).first_array().map(|array| &array.dimensions);
    let (&[dimension], Some(extents)) = (&dimensions[..], extents(instruction.operands[0])) else {
        return false;
    };
    dimension as usize + 1 == extents.len() && extents[dimension as usize] <= LONGEST_ROW
}

/// The longest row of which one kernel computes a softmax, in elements.
const LONGEST_ROW: i64 = 16384;

/// Whether computing an array anew in a later loop is better than keeping it.
fn is_cheap_again(program: RegionContext<'_>, id: InstructionId) -> bool {
    is_recomputable(program.module, program.target, id)
        || matches!(cost::class_of(program.module, id), CostClass::Hero(Hero::Update))
}

/// Whether an instruction outside the region reads a member, or one of it that needs it cut differently.
fn is_read_outside(
    program: RegionContext<'_>,
    treatments: &FxHashMap<InstructionId, Treatment>,
    id: InstructionId,
) -> bool {
    let module = program.module;
    let is_root = module.computations[module.instructions[id].parent].root == id;
    let is_sum = matches!(treatments[&id].outcome, Outcome::Sum(_));
    is_root
        || is_sum
        || program.places.users.of(id).iter().any(|&user| {
            let mut operands = module.instructions[user].operands.iter().enumerate();
            operands.any(|(number, &operand)| operand == id && !is_inner_edge(treatments, user, number, id))
        })
}

/// Elements of the largest array that an instruction makes.
fn element_count(module: &Module, id: InstructionId) -> u64 {
    module.shape(id).first_array().and_then(ArrayShape::element_count).unwrap_or(0)
}
