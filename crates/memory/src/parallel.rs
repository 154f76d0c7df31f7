//! How much memory a way of training in parallel takes, by arithmetic alone: bytes of weights, gradients and optimizer
//! state on each device, and activations in flight. For deciding on a split before there is a program to plan.
//!
//! "ZeRO" is Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models* (2020), section 3;
//! the activations of a transformer layer are Korthikanti et al., *Reducing Activation Recomputation in Large Transformer
//! Models* (2022), section 4; the pipeline schedules are Huang et al., *GPipe* (2019), and Narayanan et al., *PipeDream*
//! (2019).

use memplan_ir::{ArrayShape, InstructionId, Module, Op, Shape, Sharding, ShardingSpec};

use crate::{Bytes, Target};

/// Bytes of the entry parameters that one device holds, for a module that is not partitioned yet: each array cut as its
/// sharding says, and then padded by its layout. `None` when no sharding cuts anything.
///
/// A module that was partitioned keeps its shardings, but its shapes are those of the pieces already; nothing in it
/// says so, but it has a schedule when a compiler made it.
pub fn arguments_per_device(module: &Module, target: &Target) -> Option<Bytes> {
    let mut sum = Bytes::ZERO;
    let mut is_cut = false;
    for &parameter in &module.entry_computation().parameters {
        let instruction = &module.instructions[parameter];
        debug_assert!(matches!(instruction.op, Op::Parameter { .. }));
        let sharding = instruction.extras.as_ref().and_then(|extras| extras.sharding.as_ref());
        let mut leaf = 0;
        module.shape(parameter).for_each_subshape(|_, part| {
            let bytes = match part {
                Shape::Tuple(_) => target.size_of(part),
                _ => {
                    let spec = sharding.and_then(|sharding| of_leaf(sharding, leaf));
                    leaf += 1;
                    let local = spec.zip(part.as_array()).map(|(spec, array)| spec.local_shape(array));
                    is_cut |= local.as_ref().is_some_and(|local| Some(local) != part.as_array());
                    local.map_or_else(
                        || target.size_of(part),
                        |local: ArrayShape| target.size_of(&Shape::Array(local)),
                    )
                }
            };
            sum = sum.saturating_add(bytes);
        });
    }
    is_cut.then_some(sum)
}

/// Numbers of the entry parameters, arrays, of which every device holds all, for a module that is not partitioned yet and
/// whose shardings cut others. Linear in the module.
pub fn replicated(module: &Module) -> Vec<usize> {
    if pieces(module) <= 1 {
        return Vec::new();
    }
    let is_whole = |(number, &parameter): (usize, &InstructionId)| {
        let sharding =
            module.instructions[parameter].extras.as_ref().and_then(|extras| extras.sharding.as_ref());
        let array = module.shape(parameter).as_array().filter(|array| array.rank() > 0)?;
        let spec = sharding.and_then(|sharding| of_leaf(sharding, 0));
        spec.is_none_or(|spec| spec.local_shape(array) == *array).then_some(number)
    };
    module.entry_computation().parameters.iter().enumerate().filter_map(is_whole).collect()
}

/// Into how many pieces the most finely cut array is cut, by the shardings that a module that is not partitioned yet
/// has: 1 where nothing is.
pub fn pieces(module: &Module) -> u64 {
    let of = |spec: &ShardingSpec, rank| {
        spec.shards(rank).iter().fold(1u64, |product, &shards| product.saturating_mul(shards.unsigned_abs()))
    };
    let most = module.instructions.iter().filter_map(|(id, instruction)| {
        let sharding = instruction.extras.as_ref()?.sharding.as_ref()?;
        let leaves = module.shape(id).leaves();
        let arrays = leaves.iter().filter_map(|(_, leaf)| leaf.as_array()).enumerate();
        arrays.filter_map(|(leaf, array)| Some(of(of_leaf(sharding, leaf)?, array.rank()))).max()
    });
    most.max().unwrap_or(1)
}

/// The sharding of one leaf of a value.
fn of_leaf(sharding: &Sharding, leaf: usize) -> Option<&ShardingSpec> {
    match sharding {
        Sharding::Single(spec) => Some(spec),
        Sharding::Tuple(leaves) => leaves.get(leaf),
    }
}

/// Bytes of state for one parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateBytes {
    /// The weight that the model computes with.
    pub weight: u64,
    /// Its gradient.
    pub gradient: u64,
    /// What the optimizer keeps.
    pub optimizer: u64,
}

impl StateBytes {
    /// Adam in mixed precision: 16-bit weights and gradients; a 32-bit weight and two 32-bit moments.
    pub const MIXED_ADAM: StateBytes = StateBytes { weight: 2, gradient: 2, optimizer: 12 };

    /// The same where gradients of micro-batches are summed in 32 bits, in a buffer of their own.
    pub const MIXED_ADAM_ACCUMULATED: StateBytes = StateBytes { weight: 2, gradient: 6, optimizer: 12 };

    /// Bytes on each device for a number of parameters. Sizes beyond `u64` are `u64::MAX`.
    pub fn on_device(&self, parameters: u64, split: StateSplit) -> Bytes {
        let StateBytes { weight, gradient, optimizer } = *self;
        let sum = |parts: &[u64]| parts.iter().fold(0u64, |a, &b| a.saturating_add(b));
        let all = sum(&[weight, gradient, optimizer]);
        let (whole, shared, devices) = match split {
            StateSplit::Replicated => (all, 0, 1),
            StateSplit::Zero1 { devices } => (sum(&[weight, gradient]), optimizer, devices),
            StateSplit::Zero2 { devices } => (weight, sum(&[gradient, optimizer]), devices),
            StateSplit::Zero3 { devices, .. } | StateSplit::Tensor { devices } => (0, all, devices),
        };
        let part = parameters.div_ceil(devices.max(1));
        let gathered = match split {
            StateSplit::Zero3 { gathered, .. } => gathered.saturating_mul(weight),
            _ => 0,
        };
        Bytes(sum(&[parameters.saturating_mul(whole), part.saturating_mul(shared), gathered]))
    }
}

/// Which state is split over devices. Pipelines need no entry: a device has the parameters of its own stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateSplit {
    /// Nothing: plain data parallelism.
    Replicated,
    /// Optimizer state.
    Zero1 {
        /// Over so many.
        devices: u64,
    },
    /// Optimizer state and gradients.
    Zero2 {
        /// Over so many.
        devices: u64,
    },
    /// Everything; what a layer needs is gathered when it runs.
    Zero3 {
        /// Over so many.
        devices: u64,
        /// Parameters of the layers that are gathered at one time.
        gathered: u64,
    },
    /// Weights split over the devices that compute with their parts.
    Tensor {
        /// Over so many.
        devices: u64,
    },
}

/// In which order a pipeline's stages work on micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineSchedule {
    /// All forward passes, then all backward ones.
    GPipe,
    /// One forward pass, one backward pass, once a stage has the first micro-batch back.
    OneForwardOneBackward,
    /// PopART on IPUs: forward and backward pass of different micro-batches in every step.
    PopArt,
}

impl PipelineSchedule {
    /// Micro-batches whose activations a stage holds at most, its own included; stages count from 0.
    ///
    /// # Panics
    /// When there is no such stage.
    pub fn in_flight(self, stage: u64, stages: u64, micro_batches: u64) -> u64 {
        assert!(stage < stages, "stage {stage} of {stages}");
        let to_the_end = stages - 1 - stage;
        match self {
            PipelineSchedule::GPipe => micro_batches,
            PipelineSchedule::OneForwardOneBackward => micro_batches.min(to_the_end.saturating_add(1)),
            PipelineSchedule::PopArt => micro_batches.min(to_the_end.saturating_mul(2).saturating_add(1)),
        }
    }
}

/// The activations of one layer of a transformer with 16-bit values, attention and a feed-forward part of four times the
/// hidden size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransformerLayer {
    /// Tokens of a sequence.
    pub sequence: u64,
    /// Sequences of a micro-batch.
    pub batch: u64,
    /// Hidden size.
    pub hidden: u64,
    /// Attention heads.
    pub heads: u64,
}

/// What of a layer is computed again for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompute {
    /// Nothing.
    Nothing,
    /// The attention matrix: what has heads times the square of the sequence.
    Attention,
    /// The whole layer, from its input, for about a third more compute.
    Layer,
}

impl TransformerLayer {
    /// Bytes kept from the forward to the backward pass, without parallelism. Sizes beyond `u64` are `u64::MAX`.
    pub fn activations(&self, recompute: Recompute) -> Bytes {
        let product = |factors: &[u64]| factors.iter().fold(1u64, |a, &b| a.saturating_mul(b));
        let tokens = product(&[self.sequence, self.batch, self.hidden]);
        let attention = product(&[5, self.heads, self.sequence, self.sequence, self.batch]);
        Bytes(match recompute {
            Recompute::Nothing => tokens.saturating_mul(34).saturating_add(attention),
            Recompute::Attention => tokens.saturating_mul(34),
            Recompute::Layer => tokens.saturating_mul(2),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two bytes of weight, two of gradient and twelve of Adam, for a thousand parameters and eight devices.
    #[test]
    fn state_bytes_per_parameter() {
        let (devices, gathered) = (8, 100);
        let rows = [
            (StateSplit::Replicated, 16_000),
            (StateSplit::Zero1 { devices }, 4_000 + 1_500),
            (StateSplit::Zero2 { devices }, 2_000 + 1_750),
            (StateSplit::Zero3 { devices, gathered }, 2_000 + 200),
            (StateSplit::Tensor { devices }, 2_000),
        ];
        for (split, bytes) in rows {
            assert_eq!(StateBytes::MIXED_ADAM.on_device(1000, split), Bytes(bytes), "{split:?}");
        }
        let accumulated = StateBytes::MIXED_ADAM_ACCUMULATED.on_device(1000, StateSplit::Replicated);
        assert_eq!(accumulated, Bytes(20_000), "four more bytes");
        let stage = StateBytes::MIXED_ADAM.on_device(1000 / 4, StateSplit::Replicated);
        assert_eq!(stage, Bytes(4_000), "a pipeline's device has its own stage");
        assert_eq!(
            StateBytes::MIXED_ADAM.on_device(1001, StateSplit::Tensor { devices }),
            Bytes(126 * 16),
            "rounded up"
        );
    }

    #[test]
    fn activations_in_flight() {
        let of = |schedule: PipelineSchedule| [0, 1, 2, 3].map(|stage| schedule.in_flight(stage, 4, 6));
        assert_eq!(of(PipelineSchedule::GPipe), [6, 6, 6, 6]);
        assert_eq!(of(PipelineSchedule::OneForwardOneBackward), [4, 3, 2, 1]);
        assert_eq!(of(PipelineSchedule::PopArt), [6, 5, 3, 1]);
        assert_eq!(PipelineSchedule::OneForwardOneBackward.in_flight(0, 4, 2), 2, "no more than there are");
    }

    #[test]
    fn activations_of_a_transformer_layer() {
        // sbh(34 + 5as/h) with s = 1024, b = 2, h = 512, a = 8.
        let layer = TransformerLayer { sequence: 1024, batch: 2, hidden: 512, heads: 8 };
        assert_eq!(layer.activations(Recompute::Nothing), Bytes(1024 * 2 * 512 * (34 + 80)));
        assert_eq!(layer.activations(Recompute::Attention), Bytes(1024 * 2 * 512 * 34));
        assert_eq!(layer.activations(Recompute::Layer), Bytes(1024 * 2 * 512 * 2));
        let huge = TransformerLayer { sequence: u64::MAX, batch: 2, hidden: 3, heads: 4 };
        assert_eq!(huge.activations(Recompute::Nothing), Bytes(u64::MAX));
    }
}
