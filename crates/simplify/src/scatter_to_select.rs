//! Turns scatters of one element per row into comparisons: they fuse, while a scatter needs its result in memory.
//!
//! Before and after, for the derivative of picking one class of each row:
//!
//! ```text
//!   zeros = f32[8,1000] broadcast(0)               i = s32[8,1000] iota(), iota_dimension=1
//!   s = f32[8,1000] scatter(zeros, at, u),   =>    p = pred[8,1000] compare(broadcast(at), i)
//!       one index and update a row                 s = f32[8,1000] select(p, add(0, broadcast(u)), 0)
//! ```
//!
//! An index outside the row equals no element of the iota, so its update is dropped, as in a scatter. Only scatters
//! into an array of one value are rewritten: a few elements of an array in memory are better updated in place. Left
//! alone: several indices per row, windows smaller than their source, combiners other than one binary operation or
//! taking the update.

use memplan_ir::{
    ArrayShape, ComparisonDirection, ComputationId, Dimensions, ElementType, InstructionId, Op,
    ScatterDimensions,
};
use memplan_rewriter::{PassError, PassFn, Rewriter};

/// The pass.
pub const SCATTER_TO_SELECT: PassFn = PassFn {
    name: "scatter-to-select",
    description: "Turn scatters of one element per row into comparisons, which fuse",
    run: |module, _| {
        let mut rewriter = Rewriter::new(module);
        rewriter.sweep(rewrite);
        Ok::<_, PassError>(rewriter.finish())
    },
};

/// The replacement of an instruction.
fn rewrite(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::Scatter(numbers) = r.op(id).clone() else { return None };
    let &[operand, indices, updates] = r.operands(id) else { return None };
    r.splat(operand)?;
    let combiner = combiner(r, r.get(id).called[0])?;
    let rows = Rows::new(&numbers, r.array(operand)?, r.array(indices)?, r.array(updates)?)?;
    Some(rows.select(r, [operand, indices, updates], combiner))
}

/// How an update goes into an element.
enum Combiner {
    /// It replaces it.
    Replace,
    /// This operation of the element and the update, in this order.
    Combine(Op),
}

fn combiner(r: &Rewriter<'_>, computation: ComputationId) -> Option<Combiner> {
    let body = &r.module().computations[computation];
    let &[element, update] = body.parameters.as_slice() else { return None };
    let root = r.get(body.root);
    match &root.op {
        Op::Parameter { number: 1 } => Some(Combiner::Replace),
        // Either order matches; the emitted one is the same.
        op @ Op::Binary(_) if root.operands[..] == [element, update] => Some(Combiner::Combine(op.clone())),
        _ => None,
    }
}

/// A scatter that puts at most one update into each row along one dimension.
struct Rows {
    /// The dimension along which the index counts.
    along: i64,
    /// The operand.
    array: ArrayShape,
    index_type: ElementType,
    update_type: ElementType,
    /// Extents of the indices, except those that are 1.
    index_extents: Dimensions,
    /// Which dimension of the operand each of those is.
    index_to: Dimensions,
    /// The same of the updates.
    update_extents: Dimensions,
    update_to: Dimensions,
}

impl Rows {
    fn new(
        numbers: &ScatterDimensions,
        array: &ArrayShape,
        indices: &ArrayShape,
        updates: &ArrayShape,
    ) -> Option<Rows> {
        let &[along] = numbers.scatter_dims_to_operand_dims.as_slice() else { return None };
        if numbers.inserted_window_dims[..] != [along] || numbers.input_batching_dims.contains(&along) {
            return None;
        }
        let vector = numbers.index_vector_dim as usize;
        if indices.dimensions.get(vector).is_some_and(|&extent| extent != 1) {
            return None;
        }
        // Dimensions of the indices: those that correspond to one of the operand, otherwise only extents of 1.
        let to_operand = |d: usize| {
            let batch = numbers.scatter_indices_batching_dims.iter().position(|&b| b == d as i64);
            batch.map(|batch| numbers.input_batching_dims[batch])
        };
        let scatter_dims: Vec<usize> = (0..indices.rank()).filter(|&d| d != vector).collect();
        if scatter_dims.iter().any(|&d| to_operand(d).is_none() && indices.dimensions[d] != 1) {
            return None;
        }
        let in_index = |d: &&usize| to_operand(**d).is_some();
        let index_to: Dimensions =
            scatter_dims.iter().filter(in_index).filter_map(|&d| to_operand(d)).collect();
        let index_extents = scatter_dims.iter().filter(in_index).map(|&d| indices.dimensions[d]).collect();

        // Dimensions of the updates: windows in the order of the operand's other dimensions, the rest as the indices.
        let is_window =
            |d: i64| !numbers.inserted_window_dims.contains(&d) && !numbers.input_batching_dims.contains(&d);
        let mut windows = (0..array.rank() as i64).filter(|&d| is_window(d));
        let mut scatters = scatter_dims.iter();
        let (mut update_to, mut update_extents) = (Dimensions::new(), Dimensions::new());
        for (d, &extent) in updates.dimensions.iter().enumerate() {
            let to = match numbers.update_window_dims.contains(&(d as i64)) {
                true => Some(windows.next()?),
                false => to_operand(*scatters.next()?),
            };
            let Some(to) = to else { continue };
            if extent != array.dimensions[to as usize] {
                return None;
            }
            update_to.push(to);
            update_extents.push(extent);
        }
        let is_increasing = |dims: &[i64]| dims.windows(2).all(|pair| pair[0] < pair[1]);
        (is_increasing(&index_to) && is_increasing(&update_to)).then(|| Rows {
            along,
            array: ArrayShape::new(array.element_type, array.dimensions.iter().copied()),
            index_type: indices.element_type,
            update_type: updates.element_type,
            index_extents,
            index_to,
            update_extents,
            update_to,
        })
    }

    fn select(
        &self,
        r: &mut Rewriter<'_>,
        operands: [InstructionId; 3],
        combiner: Combiner,
    ) -> InstructionId {
        let [operand, indices, updates] = operands;
        let of_type = |element_type| ArrayShape::new(element_type, self.array.dimensions.iter().copied());
        let index = self.spread(r, indices, self.index_type, &self.index_extents, &self.index_to);
        let count = r.emit(Op::Iota { dimension: self.along }, [], of_type(self.index_type));
        let equal = Op::Compare { direction: ComparisonDirection::Eq, comparison_type: None };
        let is_here = r.emit(equal, [index, count], of_type(ElementType::Pred));
        let update = self.spread(r, updates, self.update_type, &self.update_extents, &self.update_to);
        let updated = match combiner {
            Combiner::Replace => update,
            Combiner::Combine(op) => r.emit(op, [operand, update], self.array.clone()),
        };
        r.emit(Op::Select, [is_here, updated, operand], self.array.clone())
    }

    /// Drops extents of 1 and repeats along the dimensions that are missing.
    fn spread(
        &self,
        r: &mut Rewriter<'_>,
        id: InstructionId,
        element_type: ElementType,
        extents: &[i64],
        to: &Dimensions,
    ) -> InstructionId {
        let narrow = ArrayShape::new(element_type, extents.iter().copied());
        let narrow = r.emit(Op::Reshape { inferred_dimension: None }, [id], narrow);
        let wide = ArrayShape::new(element_type, self.array.dimensions.iter().copied());
        r.emit(Op::Broadcast { dimensions: to.clone() }, [narrow], wide)
    }
}
