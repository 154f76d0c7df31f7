//! Changes of the skyline that can be undone.

use super::{Search, WAITING, toggle};

/// One entry of the trail: what a value was before.
#[derive(Clone, Copy)]
pub(super) enum Undo {
    Floor(u32, u64),
    Top(u32, u64),
    Least(u32, u64),
    Here(u32, u32),
    Placed(u32),
}

impl Search<'_> {
    /// Puts a block at its least offset.
    pub(super) fn place(&mut self, block: u32) {
        let offset = self.least[block as usize];
        self.trail.push(Undo::Placed(block));
        for index in 0..self.instance.pieces(block as usize).len() {
            let piece = self.instance.pieces(block as usize)[index];
            let size = self.scaled.piece_size(piece.size);
            for section in piece.lower..piece.upper {
                self.trail.push(Undo::Top(section, self.top[section as usize]));
                self.top[section as usize] = offset + size;
                self.set_floor(section, offset + size);
            }
        }
        self.set_offset(block, offset);
    }

    /// Gives a block its offset or takes it away, with everything that is counted over waiting blocks.
    pub(super) fn set_offset(&mut self, block: u32, offset: u64) {
        self.offset[block as usize] = offset;
        let sign = if offset == WAITING { 1 } else { u32::MAX };
        let data = &self.instance.blocks[block as usize];
        toggle(&mut self.waiting_key[data.lower as usize], self.keys[block as usize]);
        for n_crossing in &mut self.n_crossing[data.lower as usize..data.upper as usize - 1] {
            *n_crossing = n_crossing.wrapping_add(sign);
        }
        for piece in self.instance.pieces(block as usize) {
            let size = self.scaled.piece_size(piece.size);
            let size = if offset == WAITING { size } else { size.wrapping_neg() };
            for remaining in &mut self.remaining[piece.lower as usize..piece.upper as usize] {
                *remaining = remaining.wrapping_add(size);
            }
        }
    }

    pub(super) fn set_floor(&mut self, section: u32, floor: u64) {
        self.trail.push(Undo::Floor(section, self.floor[section as usize]));
        self.floor[section as usize] = floor;
        self.touch(section);
    }

    pub(super) fn touch(&mut self, section: u32) {
        if !core::mem::replace(&mut self.is_dirty[section as usize], true) {
            self.dirty.push_back(section);
        }
    }

    pub(super) fn undo(&mut self, mark: usize) {
        while self.trail.len() > mark {
            match self.trail.pop().expect("the trail is longer than the mark") {
                Undo::Floor(section, floor) => self.floor[section as usize] = floor,
                Undo::Top(section, top) => self.top[section as usize] = top,
                Undo::Least(block, least) => self.least[block as usize] = least,
                Undo::Here(section, n_here) => self.n_here[section as usize] = n_here,
                Undo::Placed(block) => self.set_offset(block, WAITING),
            }
        }
    }
}
