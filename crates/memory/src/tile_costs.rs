//! What a program costs on an IPU tile besides its data: code, vertex state, and the limits of its planner.
//!
//! Sizes of fields in vertex state are from DEVICES.md section 5. Sizes of code are assumptions, since no library
//! publishes them: they have the order of magnitude of hand-written vertices, and are fields so that whoever has
//! measured better ones can say so.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Bytes;

/// Bytes of vertices and code on a tile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TileCosts {
    /// A vector field of a vertex with its length.
    pub span_state: Bytes,
    /// A vector field whose length another field has.
    pub pointer_state: Bytes,
    /// A scalar field.
    pub scalar_state: Bytes,
    /// What one worker of a dot or convolution is told: where its part of input, weights and output begins.
    pub worklist_state: Bytes,
    /// A codelet that does nothing: entry, division of work among threads, loop, exit.
    pub codelet_code: Bytes,
    /// Each operation of a codelet that was generated for a fusion.
    pub operation_code: Bytes,
    /// A codelet of a reduction, gather, scatter, sort and the like.
    pub library_code: Bytes,
    /// A codelet of a dot, convolution, Fourier transform or factorization.
    pub contraction_code: Bytes,
    /// Calling the vertices of one instruction from the program of the tile.
    pub call_code: Bytes,
    /// Receiving one operand through the exchange.
    pub receive_code: Bytes,
}

impl Default for TileCosts {
    fn default() -> TileCosts {
        TileCosts {
            span_state: Bytes(8),
            pointer_state: Bytes(4),
            scalar_state: Bytes(4),
            worklist_state: Bytes(24),
            codelet_code: Bytes(96),
            operation_code: Bytes(24),
            library_code: Bytes(768),
            contraction_code: Bytes(3072),
            call_code: Bytes(16),
            receive_code: Bytes(32),
        }
    }
}
