//! The regions of a pool: allocating one from the device, and returning unused ones.

use super::chunks::Tag;
use super::{Append, Bfc, Chunk, FIRST_REGION, Fit, Growth, rounded};
use crate::GRANULE;

/// After the device refuses a region, the pool requests this share of it. A 32-bit number, as in the original, since
/// that decides the last bits of large sizes.
const BACKPEDAL: f32 = 0.9;

impl Bfc {
    /// Adds a region that a request fits into, if the limit and the device allow it.
    pub(super) fn extend(&mut self, fit: &Fit) -> bool {
        let available = self.options.limit.0.saturating_sub(self.reserved) / GRANULE * GRANULE;
        let device = self.options.device.0.saturating_sub(self.reserved);
        match self.options.growth {
            Growth::Append(append) if !self.regions.is_empty() => self.append(append, fit, available, device),
            _ => fit.size <= available && self.double(fit.size, available, device),
        }
    }

    fn double(&mut self, size: u64, available: u64, device: u64) -> bool {
        let mut has_doubled = false;
        while self.next_region < size {
            self.next_region = self.next_region.saturating_mul(2);
            has_doubled = true;
        }
        let mut bytes = self.next_region.min(available);
        while bytes > device {
            let less = rounded((bytes as f32 * BACKPEDAL) as u64).unwrap_or(u64::MAX);
            // Rounding up would ask for the same few bytes for ever.
            bytes = if less < bytes { less } else { bytes - GRANULE };
            if bytes < size {
                return false;
            }
        }
        if bytes < size || !self.add_region(bytes) {
            return false;
        }
        if !has_doubled {
            self.next_region = self.next_region.saturating_mul(2);
        }
        true
    }

    /// Appends whole increments, for the upper end alone, and leaves the headroom to others.
    fn append(&mut self, append: Append, fit: &Fit, available: u64, device: u64) -> bool {
        let increment = append.increment.0.max(GRANULE);
        let Some(wanted) = fit.size.checked_next_multiple_of(increment) else { return false };
        let bytes = wanted.min(available);
        let left = device.saturating_sub(append.headroom.0);
        fit.tag == Tag::Upper && bytes >= fit.size && bytes <= left && self.add_region(bytes)
    }

    /// Whether the upper end may allocate a request from the gap without using the lower end's reserve.
    pub(super) fn leaves_the_reserve(&self, gap: u64, fit: &Fit) -> bool {
        let Growth::Append(Append { collective_reserve, .. }) = self.options.growth else { return true };
        fit.tag != Tag::Upper || gap + self.chunks[&gap].size - fit.size >= collective_reserve.0
    }

    fn add_region(&mut self, bytes: u64) -> bool {
        let address = self.next_address;
        let Some(end) = address.checked_add(bytes) else { return false };
        let tag = match self.options.two_ended {
            true if self.regions.is_empty() => Tag::Gap,
            true => Tag::Upper,
            false => Tag::Lower,
        };
        self.regions.insert(address, bytes);
        self.file(address, Chunk { size: bytes, requested: None, freed_at: 0, tag });
        self.next_address = end.checked_next_multiple_of(FIRST_REGION).unwrap_or(end);
        self.reserved += bytes;
        true
    }

    pub(super) fn is_in_first_region(&self, address: u64) -> bool {
        self.regions.first_key_value().is_some_and(|(&start, &bytes)| address < start + bytes)
    }

    /// Gives back all regions that are entirely free, if the request could fit then.
    pub(super) fn release_regions(&mut self, size: u64) -> bool {
        if !self.options.release_regions {
            return false;
        }
        let is_free = |&(&start, &bytes): &(&u64, &u64)| {
            self.chunks.range(start..start + bytes).all(|(_, chunk)| chunk.requested.is_none())
        };
        let free: Vec<(u64, u64)> = self.regions.iter().filter(is_free).map(|(&a, &b)| (a, b)).collect();
        let free_bytes: u64 = free.iter().map(|&(_, bytes)| bytes).sum();
        let available = self.options.limit.0.saturating_sub(self.reserved).saturating_add(free_bytes);
        if free.is_empty() || size > available {
            return false;
        }
        for (start, bytes) in free {
            let chunks: Vec<u64> = self.chunks.range(start..start + bytes).map(|(&a, _)| a).collect();
            for address in chunks {
                self.unfile(address);
                self.chunks.remove(&address);
            }
            self.regions.remove(&start);
            self.reserved -= bytes;
        }
        true
    }
}
