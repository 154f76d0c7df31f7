//! Tests of the simulated pools of GPU runtimes.

mod bfc;
mod defragment;
mod process;
mod replay;
