//! Targets, layouts, and lists that threads work on.

mod addressing;
mod closest;
mod compilers;
mod parallel;
mod targets;
mod tpu_layout;
