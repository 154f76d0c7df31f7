//! Exchanges between devices. They are only in code that every device reaches: not in branches, nor in loops whose end
//! depends on data.

use memplan_ir::ElementType::{F32, S32};
use memplan_ir::{ArrayShape, BuildError, Collective, Insert, InstructionId, Op, ReplicaGroups, Shape};

use super::{Body, shape};

/// How many devices the programs of several devices have.
pub const PARTITIONS: usize = 2;

impl Body<'_, '_> {
    /// An exchange of an array of the pool, at once or done a few steps later.
    pub(super) fn collective(&mut self) -> Result<Option<InstructionId>, BuildError> {
        let is_exchanged = |x: &ArrayShape| {
            matches!(x.element_type, F32 | S32) && x.rank() > 0 && x.dimensions[0] % PARTITIONS as i64 == 0
        };
        let Some(x) = self.any_where(is_exchanged) else { return Ok(None) };
        match self.random.below(7) {
            0 => self.all_reduce(x),
            1 => self.all_reduce_later(x),
            2 => self.all_gather(x),
            3 => self.reduce_scatter(x),
            4 => {
                let collective = Collective { use_global_device_ids: false, ..along_first(everybody(3)) };
                self.computation.insert(Op::AllToAll(Box::new(collective)), [x])
            }
            5 => self.computation.insert(Op::CollectivePermute(Box::new(permutation(true))), [x]),
            _ => self.computation.insert(Op::CollectivePermute(Box::new(permutation(false))), [x]),
        }
        .map(Some)
    }

    fn sum(&self, x: InstructionId) -> memplan_ir::ComputationId {
        match self.array(x).element_type {
            F32 => self.combiners.sum_f32,
            _ => self.combiners.sum_s32,
        }
    }

    fn all_reduce(&mut self, x: InstructionId) -> Result<InstructionId, BuildError> {
        let sum = self.sum(x);
        let all = self.computation.insert_calling(Op::AllReduce(Box::new(everybody(1))), [x], [sum])?;
        self.moderate(all)
    }

    fn all_reduce_later(&mut self, x: InstructionId) -> Result<InstructionId, BuildError> {
        let sum = self.sum(x);
        let start =
            self.computation.insert_calling(Op::AllReduceStart(Box::new(everybody(1))), [x], [sum])?;
        for _ in 0..self.random.below(3) {
            self.step()?;
        }
        let done = self.computation.insert(Op::AllReduceDone(Box::default()), [start])?;
        self.moderate(done)
    }

    fn all_gather(&mut self, x: InstructionId) -> Result<InstructionId, BuildError> {
        let (element_type, mut extents) = self.kind(x);
        extents[0] *= PARTITIONS as i64;
        let result: Shape = shape(&(element_type, extents));
        self.computation.insert_shaped(Op::AllGather(Box::new(along_first(everybody(2)))), [x], result)
    }

    fn reduce_scatter(&mut self, x: InstructionId) -> Result<InstructionId, BuildError> {
        let sum = self.sum(x);
        let (element_type, mut extents) = self.kind(x);
        extents[0] /= PARTITIONS as i64;
        let result: Shape = shape(&(element_type, extents));
        let op = Op::ReduceScatter(Box::new(along_first(everybody(4))));
        let sum = self.computation.insert_instruction(op, [x], [sum], Some(result))?;
        self.moderate(sum)
    }

    /// Sums of floats stay small.
    fn moderate(&mut self, x: InstructionId) -> Result<InstructionId, BuildError> {
        match self.array(x).element_type {
            F32 => self.bounded(x),
            _ => Ok(x),
        }
    }
}

fn everybody(channel: i64) -> Collective {
    let devices = (0..PARTITIONS as i64).collect();
    Collective {
        replica_groups: ReplicaGroups::List(vec![devices]),
        channel_id: Some(channel),
        use_global_device_ids: true,
        ..Collective::default()
    }
}

fn along_first(collective: Collective) -> Collective {
    Collective { dimension: Some(0), ..collective }
}

/// Devices pass their arrays around; or one device sends, and devices that receive nothing get zeros.
fn permutation(is_whole: bool) -> Collective {
    let n = PARTITIONS as i64;
    let around = (0..n).map(|device| (device, (device + 1) % n));
    let source_target_pairs = around.take(if is_whole { PARTITIONS } else { 1 }).collect();
    Collective { channel_id: Some(5), source_target_pairs, ..Collective::default() }
}
