//! Facts about the original program that are no levers: padding at its peak, and the pool of its process.

use indexmap::IndexMap;
use memplan_driver::{Estimate, EstimateError, estimate};
use memplan_ir::{ArrayShape, Module, Shape};
use memplan_memory::{Bytes, LessPadding, MemorySpaceId, RemedyKind, remedies};
use memplan_pool::process::{Placement, place};

use super::Setting;
use crate::Words;
use crate::holders::{Holder, Peak};

/// Arrays of one shape that layouts pad at the peak.
#[derive(Clone, Debug, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Padded {
    /// The shape, with its layout.
    pub shape: String,
    /// The number of arrays that are live at the peak.
    pub count: usize,
    /// The operation that makes the largest, or the first of them.
    pub operation: String,
    /// The line of the user's program.
    pub source: Option<String>,
    /// Bytes of all.
    pub size: Bytes,
    /// The part of these bytes that is padding.
    pub lost: Bytes,
    /// Remedies, the fewest bytes first.
    pub remedies: Vec<PaddingRemedy>,
}

/// Another shape or layout for padded arrays.
#[derive(Clone, Debug, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PaddingRemedy {
    /// The kind of remedy.
    pub kind: RemedyKind,
    /// The dimensions that change: number, old and new extent.
    pub dimensions: Vec<(usize, i64, i64)>,
    /// The new shape, with its layout.
    pub shape: String,
    /// The bytes of all arrays then.
    pub size: Bytes,
}

/// The findings.
pub(super) struct AsItIs {
    pub(super) padded: Vec<Padded>,
    pub(super) placement: Option<Placement>,
}

/// Padding is reported from one byte in this many.
const NOTEWORTHY: u64 = 100;

/// The most shapes to name.
const MOST_SHAPES: usize = 5;

/// Estimates the program once more, to inspect the plan.
pub(super) fn look(module: &Module, setting: &Setting<'_>) -> Result<AsItIs, EstimateError> {
    let found = estimate(module, setting.compiler, setting.target)?;
    let placement =
        setting.options.pool.as_ref().and_then(|pool| place(setting.target, &found.planned.plan, pool));
    Ok(AsItIs { padded: padded(&found, setting), placement })
}

/// The shapes that lose most bytes to padding at the peak, the most first.
fn padded(found: &Estimate, setting: &Setting<'_>) -> Vec<Padded> {
    let (module, target) = (&found.module, setting.target);
    let words = Words::new(module, &found.planned.facts);
    let peak = Peak::new(&words, &found.planned, MemorySpaceId::MAIN);
    let mut shapes: IndexMap<&ArrayShape, (usize, Bytes, Bytes, &Holder)> = IndexMap::new();
    for (buffer, holder) in peak.report.buffers.iter().zip(&peak.holders) {
        let shape = module.shape(buffer.position.instruction).subshape(&buffer.position.index);
        let Some(array) = shape.and_then(Shape::as_array) else { continue };
        let size = buffer.slice.size;
        // Of several values in one slice, the largest is there; anything smaller is ignored.
        let lost = size.saturating_sub(target.unpadded_size_of(&Shape::Array(array.clone())));
        let (count, sizes, losses, _) = shapes.entry(array).or_insert((0, Bytes::ZERO, Bytes::ZERO, holder));
        (*count, *sizes, *losses) = (*count + 1, sizes.saturating_add(size), losses.saturating_add(lost));
    }
    shapes.retain(|_, (_, _, lost, _)| lost.0 > found.total.0 / NOTEWORTHY);
    shapes.sort_by(|_, (_, _, a, _), _, (_, _, b, _)| b.cmp(a));
    let text = |array: &ArrayShape| memplan_hlo::shape_text(&Shape::Array(array.clone()));
    let shapes = shapes.into_iter().take(MOST_SHAPES);
    let of_shape = |(array, (count, size, lost, holder)): (&ArrayShape, (usize, Bytes, Bytes, &Holder))| {
        let remedy = |LessPadding { kind, array: other, size, .. }| PaddingRemedy {
            kind,
            dimensions: changed(array, &other),
            shape: text(&other),
            size: Bytes(size.0.saturating_mul(count as u64)),
        };
        Padded {
            shape: text(array),
            count,
            operation: holder.operation.clone(),
            source: holder.source.clone(),
            size,
            lost,
            remedies: remedies(target, array).into_iter().map(remedy).collect(),
        }
    };
    shapes.map(of_shape).collect()
}

fn changed(from: &ArrayShape, to: &ArrayShape) -> Vec<(usize, i64, i64)> {
    let pairs = from.dimensions.iter().zip(&to.dimensions).enumerate();
    let is_same_rank = from.rank() == to.rank();
    pairs.filter(|(_, (a, b))| is_same_rank && a != b).map(|(d, (&a, &b))| (d, a, b)).collect()
}
