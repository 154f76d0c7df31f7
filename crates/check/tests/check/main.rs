//! The checker against plans that are right and plans that are wrong.

mod accept;
mod claims;
mod corpus;
mod mutate;
mod oracle;
mod refute;
mod support;
