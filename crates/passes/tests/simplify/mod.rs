//! The simplification passes, case by case, on the corpus, and on modules of 100,000 instructions.

mod corpus;
mod equivalence;
mod filetests;
mod random;
mod random_loops;
mod random_rows;
mod random_scans;
mod random_stacks;
mod scaling;
