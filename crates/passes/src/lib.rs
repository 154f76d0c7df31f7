//! Rewrites of HLO modules, one file each: what it does, what it leaves alone, what it requires.

mod pass;

pub use pass::{Context, Pass, PassError, PassRun, RunOptions, run};

/// Every pass by name, in alphabetical order.
pub const ALL: &[Pass] = &[];

/// The pass with a name.
pub fn find(name: &str) -> Option<&'static Pass> {
    ALL.iter().find(|pass| pass.name == name)
}
