//! HLO as protobuf: `HloProto` and `HloModuleProto`, in and out.
//!
//! [`read`] tells the two apart by content. Fields that this version does not know are kept where programs have them in
//! practice: in modules, computations, instructions and metadata, as bytes in the `unknown_fields` of the `memplan_ir`
//! types, from where they are written back. Elsewhere they are dropped, and reported as [`Warning`]s.
//!
//! What protobuf has no place for is lost on the way out: the numbers of replicas and partitions, `mode` of
//! collectives, sharding propagation flags and `alias_passthrough_params`. XLA loses the same.
//!
//! The messages are Rust structs made by `generate.py` from the table `messages.txt`, so that building needs no `protoc`.
//! Computations and instructions are decoded one at a time: memory stays in proportion to the module.

mod assignment;
mod convert;
mod error;
mod export;
mod import;
#[rustfmt::skip]
mod messages;
mod operations;
mod wire;

use memplan_ir::Module;

pub use assignment::{
    AllocationRole, BufferAllocation, BufferAssignment, HeapEvent, HeapTrace, LogicalBuffer,
    read_allocations, read_assignment, write_assigned,
};
pub use error::{ExportError, FieldError, ImportError, Warning};

/// What was read.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The module. It is not verified.
    pub module: Module,
    /// The bytes of `HloProto.buffer_assignment`, where the file was an `HloProto` and had one.
    pub buffer_assignment: Option<Box<[u8]>>,
    /// Fields that were dropped, each kind once, in order of first appearance.
    pub warnings: Vec<Warning>,
}

/// Reads an `HloProto` or an `HloModuleProto`.
///
/// # Errors
/// The first thing that is wrong: malformed wire, references that lead nowhere, values that HLO does not have.
pub fn read(bytes: &[u8]) -> Result<Imported, ImportError> {
    import::import(bytes)
}

/// Writes an `HloModuleProto`.
///
/// # Errors
/// When the module is not sound enough to be written; a verified one always is.
pub fn write_module(module: &Module) -> Result<Vec<u8>, ExportError> {
    export::module(module)
}

/// Writes an `HloProto`, with the bytes of a buffer assignment when there is one.
///
/// # Errors
/// As [`write_module`].
pub fn write(module: &Module, buffer_assignment: Option<&[u8]>) -> Result<Vec<u8>, ExportError> {
    let module = export::module(module)?;
    let mut out = Vec::with_capacity(module.len() + buffer_assignment.map_or(0, <[u8]>::len) + 32);
    wire::put_bytes(1, &module, &mut out);
    if let Some(assignment) = buffer_assignment {
        wire::put_bytes(3, assignment, &mut out);
    }
    Ok(out)
}
