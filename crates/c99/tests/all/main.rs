//! Programs as C: what is written, and that it computes what the evaluator does.

mod boards;
mod cases;
mod cmsis_nn;
mod names;
mod opcodes;
mod programs;
mod random;

mod support;
