//! Plans of HLO programs.

mod given_orders;
mod least;
mod schedule;
