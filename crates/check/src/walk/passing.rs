//! Values that are passed on under another name, without moving.

use memplan_ir::{InstructionId, PositionId};
use memplan_memory::Slice;

use super::Walk;
use crate::Violation;

/// The ways to pass a value on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passing {
    /// Everything, tables included.
    Whole,
    /// The same bytes under another shape, perhaps with other padding at the end.
    Bitcast,
    /// Everything but tables, which may be written anew.
    OwnTables,
}

impl Walk<'_, '_> {
    pub(crate) fn pass_from(
        &mut self,
        id: InstructionId,
        to: PositionId,
        from: Option<PositionId>,
        passing: Passing,
    ) {
        let pairs = from.and_then(|from| self.facts().pair(to, from));
        let Some(pairs) = pairs else {
            return self.malformed(id, "what it passes on has another shape than its result");
        };
        for (to, from) in pairs {
            self.pass(id, to, from, passing);
        }
    }

    /// Makes a position name the value at another one. Nothing moves, so both must be in the same place.
    fn pass(&mut self, id: InstructionId, to: PositionId, from: PositionId, passing: Passing) {
        let facts = self.facts();
        let (slice, source_slice) = (facts.slice(to), facts.slice(from));
        if passing == Passing::OwnTables && facts.part(to).is_tuple && slice != source_slice {
            return self.write_table(id, to);
        }
        let name = self.name(from);
        self.set_name(to, name);
        let start = |slice: Option<Slice>| slice.map(|s| (s.allocation, s.offset));
        let same = match passing {
            Passing::Bitcast => start(slice) == start(source_slice),
            // Tuples known at compile time need no table.
            _ => slice == source_slice || facts.part(to).is_tuple && slice.is_none(),
        };
        if !same {
            let (at, source_place) = (facts.place(to), facts.place(from));
            self.violation(Violation::Moved { at, slice, source_place, source_slice });
        }
        if passing != Passing::Bitcast {
            self.check_relaid(to, from);
        }
    }

    /// A result of a called computation must be in the same place as the callee's.
    pub(crate) fn check_moved(&mut self, to: PositionId, from: PositionId) {
        let facts = self.facts();
        let (slice, source_slice) = (facts.slice(to), facts.slice(from));
        if slice != source_slice && !(facts.part(to).is_tuple && slice.is_none()) {
            let (at, source_place) = (facts.place(to), facts.place(from));
            self.violation(Violation::Moved { at, slice, source_place, source_slice });
        }
        self.check_relaid(to, from);
    }

    /// Bytes that stay where they are stay in their order.
    fn check_relaid(&mut self, to: PositionId, from: PositionId) {
        let facts = self.facts();
        if facts.slice(from).is_some() && facts.part(to).lies != facts.part(from).lies {
            let (at, source_place) = (facts.place(to), facts.place(from));
            self.violation(Violation::Relaid { at, source_place });
        }
    }
}
