//! The backing memory of an array that a loop or a conditional replaces by a new one, and whether the new array may be
//! written there without a copy.

use memplan_ir::{InstructionId, Module, Op, Role, ShapeIndex, Users};
use memplan_rewriter::loops::Loop;
use rustc_hash::{FxHashMap, FxHashSet};

/// Most instructions that are looked at to see whether one comes before another.
const MAX_WALK: usize = 4096;

/// The memory that an element of a loop's state begins in, and that nobody needs after the loop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// A parameter that the caller gives up.
    Parameter(u32, ShapeIndex),
    /// An element of the state of the loop around, whose body ends with this tuple.
    State(InstructionId, u32),
    /// The result of some instruction.
    Temporary,
}

/// The loops of a module, indexed by both ends of their bodies.
pub(crate) struct Backings<'a> {
    module: &'a Module,
    users: &'a Users,
    by_id: FxHashMap<InstructionId, &'a Loop>,
    by_state: FxHashMap<InstructionId, &'a Loop>,
}

impl<'a> Backings<'a> {
    pub(crate) fn new(module: &'a Module, users: &'a Users, loops: &'a [Loop]) -> Backings<'a> {
        let by_id = loops.iter().map(|of| (of.id, of)).collect();
        let by_state = loops.iter().map(|of| (of.state, of)).collect();
        Backings { module, users, by_id, by_state }
    }

    /// The backing of a value passed to a loop or a conditional, through its holders: tuples on the way, and last the
    /// loop or the conditional, or its operand. `None` if the value is needed by anything that the last holder is not
    /// computed from, or if the program may not write it.
    pub(crate) fn of(&self, value: InstructionId, holders: &[InstructionId]) -> Option<Backing> {
        let (mut holder, mut id) = (None, value);
        loop {
            let is_held = |user: &InstructionId| match holder {
                Some(holder) => holder == *user,
                None => holders.contains(user),
            };
            let others = self.users.of(id).iter().filter(|user| !is_held(user));
            let last = *holders.last()?;
            for &other in others {
                if !self.is_read_before(id, other, last) {
                    return None;
                }
            }
            let instruction = &self.module.instructions[id];
            match instruction.op {
                Op::Reshape { .. } | Op::Bitcast => (holder, id) = (Some(id), instruction.operands[0]),
                Op::GetTupleElement { index } => match self.element(instruction.operands[0], index, id)? {
                    Element::Is(backing) => return Some(backing),
                    Element::From(tuple) => (holder, id) = (Some(tuple), self.operand(tuple, index)),
                },
                Op::Parameter { number } => return self.parameter(id, number, ShapeIndex::root()),
                Op::Constant(_) | Op::OptimizationBarrier => return None,
                _ => return Some(Backing::Temporary),
            }
        }
    }

    /// Whether a user only reads a value, and another instruction depends on its result.
    fn is_read_before(&self, value: InstructionId, user: InstructionId, last: InstructionId) -> bool {
        let is_read = match &self.module.instructions[user].op {
            // A loop that does not return it.
            Op::Tuple => self.users.of(user).iter().all(|of| match self.by_id.get(of) {
                Some(of) => {
                    (0u32..).zip(&self.module.instructions[user].operands).all(|(element, &operand)| {
                        operand != value
                            || of.passes_on(self.module, element) && !of.results.contains_key(&element)
                    })
                }
                None => false,
            }),
            Op::Reshape { .. } | Op::Transpose { .. } | Op::DynamicUpdateSlice => false,
            op => !matches!(op.traits().role, Role::PassesOn | Role::Regroups | Role::Calls),
        };
        is_read && self.comes_before(user, last)
    }

    /// Whether an instruction is computed from another, as far as a bounded walk shows.
    fn comes_before(&self, first: InstructionId, last: InstructionId) -> bool {
        let mut open = vec![last];
        let mut seen: FxHashSet<InstructionId> = FxHashSet::default();
        while let Some(id) = open.pop() {
            if id == first {
                return true;
            }
            if seen.len() < MAX_WALK {
                let operands = self.module.instructions[id].operands.iter().copied();
                open.extend(operands.filter(|&operand| seen.insert(operand)));
            }
        }
        false
    }

    /// The backing of an element of a tuple that is read only here.
    fn element(&self, tuple: InstructionId, index: u32, here: InstructionId) -> Option<Element> {
        let is_taken_here_only =
            self.users.of(tuple).iter().all(|&user| match self.module.instructions[user].op {
                Op::GetTupleElement { index: other } => user == here || other != index,
                _ => false,
            });
        if !is_taken_here_only {
            return None;
        }
        match self.module.instructions[tuple].op {
            Op::Tuple => Some(Element::From(tuple)),
            Op::Parameter { number } => match self.by_state.get(&tuple) {
                Some(around) => Some(Element::Is(Backing::State(around.next, index))),
                None => {
                    self.parameter(tuple, number, ShapeIndex([index].into_iter().collect())).map(Element::Is)
                }
            },
            Op::While => match self.by_id.get(&tuple)? {
                before if before.passes_on(self.module, index) => Some(Element::From(before.init)),
                _ => Some(Element::Is(Backing::Temporary)),
            },
            Op::OptimizationBarrier => None,
            _ => Some(Element::Is(Backing::Temporary)),
        }
    }

    fn parameter(&self, id: InstructionId, number: u32, index: ShapeIndex) -> Option<Backing> {
        let is_given_up = self.module.config.given_up().any(|(of, at)| (of, at) == (number, &index));
        let is_of_caller = self.module.instructions[id].parent == self.module.entry;
        (is_of_caller && is_given_up).then_some(Backing::Parameter(number, index))
    }

    /// Whether a result goes where something lives; `None` when it must be in another place.
    pub(crate) fn goes_to(&self, results: &[InstructionId], backing: &Backing) -> Option<bool> {
        let mut open = results.to_vec();
        let mut goes_there = false;
        while let Some(id) = open.pop() {
            if id == self.module.entry_computation().root {
                goes_there |= self.is_output(backing, &ShapeIndex::root())?;
            }
            for &user in self.users.of(id) {
                match self.module.instructions[user].op {
                    Op::Reshape { .. } | Op::Bitcast => open.push(user),
                    Op::Tuple => {
                        let operands = &self.module.instructions[user].operands;
                        let at =
                            (0u32..).zip(operands).filter(|&(_, &operand)| operand == id).map(|(i, _)| i);
                        for i in at {
                            goes_there |= self.is_place(backing, user, i)?;
                        }
                    }
                    _ => {}
                }
            }
        }
        Some(goes_there)
    }

    /// As [`Backings::goes_to`], for an operand of a tuple.
    fn is_place(&self, backing: &Backing, tuple: InstructionId, index: u32) -> Option<bool> {
        let is_result = tuple == self.module.entry_computation().root;
        match backing {
            _ if is_result => self.is_output(backing, &ShapeIndex([index].into_iter().collect())),
            Backing::State(next, element) if *next == tuple => (*element == index).then_some(true),
            _ => Some(false),
        }
    }

    /// As [`Backings::goes_to`], for a result of the program.
    pub(crate) fn is_output(&self, backing: &Backing, output: &ShapeIndex) -> Option<bool> {
        let mut aliases = self.module.config.input_output_alias.iter();
        let alias = aliases.find(|alias| alias.output_index == *output);
        match (backing, alias) {
            (Backing::Parameter(number, index), Some(alias)) => {
                (alias.parameter == *number && alias.parameter_index == *index).then_some(true)
            }
            // The donor may be any result that no other parameter is meant for.
            (Backing::Parameter(number, index), None) => {
                let config = &self.module.config;
                let is_it = |alias: &memplan_ir::InputOutputAlias| {
                    alias.parameter == *number && alias.parameter_index == *index
                };
                (!config.input_output_alias.iter().any(is_it)).then_some(false)
            }
            _ => Some(false),
        }
    }

    fn operand(&self, tuple: InstructionId, index: u32) -> InstructionId {
        self.module.instructions[tuple].operands[index as usize]
    }
}

/// The element of a tuple.
enum Element {
    Is(Backing),
    /// The operand of this tuple.
    From(InstructionId),
}
