//! The whole of memplan on case files, on random modules and on real programs.

#[path = "../examples/ablation.rs"]
mod ablation;
mod agreement;
mod c_header;
mod compile;
mod corpus;
mod diff;
mod estimate;
mod examples;
mod fast_memory;
mod ipu;
mod ipu_document;
mod layout;
mod manifests;
mod mutations;
mod objective;
mod options;
mod plan;
mod proved;
mod replay;
mod rewrite;
mod schema;
mod small_devices;
mod stages;
mod support;
