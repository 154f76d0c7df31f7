//! Phases: an instruction works on its arrays part by part, so that arrays outside the chip are loaded only in parts.
//!
//! Elementwise work is divided along its elements: operands that are read in step with it arrive in parts, and parts of
//! the result leave; other operands are loaded as a whole. Windows that do not extend along the outermost dimension
//! (pooling of several images) are divided along it. A dot or convolution is divided along its batch, rows, columns or
//! depth; an operand without that dimension is loaded as a whole.

use std::collections::BTreeMap;

use memplan_analysis::Facts;
use memplan_ir::{Access, ArrayShape, Instruction, InstructionId, Module, Op, Window};
use memplan_memory::Bytes;

use crate::alignment::{Alignments, Reads, same_order};
use crate::contraction::Contraction;
use crate::tensors::{TensorId, Tensors};

/// Fewest elements of a part on each tile: with less, more is synchronized than worked.
const LEAST_ELEMENTS: u64 = 16;

/// Most phases of one instruction.
const MOST: u64 = 256;

/// Along what an instruction is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Axis {
    /// The elements that its vertices walk over.
    Elements,
    /// Independent contractions.
    Batch,
    /// Rows of the result of a contraction, which only its left operand has.
    Rows,
    /// Columns of the result of a contraction, which only its right operand has.
    Columns,
    /// The contracted dimension; the result has partial sums until the end.
    Depth,
}

/// How an instruction can be cut into phases.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub(crate) axis: Axis,
    /// The tensors that are needed in parts.
    pub(crate) tensors: Vec<TensorId>,
    /// The most phases.
    pub(crate) most: u64,
}

/// The number of phases of instructions that run in several.
pub(crate) type Phases = BTreeMap<InstructionId, (Axis, u64)>;

/// How instructions can be cut.
pub(crate) struct Cuts<'a> {
    module: &'a Module,
    facts: &'a Facts,
    alignments: Alignments<'a>,
    tiles: u32,
}

impl<'a> Cuts<'a> {
    pub(crate) fn new(module: &'a Module, facts: &'a Facts, tiles: u32) -> Cuts<'a> {
        Cuts { module, facts, alignments: Alignments::new(module), tiles }
    }

    /// How an instruction can be cut, if it can.
    pub(crate) fn of(&mut self, tensors: &Tensors, id: InstructionId) -> Option<Cut> {
        let instruction = &self.module.instructions[id];
        let array = |i: usize| self.module.shape(*instruction.operands.get(i)?).as_array();
        match &instruction.op {
            Op::Dot(dot) => {
                let contraction = Contraction::of_dot(array(0)?, array(1)?, &dot.dimensions);
                let (rows, depth) = (contraction.rows, contraction.depth);
                self.of_contraction(tensors, id, &contraction, rows, depth)
            }
            Op::Convolution(convolution) => {
                let result = self.module.shape(id).as_array()?;
                let contraction = Contraction::of_convolution(array(0)?, array(1)?, result, convolution);
                // Between images and between features nothing reaches over.
                let images = usize::try_from(convolution.dimensions.output_batch).ok()?;
                let images = u64::try_from(*result.dimensions.get(images)?).ok()?;
                self.of_contraction(tensors, id, &contraction, images, contraction.lhs_depth)
            }
            Op::ReduceWindow(window) | Op::SelectAndScatter(window) => self.of_windows(tensors, id, window),
            _ if walks_over_elements(self.module, instruction) => self.of_walk(tensors, id),
            _ => None,
        }
    }

    /// Cut so that as few bytes as possible are needed as a whole.
    fn of_contraction(
        &self,
        tensors: &Tensors,
        id: InstructionId,
        contraction: &Contraction,
        rows: u64,
        depth: u64,
    ) -> Option<Cut> {
        let operands = &self.module.instructions[id].operands;
        let of = |id: InstructionId| self.facts.flow.value_of(id).and_then(|value| tensors.of(value));
        let (lhs, rhs, result) = (of(operands[0])?, of(operands[1])?, of(id)?);
        let axes = [
            (Axis::Batch, contraction.batch, vec![lhs, rhs, result], None),
            (Axis::Rows, rows, vec![lhs, result], Some(rhs)),
            (Axis::Columns, contraction.columns, vec![rhs, result], Some(lhs)),
            (Axis::Depth, depth, vec![lhs, rhs], Some(result)),
        ];
        let cuts =
            axes.into_iter().filter(|(_, extent, _, _)| *extent > 1).map(|(axis, extent, mut cut, whole)| {
                // An array that is multiplied with itself is needed as a whole as well.
                cut.retain(|&tensor| Some(tensor) != whole);
                cut.sort_unstable();
                cut.dedup();
                Cut { axis, tensors: cut, most: extent.min(MOST) }
            });
        let bytes = |cut: &Cut| {
            cut.tensors.iter().map(|&t| tensors.all[t].bytes()).fold(Bytes::ZERO, Bytes::saturating_add)
        };
        cuts.max_by_key(|cut| (bytes(cut), std::cmp::Reverse(cut.axis)))
    }

    /// Cut along the outermost dimension, where windows do not reach along it.
    fn of_windows(&self, tensors: &Tensors, id: InstructionId, window: &Window) -> Option<Cut> {
        let result = self.module.shape(id).as_array()?;
        let outermost = |array: &ArrayShape| array.minor_to_major().last().copied();
        let dimension = outermost(result)?;
        let major = usize::try_from(dimension).ok()?;
        let extent = result.dimensions.get(major).copied()?;
        let along = window.dimensions.get(major)?;
        let is_apart = along.size == 1 && along.stride == 1 && along.padding_low == 0;
        let has_it = |id: InstructionId| -> Option<TensorId> {
            let array = self.module.shape(id).as_array()?;
            let is_alike =
                outermost(array) == Some(dimension) && array.dimensions.get(major) == Some(&extent);
            tensors.of(self.facts.flow.value_of(id)?).filter(|_| is_alike)
        };
        let sides = self.module.instructions[id].operands.iter().copied().chain([id]);
        let mut cut: Vec<TensorId> = sides.filter_map(has_it).collect();
        cut.sort_unstable();
        cut.dedup();
        let most = u64::try_from(extent).ok()?.min(MOST);
        is_apart.then_some(Cut { axis: Axis::Elements, tensors: cut, most })
    }

    fn of_walk(&mut self, tensors: &Tensors, id: InstructionId) -> Option<Cut> {
        let alignment = self.alignments.of(id);
        let (module, flow) = (self.module, &self.facts.flow);
        let results = flow.positions.of(id).filter_map(|position| {
            let array = module.shape(id).subshape(flow.positions.shape_index(position))?.as_array()?;
            Some((array, tensors.of(flow.value_at(position)?)?))
        });
        let operands =
            module.instructions[id].operands.iter().zip(&alignment.reads).filter_map(|(&id, &reads)| {
                Some((module.shape(id).as_array()?, tensors.of(flow.value_of(id)?)?, reads))
            });
        let in_step = operands.clone().filter(|&(_, _, reads)| reads == Reads::InStep);
        let in_step: Vec<_> = in_step.map(|(array, tensor, _)| (array, tensor)).collect();
        let results: Vec<_> = results.collect();
        let sides = if alignment.reduces { &in_step } else { &results };
        let &(work, _) = sides.iter().max_by_key(|(array, _)| array.element_count())?;
        let mut cut: Vec<TensorId> = in_step
            .iter()
            .chain(&results)
            .filter(|(array, _)| same_order(array, work))
            .map(|&(_, tensor)| tensor)
            .collect();
        // Tensors that are also read elsewhere are needed as a whole.
        let whole: Vec<TensorId> =
            operands.filter(|&(_, _, reads)| reads != Reads::InStep).map(|(_, tensor, _)| tensor).collect();
        cut.retain(|tensor| !whole.contains(tensor));
        cut.sort_unstable();
        cut.dedup();
        let least = u64::from(self.tiles) * LEAST_ELEMENTS;
        let most = (work.element_count().unwrap_or(0) / least).min(MOST);
        Some(Cut { axis: Axis::Elements, tensors: cut, most })
    }
}

/// Whether an instruction computes each result element, or reduces each operand element, separately.
fn walks_over_elements(module: &Module, instruction: &Instruction) -> bool {
    match &instruction.op {
        Op::Fusion(_) => instruction.called.iter().all(|&fused| {
            module.computations[fused].instructions.iter().all(|&id| {
                let inner = &module.instructions[id];
                let is_view = inner.op.is_free() || inner.op == Op::DynamicUpdateSlice;
                is_view || !matches!(inner.op, Op::Fusion(_)) && walks_over_elements(module, inner)
            })
        }),
        op => match op.traits().access {
            Access::Elementwise => op.is_elementwise(),
            Access::Reindexing => true,
            Access::Reduction => matches!(op, Op::Reduce { .. }),
            Access::Contraction | Access::Update | Access::Whole => false,
        },
    }
}
