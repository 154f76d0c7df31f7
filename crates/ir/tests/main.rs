//! The language as data: index maps, scopes, inferred shapes, and what the verifier finds.

mod cursor;
mod float;
mod indexing;
mod infer;
mod names;
mod scalar;
mod scopes;
mod traits;
mod verify;
