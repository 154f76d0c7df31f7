//! Segments: parts of the program between two cuts, arrays through which all paths of the program pass.
//!
//! ```text
//!   image ── conv ── a ── conv ── b ── conv ── c ── add ── d        a, b, d are cuts; c is not, since b reaches the sum
//!                                 └──────────────────┘              another way
//! ```
//!
//! The rows of the end of a segment are computed from rows of its beginning (or of the program's arguments) and from
//! whole arrays, such as weights. Values inside a segment have no readers outside.

use std::collections::BTreeSet;

use cranelift_entity::SecondaryMap;
use memplan_ir::{InstructionId, Module, Op, Users};
use memplan_rewriter::cost::{self, CostClass, Hero};
use rustc_hash::{FxHashMap, FxHashSet};

use super::reach::{Treatment, by_rows};

/// An instruction inside of a segment, or its end.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) id: InstructionId,
    pub(super) treatment: Treatment,
}

/// Everything that the rows of an array are computed from, up to an earlier cut or the arguments of the program.
pub(super) struct Segment<'a> {
    /// The array that it begins with; `None`: only arguments and constants.
    pub(super) from: Option<InstructionId>,
    pub(super) to: InstructionId,
    /// The last instruction of the text first, which is `to`.
    pub(super) members: Vec<&'a Member>,
    /// Those of which each row is made of the same row of narrower arrays.
    pub(super) of_narrower_rows: FxHashSet<InstructionId>,
}

/// The segments that end with one array.
pub(super) struct Ending {
    pub(super) to: InstructionId,
    /// The members of the longest segment.
    members: Vec<Member>,
    /// Where segments begin, and how many of the members they have.
    beginnings: Vec<(Option<InstructionId>, usize)>,
}

impl Ending {
    /// The segments, the shortest first. Takes time proportional to their members.
    pub(super) fn segments(&self, program: &Program<'_>) -> impl Iterator<Item = Segment<'_>> {
        self.beginnings.iter().filter_map(|&(from, n)| {
            let mut members: Vec<&Member> = self.members[..n].iter().collect();
            members.sort_unstable_by_key(|member| std::cmp::Reverse(program.positions[member.id]));
            let of_narrower_rows = program.made_of_narrower_rows(&members);
            let segment = Segment { from, to: self.to, members, of_narrower_rows };
            (!segment.reads_a_member_whole(program.module)).then_some(segment)
        })
    }
}

impl Segment<'_> {
    /// Whether a member is there in bands only, while another one reads all of it, as the product of an array with itself.
    fn reads_a_member_whole(&self, module: &Module) -> bool {
        let inside: FxHashSet<InstructionId> = self.members.iter().map(|member| member.id).collect();
        self.members.iter().any(|member| {
            let mut operands = module.instructions[member.id].operands.iter().zip(&member.treatment.operands);
            operands.any(|(operand, reach)| reach.is_none() && inside.contains(operand))
        })
    }
}

/// The entry, and which of its arrays are stored in any case.
pub(super) struct Program<'a> {
    pub(super) module: &'a Module,
    pub(super) users: Users,
    /// The place of each instruction in the text.
    pub(super) positions: SecondaryMap<InstructionId, u32>,
    /// Arrays that kernels read as wholes or through windows: the narrowest on the way from one kernel to the next.
    pub(super) stored: FxHashSet<InstructionId>,
    /// Until where in the text each stored array is read.
    pub(super) last_reads: FxHashMap<InstructionId, u32>,
}

impl<'a> Program<'a> {
    /// Linear.
    pub(super) fn new(module: &'a Module) -> Program<'a> {
        let entry = module.entry_computation();
        let mut positions = SecondaryMap::with_capacity(module.instructions.len());
        for (position, &id) in entry.instructions.iter().enumerate() {
            positions[id] = position as u32;
        }
        let mut stored: FxHashSet<InstructionId> = FxHashSet::default();
        for &id in &entry.instructions {
            if matches!(cost::class_of(module, id), CostClass::Hero(_)) {
                let operands = module.instructions[id].operands.iter();
                stored.extend(operands.map(|&operand| narrowest(module, operand)));
            }
        }
        match &module.instructions[entry.root].op {
            Op::Tuple => stored.extend(&module.instructions[entry.root].operands),
            _ => stored.extend([entry.root]),
        }
        stored.retain(|&id| is_computed(module, id));
        let users = Users::new(module);
        let mut consumed: FxHashMap<InstructionId, u32> = FxHashMap::default();
        let mut last_reads: FxHashMap<InstructionId, u32> = FxHashMap::default();
        for &id in entry.instructions.iter().rev() {
            let last = users.of(id).iter().filter_map(|user| consumed.get(user)).copied().max();
            let last = last.unwrap_or(positions[id]);
            let is_stored = stored.contains(&id);
            if is_stored {
                last_reads.insert(id, last);
            }
            // A kernel reads its operands until it has stored its result.
            consumed.insert(id, if is_stored { positions[id] } else { last });
        }
        Program { module, users, positions, stored, last_reads }
    }

    /// The cuts in the order of the text, each with the segments that end there. Takes time proportional to the program
    /// for each cut, at most `max_members` instructions.
    pub(super) fn endings(&self, max_members: usize) -> Vec<Ending> {
        let dimensions = self.row_dimensions();
        let in_text = &self.module.entry_computation().instructions;
        let ends = in_text.iter().filter_map(|&id| Some((id, *dimensions.get(&id)?)));
        let ends = ends.filter(|(id, _)| self.stored.contains(id));
        ends.filter_map(|(id, dimension)| self.ending(id, dimension, max_members)).collect()
    }

    /// The members of which each row is made of the same row of stored arrays with fewer bytes together. Of what is not
    /// stored, those of which each row is made of the same row of its operands.
    fn made_of_narrower_rows(&self, members: &[&Member]) -> FxHashSet<InstructionId> {
        // The bytes of what a member's rows are made of; `None` if other rows matter.
        let mut made_of: FxHashMap<InstructionId, Option<u64>> = FxHashMap::default();
        let mut found: FxHashSet<InstructionId> = FxHashSet::default();
        for member in members.iter().rev() {
            let operands =
                self.module.instructions[member.id].operands.iter().zip(&member.treatment.operands);
            let of = operands.map(|(operand, reach)| match (reach, made_of.get(operand)) {
                // Whole arrays are there anyway.
                (None, _) => Some(0),
                (Some(reach), _) if !reach.is_same_row() => None,
                (Some(_), None) => Some(0),
                (Some(_), Some(_)) if self.stored.contains(operand) => {
                    Some(array_bytes(self.module, *operand))
                }
                (Some(_), Some(of)) => *of,
            });
            let bytes = of.reduce(|a, b| Some(a?.saturating_add(b?))).unwrap_or(Some(0));
            let is_stored = self.stored.contains(&member.id);
            if bytes.is_some_and(|bytes| !is_stored || bytes < array_bytes(self.module, member.id)) {
                found.insert(member.id);
            }
            made_of.insert(member.id, bytes);
        }
        found
    }

    /// The dimension of rows of each array that has some: the outermost one along which windows move, and what follows
    /// from that.
    fn row_dimensions(&self) -> FxHashMap<InstructionId, usize> {
        let module = self.module;
        let mut found: FxHashMap<InstructionId, usize> = FxHashMap::default();
        for &id in &module.entry_computation().instructions {
            let instruction = &module.instructions[id];
            let dimension = match &instruction.op {
                Op::Convolution(it) => it.dimensions.output_spatial.first().map(|&d| d as usize),
                Op::ReduceWindow(window) => window.dimensions.iter().position(|window| !window.is_still()),
                _ => {
                    let rank = module.plain_array(id).map_or(0, |array| array.rank());
                    let has_rows = instruction.operands.iter().any(|operand| found.contains_key(operand));
                    (0..rank).filter(|_| has_rows).find(|&d| {
                        let treatment = by_rows(module, id, d);
                        let operands =
                            treatment.iter().flat_map(|it| &it.operands).zip(&instruction.operands);
                        let mut dimensions = operands.map(|(reach, operand)| {
                            reach.is_some_and(|reach| found.get(operand) == Some(&reach.dimension))
                        });
                        dimensions.any(|is_along| is_along)
                    })
                }
            };
            if let Some(dimension) = dimension {
                found.insert(id, dimension);
            }
        }
        found
    }

    /// Walks back from an array. Where a single computed array is still open, that is a cut.
    fn ending(&self, to: InstructionId, dimension: usize, max_members: usize) -> Option<Ending> {
        let module = self.module;
        let root = module.entry_computation().root;
        let mut members: Vec<Member> = Vec::new();
        let mut inside: FxHashSet<InstructionId> = FxHashSet::default();
        let mut dimensions: FxHashMap<InstructionId, usize> = FxHashMap::from_iter([(to, dimension)]);
        let mut open: BTreeSet<(u32, InstructionId)> = BTreeSet::from_iter([(self.positions[to], to)]);
        let mut beginnings = Vec::new();
        'walk: while let Some((_, id)) = open.pop_last() {
            if id != to && open.is_empty() && self.stored.contains(&id) {
                beginnings.push((Some(id), members.len()));
            }
            let is_read_inside = || id != root && self.users.of(id).iter().all(|user| inside.contains(user));
            if members.len() >= max_members || id != to && !is_read_inside() {
                break;
            }
            let Some(treatment) = by_rows(module, id, dimensions[&id]) else { break };
            for (&operand, reach) in module.instructions[id].operands.iter().zip(&treatment.operands) {
                let Some(reach) = reach.filter(|_| is_computed(module, operand)) else { continue };
                if *dimensions.entry(operand).or_insert(reach.dimension) != reach.dimension {
                    break 'walk;
                }
                match repetition(module, operand, reach.dimension) {
                    Some(treatment) if inside.insert(operand) => {
                        members.push(Member { id: operand, treatment })
                    }
                    Some(_) => {}
                    None => {
                        open.insert((self.positions[operand], operand));
                    }
                }
            }
            members.push(Member { id, treatment });
            inside.insert(id);
            if open.is_empty() {
                beginnings.push((None, members.len()));
            }
        }
        (!beginnings.is_empty()).then_some(Ending { to, members, beginnings })
    }
}

/// How to make rows of an array that repeats numbers: it is made again wherever it is needed.
fn repetition(module: &Module, id: InstructionId, dimension: usize) -> Option<Treatment> {
    let repeats = matches!(module.instructions[id].op, Op::Broadcast { .. } | Op::Constant(_));
    let treatment = by_rows(module, id, dimension).filter(|_| repeats)?;
    treatment.operands.iter().all(Option::is_none).then_some(treatment)
}

/// Whether an array is neither an argument nor a constant that has to be stored.
pub(super) fn is_computed(module: &Module, id: InstructionId) -> bool {
    let is_stored_constant =
        |op: &Op| matches!(op, Op::Constant(_)) && memplan_rewriter::loops::scalar(module, id).is_none();
    let op = &module.instructions[id].op;
    let rank = module.shape(id).as_array().map_or(0, |array| array.rank());
    !matches!(op, Op::Parameter { .. }) && !is_stored_constant(op) && rank > 0
}

/// The narrowest array on the way from the kernel before, through operations on one element each.
fn narrowest(module: &Module, id: InstructionId) -> InstructionId {
    let bytes = |id| array_bytes(module, id);
    let (mut at, mut found) = (id, id);
    while !matches!(
        cost::class_of(module, at),
        CostClass::Hero(Hero::Dot | Hero::Convolution | Hero::Reduction)
    ) && cost::is_bijective(module, at)
    {
        let mut arrays =
            module.instructions[at].operands.iter().filter(|&&operand| is_computed(module, operand));
        let (Some(&operand), None) = (arrays.next(), arrays.next()) else { break };
        at = operand;
        if bytes(at) < bytes(found) {
            found = at;
        }
    }
    found
}

fn array_bytes(module: &Module, id: InstructionId) -> u64 {
    module.shape(id).as_array().and_then(|array| array.dense_bytes()).unwrap_or(0)
}
