//! Modules read, verified and written.

mod as_xla_reads;
mod corpus;
mod partition;
mod proto;
mod text;
mod verify;
