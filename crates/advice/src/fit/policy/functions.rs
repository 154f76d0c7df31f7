//! Functions that the program calls for each layer, as the call stacks of instructions tell.

use memplan_analysis::{Phase, SourceFrame, Sources};
use memplan_ir::{InstructionId, Module, Role, Users};
use rustc_hash::{FxHashMap, FxHashSet};

use super::lines::{Group, Kept, MadeOf, group, user_frames};
use crate::fit::candidate::Candidate;

/// The forward half of a program, and the functions that each instruction was made in.
pub(super) struct Functions<'m> {
    module: &'m Module,
    sources: Sources<'m>,
    users: Users,
    made_of: FxHashMap<InstructionId, MadeOf>,
    forward: Vec<InstructionId>,
    /// The user's lines that made an instruction, outermost first; those of its first operand if it has none itself.
    stacks: FxHashMap<InstructionId, Vec<SourceFrame<'m>>>,
    /// The instructions that were made in calls of each function.
    members: FxHashMap<&'m str, Vec<InstructionId>>,
    /// Equal for values that the same operation of the same line makes.
    places: FxHashMap<InstructionId, usize>,
}

impl<'m> Functions<'m> {
    /// Takes time linear in the frames of all call stacks.
    pub(super) fn new(program: &'m Candidate) -> Functions<'m> {
        let module = &program.module;
        let sources = Sources::new(module);
        let entry = module.entry_computation().instructions.iter().copied();
        let forward: Vec<InstructionId> =
            entry.filter(|&id| program.phases().of(id) == Phase::Forward).collect();
        let mut stacks: FxHashMap<InstructionId, Vec<SourceFrame<'m>>> = FxHashMap::default();
        let mut members: FxHashMap<&str, Vec<InstructionId>> = FxHashMap::default();
        let mut numbers: FxHashMap<Group, usize> = FxHashMap::default();
        let mut places: FxHashMap<InstructionId, usize> = FxHashMap::default();
        for &id in &forward {
            let mut stack: Vec<SourceFrame<'m>> = user_frames(&sources, id).collect();
            stack.reverse();
            if stack.is_empty() {
                let operands = module.instructions[id].operands.iter();
                let first =
                    operands.filter_map(|operand| stacks.get(operand)).find(|stack| !stack.is_empty());
                stack = first.cloned().unwrap_or_default();
            }
            for frame in stack.iter().filter(|frame| !frame.function.is_empty()) {
                let members = members.entry(frame.function).or_default();
                if members.last() != Some(&id) {
                    members.push(id);
                }
            }
            stacks.insert(id, stack);
            if let Some(place) = group(module, &sources, id) {
                let next = numbers.len();
                places.insert(id, *numbers.entry(place).or_insert(next));
            }
        }
        let (users, made_of) = (Users::new(module), MadeOf::all(module));
        Functions { module, sources, users, made_of, forward, stacks, members, places }
    }

    /// The names of all functions, in alphabetical order.
    pub(super) fn names(&self) -> Vec<&'m str> {
        let mut names: Vec<&str> = self.members.keys().copied().collect();
        names.sort_unstable();
        names
    }

    /// Whether an instruction was made in a call of a function.
    pub(super) fn is_in(&self, id: InstructionId, function: &str) -> bool {
        self.call(id, function).is_some()
    }

    /// The place of a function's call in the stack of an instruction: of the outermost if it calls itself.
    fn call(&self, id: InstructionId, function: &str) -> Option<usize> {
        self.stacks.get(&id)?.iter().position(|frame| frame.function == function)
    }

    pub(super) fn sources(&self) -> &Sources<'m> {
        &self.sources
    }

    /// What the calls of a function return, in the order of the program, if a call reads what another one returned. A
    /// call's result is read by the function's caller, or in an earlier line of the function, by the next call; other values
    /// are read in later lines.
    ///
    /// ```text
    ///   def layer(x, w):
    ///       y = x @ w               is read in the next line
    ///       return x + tanh(y)      is read by `x @ w` of the next layer, and outside
    /// ```
    pub(super) fn results(&self, function: &str) -> Option<Vec<InstructionId>> {
        let mut results = Vec::new();
        // For each place in the function that makes results: whether the last of them is read outside, as that of the last
        // call is. The last of a loop within one call is read later in that call.
        let mut is_last_outside: FxHashMap<Option<usize>, bool> = FxHashMap::default();
        let mut read_by_next: FxHashSet<Option<usize>> = FxHashSet::default();
        for &id in self.members.get(function)?.iter().filter(|&&id| self.can_be_result(id)) {
            let Some(call) = self.call(id, function) else { continue };
            let place = self.places.get(&id).copied();
            let is_forward = |reader: &&InstructionId| self.stacks.contains_key(reader);
            let readers = || self.users.of(id).iter().filter(is_forward);
            let is_outside = readers().any(|&reader| !self.is_in(reader, function));
            let is_by_next = readers().any(|&reader| self.is_in_next(id, reader, call, function));
            is_last_outside.insert(place, is_outside);
            if is_by_next {
                read_by_next.insert(place);
            }
            if is_outside || is_by_next {
                results.push(id);
            }
        }
        let are_calls = read_by_next.iter().all(|place| is_last_outside[place]);
        (are_calls && self.is_chain(&results)).then_some(results)
    }

    fn can_be_result(&self, id: InstructionId) -> bool {
        let computes = self.module.instructions[id].op.traits().role == Role::Computes;
        computes && self.module.shape(id).as_array().is_some() && self.made_of[&id] == MadeOf::More
    }

    /// Whether a reader of a value is in another call of the function than the value.
    fn is_in_next(&self, made: InstructionId, reader: InstructionId, call: usize, function: &str) -> bool {
        let (made, read) = (&self.stacks[&made], &self.stacks[&reader]);
        let Some(frame) = read.get(call).filter(|frame| frame.function == function) else { return false };
        let is_same_caller = made[..call].iter().zip(read).all(|(a, b)| (a.file, a.line) == (b.file, b.line));
        // Arguments over several lines are read by the call that is written around them.
        let is_around = (frame.line..=frame.end_line).contains(&made[call].line);
        !is_same_caller || frame.line < made[call].line && !is_around
    }

    /// Whether a value is computed from another that is made in the same place.
    fn is_chain(&self, values: &[InstructionId]) -> bool {
        let mut of_place: FxHashMap<usize, Vec<InstructionId>> = FxHashMap::default();
        for &id in values {
            if let Some(&place) = self.places.get(&id) {
                of_place.entry(place).or_default().push(id);
            }
        }
        of_place.retain(|_, values| values.len() > 1);
        if of_place.is_empty() {
            return false;
        }
        // Places beyond 64 share a bit.
        let bits = of_place
            .values()
            .enumerate()
            .flat_map(|(i, values)| values.iter().map(move |&id| (id, 1 << i.min(63))));
        let bit_of: FxHashMap<InstructionId, u64> = bits.collect();
        // The places of values that each instruction is computed from.
        let mut from: FxHashMap<InstructionId, u64> = FxHashMap::default();
        for &id in &self.forward {
            let bit = |set: &FxHashMap<InstructionId, u64>, of| set.get(of).copied().unwrap_or(0);
            let operands = self.module.instructions[id].operands.iter();
            let all =
                operands.map(|operand| bit(&from, operand) | bit(&bit_of, operand)).fold(0, |a, b| a | b);
            if all & bit(&bit_of, &id) != 0 {
                return true;
            }
            from.insert(id, all);
        }
        false
    }

    /// Whether values end steps of a loop in Python, as far as lines tell: all but the last are read in lines that are not
    /// later.
    pub(super) fn end_steps(&self, kept: &[Kept]) -> bool {
        let last = kept.iter().max_by_key(|kept| kept.depth).map(|kept| kept.id);
        let is_read_later = |id: InstructionId| {
            self.users.of(id).iter().filter_map(|reader| self.stacks.get(reader)).any(|read| {
                let parts = self.stacks[&id]
                    .iter()
                    .zip(read)
                    .find(|(a, b)| a.line != b.line || a.function != b.function);
                parts
                    .is_some_and(|(a, b)| a.function != b.function || a.line < b.line || b.end_line >= a.line)
            })
        };
        kept.iter().filter(|kept| Some(kept.id) != last).all(|kept| !is_read_later(kept.id))
    }
}
