//! Properties of any bytes and any module, one function each: fuzz targets call them with bytes guided by coverage,
//! tests with a few.
//!
//! The properties of text, protobuf and packing problems are beside their parsers: [`memplan::hlo::fuzzing`],
//! [`memplan::pack::fuzz`]. For development only.

pub mod files;
pub mod programs;
mod steps;

pub use steps::{
    evaluate, evaluate_on_devices, explain, inputs_of_devices, plan_and_prove, plan_to_run, plan_with, prove,
    run_in_arena, run_in_arena_on_devices, run_passes,
};
