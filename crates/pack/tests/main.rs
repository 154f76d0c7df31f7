//! The packer.

mod peers;
mod properties;
mod solver;
mod tables;
