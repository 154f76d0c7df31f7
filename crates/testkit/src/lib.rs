//! Tools for the tests of several crates: real programs, a generator of modules, inputs for them, comparison of
//! results, and headers and expectations in case files.
//!
//! It depends only on the IR, so that every crate above can use it without a cycle.

mod canonical;
mod compare;
mod corpus;
mod features;
mod fixture;
mod generator;
mod growth;
mod inputs;
mod pieces;
mod random;
mod training;

pub use canonical::canonical;
pub use compare::{assert_close, difference, difference_from_xla, first_difference};
pub use corpus::{CorpusProgram, FORMS, NumericsCase, corpus, numerics, shared};
pub use features::{Features, features};
pub use fixture::{Expectation, Fixture, FixtureError};
pub use generator::{Family, GenerateOptions, OVERWRITES, PARTITIONS, generate, generate_from, overwrite};
pub use growth::{GROWTH_SHAPES, GrowthShape};
pub use inputs::random_inputs;
pub use pieces::{leaves, part};
pub use random::Random;
pub use training::{INSTRUCTIONS_PER_LAYER, unrolled_training};
