//! Whether a program's data about values agrees with its data about instants.

use cranelift_entity::EntityRef;
use memplan_program::{LiveRange, Origin, Program, Scratch, Value, ValueId};
use memplan_units::Bytes;

use super::{Checker, Misplacement, Tenant, is_writable};

impl<P: Program> Checker<'_, P> {
    /// Every value is live whenever an instant reads or writes it, and ranges are parts of the run. Linear in what instants
    /// read and write.
    pub(super) fn check_answers(&self) -> Result<(), Misplacement> {
        for (id, value) in self.values.iter().filter(|(_, value)| value.size > Bytes::ZERO) {
            self.check_range(Tenant::Value(id), value.live)?;
            self.check_ends(id, value)?;
        }
        for id in self.values.keys() {
            self.check_name(self.program.group(id), "the first of a group")?;
        }
        for Scratch { time, end, size, .. } in self.program.scratch() {
            if size > Bytes::ZERO {
                self.check_range(Tenant::Scratch(time), LiveRange { start: time, end })?;
            }
        }
        for time in 0..self.program.end() {
            for value in self.program.reads(time) {
                self.check_name(value, "read")?;
                if let Some(live) = self.dead_at(value, time) {
                    return Err(Misplacement::ReadWhileDead { value, time, live });
                }
            }
            for value in self.program.writes(time) {
                self.check_name(value, "written")?;
                if let Some(live) = self.dead_at(value, time) {
                    return Err(Misplacement::WrittenWhileDead { value, time, live });
                }
            }
        }
        Ok(())
    }

    fn check_range(&self, at: Tenant, live: LiveRange) -> Result<(), Misplacement> {
        let end = self.program.end();
        match live.start < live.end && live.end <= end {
            true => Ok(()),
            false => Err(Misplacement::NoRange { at, live, end }),
        }
    }

    /// Arguments are live from the start; results, and arguments that the caller keeps, to the end.
    fn check_ends(&self, id: ValueId, value: &Value) -> Result<(), Misplacement> {
        let is_argument = matches!(value.origin, Origin::Argument { .. });
        let ends_early = value.live.end < self.program.end();
        let why = if is_argument && value.live.start > 0 {
            "it is an argument, which is there from the start"
        } else if is_argument && !is_writable(value) && ends_early {
            "it is an argument that the caller keeps, which nothing may overwrite to the end"
        } else if value.is_result && ends_early {
            "it is a result, which is needed to the end"
        } else {
            return Ok(());
        };
        Err(Misplacement::TooShort { value: id, live: value.live, why })
    }

    fn check_name(&self, value: ValueId, named_as: &'static str) -> Result<(), Misplacement> {
        let n_values = self.values.len();
        match value.index() < n_values {
            true => Ok(()),
            false => Err(Misplacement::NoSuchValue { value, named_as, n_values }),
        }
    }

    /// When a value of some bytes is live, if it is not at an instant.
    fn dead_at(&self, value: ValueId, time: u32) -> Option<LiveRange> {
        let Value { size, live, .. } = self.values[value];
        (size > Bytes::ZERO && !live.is_live_at(time)).then_some(live)
    }
}
