//! Sums of a finished placement.

use memplan_program::{Allocation, AllocationKind};
use memplan_units::{Alignment, Bytes, MemorySpaceId, Totals};

use crate::PlaceError;
use crate::assignment::Assignment;
use crate::storage::StorageKind;

impl Assignment<'_> {
    /// Sums the program's bytes, in total and in each space.
    pub(crate) fn record_totals(&mut self, total_lower_bound: Bytes) -> Result<(), PlaceError> {
        let placement = &mut self.placement;
        let too_large = PlaceError::TooLarge { space: MemorySpaceId::MAIN };
        let sum = |is_one: fn(&AllocationKind) -> bool| {
            let sizes = placement.allocations.values().filter(|a| is_one(&a.kind)).map(|a| a.size);
            sizes.clone().try_fold(Bytes::ZERO, Bytes::checked_add)
        };
        let arguments = sum(|kind| matches!(kind, AllocationKind::Argument(_)));
        let own_outputs = sum(|kind| *kind == AllocationKind::Output);
        let constants = sum(|kind| *kind == AllocationKind::Constant);
        let (Some(arguments), Some(own_outputs), Some(constants)) = (arguments, own_outputs, constants)
        else {
            return Err(too_large);
        };
        let main = placement.spaces.iter().find(|space| space.space == MemorySpaceId::MAIN);
        let (temp, temp_lower_bound) = main.map_or_else(Default::default, |s| (s.temp, s.temp_lower_bound));
        let parts = [arguments, own_outputs, constants, temp];
        let total = parts.into_iter().try_fold(Bytes::ZERO, Bytes::checked_add).ok_or(too_large)?;
        let aliased = self.aliased_bytes();
        self.placement.totals = Totals {
            arguments,
            outputs: own_outputs + aliased,
            aliased,
            constants,
            temp,
            total,
            total_lower_bound,
            peak_live: self.storages.load().peak().1,
            temp_lower_bound,
            fragmentation: temp.saturating_sub(temp_lower_bound),
            padding: Bytes::ZERO,
        };
        self.record_space_totals();
        Ok(())
    }

    /// Bytes of results that live in arguments.
    fn aliased_bytes(&self) -> Bytes {
        let in_arguments = self.storages.all.values().filter(|storage| storage.kind == StorageKind::Argument);
        let sizes = in_arguments.map(|storage| {
            let values = storage.values.iter().map(|&value| &self.storages.values[value]);
            values.filter(|value| value.is_result).map(|value| value.size).max().unwrap_or_default()
        });
        sizes.sum()
    }

    /// Sums each space; called after the totals, which check for overflow.
    fn record_space_totals(&mut self) {
        let placement = &mut self.placement;
        for space in &mut placement.spaces {
            let granule = self.machine.memory(space.space).map_or(Alignment::ONE, |s| s.granule);
            for &Allocation { kind, size, .. } in
                placement.allocations.values().filter(|a| a.space == space.space)
            {
                match kind {
                    AllocationKind::Argument(_) => space.arguments += size,
                    AllocationKind::Output => space.outputs += size,
                    AllocationKind::Constant => space.constants += size,
                    AllocationKind::Temp => {}
                }
                space.total = space.total.saturating_add(size.align_up(granule));
            }
            space.excess =
                space.available.map_or(Bytes::ZERO, |available| space.total.saturating_sub(available));
        }
    }
}
