//! Why tiles cannot be planned.

use memplan_plan_hlo::PlanError;

use crate::placement_file::PlacementError;

/// Why tiles cannot be planned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IpuError {
    /// The target is some other machine.
    #[error("target `{0}` has no tiles")]
    NoTiles(String),
    /// More chips are requested than there are.
    #[error("target `{target}` has {available} chips (`tiles.chips` of its file), not {wanted}")]
    Chips {
        /// The target.
        target: String,
        /// The number requested.
        wanted: u32,
        /// How many there are.
        available: u32,
    },
    /// Values that must share storage cannot.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The placement file does not go with the program or the machine.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// Sizes are beyond 64 bits.
    #[error("the contents of a tile add up to more than 2^64 bytes")]
    TooLarge(#[source] memplan_pack::Error),
}
