//! Why a value is in memory on one side, while the other side has no such value in memory at the compared instant.

use memplan_analysis::{ValueId, folded_operation, operation};
use memplan_ir::{ArrayShape, ElementType, InstructionId, Opcode};
use memplan_memory::{AllocationKind, Slice};

use super::CauseKind;
use super::origin::Move;
use super::reason::{At, NAMES, Reason, is_product};
use super::side::{Described, Made, Side, Stored};
use crate::explain::why_copied;

/// A value that only one side has in memory, with what the other side has like it at other times or places.
pub(super) struct Lone<'c> {
    at: &'c At<'c>,
    here: &'c Side<'c>,
    there: &'c Side<'c>,
    /// The index of the other side.
    other: usize,
    /// The names of the side that has it, and of the other one.
    me: &'static str,
    it: &'static str,
    stored: Stored,
    described: &'c Described,
    array: Option<&'c ArrayShape>,
    /// Values of its kind in the main memory of the other side.
    alike: &'c [Stored],
    /// Whether the other side has fewer values of its kind in memory, over the whole program.
    is_missing: bool,
}

impl<'c> Lone<'c> {
    pub(super) fn new(at: &'c At<'c>, side: usize, stored: Stored) -> Lone<'c> {
        let other = 1 - side;
        let (here, there) = (&at.sides[side], &at.sides[other]);
        let described = here.described(stored);
        let alike = there.stored(&described.holder);
        Lone {
            at,
            here,
            there,
            other,
            me: NAMES[side],
            it: NAMES[other],
            stored,
            described,
            array: here.array(stored),
            alike,
            is_missing: here.stored(&described.holder).len() > alike.len(),
        }
    }

    /// The value is the working memory of a library: bytes that a kernel returns beside its result.
    pub(super) fn workspace(&self) -> Option<Reason> {
        let position = self.here.position(self.stored.value);
        let is_bytes = self.array.is_some_and(|array| {
            matches!(array.element_type, ElementType::U8 | ElementType::S8) && array.rank() == 1
        });
        let opcode = self.here.subject.module.instructions[position.instruction].op.opcode();
        let is_kernel = matches!(opcode, Opcode::CustomCall | Opcode::Fusion);
        let is_workspace = is_bytes && !position.index.is_root() && is_kernel;
        is_workspace
            .then(|| Reason::new(CauseKind::Workspace, format!("{} gives a library scratch memory", self.me)))
    }

    /// The other side has it in the bytes of another value.
    pub(super) fn in_place_there(&self) -> Option<Reason> {
        let shared = self.alike.iter().find(|like| self.is_live_there(like.value))?;
        let others = self.there.sharing(shared.lifetime, self.at.times[self.other]);
        let over = others.filter(|&value| value != shared.value).last()?;
        let over = self.there.name(self.there.position(over).instruction);
        let why = format!("in {} it shares the memory of `{over}`", self.it);
        Some(Reason::new(CauseKind::InPlace, why))
    }

    /// It could be in the bytes of an operand, and is there on the other side.
    pub(super) fn in_place_of_operand(&self) -> Option<Reason> {
        let operand = self.operand_as_large()?;
        self.alike.iter().find(|like| self.there.is_over_another(**like))?;
        let operand = self.here.subject.name_at(&self.here.position(operand));
        let why = format!(
            "{} gives it memory of its own, {} writes it over its operand `{operand}`",
            self.me, self.it
        );
        Some(Reason::new(CauseKind::InPlace, why))
    }

    /// It is an operand of what runs at the instant, and the other side writes the result over it.
    pub(super) fn overwritten_there(&self) -> Option<Reason> {
        let (like, over) =
            self.alike.iter().find_map(|&like| Some((like, self.there.written_over(like)?)))?;
        let live = self.here.subject.planned.facts.live.of(self.stored.value);
        let is_read_now = live.end == self.at.times[1 - self.other] + 1;
        let is_written_here = self.here.written_over(self.stored).is_some();
        if !is_read_now || is_written_here || self.is_live_there(like.value) {
            return None;
        }
        let over = self.there.name(self.there.position(over).instruction);
        let why = format!("{} writes `{over}` over it, {} does not", self.it, self.me);
        Some(Reason::new(CauseKind::InPlace, why))
    }

    /// The other side has it in a memory other than the main one.
    pub(super) fn in_another_memory(&self) -> Option<Reason> {
        let (name, memory) = self.there.elsewhere(&self.described.holder).filter(|_| self.is_missing)?;
        Some(Reason::new(CauseKind::Memory, format!("{} has it in {memory}, as `{name}`", self.it)))
    }

    /// Both sides compute it, and only the other one computes it again for the backward half.
    pub(super) fn computed_again(&self) -> Option<Reason> {
        let name = &self.described.origin.name;
        let n = |side: &Side<'_>| {
            let again = side.made.again(name).iter();
            again.filter(|it| Some(it.elements) == self.elements()).count()
        };
        (n(self.there) > n(self.here)).then(|| {
            let why = format!("{} computes it again in the backward half, {} keeps it", self.it, self.me);
            Reason::new(CauseKind::Recomputation, why)
        })
    }

    /// The other side computes it inside kernels. Where those read something as large instead, nothing is saved, and it
    /// matters when that is in memory.
    pub(super) fn inside_a_kernel(&self) -> Option<Reason> {
        let origin = &self.described.origin;
        let is_stack = origin.stacked_by.is_some();
        let made = self.there.made.of(origin.stacked_by.as_ref().unwrap_or(&origin.name));
        let made = made.iter().filter(|it| Some(it.elements) == self.elements());
        let kernels: Vec<InstructionId> = made.filter_map(|it| it.kernel).collect();
        let is_made = (is_stack || origin.prefix().is_empty()) && self.is_missing;
        let &kernel = kernels.last().filter(|_| is_made && kernels.len() > self.alike.len())?;
        let read: Option<Vec<ValueId>> = kernels.iter().map(|&kernel| self.read_instead(kernel)).collect();
        if let Some(read) = read.filter(|_| !is_stack)
            && let Some(mut reason) = self.at_other_times(&read)
        {
            let instead = self.there.subject.name_at(&self.there.position(read[0]));
            reason.why = format!("{} reads `{instead}` instead; {}", self.it, reason.why);
            return Some(reason);
        }
        let kernel = self.there.name(kernel);
        let why = format!("{} computes it inside `{kernel}` and does not store it", self.it);
        Some(Reason::new(CauseKind::Fusion, why))
    }

    /// An operand of a kernel of the other side that is as large as the value.
    fn read_instead(&self, kernel: InstructionId) -> Option<ValueId> {
        let subject = &self.there.subject;
        let operands = subject.module.instructions[kernel].operands.iter();
        let values = operands.filter_map(|&operand| subject.planned.facts.flow.value_of(operand));
        let bytes = self.here.lifetime(self.stored).slice.size;
        values.into_iter().find(|&value| {
            let slice = subject.planned.plan.slices.get(&self.there.position(value));
            let is_temp = |slice: &Slice| {
                subject.planned.plan.allocations[slice.allocation].kind == AllocationKind::Temp
            };
            slice.is_some_and(|slice| slice.size == bytes && is_temp(slice))
        })
    }

    /// The other side has it in memory at another time.
    pub(super) fn at_another_time(&self) -> Option<Reason> {
        let alike: Vec<ValueId> = self.alike.iter().map(|like| like.value).collect();
        if !alike.is_empty() && alike.iter().all(|&value| self.is_live_there(value)) {
            let why = format!("{} holds fewer of them at a time", self.it);
            return Some(Reason::new(CauseKind::Order, why));
        }
        self.at_other_times(&alike)
    }

    /// When the other side frees values before the instant, or computes them after it; `None` where it holds one.
    fn at_other_times(&self, values: &[ValueId]) -> Option<Reason> {
        let (there, time) = (self.there, self.at.times[self.other]);
        let lives = || values.iter().map(|&value| there.subject.planned.facts.live.of(value));
        // Of state of a loop, what the loop leaves is read last.
        if let Some(end) = lives().map(|live| live.end).filter(|&end| end <= time).max() {
            let reader = there.at(end.saturating_sub(1));
            let why = format!("{} frees it earlier, after `{}`", self.it, there.name(reader));
            return Some(Reason { last_reader: Some(reader), ..Reason::new(CauseKind::Order, why) });
        }
        let start = lives().map(|live| live.start).filter(|&start| start > time).min()?;
        let why = format!("{} computes it later, by `{}`", self.it, there.name(there.at(start)));
        Some(Reason::new(CauseKind::Order, why))
    }

    /// This side pads it with an operation.
    pub(super) fn padded(&self) -> Option<Reason> {
        let why = || format!("{} stores it padded for `{}`, {} does not", self.me, self.reader(), self.it);
        self.described.origin.is_padded.then(|| Reason::new(CauseKind::Padding, why()))
    }

    /// It is another value, moved or converted.
    pub(super) fn moved(&self) -> Option<Reason> {
        let (how, from) = self.described.origin.moved?;
        let (me, of) = (self.me, self.here.name(from));
        Some(match how {
            Move::Copied => {
                let copy = self.here.position(self.stored.value).instruction;
                let why =
                    why_copied(&self.here.subject, copy).map_or_else(String::new, |why| format!(": {why}"));
                Reason::new(CauseKind::Copy, format!("{me} copies `{of}`{why}"))
            }
            Move::Turned => {
                let reader = self.reader();
                let why =
                    format!("{me} stores `{of}` again with its dimensions in another order, for `{reader}`");
                Reason::new(CauseKind::Layout, why)
            }
            Move::Converted => {
                let module = self.here.subject.module;
                let was = module.shape(from).as_array().map(|array| array.element_type);
                let was = was.map_or_else(String::new, |was| format!(" ({was})"));
                let is = self.array.map_or_else(String::new, |array| array.element_type.to_string());
                Reason::new(CauseKind::ElementType, format!("{me} also stores `{of}`{was} as {is}"))
            }
        })
    }

    /// It is a product that has other dimensions on the other side.
    pub(super) fn product(&self) -> Option<Reason> {
        let name = &self.described.origin.name;
        let products = self.there.made.of(name).iter().filter(|made| is_product(made.opcode));
        let other = products.max_by_key(|made| made.elements);
        let other = other.filter(|_| is_product(self.here.computed_by(self.stored)))?;
        let why = format!(
            "one side merges, splits or pads the product: {} elements in {}, {} in {}",
            self.elements().unwrap_or(0),
            self.me,
            other.elements,
            self.it
        );
        Some(Reason::new(CauseKind::Products, why))
    }

    /// The other side has nothing like it: it computes the operation of the program by others, or does without.
    pub(super) fn of_other_operations(&self) -> Reason {
        let (origin, computes) = (&self.described.origin, self.here.computed_by(self.stored));
        if origin.stacked_by.is_some() {
            return Reason::new(CauseKind::Unexplained, format!("{} keeps no such stack", self.it));
        }
        // What a compiler adds serves the operation that reads it.
        let reader = self.reader();
        let of = if origin.is_named { &origin.name } else { &reader };
        let given = self.at.program.of_any(of);
        let is_same = |made: &&Made| Some(made.elements) == self.elements() && made.opcode == computes;
        if given.iter().any(|made| is_same(&made)) {
            return Reason::new(CauseKind::Algebra, format!("{} does without this {computes}", self.it));
        }
        // Computations that reductions call have the names of reductions.
        let Some(largest) = given.iter().max_by_key(|made| made.elements) else {
            return Reason::new(CauseKind::Unexplained, format!("{} has no {computes} like it", self.it));
        };
        let why = match largest.opcode == computes {
            true => format!(
                "{} computes `{of}` in steps: this {computes} has {} elements, that of the program {}",
                self.me,
                self.elements().unwrap_or(0),
                largest.elements
            ),
            false => {
                format!(
                    "{} computes `{of}`, {} in the program, with this {computes}",
                    self.me, largest.opcode
                )
            }
        };
        Reason::new(CauseKind::Expansion, why)
    }

    /// The operation that reads it last.
    fn reader(&self) -> String {
        let here = self.here;
        let end = here.subject.planned.facts.live.of(self.stored.value).end;
        let reader = here.at(end.saturating_sub(1));
        match operation(here.subject.module, reader) {
            "" => here.name(reader).to_string(),
            name => folded_operation(name),
        }
    }

    /// An operand that is as large and is read last by what makes the value.
    fn operand_as_large(&self) -> Option<ValueId> {
        let here = self.here;
        let facts = &here.subject.planned.facts;
        let start = facts.live.of(self.stored.value).start;
        let maker = &here.subject.module.instructions[here.position(self.stored.value).instruction];
        let bytes = here.lifetime(self.stored).slice.size;
        maker.operands.iter().filter_map(|&operand| facts.flow.value_of(operand)).find(|&operand| {
            let slice = here.subject.planned.plan.slices.get(&here.position(operand));
            facts.live.of(operand).end == start + 1 && slice.is_some_and(|slice| slice.size == bytes)
        })
    }

    fn is_live_there(&self, value: ValueId) -> bool {
        self.there.subject.planned.facts.live.of(value).is_live_at(self.at.times[self.other])
    }

    fn elements(&self) -> Option<u64> {
        self.array.and_then(ArrayShape::element_count)
    }
}
