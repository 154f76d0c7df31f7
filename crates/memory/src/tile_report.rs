//! How full the tiles of a machine are: the plan file's part about tiles.

use serde::{Deserialize, Serialize};

use crate::Bytes;

/// How full the tiles are. All sizes in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TileReport {
    /// Bytes of one tile.
    pub tile_bytes: Bytes,
    /// Whether the needs of every tile fit.
    pub fits: bool,
    /// Bytes that are loaded from and stored to memory outside the chip in one run.
    pub streamed: Bytes,
    /// Bytes of tensors that live outside the chip.
    pub off_chip: Bytes,
    /// The chips, one for each stage of a pipeline.
    pub stages: Vec<TileStage>,
}

/// One chip.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TileStage {
    /// The number of the fullest tile, the first of them.
    pub fullest: u32,
    /// The needs of the fullest tile.
    pub maximum: Bytes,
    /// The mean needs of a tile.
    pub mean: Bytes,
    /// The needs of the fullest tile by purpose.
    pub at_fullest: TileCategories,
    /// The needs of all tiles together by purpose.
    pub all: TileCategories,
    /// The needs of each tile, by its number.
    pub tiles: Vec<Bytes>,
}

/// Memory of tiles by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TileCategories {
    /// Code, which needs memory that is not interleaved.
    pub code: Bytes,
    /// State of vertices.
    pub state: Bytes,
    /// Parameters and constants, which have their bytes for the whole run.
    pub always_live: Bytes,
    /// Everything else, packed by time.
    pub not_always_live: Bytes,
    /// The part of memory packed by time: the most that one instruction receives from other tiles and keeps as partial
    /// results.
    pub exchange: Bytes,
}

impl TileReport {
    /// The chip with the fullest tile, the first of them.
    pub fn fullest_stage(&self) -> Option<(usize, &TileStage)> {
        self.stages.iter().enumerate().max_by_key(|(i, stage)| (stage.maximum, std::cmp::Reverse(*i)))
    }
}

impl TileStage {
    /// How evenly memory is used: the mean over the maximum, 1 when all tiles are equally full.
    pub fn balance(&self) -> f64 {
        if self.maximum == Bytes::ZERO { 1.0 } else { self.mean.0 as f64 / self.maximum.0 as f64 }
    }
}

impl TileCategories {
    /// The sum of the categories; exchange is part of memory packed by time.
    pub fn total(&self) -> Bytes {
        let parts = [self.code, self.state, self.always_live, self.not_always_live];
        parts.into_iter().fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// The sums by category.
    #[must_use]
    pub fn saturating_add(&self, other: &TileCategories) -> TileCategories {
        TileCategories {
            code: self.code.saturating_add(other.code),
            state: self.state.saturating_add(other.state),
            always_live: self.always_live.saturating_add(other.always_live),
            not_always_live: self.not_always_live.saturating_add(other.not_always_live),
            exchange: self.exchange.saturating_add(other.exchange),
        }
    }
}
