//! The checker against plans that are right and plans that are wrong.

mod accept;
mod corpus;

mod refute;
mod support;
