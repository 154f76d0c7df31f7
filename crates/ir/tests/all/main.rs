//! The language as data: index maps, scopes, and what the verifier finds.

mod indexing;
mod scopes;
mod verify;
