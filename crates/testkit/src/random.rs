//! Random numbers that are the same everywhere, forever.

/// Splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
    decisions: std::vec::IntoIter<u8>,
}

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Random {
        Random { state: seed, decisions: Vec::new().into_iter() }
    }

    /// Numbers that bytes decide, one each while there are any, so that a fuzzer can change one decision at a time.
    pub fn decided_by(bytes: &[u8]) -> Random {
        Random { state: 0, decisions: Vec::from(bytes).into_iter() }
    }

    /// 64 random bits; no more than eight where a byte decides.
    pub fn bits(&mut self) -> u64 {
        if let Some(decision) = self.decisions.next() {
            return decision.into();
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    ///
    /// # Panics
    /// When `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// True once in `n` times.
    ///
    /// # Panics
    /// When `n` is 0.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// An element.
    ///
    /// # Panics
    /// When there is none.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }
}
