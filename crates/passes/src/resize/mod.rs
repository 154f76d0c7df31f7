//! Changes the extent of one dimension of a program, as if it had been written so: shapes and extents in attributes
//! follow, through the whole program.
//!
//! ```text
//!   x = f32[8,1024] parameter(0)                 x = f32[4,1024] parameter(0)
//!   z = f32[8192] reshape(x)               =>    z = f32[4096] reshape(x)
//!   n = f32[] constant(8192)                     n = f32[] constant(8192)
//!   m = f32[] divide(s, n)                       m = f32[] divide(s, n)
//! ```
//!
//! Values of scalars stay: the program is meant for planning, not for running. Instructions that cannot be resized
//! (tables of constants, operations that need exactly their extent) are errors.

mod attributes;
mod extents;

use std::sync::Arc;

use memplan_analysis::{Dimensions, FactorId};
use memplan_ir as ir;
use memplan_ir::{ArrayShape, InstructionId, Module, ProgramShape, Shape};

use extents::Extents;

/// Why a dimension cannot have another extent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// An operation holds the extent.
    #[error("`{instruction}` ({operation}) requires a dimension of exactly {extent}")]
    Held {
        /// The instruction.
        instruction: Box<str>,
        /// Its operation.
        operation: ir::Opcode,
        /// The extent.
        extent: i64,
    },
    /// The extent is not an integer, or two constraints disagree on it.
    #[error(
        "at `{instruction}` ({operation}) a dimension of {extent} cannot be resized: its new extent is not an integer, or two constraints disagree on it"
    )]
    Conflict {
        /// The instruction.
        instruction: Box<str>,
        /// Its operation.
        operation: ir::Opcode,
        /// The extent.
        extent: i64,
    },
    /// A constant with different elements has the dimension.
    #[error("the constant `{instruction}` has {extent} elements in this dimension, and others are unknown")]
    Constant {
        /// The instruction.
        instruction: Box<str>,
        /// The extent.
        extent: i64,
    },
    /// The resized program is not valid: something in it counts on the extent.
    #[error("another part of the program relies on the extent")]
    Invalid(#[source] ir::VerifyErrors),
}

/// A program of another size.
#[derive(Clone, Debug)]
pub struct Resized {
    /// The program.
    pub module: Module,
    /// Instructions that make room for scattered elements: assumed to scale with them.
    pub assumed: Vec<InstructionId>,
}

/// The program with another extent for a factor of its dimensions. Ids stay; the schedule, if there is one, too. Close to
/// linear.
///
/// The dimensions must be of this module, best after [`UNSHARE_SPLATS`](crate::UNSHARE_SPLATS).
///
/// # Errors
/// See [`ResizeError`].
pub fn resize(
    module: &Module,
    dimensions: &Dimensions,
    factor: FactorId,
    extent: i64,
) -> Result<Resized, ResizeError> {
    let extents = Extents::after(module, dimensions, factor, extent)?;
    let mut resized = module.clone();
    let listed = module.computations.values().flat_map(|computation| &computation.instructions);
    for &id in listed {
        if !extents.changes(id) {
            continue;
        }
        let shape = extents.shape_of(module, id);
        resized.set_shape(id, shape);
    }
    for &id in module.computations.values().flat_map(|computation| &computation.instructions) {
        attributes::follow(&mut resized, module, &extents, id)?;
    }
    if let Some(layout) = &mut resized.config.entry_computation_layout {
        *layout = with_extents_of_entry(module, &extents, layout);
    }
    ir::verify(&resized).map_err(ResizeError::Invalid)?;
    Ok(Resized { module: resized, assumed: extents.assumed })
}

/// The interface with new extents and the layouts that it had.
fn with_extents_of_entry(module: &Module, extents: &Extents<'_>, layout: &ProgramShape) -> ProgramShape {
    let entry = module.entry_computation();
    let of = |shape: &Shape, id: InstructionId| {
        let mut shape = shape.clone();
        copy_extents(&mut shape, &extents.shape_of(module, id));
        shape
    };
    let parameters =
        layout.parameters.iter().zip(&entry.parameters).map(|(shape, &id)| of(shape, id)).collect();
    ProgramShape { parameters, result: of(&layout.result, entry.root) }
}

/// Recursion is as deep as the shape; the parsers bound that depth.
fn copy_extents(to: &mut Shape, from: &Shape) {
    match (to, from) {
        (Shape::Tuple(to), Shape::Tuple(from)) => {
            Arc::make_mut(to).iter_mut().zip(from.iter()).for_each(|(to, from)| copy_extents(to, from));
        }
        (to, from) => {
            if let (Some(to), Some(ArrayShape { dimensions, .. })) = (to.as_array_mut(), from.as_array()) {
                to.dimensions.clone_from(dimensions);
            }
        }
    }
}
