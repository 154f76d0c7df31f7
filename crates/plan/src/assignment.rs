//! The places of storages during assignment: allocations of their own first, then holes, then arenas.

use std::collections::BTreeMap;

use cranelift_entity::{PrimaryMap, SecondaryMap};
use memplan_program::{Allocation, AllocationKind, LiveRange, Origin, Placement, Scratch, Time, ValueId};
use memplan_units::{AllocationId, Bytes, Machine, MemorySpaceId, Slice};

use crate::arena::Arena;
use crate::holes::{self, Candidate};
use crate::storage::{Storage, StorageId, StorageKind, Storages};
use crate::{PlaceError, PlaceOptions, Sharing};

/// The decisions so far.
pub(crate) struct Assignment<'a> {
    pub(crate) storages: &'a Storages,
    pub(crate) machine: &'a dyn Machine,
    pub(crate) placement: Placement,
    /// Allocation and offset of each storage, once decided.
    places: SecondaryMap<StorageId, Option<(AllocationId, Bytes)>>,
    /// Working memory in each space, by the instant at which it begins: when it ends, and how much it is.
    scratch: BTreeMap<(MemorySpaceId, Time), (Time, Bytes)>,
}

impl<'a> Assignment<'a> {
    pub(crate) fn new(
        storages: &'a Storages,
        machine: &'a dyn Machine,
        needed: &[Scratch],
    ) -> Assignment<'a> {
        let mut scratch: BTreeMap<(MemorySpaceId, Time), (Time, Bytes)> = BTreeMap::new();
        for needed in needed.iter().filter(|needed| needed.size > Bytes::ZERO) {
            let (end, most) = scratch.entry((needed.space, needed.time)).or_default();
            (*end, *most) = (needed.end.max(*end), needed.size.max(*most));
        }
        let placement = Placement::default();
        Assignment { storages, machine, placement, places: SecondaryMap::new(), scratch }
    }

    /// Places storages that have an allocation of their own or fit into one, and leaves the others to arenas.
    pub(crate) fn place_all_but_arenas(&mut self, options: &PlaceOptions) -> Vec<Arena> {
        self.place_arguments();
        self.place_own_allocations();
        if options.sharing == Sharing::Most {
            self.place_into_holes(options);
        }
        self.arenas()
    }

    /// Bytes of all allocations so far, plus the peak of the others in main memory: a lower bound for packing.
    pub(crate) fn least_total(&self, arenas: &[Arena]) -> Bytes {
        let own = self.placement.allocations.values().map(|allocation| allocation.size);
        let own = own.fold(Bytes::ZERO, Bytes::saturating_add);
        let main = arenas.iter().find(|arena| arena.space == MemorySpaceId::MAIN);
        own.saturating_add(main.map_or(Bytes::ZERO, |main| main.load.peak().1))
    }

    /// One allocation for each argument, in their order, used or not.
    fn place_arguments(&mut self) {
        let values = self.storages.values.iter();
        let numbered = values.filter_map(|(id, value)| match value.origin {
            Origin::Argument { number, .. } if value.size > Bytes::ZERO => Some((number, id)),
            _ => None,
        });
        let mut arguments: Vec<(u32, ValueId)> = numbered.collect();
        arguments.sort_unstable();
        for (_, argument) in arguments {
            let (storage, value) = (self.storages.of(argument), &self.storages.values[argument]);
            let allocation = self.placement.allocations.push(Allocation {
                kind: AllocationKind::Argument(argument),
                space: self.storages.all[storage].space,
                size: value.size,
                alignment: self.machine.argument_alignment().max(self.storages.all[storage].alignment),
                live_out: self.is_live_out(storage),
            });
            self.places[storage] = Some((allocation, Bytes::ZERO));
        }
    }

    /// Results and constants, each in an allocation of its own, in order of their definition.
    fn place_own_allocations(&mut self) {
        for (id, storage) in self.storages.all.iter() {
            let kind = match storage.kind {
                StorageKind::Output => AllocationKind::Output,
                StorageKind::Constant => AllocationKind::Constant,
                StorageKind::Nowhere | StorageKind::Argument | StorageKind::Temp => continue,
            };
            if storage.size == Bytes::ZERO {
                continue;
            }
            let allocation = self.placement.allocations.push(Allocation {
                kind,
                space: storage.space,
                size: storage.size,
                alignment: self.machine.alignment(storage.space).max(storage.alignment),
                live_out: self.is_live_out(id),
            });
            self.places[id] = Some((allocation, Bytes::ZERO));
        }
    }

    /// Places temps where arguments and results leave room, those first that make the peak.
    fn place_into_holes(&mut self, options: &PlaceOptions) {
        let mut bins = PrimaryMap::new();
        for (id, storage) in self.storages.all.iter() {
            let Some((allocation, _)) = self.places[id] else { continue };
            if self.storages.is_writable(storage) {
                let room = &self.placement.allocations[allocation];
                bins.push(holes::Bin {
                    allocation,
                    space: storage.space,
                    size: room.size,
                    alignment: self.machine.alignment(storage.space).min(room.alignment),
                    busy: storage.busy.clone(),
                });
            }
        }
        let temps = self.temps(None);
        let candidates = temps.iter().map(|&id| {
            let Storage { space, size, alignment, busy, .. } = &self.storages.all[id];
            Candidate { space: *space, size: *size, alignment: *alignment, busy }
        });
        let candidates: Vec<Candidate<'_>> = candidates.collect();
        for (i, allocation, offset) in holes::place(bins, &candidates, self.storages.end, &options.holes) {
            self.places[temps[i]] = Some((allocation, offset));
        }
    }

    /// The storages left for one arena per memory space, for every space in use.
    fn arenas(&self) -> Vec<Arena> {
        let mut spaces: Vec<MemorySpaceId> =
            self.temps(None).into_iter().map(|id| self.storages.all[id].space).collect();
        spaces.extend(self.placement.allocations.values().map(|allocation| allocation.space));
        spaces.extend(self.scratch.keys().map(|&(space, _)| space));
        spaces.push(MemorySpaceId::MAIN);
        spaces.sort_unstable();
        spaces.dedup();
        let arena = |space| {
            let scratch = self.scratch.range((space, 0)..=(space, Time::MAX));
            let scratch =
                scratch.map(|(&(_, start), &(end, size))| (LiveRange { start, end }, size)).collect();
            Arena::new(self.storages, space, self.machine.alignment(space), self.temps(Some(space)), scratch)
        };
        spaces.into_iter().map(arena).collect()
    }

    /// Packs an arena, and returns its height.
    pub(crate) fn place_arena(
        &mut self,
        arena: &mut Arena,
        options: &PlaceOptions,
    ) -> Result<Bytes, PlaceError> {
        let packing = arena.pack(&options.pack)?;
        let temp = Bytes(packing.height);
        if temp > Bytes::ZERO || (arena.space != MemorySpaceId::MAIN && !arena.temps.is_empty()) {
            let allocation = self.placement.allocations.push(Allocation {
                kind: AllocationKind::Temp,
                space: arena.space,
                size: temp,
                alignment: arena.alignment,
                live_out: false,
            });
            for (storage, offset) in arena.temp_offsets(&packing) {
                self.places[storage] = Some((allocation, offset));
            }
            let scratch = arena.scratch_offsets(&packing);
            self.placement
                .scratch
                .extend(scratch.map(|(time, offset, size)| (time, Slice { allocation, offset, size })));
        }
        self.placement.spaces.push(arena.totals(&packing, self.machine));
        Ok(temp)
    }

    /// Temps not placed yet, in a space or in all.
    fn temps(&self, space: Option<MemorySpaceId>) -> Vec<StorageId> {
        let all = self.storages.all.iter();
        all.filter(|(id, storage)| {
            storage.kind == StorageKind::Temp
                && storage.size > Bytes::ZERO
                && self.places[*id].is_none()
                && space.is_none_or(|space| storage.space == space)
        })
        .map(|(id, _)| id)
        .collect()
    }

    /// The slice of every value whose storage has a place.
    pub(crate) fn record_slices(&mut self) {
        self.placement.slices.resize(self.storages.values.len());
        for (id, value) in self.storages.values.iter().filter(|(_, value)| value.size > Bytes::ZERO) {
            let place = self.places[self.storages.of(id)];
            self.placement.slices[id] =
                place.map(|(allocation, offset)| Slice { allocation, offset, size: value.size });
        }
    }

    fn is_live_out(&self, storage: StorageId) -> bool {
        self.storages.all[storage].values.iter().any(|&value| self.storages.values[value].is_result)
    }
}
