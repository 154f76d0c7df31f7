//! Storage: which values share bytes, by need and by choice, and their kind of memory.
//!
//! Starts from the groups of values that must share. Then, in order of time, a result reuses the storage of a dying
//! operand if the operation reads each element before it writes it:
//!
//! ```text
//!   a = exponential(p)      storage 1  [------)
//!   b = negate(a)                         [------)   b takes over storage 1: a is read last here
//! ```
//!
//! XLA restricts this to groups of one value, on both sides. Here, any two groups can share that are live together only
//! at instants that write one over the other. There may be several such instants, since a group may be needed at
//! separate times:
//!
//! ```text
//!   x             given                     [---)
//!   y = f(x)      read by others, too         [---------)
//!   r = g(y, s)   must end where x was                [-----)
//! ```
//!
//! If `y` is written over `x`, and `r` over `y`, all three are one storage.

use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap, entity_impl};
use memplan_program::{LiveRange, Origin, Program, Time, Value, ValueId};
use memplan_units::{Alignment, Bytes, MemorySpaceId};

use crate::PlaceError;

/// Values that live at one offset of one allocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageId(u32);
entity_impl!(StorageId, "storage");

/// Values that live at one offset of one allocation.
#[derive(Clone, Debug)]
pub struct Storage {
    /// The values.
    pub values: Vec<ValueId>,
    /// When any of them is live: disjoint, ascending. Ranges that touch stay apart: where one ends and the next begins,
    /// others may be written in between.
    pub busy: Vec<LiveRange>,
    /// The kind of memory.
    pub kind: StorageKind,
    /// In which space.
    pub space: MemorySpaceId,
    /// The size of the largest.
    pub size: Bytes,
    /// The strictest alignment that one of them asks for.
    pub alignment: Alignment,
}

/// The kind of memory that values live in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageKind {
    /// They need no memory.
    Nowhere,
    /// An argument.
    Argument,
    /// A result.
    Output,
    /// Constant data.
    Constant,
    /// The arena.
    Temp,
}

/// The partition of values into storages.
#[derive(Clone, Debug)]
pub struct Storages {
    /// The storages. Those that were taken over are left empty.
    pub all: PrimaryMap<StorageId, Storage>,
    /// The program's data about each value.
    pub values: PrimaryMap<ValueId, Value>,
    /// How many instants there are.
    pub end: Time,
    of_value: SecondaryMap<ValueId, StorageId>,
}

/// Which storages may be taken over. Taking over lowers the bytes live at once, but a storage that is needed at many
/// separate times is harder to pack, so that sometimes less is more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeOver {
    /// Any two that are otherwise never live together.
    Any,
    /// Only those whose groups have one value each, as XLA does it.
    SingleValues,
    /// Of these, only results of the same shape as the operand, as XLA does it on CPUs.
    SameShapes,
    /// Also chains of these, but only temporaries of the same shape as the operand, which is an array that was written alone, as
    /// libtpu does it.
    Arrays,
}

impl TakeOver {
    /// Whether operand and result of an instant have shapes with which one may take over the other.
    fn has_shape(self, program: &impl Program, time: Time, operand: ValueId, result: ValueId) -> bool {
        let is_same = || program.is_same_shape(time, operand, result);
        match self {
            TakeOver::Any | TakeOver::SingleValues => true,
            TakeOver::SameShapes => is_same(),
            TakeOver::Arrays => program.reads_alone(time, operand) && is_same(),
        }
    }
}

/// Which storages may become one by choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Among {
    /// Temps, also with an argument or a result.
    All,
    /// Temps only, since it has been decided which are in arguments and results.
    Temps,
}

impl Storages {
    /// Decides which values of a program share storage. Close to linear in values and in what instants read and write.
    ///
    /// # Errors
    /// When a group cannot exist, such as one of two arguments, or a constant that would be overwritten; when a live range
    /// is none.
    pub fn new(program: &impl Program, policy: TakeOver) -> Result<Storages, PlaceError> {
        Ok(Storages::of_groups(program)?.shared_by_choice(program, policy, Among::All))
    }

    /// Lets results take over operands, where every group has a storage of its own so far.
    pub(crate) fn shared_by_choice(self, program: &impl Program, policy: TakeOver, among: Among) -> Storages {
        let storages = self;
        let mut build = Build {
            program,
            policy,
            among,
            is_alone: storages.lone_values(),
            storages,
            written_at: SecondaryMap::new(),
        };
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for time in (0..program.end()).filter(|&time| program.may_reuse(time)) {
            reads.extend(program.reads(time));
            writes.extend(program.writes(time));
            build.take_over_operands(time, &reads, &writes);
            reads.clear();
            writes.clear();
        }
        build.storages
    }

    /// Whether the program may write into the place of a storage: not where constants are, or what the caller keeps.
    pub(crate) fn is_writable(&self, storage: &Storage) -> bool {
        let is_given =
            |&v: &ValueId| matches!(self.values[v].origin, Origin::Argument { writable: true, .. });
        match storage.kind {
            StorageKind::Constant => false,
            StorageKind::Argument => storage.values.iter().any(is_given),
            StorageKind::Output | StorageKind::Temp | StorageKind::Nowhere => true,
        }
    }

    /// Bytes of the argument in a storage; none where there is none.
    pub(crate) fn argument_of(&self, storage: &Storage) -> Bytes {
        self.largest(storage, |value| matches!(value.origin, Origin::Argument { .. }))
    }

    /// Bytes of the largest result in a storage; none where there is none.
    pub(crate) fn result_of(&self, storage: &Storage) -> Bytes {
        self.largest(storage, |value| value.is_result)
    }

    fn largest(&self, storage: &Storage, counts: impl Fn(&Value) -> bool) -> Bytes {
        let values = storage.values.iter().map(|&value| &self.values[value]);
        values.filter(|value| counts(value)).map(|value| value.size).max().unwrap_or_default()
    }

    /// The storage of a value.
    pub fn of(&self, value: ValueId) -> StorageId {
        self.of_value[value]
    }

    /// One storage for each group, in the order of their first values.
    pub(crate) fn of_groups(program: &impl Program) -> Result<Storages, PlaceError> {
        let n = program.n_values();
        let values: PrimaryMap<ValueId, Value> = (0..n).map(|i| program.value(ValueId::new(i))).collect();
        let mut members: PrimaryMap<StorageId, Vec<ValueId>> = PrimaryMap::with_capacity(n);
        let mut of_value = SecondaryMap::with_default(StorageId(0));
        of_value.resize(n);
        for (id, value) in &values {
            let LiveRange { start, end } = value.live;
            let is_kept = matches!(value.origin, Origin::Argument { writable: false, .. });
            let is_range = start < end
                && if is_kept || value.is_result { end == program.end() } else { end <= program.end() }
                && (start == 0 || !matches!(value.origin, Origin::Argument { .. }));
            if value.size > Bytes::ZERO && !is_range {
                return Err(PlaceError::Range { value: id });
            }
            let first = program.group(id);
            if first > id {
                return Err(PlaceError::Group { value: id, first });
            }
            let storage = if first == id { members.push(Vec::new()) } else { of_value[first] };
            members[storage].push(id);
            of_value[id] = storage;
        }
        let mut all = PrimaryMap::with_capacity(members.len());
        for (_, members) in members {
            let sized = members.iter().map(|&v| &values[v]).filter(|value| value.size > Bytes::ZERO);
            all.push(Storage {
                busy: overlapping_joined(sized.map(|value| value.live).collect()),
                kind: kind(&values, &members)?,
                space: values[members[0]].space,
                size: members.iter().map(|&v| values[v].size).max().unwrap_or_default(),
                alignment: members.iter().map(|&v| values[v].alignment).max().unwrap_or(Alignment::ONE),
                values: members,
            });
        }
        Ok(Storages { all, values, end: program.end(), of_value })
    }

    /// The values that are a group by themselves.
    fn lone_values(&self) -> SecondaryMap<ValueId, bool> {
        let mut is_alone = SecondaryMap::new();
        is_alone.resize(self.values.len());
        for storage in self.all.values() {
            if let [value] = storage.values[..] {
                is_alone[value] = true;
            }
        }
        is_alone
    }
}

struct Build<'a, P> {
    program: &'a P,
    policy: TakeOver,
    among: Among,
    storages: Storages,
    /// Whether a value is a group by itself.
    is_alone: SecondaryMap<ValueId, bool>,
    /// The last instant that is known to write into a storage, plus one.
    written_at: SecondaryMap<StorageId, Time>,
}

impl<P: Program> Build<'_, P> {
    /// Lets each result of an instant reuse the storage of one operand that dies there. Operands in an argument or
    /// output come first, since that leaves room in the arena.
    fn take_over_operands(&mut self, time: Time, reads: &[ValueId], writes: &[ValueId]) {
        let storages = &self.storages;
        // At the last instant a result ends, too, and is needed all the same.
        let dies = |value: ValueId| {
            let Value { live, is_result, .. } = storages.values[value];
            live.end == time + 1 && !is_result
        };
        let dying = reads.iter().filter(|&&value| dies(value)).map(|&value| (value, storages.of(value)));
        let (inside, mut candidates): (Vec<_>, Vec<_>) =
            dying.partition(|&(_, storage)| storages.all[storage].kind == StorageKind::Temp);
        candidates.extend(inside);
        if candidates.is_empty() {
            return;
        }
        let mut read: Vec<_> = reads.iter().map(|&value| (storages.of(value), value)).collect();
        read.sort_unstable();
        // Two results cannot be written to one place, even if nobody reads them.
        for &result in writes {
            self.written_at[storages.of(result)] = time + 1;
        }
        // Candidates taken over at the front are skipped: the results of an all-reduce take theirs in order.
        let mut rest = &candidates[..];
        for &result in writes {
            if self.storages.values[result].size == Bytes::ZERO {
                continue;
            }
            while let [(_, storage), others @ ..] = rest
                && self.written_at[*storage] == time + 1
            {
                rest = others;
            }
            let fits = |&&(operand, from): &&(ValueId, StorageId)| {
                let has_shape = || self.policy.has_shape(self.program, time, operand, result);
                let is_seen = || self.among == Among::All || self.program.reads_directly(time, operand);
                self.written_at[from] != time + 1
                    && has_shape()
                    && is_seen()
                    && self.can_merge(from, self.storages.of(result), time)
                    && self.may_overwrite(time, &read, from, result)
            };
            if let Some(&(_, from)) = rest.iter().find(fits) {
                let kept = self.storages.merge(from, self.storages.of(result));
                self.written_at[from] = time + 1;
                self.written_at[kept] = time + 1;
            }
        }
    }

    /// Whether an instant may write a result over a storage: everything that it reads there is read in step. `read` is all
    /// that it reads, in the order of the storages.
    fn may_overwrite(
        &self,
        time: Time,
        read: &[(StorageId, ValueId)],
        storage: StorageId,
        result: ValueId,
    ) -> bool {
        let begin = read.partition_point(|&(other, _)| other < storage);
        let mut held = read[begin..].iter().take_while(|&&(other, _)| other == storage);
        held.all(|&(_, value)| self.program.may_overwrite(time, value, result))
    }

    /// Whether two storages may be one: kinds agree, and wherever they are live together an instant writes one over the
    /// other. Of `time` the caller knows that.
    fn can_merge(&self, a: StorageId, b: StorageId, time: Time) -> bool {
        if a == b {
            return false;
        }
        let (first, second) = (&self.storages.all[a], &self.storages.all[b]);
        let kinds_agree = match (first.kind, second.kind) {
            (StorageKind::Temp, StorageKind::Temp) => true,
            _ if self.among == Among::Temps || self.policy == TakeOver::Arrays => false,
            (StorageKind::Temp, StorageKind::Argument | StorageKind::Output) => first.size <= second.size,
            (StorageKind::Argument | StorageKind::Output, StorageKind::Temp) => second.size <= first.size,
            _ => false,
        };
        // Values that the caller keeps are live to the end, and so are those that the last operation writes.
        let are_writable = self.storages.is_writable(first) && self.storages.is_writable(second);
        first.space == second.space
            && kinds_agree
            && are_writable
            && self.policy_allows(first, second)
            && never_together_but(&first.busy, &second.busy, |at, handover| match handover {
                _ if at == time => true,
                Some(Handover::ToSecond) => self.is_written_over(at, a, b),
                Some(Handover::ToFirst) => self.is_written_over(at, b, a),
                None => false,
            })
    }

    /// Whether an instant writes results in one storage over all that it reads in another, and nothing else there.
    fn is_written_over(&self, time: Time, old: StorageId, new: StorageId) -> bool {
        matches!(self.policy, TakeOver::Any | TakeOver::Arrays)
            && self.storages.is_written_over(self.program, self.policy, time, old, new)
    }

    fn policy_allows(&self, a: &Storage, b: &Storage) -> bool {
        self.policy == TakeOver::Any || a.values.iter().chain(&b.values).all(|&value| self.is_alone[value])
    }
}

impl Storages {
    /// Whether an instant writes results in one storage over all that it reads in another, and nothing else there.
    pub(crate) fn is_written_over(
        &self,
        program: &impl Program,
        policy: TakeOver,
        time: Time,
        old: StorageId,
        new: StorageId,
    ) -> bool {
        if !program.may_reuse(time) {
            return false;
        }
        let mut results: Vec<ValueId> = Vec::new();
        for result in program.writes(time) {
            if self.of(result) == old {
                return false;
            }
            if self.of(result) == new {
                results.push(result);
            }
        }
        let mut read = program.reads(time).filter(|&value| self.of(value) == old).peekable();
        let has_both = read.peek().is_some() && !results.is_empty();
        let may_overwrite = |value: ValueId, result: ValueId| {
            program.may_overwrite(time, value, result) && policy.has_shape(program, time, value, result)
        };
        has_both
            && read.all(|value| {
                !self.values[value].is_result && results.iter().all(|&result| may_overwrite(value, result))
            })
    }

    /// Whether two storages are never live together, but where an instant writes one over the other.
    pub(crate) fn never_interfere(
        &self,
        program: &impl Program,
        policy: TakeOver,
        a: StorageId,
        b: StorageId,
    ) -> bool {
        never_together_but(&self.all[a].busy, &self.all[b].busy, |time, handover| match handover {
            Some(Handover::ToSecond) => self.is_written_over(program, policy, time, a, b),
            Some(Handover::ToFirst) => self.is_written_over(program, policy, time, b, a),
            None => false,
        })
    }

    /// Makes one storage of two, and returns which.
    pub(crate) fn merge(&mut self, a: StorageId, b: StorageId) -> StorageId {
        let all = &mut self.all;
        // The one with fewer values moves, so that a long chain costs n log n.
        let (kept, moved) = if all[a].values.len() >= all[b].values.len() { (a, b) } else { (b, a) };
        let empty = Storage {
            values: Vec::new(),
            busy: Vec::new(),
            kind: StorageKind::Nowhere,
            space: all[moved].space,
            size: all[moved].size,
            alignment: all[moved].alignment,
        };
        let moved = std::mem::replace(&mut all[moved], empty);
        moved.values.iter().for_each(|&value| self.of_value[value] = kept);
        let whole = &mut all[kept];
        whole.values.extend(moved.values);
        insert_ranges(&mut whole.busy, moved.busy);
        whole.size = whole.size.max(moved.size);
        whole.alignment = whole.alignment.max(moved.alignment);
        if moved.kind != StorageKind::Temp {
            whole.kind = moved.kind;
        }
        kept
    }
}

/// The kind of memory for a group of values.
fn kind(values: &PrimaryMap<ValueId, Value>, group: &[ValueId]) -> Result<StorageKind, PlaceError> {
    let is_argument = |&v: &ValueId| matches!(values[v].origin, Origin::Argument { .. });
    let mut arguments = group.iter().copied().filter(is_argument);
    if let Some(first) = arguments.next() {
        return match arguments.next() {
            Some(second) => Err(PlaceError::Merged { first, second }),
            None => Ok(StorageKind::Argument),
        };
    }
    if group.iter().all(|&v| values[v].size == Bytes::ZERO) {
        return Ok(StorageKind::Nowhere);
    }
    let constant = group.iter().copied().find(|&v| values[v].origin == Origin::Constant);
    let is_result = group.iter().any(|&v| values[v].is_result);
    match constant {
        Some(constant) if group.len() > 1 || is_result => Err(PlaceError::ReadOnly { constant }),
        Some(_) => Ok(StorageKind::Constant),
        None if is_result => Ok(StorageKind::Output),
        None => Ok(StorageKind::Temp),
    }
}

/// Adds disjoint, ascending ranges to others.
fn insert_ranges(into: &mut Vec<LiveRange>, more: Vec<LiveRange>) {
    let mut all = std::mem::take(into);
    all.extend(more);
    *into = overlapping_joined(all);
}

/// Ranges in order, joined if they share an instant. Takes time n log n.
fn overlapping_joined(mut ranges: Vec<LiveRange>) -> Vec<LiveRange> {
    ranges.sort_unstable();
    ranges.dedup_by(|next, last| {
        let joins = next.start < last.end;
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
    ranges
}

/// At an instant that two share, the one that begins there while the other ends.
#[derive(Clone, Copy)]
enum Handover {
    ToFirst,
    ToSecond,
}

/// Whether two lists of disjoint, ascending ranges share single instants only, each of which is allowed.
fn never_together_but(
    a: &[LiveRange],
    b: &[LiveRange],
    is_allowed: impl Fn(Time, Option<Handover>) -> bool,
) -> bool {
    let is_swapped = a.len() > b.len();
    let (few, many) = if is_swapped { (b, a) } else { (a, b) };
    few.iter().all(|range| {
        let first = many.partition_point(|other| other.end <= range.start);
        many[first..].iter().take_while(|other| other.start < range.end).all(|other| {
            let (a, b) = if is_swapped { (other, range) } else { (range, other) };
            let (start, end) = (a.start.max(b.start), a.end.min(b.end));
            let handover = if a.end == end && b.start == start {
                Some(Handover::ToSecond)
            } else if b.end == end && a.start == start {
                Some(Handover::ToFirst)
            } else {
                None
            };
            start + 1 == end && is_allowed(start, handover)
        })
    })
}
