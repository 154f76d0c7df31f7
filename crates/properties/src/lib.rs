//! What must hold for any bytes and any module, a function for each property: fuzz targets call them with bytes that
//! coverage guides, tests with a few.
//!
//! Text, protobuf and packing problems are judged where they are read: [`memplan::hlo::fuzzing`], [`memplan::pack::fuzz`].
//! For development only.

pub mod files;
pub mod programs;
mod steps;

pub use steps::{
    evaluate, evaluate_on_devices, explain, inputs_of_devices, plan_and_prove, plan_to_run, plan_with, prove,
    run_in_arena, run_in_arena_on_devices, run_passes,
};
