//! Operations in flight: between a start and its done.

use memplan_ir::{InstructionId, Op, PositionId, ShapeIndex};
use memplan_memory::Slice;

use super::{Passing, Walk};
use crate::Violation;
use crate::bytes::Holder;
use crate::in_place;

/// An asynchronous operation that was started and not yet done.
pub(crate) struct Flight {
    pub(crate) start: InstructionId,
    pub(crate) reads: Vec<Slice>,
    pub(crate) writes: Vec<Slice>,
}

impl Walk<'_, '_> {
    /// The parts of a start's result that represent its operands.
    pub(super) fn pass_sources(&mut self, id: InstructionId) {
        let facts = self.facts();
        let instruction = &facts.module.instructions[id];
        // Parts are named as they are passed or defined; a loop never walks its body twice, so all are unnamed now.
        let source_index = match &instruction.op {
            Op::CopyStart { .. } => 1,
            Op::Send(_) | Op::AllGatherStart(_) | Op::CollectivePermuteStart(_) => 0,
            _ => return,
        };
        let Some(sources) = facts.positions.find(id, &ShapeIndex::from([source_index])) else { return };
        let n = match in_place::in_place_permute(instruction) {
            true => 1,
            false => instruction.operands.len(),
        };
        let several =
            matches!(instruction.op, Op::AllGatherStart(_) | Op::CollectivePermuteStart(_)) && n > 1;
        for i in 0..if several { n } else { 1 } {
            let to = match several {
                true => facts.positions.find(id, &ShapeIndex::from([source_index, i as u32])),
                false => Some(sources),
            };
            let from = instruction.operands.get(i).map(|&o| facts.positions.root(o));
            if let Some(to) = to {
                self.pass_from(id, to, from, Passing::Whole);
            }
        }
    }

    /// The result of a done: part `{0}` or `{1}` of the start's result, or all of it.
    pub(super) fn done(&mut self, id: InstructionId) {
        let facts = self.facts();
        let instruction = &facts.module.instructions[id];
        let whole = facts.positions.root(id);
        let Some(&start) = instruction.operands.first() else { return };
        if let Some(flight) =
            self.name_of(Some(facts.positions.root(start))).and_then(|n| self.flights.remove(&n))
        {
            self.land(&flight);
        }
        self.read_table(id, Some(facts.positions.root(start)));
        let part = |index: u32| facts.positions.find(start, &ShapeIndex::from([index]));
        match &instruction.op {
            Op::SendDone(_) => self.set_name(whole, Holder::Value(whole)),
            Op::RecvDone(_) => {
                for position in facts.positions.of(id) {
                    self.set_name(position, Holder::Value(position));
                }
                let data = facts.positions.find(id, &ShapeIndex::from([0]));
                self.pass_from(id, data.unwrap_or(whole), part(0), Passing::OwnTables);
                self.write_table(id, whole);
            }
            Op::AllReduceDone(_) => {
                self.pass_from(id, whole, Some(facts.positions.root(start)), Passing::OwnTables);
            }
            Op::CopyDone => self.pass_from(id, whole, part(0), Passing::OwnTables),
            _ => self.pass_from(id, whole, part(1), Passing::OwnTables),
        }
    }

    /// Marks an operation as in flight under the name of its tuple.
    pub(crate) fn take_off(&mut self, name: PositionId, flight: Flight) {
        flight.reads.iter().for_each(|slice| self.in_flight.hold_read(slice, flight.start));
        flight.writes.iter().for_each(|slice| self.in_flight.hold_write(slice, flight.start));
        self.flights.insert(name, flight);
    }

    /// Ends an operation in flight.
    pub(crate) fn land(&mut self, flight: &Flight) {
        flight.reads.iter().for_each(|slice| self.in_flight.release_read(slice));
        flight.writes.iter().for_each(|slice| self.in_flight.release_write(slice));
    }

    pub(crate) fn check_not_in_flight(&mut self, writer: InstructionId, slice: &Slice) {
        if let Some(start) = self.in_flight.user(slice) {
            let (writer, start) = (self.facts().place_of(writer), self.facts().place_of(start));
            self.violation(Violation::WrittenInFlight { writer, slice: *slice, start });
        }
    }
}
