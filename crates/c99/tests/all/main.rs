//! Programs as C: what is written, and that it computes what the evaluator does.

mod boards;
mod cases;
mod opcodes;
mod programs;
mod random;
mod refusals;
mod support;
