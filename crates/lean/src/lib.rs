//! Passes that make a program need less memory: recomputation, checkpoints, parts of the batch, blocks of rows.

mod bands;
mod checkpoint;
mod concatenations;
mod gradients_first;
mod layers;
mod loop_residuals;
mod masks_from_results;
mod narrow;
mod parts;
mod pin_layouts;
mod remat;
mod row_blocks;

pub use bands::{BANDS, BandedPart, Bands, BandsReport, Halo};
pub use checkpoint::{Checkpoint, checkpoint};
pub use concatenations::{SPLIT_CONCATENATIONS, SplitConcatenations};
pub use gradients_first::{GRADIENTS_FIRST, GradientsFirst};
pub use layers::{Borders, CHECKPOINT_LAYERS, CheckpointLayers, Saved, Saves};
pub use loop_residuals::{LOOP_RESIDUALS, LoopResiduals, ResidualPair, ResidualsReport};
pub use masks_from_results::MASKS_FROM_RESULTS;
pub use narrow::{kept_for_backward, narrow_arguments, narrow_values};
pub use parts::{PARTS, Parts, PartsReport};
pub use pin_layouts::PIN_LAYOUTS;
pub use remat::{
    LoweredPeak, Products, REMAT, REMAT_BEHIND_BARRIERS, REMAT_BEHIND_SELECTS, Recomputed, Remat,
    RematReport, Tie,
};
pub use row_blocks::{ROW_BLOCKS, RowBlocks};
