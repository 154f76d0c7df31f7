//! The times of launches, by the cost model.

use super::LaunchNotes;

/// Seconds from the start of the program to each launch. Launches in a loop take the time of all their runs at once.
#[derive(Clone, Debug)]
pub(super) struct Clock {
    /// One more entry than launches.
    starts: Vec<f64>,
}

/// The time of a launch that costs nothing, so that it precedes its successor.
const LEAST: f64 = 1e-9;

impl Clock {
    pub(super) fn new(launches: &[LaunchNotes]) -> Clock {
        let mut starts = Vec::with_capacity(launches.len() + 1);
        let mut now = 0.0;
        starts.push(now);
        for launch in launches {
            now += launch.seconds.max(LEAST);
            starts.push(now);
        }
        Clock { starts }
    }

    /// When a launch starts; the end of the program for all numbers beyond.
    pub(super) fn start(&self, launch: u32) -> f64 {
        self.starts[(launch as usize).min(self.starts.len() - 1)]
    }
}
