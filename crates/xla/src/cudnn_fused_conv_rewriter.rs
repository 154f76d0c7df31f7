//! `cudnn-fused-conv-rewriter`: fuses a convolution with the additions to its result.
//!
//! ```text
//!   c = f32[8,4,4,16] convolution(x, w)
//!   b = f32[8,4,4,16] broadcast(bias), dimensions={3}       =>    r = f32[8,4,4,16] fusion(x, w, bias, side)
//!   d = f32[8,4,4,16] add(c, b)
//!   e = f32[8,4,4,16] add(d, side)
//!   r = f32[8,4,4,16] maximum(e, zeros)
//! ```
//!
//! cuDNN adds one number for each feature (a bias) and one array (a residual, sums of skips), in either order, and sets
//! negative numbers to zero. It reads that array from memory, even a broadcast, and its result has memory of its own.
//! Later operations read the result there: a sum of many convolutions is not computed from all of them at the end. Seen
//! in 0.12.
//!
//! Left alone: convolutions of the backward half, whose library calls add nothing, and results with other readers before
//! the addition. *Changed* means that there is a new kernel.

use memplan_ir::{
    BinaryOp, Convolution, FusionKind, InstructionId, Module, Op, Scalar, Users, WindowDimension,
};
use memplan_rewriter::{Context, PassError, PassFn, call_graph};
use rustc_hash::FxHashSet;

use super::fusions::{self, Group};

/// The pass.
pub const CUDNN_FUSED_CONV_REWRITER: PassFn = PassFn {
    name: "cudnn-fused-conv-rewriter",
    description: "add biases and residuals in the kernel of a convolution, as XLA's GPU compiler does",
    run,
};

fn run(module: &mut Module, context: &Context<'_>) -> Result<bool, PassError> {
    let users = Users::new(module);
    let mut groups = Vec::new();
    let mut taken: FxHashSet<InstructionId> = FxHashSet::default();
    for &computation in call_graph(module, CUDNN_FUSED_CONV_REWRITER.name)?.sequential() {
        for &id in &module.computations[computation].instructions {
            let Op::Convolution(convolution) = &module.instructions[id].op else { continue };
            if is_forward(convolution) {
                let group = with_what_is_added(module, &users, id, convolution.dimensions.output_feature);
                let is_new = group.members.iter().all(|member| !taken.contains(member));
                if group.root != id && is_new {
                    taken.extend(&group.members);
                    groups.push(group);
                }
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

/// A convolution with what cuDNN computes of its result.
fn with_what_is_added(module: &Module, users: &Users, id: InstructionId, feature: i64) -> Group {
    let op = |id: InstructionId| &module.instructions[id].op;
    let mut group = Group { root: id, members: vec![id] };
    let (mut has_bias, mut has_side) = (false, false);
    while let &[user] = users.of(group.root) {
        let instruction = &module.instructions[user];
        let &[lhs, rhs] = &instruction.operands[..] else { break };
        let other = if lhs == group.root { rhs } else { lhs };
        let is_bias = matches!(op(other), Op::Broadcast { dimensions } if dimensions[..] == [feature]);
        let is_free = instruction.control_predecessors.is_empty() && lhs != rhs;
        let ends = match op(user) {
            Op::Binary(BinaryOp::Add) if is_free && is_bias && !has_bias => {
                has_bias = true;
                false
            }
            Op::Binary(BinaryOp::Add) if is_free && !is_bias && !has_side => {
                has_side = true;
                false
            }
            Op::Binary(BinaryOp::Maximum) if is_free && is_zeros(module, other) => true,
            _ => break,
        };
        if is_bias || ends {
            group.members.insert(0, other);
        }
        group.members.insert(0, user);
        group.root = user;
        if ends {
            break;
        }
    }
    group
}

/// Whether an instruction repeats a zero.
fn is_zeros(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let Op::Broadcast { .. } = instruction.op else { return false };
    let Op::Constant(literal) = &module.instructions[instruction.operands[0]].op else { return false };
    literal.as_array().and_then(Scalar::splat_of).is_some_and(|value| value.is_zero())
}
