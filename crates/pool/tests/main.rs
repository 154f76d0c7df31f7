//! Pools of memory, and what they did.

mod bfc;
mod defragment;
mod process;
mod replay;
