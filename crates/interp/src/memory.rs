//! The bytes of a run, and the write that each belongs to.
//!
//! Kernels see memory only through [`Place`]s. In the reference run every value has its own buffer, so tracking is off;
//! inside an arena every byte remembers its write, and a value is read only if all of its bytes still belong to the
//! value's write.

use crate::Error;

/// The contents of unwritten bytes. As a float it is a huge negative number, as an integer or index absurd, so that
/// reading it shows in the result even without tracking.
const POISON: u8 = 0xfb;

/// A range of bytes in one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) buffer: u32,
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

/// One act of writing a value; 0 is nobody.
pub(crate) type Write = u32;

#[derive(Default)]
pub(crate) struct Memory {
    buffers: Vec<Vec<u8>>,
    free: Vec<u32>,
    /// For tracked buffers, the write that each byte belongs to.
    owners: Vec<Vec<Write>>,
    /// Bytes in all buffers.
    used: usize,
    limit: usize,
    /// The seed of this run's random numbers.
    pub(crate) seed: u64,
}

impl Memory {
    /// An empty memory that may grow to `limit` bytes.
    pub(crate) fn new(limit: usize, seed: u64) -> Memory {
        // Buffer 0 has no bytes: tokens live there.
        Memory { limit, seed, buffers: vec![Vec::new()], owners: vec![Vec::new()], ..Memory::default() }
    }

    /// A new buffer, poisoned. A tracked one remembers who wrote each byte.
    pub(crate) fn allocate(&mut self, size: usize, is_tracked: bool) -> Result<Place, Error> {
        if size > self.limit.saturating_sub(self.used) {
            return Err(Error::OutOfMemory { needed: size, used: self.used, limit: self.limit });
        }
        self.used += size;
        let buffer = self.free.pop().unwrap_or_else(|| {
            self.buffers.push(Vec::new());
            self.owners.push(Vec::new());
            self.buffers.len() as u32 - 1
        });
        self.buffers[buffer as usize] = vec![POISON; size];
        self.owners[buffer as usize] = vec![0; if is_tracked { size } else { 0 }];
        Ok(Place { buffer, offset: 0, size })
    }

    /// Gives a whole buffer back.
    pub(crate) fn free(&mut self, place: Place) {
        let freed = std::mem::take(&mut self.buffers[place.buffer as usize]);
        self.used -= freed.len();
        self.owners[place.buffer as usize] = Vec::new();
        self.free.push(place.buffer);
    }

    pub(crate) fn bytes(&self, place: Place) -> &[u8] {
        &self.buffers[place.buffer as usize][place.offset..place.offset + place.size]
    }

    pub(crate) fn bytes_mut(&mut self, place: Place) -> &mut [u8] {
        &mut self.buffers[place.buffer as usize][place.offset..place.offset + place.size]
    }

    /// Copies as many bytes as both places have.
    pub(crate) fn copy(&mut self, from: Place, to: Place) {
        let size = from.size.min(to.size);
        if from.buffer == to.buffer {
            self.buffers[to.buffer as usize].copy_within(from.offset..from.offset + size, to.offset);
            return;
        }
        // The target is taken out for a moment, so that both can be borrowed.
        let mut target = std::mem::take(&mut self.buffers[to.buffer as usize]);
        target[to.offset..to.offset + size].copy_from_slice(&self.bytes(from)[..size]);
        self.buffers[to.buffer as usize] = target;
    }

    /// Declares the bytes of a place to belong to a write.
    pub(crate) fn claim(&mut self, place: Place, write: Write) {
        if let Some(owners) = self.owners_mut(place) {
            owners.fill(write);
        }
    }

    /// The first byte of a place that does not belong to a write, and the write it belongs to.
    pub(crate) fn intruder(&self, place: Place, write: Write) -> Option<(usize, Write)> {
        let owners = self.owners[place.buffer as usize].get(place.offset..place.offset + place.size)?;
        let at = owners.iter().position(|&owner| owner != write)?;
        Some((at, owners[at]))
    }

    /// Poisons those bytes of a place that still belong to a write, which is over.
    pub(crate) fn poison(&mut self, place: Place, write: Write) {
        let buffer = place.buffer as usize;
        let range = place.offset..place.offset + place.size;
        let Some(owners) = self.owners[buffer].get_mut(range.clone()) else { return };
        for (byte, owner) in self.buffers[buffer][range].iter_mut().zip(owners) {
            if *owner == write {
                *byte = POISON;
                *owner = 0;
            }
        }
    }

    fn owners_mut(&mut self, place: Place) -> Option<&mut [Write]> {
        self.owners[place.buffer as usize].get_mut(place.offset..place.offset + place.size)
    }
}

impl Place {
    /// A part of this place.
    ///
    /// # Panics
    /// When the part is not inside.
    pub(crate) fn part(self, offset: usize, size: usize) -> Place {
        assert!(offset + size <= self.size, "a part is inside the whole");
        Place { buffer: self.buffer, offset: self.offset + offset, size }
    }
}
