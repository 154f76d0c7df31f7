//! Times of operations, and scratch memory of kernels.

mod cost;
mod kernel_scratch;
