//! TFLite models: plans the arena of TFLite Micro in the model's own numbering of tensors, and writes the offsets into the
//! model.
//!
//! TFLite Micro places tensors when a model is loaded, greedily. Offsets that the model has in its metadata
//! `OfflineMemoryAllocation` are taken instead; -1 leaves a tensor to the runtime. [`plan`] packs the tensors that the
//! first subgraph makes, with the lifetimes that the runtime gives them: an input from the start, others from the operator
//! that writes them, each to the last that reads it, outputs to the end. Constants, variables and tensors of other
//! subgraphs (branches and loops) are left to the runtime, and so is the working memory that kernels ask for.
//!
//! ```no_run
//! let bytes = std::fs::read("model.tflite")?;
//! let model = memplan_tflite::read(&bytes)?;
//! let plan = memplan_tflite::plan(&model, &Default::default())?;
//! std::fs::write("planned.tflite", memplan_tflite::write(&bytes, &plan)?)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod flatbuffer;
mod model;
mod planned;
mod write;

pub use memplan_pack::Options;
pub use model::{Lifetime, Model, Subgraph, Tensor, read};
pub use planned::{ALIGNMENT, Plan, plan};
pub use write::{METADATA, write};

/// The identifier of a TFLite model, in bytes 4 to 8.
pub const IDENTIFIER: &[u8] = b"TFL3";

/// Whether bytes are meant as a TFLite model.
pub fn is_model(bytes: &[u8]) -> bool {
    bytes.get(4..8) == Some(IDENTIFIER)
}

/// Why a model has no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum TfliteError {
    #[error("this is no TFLite model: bytes 4 to 8 are not `TFL3`")]
    NotAModel,
    #[error("the model is damaged: {0} is not within the file, or not where it may be")]
    Damaged(&'static str),
    #[error("the model has no subgraph")]
    NoSubgraph,
    #[error("tensor {number} (`{name}`) has no fixed size: {why}")]
    Size { number: usize, name: String, why: &'static str },
    #[error("tensor {number} (`{name}`) is read by operator {operator} before any operator writes it")]
    Unwritten { number: usize, name: String, operator: usize },
    #[error("tensor {number} would be at {offset}, and TFLite Micro counts offsets in 31 bits")]
    Offset { number: usize, offset: u64 },
    #[error("constants of the model are behind the flatbuffer (`Buffer.offset`), which is not supported")]
    ExternalBuffers,
    #[error("the tensors have no packing: {0}")]
    Packing(String),
}
