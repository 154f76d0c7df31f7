//! The evaluator.

mod arena;
mod custom_calls;
mod devices;
mod errors;
mod numerics;
mod opcodes;
mod rng;
mod support;
