//! `cudnn-fused-conv-rewriter`: fuses a convolution with the array that is added to its result.
//!
//! ```text
//!   c = f32[8,4,4,16] convolution(x, w)            =>    d = f32[8,4,4,16] fusion(x, w, side)
//!   d = f32[8,4,4,16] add(c, side)
//! ```
//!
//! cuDNN reads that array (a residual, a sum of skips) from memory, even a broadcast, and its result has memory of its own.
//! Later operations read the result there: a sum of many convolutions is not computed from all of them at the end. Seen
//! in 0.12, where it also adds biases and sets negative numbers to zero, without which estimates are as near.
//!
//! Left alone: convolutions of the backward half, whose library calls add nothing, and results with other readers before
//! the addition. *Changed* means that there is a new kernel.

use memplan_ir::{BinaryOp, Convolution, FusionKind, InstructionId, Module, Op, Users, WindowDimension};
use memplan_rewriter::{Context, PassError, PassFn, call_graph};
use rustc_hash::FxHashSet;

use super::fusions::{self, Group};

/// The pass.
pub const CUDNN_FUSED_CONV_REWRITER: PassFn = PassFn {
    name: "cudnn-fused-conv-rewriter",
    description: "add residuals in the kernel of a convolution, as XLA's GPU compiler does",
    run,
};

fn run(module: &mut Module, context: &Context<'_>) -> Result<bool, PassError> {
    let users = Users::new(module);
    let mut groups = Vec::new();
    let mut taken: FxHashSet<InstructionId> = FxHashSet::default();
    for &computation in call_graph(module, CUDNN_FUSED_CONV_REWRITER.name)?.sequential() {
        for &id in &module.computations[computation].instructions {
            let Op::Convolution(convolution) = &module.instructions[id].op else { continue };
            if is_forward(convolution)
                && let Some(sum) = sum(module, &users, id, convolution.dimensions.output_feature)
                && taken.insert(sum)
            {
                groups.push(Group { root: sum, members: vec![sum, id] });
            }
        }
    }
    fusions::fuse(module, context, &groups, FusionKind::Custom)
}

/// Whether a convolution is none of those by which gradients are computed: those spread their input, read their window
/// backwards, or make a window of what were batches.
fn is_forward(convolution: &Convolution) -> bool {
    let is_plain = |window: &WindowDimension| window.base_dilation == 1 && !window.window_reversal;
    convolution.window.dimensions.iter().all(is_plain)
        && convolution.dimensions.output_batch == convolution.dimensions.input_batch
        && convolution.batch_group_count == 1
}

/// The sum of a convolution and another array, which is no bias.
fn sum(module: &Module, users: &Users, id: InstructionId, feature: i64) -> Option<InstructionId> {
    let &[user] = users.of(id) else { return None };
    let instruction = &module.instructions[user];
    let &[lhs, rhs] = &instruction.operands[..] else { return None };
    let other = &module.instructions[if lhs == id { rhs } else { lhs }].op;
    let is_bias = matches!(other, Op::Broadcast { dimensions } if dimensions[..] == [feature]);
    let is_sum = instruction.op == Op::Binary(BinaryOp::Add) && instruction.control_predecessors.is_empty();
    (is_sum && lhs != rhs && !is_bias).then_some(user)
}
