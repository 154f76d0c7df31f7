//! Moves an array from one cut to another: collectives and slices.
//!
//! ```text
//!   cut {0}, {}   to  {}, {}      all-gather on dimension 0
//!   cut {}, {}    to  {0}, {}     each device takes its slice
//!   cut {0}, {}   to  {}, {0}     all-to-all
//!   sums over {0} to  {0}, {}     reduce-scatter; to {}, {}: all-reduce
//! ```

use memplan_ir::{
    ArrayShape, BinaryOp, Collective, ComputationId, Cursor, Dimensions, ElementType, Insert, InstructionId,
    Module, Names, Op, Shape,
};
use rustc_hash::FxHashMap;

use crate::cut::{Axes, Axis, Cut, Grid, is_prefix};

/// Instructions that are added to one computation.
#[derive(Debug)]
pub(crate) struct Resharder<'a> {
    pub(crate) grid: &'a Grid,
    /// The index of this device along an axis.
    indices: FxHashMap<Axis, InstructionId>,
    device: Option<InstructionId>,
    done: FxHashMap<(InstructionId, Cut), InstructionId>,
}

impl<'a> Resharder<'a> {
    pub(crate) fn new(grid: &'a Grid) -> Resharder<'a> {
        Resharder { grid, indices: FxHashMap::default(), device: None, done: FxHashMap::default() }
    }

    /// An array that is cut in one way, cut in another one.
    pub(crate) fn reshard(
        &mut self,
        module: &mut Module,
        names: &mut Names,
        beside: InstructionId,
        value: InstructionId,
        from: &Cut,
        to: &Cut,
    ) -> InstructionId {
        if from == to {
            return value;
        }
        if let Some(&done) = self.done.get(&(value, to.clone())) {
            return done;
        }
        let is_finer = from.iter().zip(to).all(|(from, to)| is_prefix(from, to));
        let result = match is_finer.then(|| self.splat(module, names, beside, value, from, to)).flatten() {
            Some(small) => small,
            None => self.move_parts(module, names, beside, value, from, to),
        };
        self.done.insert((value, to.clone()), result);
        result
    }

    /// A broadcast number is as easily made small.
    fn splat(
        &self,
        module: &mut Module,
        names: &mut Names,
        beside: InstructionId,
        value: InstructionId,
        from: &Cut,
        to: &Cut,
    ) -> Option<InstructionId> {
        let instruction = &module.instructions[value];
        let Op::Broadcast { dimensions } = &instruction.op else { return None };
        if !dimensions.is_empty() {
            return None;
        }
        let (op, operands) = (instruction.op.clone(), instruction.operands.clone());
        let name = instruction.name.clone();
        let mut shape = module.shape(value).as_array()?.clone();
        for (d, extent) in shape.dimensions.iter_mut().enumerate() {
            *extent = *extent * self.grid.pieces(&from[d]) / self.grid.pieces(&to[d]);
        }
        let mut at = Cursor::beside(module, names, beside);
        Some(at.named(&name).insert_shaped(op, operands, shape))
    }

    fn move_parts(
        &mut self,
        module: &mut Module,
        names: &mut Names,
        beside: InstructionId,
        value: InstructionId,
        from: &Cut,
        to: &Cut,
    ) -> InstructionId {
        let mut now = from.clone();
        let mut value = value;
        // Axes that only change the dimension that they cut.
        for d in 0..now.len() {
            while let Some(&axis) = now[d].last() {
                if is_prefix(&now[d], &to[d]) {
                    break;
                }
                let goal = (0..to.len()).find(|&e| {
                    e != d && is_prefix(&now[e], &to[e]) && to[e].get(now[e].len()) == Some(&axis)
                });
                let Some(e) = goal else { break };
                let extent = array(module, value).dimensions[e];
                if extent % self.grid.extent(axis) != 0 {
                    break;
                }
                value = self.exchange(module, names, beside, value, axis, d, e);
                now[d].pop();
                now[e].push(axis);
            }
        }
        // Before slices, if those make it no smaller first.
        for d in 0..now.len() {
            let kept = now[d].iter().zip(&to[d]).take_while(|(a, b)| a == b).count();
            if kept < now[d].len() {
                let gathered: Axes = now[d].drain(kept..).collect();
                value = self.gather(module, names, beside, value, &gathered, d);
            }
        }
        if now != *to {
            value = self.slice(module, names, beside, value, &now, to);
        }
        value
    }

    fn collective(&self, axes: &[Axis], dimension: Option<usize>) -> Collective {
        Collective {
            replica_groups: self.grid.groups(axes),
            channel_id: Some(1),
            use_global_device_ids: true,
            dimension: dimension.map(|d| d as i64),
            ..Collective::default()
        }
    }

    fn gather(
        &self,
        module: &mut Module,
        names: &mut Names,
        beside: InstructionId,
        value: InstructionId,
        axes: &Axes,
        d: usize,
    ) -> InstructionId {
        let mut shape = array(module, value).clone();
        shape.dimensions[d] *= self.grid.pieces(axes);
        let op = Op::AllGather(Box::new(self.collective(axes, Some(d))));
        Cursor::beside(module, names, beside).insert_shaped(op, [value], shape)
    }

    /// Lets an axis cut dimension `to` rather than `from`.
    #[allow(clippy::too_many_arguments, reason = "a place, a value and two dimensions")]
    fn exchange(
        &self,
        module: &mut Module,
        names: &mut Names,
        beside: InstructionId,
        value: InstructionId,
        axis: Axis,
        from: usize,
        to: usize,
    ) -> InstructionId {
        // f32[i, j]  =>  f32[i, n, j / n]  all-to-all on n  =>  f32[n, i, j / n]  =>  f32[n * i, j / n]
        let n = self.grid.extent(axis);
        let whole: Dimensions = array(module, value).dimensions.clone();
        let rank = whole.len();
        let mut apart: Vec<i64> = whole.to_vec();
        apart[to] = n;
        apart.insert(to + 1, whole[to] / n);
        let mut order: Vec<i64> = (0..=rank as i64).filter(|&d| d != to as i64).collect();
        let place = order.iter().position(|&d| d == (if from > to { from + 1 } else { from }) as i64);
        order.insert(place.expect("the dimension is another one"), to as i64);
        let mut joined = whole;
        joined[from] *= n;
        joined[to] /= n;
        let mut op = self.collective(&[axis], Some(to));
        // Of all collectives, this one names partitions if it has a channel.
        op.use_global_device_ids = false;
        let mut at = Cursor::beside(module, names, beside);
        let apart = at.reshape(value, apart);
        let moved = at.insert(Op::AllToAll(Box::new(op)), [apart]);
        let turned = at.transpose(moved, order);
        at.reshape(turned, joined)
    }

    /// Each device takes its part along the axes that `to` has and `from` has not.
    fn slice(
        &mut self,
        module: &mut Module,
        names: &mut Names,
        beside: InstructionId,
        value: InstructionId,
        from: &Cut,
        to: &Cut,
    ) -> InstructionId {
        let mut sizes = array(module, value).dimensions.clone();
        let mut starts = Vec::new();
        for d in 0..sizes.len() {
            let added: Axes = to[d][from[d].len()..].iter().copied().collect();
            sizes[d] /= self.grid.pieces(&added);
            starts.push(self.start(module, names, beside, &added, sizes[d]));
        }
        Cursor::beside(module, names, beside).dynamic_slice(value, starts, sizes)
    }

    /// Where the part of this device begins, if parts along some axes have a size.
    pub(crate) fn start(
        &mut self,
        module: &mut Module,
        names: &mut Names,
        beside: InstructionId,
        axes: &Axes,
        size: i64,
    ) -> InstructionId {
        let mut start: Option<InstructionId> = None;
        for (i, &axis) in axes.iter().enumerate() {
            let index = self.index(module, names, beside, axis);
            let step = size * self.grid.pieces(&axes[i + 1..]);
            let mut at = Cursor::beside(module, names, beside);
            let step = at.integer(ElementType::S32, step);
            let own = at.binary(BinaryOp::Multiply, index, step);
            start = Some(match start {
                Some(start) => at.binary(BinaryOp::Add, start, own),
                None => own,
            });
        }
        match start {
            Some(start) => start,
            None => Cursor::beside(module, names, beside).integer(ElementType::S32, 0),
        }
    }

    fn index(
        &mut self,
        module: &mut Module,
        names: &mut Names,
        beside: InstructionId,
        axis: Axis,
    ) -> InstructionId {
        if let Some(&index) = self.indices.get(&axis) {
            return index;
        }
        let grid = self.grid;
        let mut at = Cursor::beside(module, names, beside);
        let device = *self.device.get_or_insert_with(|| {
            let id = at.insert_shaped(Op::PartitionId, [], Shape::scalar(ElementType::U32));
            at.convert(id, ElementType::S32)
        });
        let stride = at.integer(ElementType::S32, grid.stride(axis));
        let extent = at.integer(ElementType::S32, grid.extent(axis));
        let above = at.binary(BinaryOp::Divide, device, stride);
        let index = at.binary(BinaryOp::Remainder, above, extent);
        self.indices.insert(axis, index);
        index
    }

    /// The sum of what the devices along some axes have, cut as near to `to` as sums can be; the cut that it has then.
    #[allow(clippy::too_many_arguments, reason = "a place, a value, a reducer and two cuts")]
    pub(crate) fn add_up(
        &self,
        module: &mut Module,
        names: &mut Names,
        beside: InstructionId,
        value: InstructionId,
        reducer: ComputationId,
        over: &Axes,
        from: &Cut,
        to: &Cut,
    ) -> (InstructionId, Cut) {
        let mut now = from.clone();
        let mut left = over.clone();
        let mut value = value;
        for d in 0..now.len() {
            if !is_prefix(&now[d], &to[d]) {
                continue;
            }
            let wanted: Axes =
                to[d][now[d].len()..].iter().copied().take_while(|axis| left.contains(axis)).collect();
            let mut shape = array(module, value).clone();
            let pieces = self.grid.pieces(&wanted);
            if wanted.is_empty() || shape.dimensions[d] % pieces != 0 {
                continue;
            }
            shape.dimensions[d] /= pieces;
            let op = Op::ReduceScatter(Box::new(self.collective(&wanted, Some(d))));
            value = Cursor::beside(module, names, beside).insert_instruction(
                op,
                [value],
                [reducer],
                Some(Shape::Array(shape)),
            );
            left.retain(|axis| !wanted.contains(axis));
            now[d].extend(wanted);
        }
        if !left.is_empty() {
            let shape = module.shape(value).clone();
            let op = Op::AllReduce(Box::new(self.collective(&left, None)));
            value =
                Cursor::beside(module, names, beside).insert_instruction(op, [value], [reducer], Some(shape));
        }
        (value, now)
    }
}

pub(crate) fn array(module: &Module, id: InstructionId) -> &ArrayShape {
    module.shape(id).as_array().expect("only arrays are cut")
}
