//! Load: how many bytes are live at every instant.

use memplan_program::{LiveRange, Time};
use memplan_units::Bytes;

/// Bytes live at every instant, as differences: linear to build, linear to read.
#[derive(Clone, Debug)]
pub struct Load {
    /// Change at each instant.
    deltas: Vec<i128>,
}

impl Load {
    /// No load, for instants `0..end`.
    pub fn new(end: Time) -> Load {
        Load { deltas: vec![0; end as usize + 1] }
    }

    /// Adds bytes that are live during a range.
    pub fn add(&mut self, range: LiveRange, bytes: Bytes) {
        let last = self.deltas.len() as Time - 1;
        self.deltas[range.start.min(last) as usize] += i128::from(bytes.0);
        self.deltas[range.end.min(last) as usize] -= i128::from(bytes.0);
    }

    /// Bytes live at every instant.
    pub fn curve(&self) -> impl Iterator<Item = Bytes> + '_ {
        let instants = self.deltas.len() - 1;
        self.deltas[..instants].iter().scan(0i128, |live, delta| {
            *live += delta;
            Some(Bytes(u64::try_from(*live).unwrap_or(u64::MAX)))
        })
    }

    /// The first instant with the most bytes, and how many.
    pub fn peak(&self) -> (Time, Bytes) {
        let mut peak = (0, Bytes::ZERO);
        for (time, bytes) in self.curve().enumerate() {
            if bytes > peak.1 {
                peak = (time as Time, bytes);
            }
        }
        peak
    }
}
