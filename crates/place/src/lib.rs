//! Passes that prepare a program for planning: layouts, copies, asynchronous copies, host memory.

mod async_copy;
mod copy_insertion;
mod default_layouts;
mod donation;
mod dynamic_marks;
mod flatten_call_graph;
mod host_offload;
mod layout_assignment;
mod offload;
mod spell_out;
mod strip_fast_memory;
mod unsupported;

pub use async_copy::{Placed, insert_async_copies, order_for_async_copies};
pub use copy_insertion::{
    AddsOrder, Because, COPY_INSERTION, Conflict, CopyInsertion, CopyReport, HandsBack, InsertedCopy,
    MustShare,
};
pub use default_layouts::DEFAULT_LAYOUTS;
pub use donation::{DONATION, donate, donations, results_in_donors};
pub use dynamic_marks::DYNAMIC_MARKS;
pub use flatten_call_graph::FLATTEN_CALL_GRAPH;
pub use host_offload::{HOST_MEMORY, HOST_OFFLOAD, keep_on_host};
pub use layout_assignment::{LAYOUT_ASSIGNMENT, LayoutAssignment};
pub use offload::{OFFLOAD_HALF_ROWS, OFFLOAD_ROWS, OffloadReport, OffloadRows};
pub use strip_fast_memory::strip_fast_memory;
pub use unsupported::Unsupported;
