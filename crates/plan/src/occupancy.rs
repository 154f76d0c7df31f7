//! The time ranges and bytes that storages occupy.

use std::collections::BTreeMap;

use memplan_program::{LiveRange, union_of_ranges};
use memplan_units::Bytes;

use crate::{Load, StorageId, StorageKind, Storages};

impl Storages {
    /// When a storage is occupied, and by how many bytes: disjoint, ascending ranges.
    pub fn occupancy(&self, id: StorageId) -> Vec<(LiveRange, Bytes)> {
        let storage = &self.all[id];
        // Almost always every value has the storage's size, and then its busy ranges are the answer.
        if storage.values.iter().all(|&v| self.values[v].size == storage.size) {
            let busy = union_of_ranges(storage.busy.clone());
            return busy.into_iter().map(|range| (range, storage.size)).collect();
        }
        let sized = storage.values.iter().map(|&v| &self.values[v]).filter(|v| v.size > Bytes::ZERO);
        let mut edges: Vec<(u32, bool, Bytes)> = sized
            .flat_map(|value| [(value.live.start, true, value.size), (value.live.end, false, value.size)])
            .collect();
        edges.sort_unstable();
        // How many values of each size are live between two edges.
        let mut sizes: BTreeMap<Bytes, u32> = BTreeMap::new();
        let mut pieces: Vec<(LiveRange, Bytes)> = Vec::new();
        let mut last = 0;
        for (time, begins, size) in edges {
            if let Some((&largest, _)) = sizes.last_key_value()
                && last < time
            {
                match pieces.last_mut() {
                    Some((piece, bytes)) if piece.end == last && *bytes == largest => piece.end = time,
                    _ => pieces.push((LiveRange { start: last, end: time }, largest)),
                }
            }
            last = time;
            if begins {
                *sizes.entry(size).or_default() += 1;
            } else if let Some(count) = sizes.get_mut(&size) {
                *count -= 1;
                if *count == 0 {
                    sizes.remove(&size);
                }
            }
        }
        pieces
    }

    /// Bytes live at every instant, each byte once: constants always, everything else while a value is in it.
    pub fn load(&self) -> Load {
        let mut load = Load::new(self.end);
        let always = LiveRange { start: 0, end: self.end };
        for (id, storage) in self.all.iter() {
            if storage.kind == StorageKind::Constant {
                load.add(always, storage.size);
            } else if storage.kind != StorageKind::Nowhere {
                self.occupancy(id).into_iter().for_each(|(range, size)| load.add(range, size));
            }
        }
        load
    }

    /// Bytes of temporaries live at every instant, in whichever memory.
    pub fn temp_load(&self) -> Load {
        let mut load = Load::new(self.end);
        for (id, _) in self.all.iter().filter(|(_, storage)| storage.kind == StorageKind::Temp) {
            self.occupancy(id).into_iter().for_each(|(range, bytes)| load.add(range, bytes));
        }
        load
    }
}
