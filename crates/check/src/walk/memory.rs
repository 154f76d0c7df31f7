//! Reads, which must see their values, and writes, which replace them.

use memplan_ir::{EntityRef, InstructionId, Op, PositionId, ShapeIndex};
use memplan_memory::Slice;

use super::Walk;
use crate::Violation;
use crate::bytes::Holder;

/// The result of looking at a position.
enum Look {
    Whole,
    NotInMemory,
    InFlight(Slice, InstructionId),
    /// The slice, its first wrong bytes, and their contents.
    Other(Slice, Slice, Holder),
}

impl Walk<'_, '_> {
    /// Reads a position. Returns whether there was something to read in memory, and it was whole.
    pub(crate) fn expect(&mut self, reader: InstructionId, position: PositionId) -> bool {
        let facts = self.facts();
        match self.look(position) {
            Look::Whole => true,
            Look::NotInMemory => false,
            Look::InFlight(slice, start) => {
                let (reader, start) = (facts.place_of(reader), facts.place_of(start));
                self.violation(Violation::ReadInFlight { reader, slice, start });
                false
            }
            Look::Other(slice, bytes, holder) => {
                let (reader, value) = (facts.place_of(reader), facts.place(position));
                let found = facts.found(holder);
                self.violation(Violation::Lost { reader, value, slice, bytes, found });
                false
            }
        }
    }

    /// Where the previous call may have left a value, nothing is written until the start of the copy that would fetch
    /// it.
    pub(super) fn expect_untouched(&mut self, start: InstructionId) {
        let facts = self.facts();
        let to = facts.positions.find(start, &ShapeIndex::from([0]));
        if let Some(slice) = to.and_then(|to| facts.slice(to))
            && self.written.touches(&slice)
        {
            self.violation(Violation::ResidentLate { start: facts.place_of(start), slice });
        }
    }

    /// Values that the next call may use are whole at the end.
    pub(super) fn expect_residents(&mut self) {
        let facts = self.facts();
        for &start in facts.schedule.sequence(facts.module.entry) {
            let is_kept = facts.module.instructions.is_valid(start)
                && matches!(
                    facts.module.instructions[start].op,
                    Op::CopyStart { cross_program_prefetch_index: Some(_) }
                );
            if is_kept
                && let Some(to) = facts.positions.find(start, &ShapeIndex::from([0]))
                && let Look::Other(slice, bytes, holder) = self.look(to)
            {
                let (start, found) = (facts.place_of(start), facts.found(holder));
                self.violation(Violation::ResidentLost { start, slice, bytes, found });
            }
        }
    }

    pub(super) fn expect_result(&mut self, position: PositionId) {
        let facts = self.facts();
        match self.look(position) {
            Look::Whole | Look::NotInMemory => {}
            Look::InFlight(slice, start) => {
                let (reader, start) = (facts.place(position), facts.place_of(start));
                self.violation(Violation::ReadInFlight { reader, slice, start });
            }
            Look::Other(slice, bytes, holder) => {
                let (value, found) = (facts.place(position), facts.found(holder));
                self.violation(Violation::ResultLost { value, slice, bytes, found });
            }
        }
    }

    /// Whether a position's slice holds what the position names.
    fn look(&mut self, position: PositionId) -> Look {
        let facts = self.facts();
        let name = self.name(position);
        if let Holder::Value(definition) = name {
            self.proving.is_read[definition.index()] = true;
        }
        let Some(slice) = facts.slice(position) else { return Look::NotInMemory };
        // An instruction that has not run has no name; the schedule was reported.
        if matches!(name, Holder::Nothing | Holder::Embedded(_)) {
            return Look::NotInMemory;
        }
        self.proving.reads += 1;
        if let Some(start) = self.in_flight.writer(&slice) {
            return Look::InFlight(slice, start);
        }
        if facts.holds_constants(slice.allocation) {
            let held = facts.constant_at(&slice).map_or(Holder::Nothing, Holder::Value);
            return if held == name { Look::Whole } else { Look::Other(slice, slice, held) };
        }
        let expected = if facts.part(position).is_tuple { facts.table(position) } else { name };
        match self.contents.find_other(&slice, expected) {
            None => Look::Whole,
            Some((bytes, holder)) => Look::Other(slice, bytes, holder),
        }
    }

    /// Makes a slice hold something new.
    pub(crate) fn write(&mut self, writer: InstructionId, slice: &Slice, holder: Holder) {
        let facts = self.facts();
        self.proving.writes += 1;
        if let Some(what) = facts.read_only(slice.allocation) {
            let at = match holder {
                Holder::Value(position) => facts.place(position),
                _ => facts.place_of(writer),
            };
            self.violation(Violation::ReadOnly { at, slice: *slice, what });
        }
        self.check_not_in_flight(writer, slice);
        self.contents.write(slice, holder);
        self.written.add(slice);
    }

    /// Looks up where the elements of a tuple are.
    pub(super) fn read_table(&mut self, reader: InstructionId, tuple: Option<PositionId>) {
        if let Some(tuple) = tuple.filter(|&tuple| self.facts().part(tuple).is_tuple) {
            self.expect(reader, tuple);
        }
    }

    /// Writes where the elements of a tuple are, if the tuple has a table.
    pub(crate) fn write_table(&mut self, writer: InstructionId, tuple: PositionId) {
        let facts = self.facts();
        self.set_name(tuple, Holder::Value(tuple));
        if let Some(slice) = facts.slice(tuple) {
            self.write(writer, &slice, facts.table(tuple));
        }
    }
}
