//! The chunks of a pool: binning free ones, allocating and splitting, freeing and merging.

use memplan_memory::Alignment;

use super::{Bfc, Chunk, Fit, LARGEST_WASTE, bin};
use crate::End;

/// The owner of a chunk. A pool with one end has only lower chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tag {
    /// Free between the two ends, for both.
    Gap,
    Lower,
    Upper,
}

impl Tag {
    pub(super) fn of(end: End) -> Tag {
        match end {
            End::Lower => Tag::Lower,
            End::Upper => Tag::Upper,
        }
    }
}

/// A free chunk in its bin: by size, then owner, then address, which descends at the upper end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key(u64, Tag, u64);

impl Key {
    fn new(size: u64, tag: Tag, address: u64) -> Key {
        Key(size, tag, if tag == Tag::Upper { u64::MAX - address } else { address })
    }

    pub(super) fn size(&self) -> u64 {
        self.0
    }

    pub(super) fn address(&self) -> u64 {
        if self.1 == Tag::Upper { u64::MAX - self.2 } else { self.2 }
    }
}

impl Bfc {
    /// Takes the first free chunk that fits: holes of the request's own end from the bin of its size on upward, then
    /// the gap.
    pub(super) fn take(&mut self, fit: &Fit) -> Option<u64> {
        let own = |key: &&Key| key.1 == fit.tag && self.fits(key.address(), fit);
        let hole = self.bins[bin(fit.size)..]
            .iter()
            .find_map(|bin| bin.range(Key(fit.size, Tag::Gap, 0)..).find(own))
            .map(Key::address);
        let gap = self.gap.filter(|&gap| self.fits(gap, fit) && self.leaves_the_reserve(gap, fit));
        let address = hole.or(gap)?;
        Some(match fit.tag {
            Tag::Upper => self.occupy_high(address, fit),
            _ => self.occupy_low(address, fit),
        })
    }

    fn fits(&self, address: u64, fit: &Fit) -> bool {
        let chunk = self.chunks[&address];
        let is_old_enough = fit.freed_before == 0 || chunk.freed_at <= fit.freed_before;
        is_old_enough
            && match fit.tag {
                Tag::Upper => high_start(address, chunk.size, fit).is_some(),
                _ => padding(address, fit.alignment).checked_add(fit.size).is_some_and(|n| n <= chunk.size),
            }
    }

    /// Takes the low end of a free chunk. Bytes skipped for alignment become a hole of the lower end.
    fn occupy_low(&mut self, address: u64, fit: &Fit) -> u64 {
        let chunk = self.unfile(address);
        let skipped = padding(address, fit.alignment);
        if skipped > 0 {
            self.file(address, Chunk { size: skipped, tag: Tag::Lower, ..chunk });
        }
        let (start, available) = (address + skipped, chunk.size - skipped);
        let is_split = match self.options.two_ended {
            true => available > fit.size,
            false => self.worth_splitting(available, fit.size),
        };
        let used = if is_split { fit.size } else { available };
        if used < available {
            self.file(start + used, Chunk { size: available - used, ..chunk });
        }
        self.occupy(start, used, fit)
    }

    /// Takes the high end of a free chunk, or all of a hole whose rest is too small to split off. Bytes skipped for
    /// alignment become a hole of the upper end.
    fn occupy_high(&mut self, address: u64, fit: &Fit) -> u64 {
        let chunk = self.unfile(address);
        let end = address + chunk.size;
        let is_exact = chunk.tag == Tag::Gap;
        let mut start = high_start(address, chunk.size, fit).expect("the chunk was found to fit");
        let skipped = padding(address, fit.alignment);
        if !is_exact && !self.worth_splitting(chunk.size - skipped, fit.size) {
            start = address + skipped;
        }
        if start > address {
            self.file(address, Chunk { size: start - address, ..chunk });
        }
        let available = end - start;
        let is_split =
            if is_exact { available > fit.size } else { self.worth_splitting(available, fit.size) };
        let used = if is_split { fit.size } else { available };
        if used < available {
            self.file(start + used, Chunk { size: available - used, tag: Tag::Upper, ..chunk });
        }
        self.occupy(start, used, fit)
    }

    fn occupy(&mut self, address: u64, size: u64, fit: &Fit) -> u64 {
        let chunk = Chunk { size, requested: Some(fit.requested), freed_at: 0, tag: fit.tag };
        self.chunks.insert(address, chunk);
        self.in_use += size;
        self.requested += fit.requested;
        address
    }

    /// Whether the rest of a chunk is given back after a request took its part.
    fn worth_splitting(&self, chunk: u64, size: u64) -> bool {
        let most = match self.options.fragmentation_fraction {
            fraction if fraction > 0.0 => (fraction * self.options.limit.0 as f64) as u64,
            _ => LARGEST_WASTE,
        };
        chunk / 2 >= size || chunk - size >= most
    }

    /// Makes a chunk in use free: filed and merged with its neighbors, or kept apart until its time is safe.
    pub(super) fn release(&mut self, address: u64) {
        let chunk = self.chunks.get_mut(&address).expect("the caller found a chunk in use there");
        chunk.requested = None;
        if self.options.timestamps {
            chunk.freed_at = self.clock;
            let chunk = *chunk;
            self.file(address, chunk);
            self.pending.push_back(address);
        } else {
            self.coalesce(address, false);
        }
    }

    /// Merges what the device has come past with its neighbors.
    pub(super) fn merge_safe(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let pending = std::mem::take(&mut self.pending);
        let mut safe = Vec::new();
        for address in pending {
            // Chunks may have been merged or taken since.
            match self.chunks.get_mut(&address) {
                Some(chunk) if chunk.requested.is_some() => {}
                Some(chunk) if chunk.freed_at < self.safe_frontier => {
                    chunk.freed_at = 0;
                    safe.push(address);
                }
                Some(_) => self.pending.push_back(address),
                None => {}
            }
        }
        for address in safe {
            if self.chunks.contains_key(&address) {
                self.unfile(address);
                self.coalesce(address, false);
            }
        }
    }

    /// Merges freed chunks with any times, the longest freed first, until one is large enough. The merged chunk has the
    /// latest of its times. Returns whether one was large enough.
    pub(super) fn merge_unsafe(&mut self, size: u64) -> bool {
        let pending: Vec<u64> = std::mem::take(&mut self.pending).into();
        let mut is_satisfied = false;
        for address in pending {
            let Some(chunk) = self.chunks.get(&address) else { continue };
            if chunk.requested.is_some() {
                continue;
            }
            if is_satisfied {
                self.pending.push_back(address);
                continue;
            }
            self.unfile(address);
            let merged = self.coalesce(address, true);
            let chunk = self.chunks[&merged];
            // As in the original, a chunk that did not become part of the one before it is not looked at again: it
            // merges when a neighbor does.
            if chunk.freed_at > 0 && merged != address {
                self.pending.push_back(merged);
            }
            is_satisfied = chunk.size >= size;
        }
        is_satisfied
    }

    /// Merges a free, unfiled chunk with the next and the previous one, where they are free and, unless times are
    /// ignored, safe; files the result and returns where it begins. At the border of its end it becomes the gap.
    fn coalesce(&mut self, address: u64, ignore_times: bool) -> u64 {
        self.rejoin_gap(address, ignore_times);
        let mut merged = address;
        for neighbor in [self.next(address), self.previous(address)] {
            let Some((other, chunk)) = neighbor else { continue };
            if chunk.requested.is_none() && (chunk.freed_at == 0 || ignore_times) {
                self.unfile(other);
                let (first, second) = (merged.min(other), merged.max(other));
                let (low, high) = (self.chunks[&first], self.chunks[&second]);
                self.chunks.remove(&second);
                let chunk = Chunk {
                    size: low.size + high.size,
                    requested: None,
                    freed_at: low.freed_at.max(high.freed_at),
                    tag: if low.tag == high.tag { low.tag } else { Tag::Gap },
                };
                self.chunks.insert(first, chunk);
                merged = first;
            }
        }
        let chunk = self.chunks[&merged];
        self.file(merged, chunk);
        merged
    }

    /// Gives a free, unfiled chunk at the border of its end back to the gap, if the two can be merged.
    fn rejoin_gap(&mut self, address: u64, ignore_times: bool) {
        let is_gap_safe = self.gap.is_none_or(|gap| self.chunks[&gap].freed_at == 0);
        if !self.options.two_ended || !self.is_in_first_region(address) || !(is_gap_safe || ignore_times) {
            return;
        }
        let chunk = self.chunks[&address];
        let beyond = match chunk.tag {
            Tag::Gap => return,
            Tag::Lower => self.next(address),
            Tag::Upper => self.previous(address),
        };
        if beyond.map(|(_, neighbor)| neighbor.tag) != Some(chunk.tag) {
            self.chunks.insert(address, Chunk { tag: Tag::Gap, ..chunk });
        }
    }

    /// The chunk after the one at an address, in its region.
    fn next(&self, address: u64) -> Option<(u64, Chunk)> {
        let end = address + self.chunks[&address].size;
        let chunk = self.chunks.get(&end).filter(|_| !self.regions.contains_key(&end));
        chunk.map(|&chunk| (end, chunk))
    }

    /// The chunk before the one at an address, in its region.
    fn previous(&self, address: u64) -> Option<(u64, Chunk)> {
        let before =
            self.chunks.range(..address).next_back().filter(|_| !self.regions.contains_key(&address));
        before.map(|(&address, &chunk)| (address, chunk))
    }

    /// Makes a chunk a free one that requests find.
    pub(super) fn file(&mut self, address: u64, chunk: Chunk) {
        self.chunks.insert(address, Chunk { requested: None, ..chunk });
        if chunk.tag == Tag::Gap {
            assert!(self.gap.is_none(), "there is one gap");
            self.gap = Some(address);
        } else {
            self.bins[bin(chunk.size)].insert(Key::new(chunk.size, chunk.tag, address));
        }
    }

    /// The opposite of [`Bfc::file`]; the chunk stays where it is.
    pub(super) fn unfile(&mut self, address: u64) -> Chunk {
        let chunk = self.chunks[&address];
        if chunk.tag == Tag::Gap {
            assert_eq!(self.gap.take(), Some(address), "the gap is where it is said to be");
        } else {
            let was_there = self.bins[bin(chunk.size)].remove(&Key::new(chunk.size, chunk.tag, address));
            assert!(was_there, "every free chunk is in the bin of its size");
        }
        chunk
    }
}

/// Bytes from an address to the next aligned one.
fn padding(address: u64, alignment: Alignment) -> u64 {
    address.wrapping_neg() & (alignment.bytes() - 1)
}

/// The last aligned address in a chunk at which a request fits.
fn high_start(address: u64, chunk: u64, fit: &Fit) -> Option<u64> {
    let start = address + chunk.checked_sub(fit.size)?;
    let aligned = start & !(fit.alignment.bytes() - 1);
    (aligned >= address).then_some(aligned)
}
