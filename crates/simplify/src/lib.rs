//! Passes that shorten a program: algebra, folding, tuples, loops and conditionals.

mod algebraic;
mod bitcast_expander;
mod conditional_simplifier;
mod constant_folding;
mod copy_computation;
mod fusion_inliner;
mod narrow_transposes;
mod optimization_barrier_expander;
mod scatter_to_select;
mod sharding_annotations;
mod tuple_constant_expander;
mod tuple_simplifier;
mod tuple_uses;
mod unshare_splats;
mod while_invariant_code_motion;
mod while_simplifier;

pub use algebraic::{ALGEBRAIC_SIMPLIFIER, AlgebraicSimplifier};
pub use bitcast_expander::BITCAST_EXPANDER;
pub use conditional_simplifier::{CONDITIONAL_SIMPLIFIER, ConditionalSimplifier};
pub use constant_folding::{CONSTANT_FOLDING, ConstantFolding};
pub use fusion_inliner::FUSION_INLINER;
pub use narrow_transposes::NARROW_TRANSPOSES;
pub use optimization_barrier_expander::OPTIMIZATION_BARRIER_EXPANDER;
pub use scatter_to_select::SCATTER_TO_SELECT;
pub use sharding_annotations::{SHARDING_FOLDING, SHARDING_REMOVER};
pub use tuple_constant_expander::TUPLE_CONSTANT_EXPANDER;
pub use tuple_simplifier::TUPLE_SIMPLIFIER;
pub use unshare_splats::UNSHARE_SPLATS;
pub use while_invariant_code_motion::{
    MotionWorth, WHILE_INVARIANT_CODE_MOTION, WHILE_INVARIANT_CODE_MOTION_OF_ALL,
    WHILE_INVARIANT_CODE_MOTION_OF_STORED, WhileInvariantCodeMotion,
};
pub use while_simplifier::{WHILE_LOOP_CONSTANT_SINKING, WHILE_SIMPLIFIER, WhileSimplifier};
