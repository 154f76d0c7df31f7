//! Operations between devices.

use memplan_ir::{Collective, InstructionId, Op, ReplicaGroups, Shape};

use super::attributes::Fields;
use super::{Body, Converter};
use crate::Error;
use crate::mlir::{Attribute, Operation};
use crate::text;

impl<'p> Converter<'p> {
    pub(super) fn collective(&mut self, operation: &'p Operation, body: &mut Body) -> Result<(), Error> {
        let operands = self.values(operation, body)?;
        let mut common = Collective {
            channel_id: channel(operation)?,
            use_global_device_ids: operation.flag("use_global_device_ids")?,
            has_dynamic_root: operation.flag("has_dynamic_root")?,
            ..Collective::default()
        };
        if let Some(groups) = operation.attribute("replica_groups") {
            common.replica_groups = match groups {
                Attribute::Elements(_) => ReplicaGroups::List(groups_of(operation)?),
                mesh => self.mesh_groups(mesh, operation)?,
            };
        }
        let shape = self.result_shape(operation)?;
        let mut called = Vec::new();
        let op = match &*operation.name {
            "stablehlo.all_reduce" => {
                called.push(self.region(operation, 0)?);
                Op::AllReduce(common.into())
            }
            "stablehlo.reduce_scatter" => {
                called.push(self.region(operation, 0)?);
                common.dimension = operation.integer("scatter_dimension")?;
                Op::ReduceScatter(common.into())
            }
            "stablehlo.all_gather" => {
                common.dimension = operation.integer("all_gather_dim")?;
                Op::AllGather(common.into())
            }
            "stablehlo.all_to_all" => return self.all_to_all(operation, common, &operands, shape, body),
            "stablehlo.collective_broadcast" => Op::CollectiveBroadcast(common.into()),
            _ => {
                let rows = operation.rows("source_target_pairs")?.unwrap_or_default();
                let pair = |row: &Vec<i64>| match row[..] {
                    [source, target] => Ok((source, target)),
                    _ => Err(operation.missing("source_target_pairs")),
                };
                common.source_target_pairs = rows.iter().map(pair).collect::<Result<_, _>>()?;
                Op::CollectivePermute(common.into())
            }
        };
        let id = self.emit(body, operation, op, &operands, &called, shape);
        self.note_all(id, operation)?;
        self.give(operation, id, body);
        Ok(())
    }

    /// HLO's operation splits and joins along one dimension; others are brought there by a transpose.
    fn all_to_all(
        &mut self,
        operation: &'p Operation,
        mut common: Collective,
        operands: &[InstructionId],
        shape: Shape,
        body: &mut Body,
    ) -> Result<(), Error> {
        let number = |name| operation.integer(name)?.ok_or_else(|| operation.missing(name));
        let (split, concat, count) =
            (number("split_dimension")?, number("concat_dimension")?, number("split_count")?);
        common.dimension = Some(split);
        let before: Vec<Shape> = operands.iter().map(|&id| self.module.shape(id).clone()).collect();
        let (joined, tuple) = match &before[..] {
            [one] => (one.clone(), false),
            several => (Shape::tuple(several), true),
        };
        let id = self.emit(body, operation, Op::AllToAll(common.into()), operands, &[], joined);
        if split == concat {
            self.give(operation, id, body);
            return Ok(());
        }
        let [Shape::Array(array)] = &before[..] else {
            return Err(operation.unsupported());
        };
        let rank = array.rank() as i64;
        let fits = !tuple && (0..rank).contains(&split) && (0..rank).contains(&concat) && count > 0;
        if !fits || array.dimensions[split as usize] % count != 0 {
            return Err(operation.error("the dimensions of `stablehlo.all_to_all` do not fit its operand"));
        }
        let mut extents = Vec::new();
        for (d, &extent) in array.dimensions.iter().enumerate() {
            match d as i64 == split {
                true => extents.extend([count, extent / count]),
                false => extents.push(extent),
            }
        }
        let mut permutation = Vec::new();
        for d in 0..rank {
            if d == concat {
                permutation.push(split);
            }
            permutation.push(if d >= split { d + 1 } else { d });
        }
        let moved = permutation.iter().map(|&d| extents[d as usize]);
        let moved = Shape::array(array.element_type, moved);
        let split_shape = Shape::array(array.element_type, extents.iter().copied());
        let reshape = || Op::Reshape { inferred_dimension: None };
        let id = self.emit(body, operation, reshape(), &[id], &[], split_shape);
        let transpose = Op::Transpose { dimensions: permutation.into_iter().collect() };
        let id = self.emit(body, operation, transpose, &[id], &[], moved);
        let id = self.emit(body, operation, reshape(), &[id], &[], shape);
        self.give(operation, id, body);
        Ok(())
    }
}

/// The number of a channel; 0 is none.
pub(super) fn channel(operation: &Operation) -> Result<Option<i64>, Error> {
    // Portable bytecode has the number by itself.
    let found = match operation.attribute("channel_handle") {
        Some(Attribute::Dialect(_, body)) => {
            let fields = text::fields(body).ok_or_else(|| operation.missing("channel_handle"))?;
            match crate::mlir::find(&fields, "handle") {
                Some(Attribute::Integer(handle, _)) => Some(*handle),
                _ => return Err(operation.missing("channel_handle")),
            }
        }
        Some(_) => return Err(operation.missing("channel_handle")),
        None => operation.integer("channel_id")?,
    };
    Ok(found.filter(|&handle| handle > 0))
}

/// Groups of devices, in rows that -1 fills.
fn groups_of(operation: &Operation) -> Result<Vec<Vec<i64>>, Error> {
    let rows = operation.rows("replica_groups")?.unwrap_or_default();
    let trimmed = rows.into_iter().map(|row| row.into_iter().filter(|&id| id >= 0).collect::<Vec<_>>());
    Ok(trimmed.filter(|row| !row.is_empty()).collect())
}
