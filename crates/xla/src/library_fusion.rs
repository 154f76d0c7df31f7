//! `library-fusion`: groups the operations that XLA's CPU compiler gives to its kernel library, YNNPACK.
//!
//! ```text
//!   m = multiply(x, x)                          r = fusion(x), kind=kCustom, calls={
//!   r = reduce(m, 0), to_apply=add       =>       m = multiply(x, x)
//!                                                 ROOT r = reduce(m, 0), to_apply=add }
//! ```
//!
//! Supported matrix products and convolutions become library kernels alone. A reduction also takes in operations above
//! and below it without other readers, matrix products included, as long as the library supports them. Since jaxlib 0.12
//! no kernel ends in a broadcast: a reader that the library lacks repeats the elements itself. No later fusion divides such
//! a kernel. The rules are those of XLA's `LibraryRewriter`.
//!
//! Left alone: instructions with control dependencies, and arrays of fewer than 4,096 elements. *Changed* means that
//! there is a new fusion.

use std::collections::VecDeque;

use memplan_ir::{
    ArrayShape, BinaryOp, ComputationId, ElementType, FusionKind, InstructionId, Module, Op, Opcode, Users,
};
use memplan_rewriter::{Context, PassError, call_graph};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Deserialize;
use smallvec::SmallVec;

use super::fusions::{self, Group};

/// The operations that the library supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LibraryRules {
    /// Smaller arrays are not worth a call.
    pub min_elements: u64,
    /// Most instructions in a kernel, its parameters included.
    pub max_instructions: usize,
    /// Most dimensions of an array.
    pub max_rank: usize,
    /// A matrix product with no side as long as this is not worth a call.
    pub min_dot_extent: i64,
    /// A convolution with fewer features than this is not worth a call.
    pub min_features: i64,
    /// Whether it has sines, cosines and tangents.
    #[serde(default)]
    pub has_trigonometry: bool,
    /// Whether no kernel ends in a broadcast, so that its readers repeat the elements.
    #[serde(default)]
    pub leaves_last_broadcast: bool,
}

pass_with_rules!(
    LIBRARY_FUSION = LibraryFusion(LibraryRules),
    "library-fusion",
    "give matrix products, convolutions and reductions to a library, as XLA's CPU compiler does",
    run
);

fn run(module: &mut Module, context: &Context<'_>, rules: &LibraryRules) -> Result<bool, PassError> {
    let graph = call_graph(module, "library-fusion")?;
    let users = Users::new(module);
    let mut groups = Vec::new();
    for &computation in graph.sequential() {
        groups.extend(Library::new(module, rules, &users, computation).groups());
    }
    fusions::fuse(module, context, &groups, FusionKind::Custom)
}

/// Which operations the library has.
#[derive(Clone, Copy)]
pub(super) struct LibraryOperations<'a> {
    pub(super) module: &'a Module,
    pub(super) rules: &'a LibraryRules,
}

/// The kernels of one computation, by the instruction at which each began.
struct Library<'a> {
    module: &'a Module,
    rules: &'a LibraryRules,
    users: &'a Users,
    root: InstructionId,
    order: Vec<InstructionId>,
    positions: FxHashMap<InstructionId, usize>,
    /// The kernel that an instruction is in.
    kernel_of: FxHashMap<InstructionId, usize>,
    kernels: Vec<Kernel>,
}

/// A kernel that grows.
#[derive(Default)]
struct Kernel {
    members: Vec<InstructionId>,
    /// What the members read of others.
    parameters: FxHashSet<InstructionId>,
}

impl Kernel {
    /// Instructions in the computation of the fusion.
    fn len(&self) -> usize {
        self.members.len() + self.parameters.len()
    }
}

/// Which way a kernel grows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

impl<'a> Library<'a> {
    fn new(
        module: &'a Module,
        rules: &'a LibraryRules,
        users: &'a Users,
        computation: ComputationId,
    ) -> Library<'a> {
        let order = module.post_order(computation);
        let positions = order.iter().enumerate().map(|(at, &id)| (id, at)).collect();
        let root = module.computations[computation].root;
        let (kernel_of, kernels) = (FxHashMap::default(), Vec::new());
        Library { module, rules, users, root, order, positions, kernel_of, kernels }
    }

    fn groups(mut self) -> Vec<Group> {
        for at in (0..self.order.len()).rev() {
            let id = self.order[at];
            let grows = match &self.module.instructions[id].op {
                Op::Dot(_) | Op::Convolution(_) => false,
                Op::Reduce { .. } | Op::ReduceWindow(_) => true,
                _ => continue,
            };
            if self.kernel_of.contains_key(&id) || !self.is_supported(id) {
                continue;
            }
            let kernel = self.kernels.len();
            self.kernels.push(Kernel::default());
            self.take(id, kernel);
            while grows && self.grow(kernel) {}
            if self.rules.leaves_last_broadcast {
                self.leave_last_broadcast(kernel);
            }
        }
        let Library { positions, kernels, .. } = self;
        let with_members =
            kernels.into_iter().rev().map(|kernel| kernel.members).filter(|members| !members.is_empty());
        with_members
            .map(|mut members| {
                members.sort_unstable_by_key(|id| std::cmp::Reverse(positions[id]));
                Group { root: members[0], members }
            })
            .collect()
    }

    fn take(&mut self, id: InstructionId, kernel: usize) {
        self.kernel_of.insert(id, kernel);
        let operands = self.module.instructions[id].operands.iter().copied();
        let read = operands.filter(|operand| self.kernel_of.get(operand) != Some(&kernel));
        let Kernel { members, parameters } = &mut self.kernels[kernel];
        parameters.extend(read);
        parameters.remove(&id);
        members.push(id);
    }

    /// Takes in neighbors, nearest first. Says whether there were any.
    fn grow(&mut self, kernel: usize) -> bool {
        let mut open: VecDeque<(InstructionId, Direction)> = VecDeque::new();
        let mut seen: FxHashSet<InstructionId> = FxHashSet::default();
        let top_down = self.kernels[kernel].members.clone();
        top_down.iter().for_each(|&id| self.add_operands(id, kernel, &mut open, &mut seen));
        top_down.iter().for_each(|&id| self.add_user(id, &mut open, &mut seen));
        let mut changed = false;
        while let Some((id, direction)) =
            open.pop_front().filter(|_| self.kernels[kernel].len() < self.rules.max_instructions)
        {
            match self.kernel_of.get(&id).copied() {
                Some(other) if other == kernel => {}
                Some(other) => {
                    let fits =
                        self.kernels[kernel].len() + self.kernels[other].len() <= self.rules.max_instructions;
                    if fits {
                        for member in std::mem::take(&mut self.kernels[other]).members {
                            self.take(member, kernel);
                        }
                        changed = true;
                    }
                }
                None if self.is_supported(id) => {
                    self.take(id, kernel);
                    changed = true;
                    match direction {
                        Direction::Up => self.add_operands(id, kernel, &mut open, &mut seen),
                        Direction::Down => self.add_user(id, &mut open, &mut seen),
                    }
                }
                None => {}
            }
        }
        changed
    }

    /// Gives up a broadcast that is the result of a kernel.
    fn leave_last_broadcast(&mut self, kernel: usize) {
        let members = &mut self.kernels[kernel].members;
        let last = members.iter().enumerate().max_by_key(|(_, id)| self.positions[*id]);
        let Some((at, &id)) = last else { return };
        if matches!(self.module.instructions[id].op, Op::Broadcast { .. }) {
            members.swap_remove(at);
            self.kernel_of.remove(&id);
        }
    }

    /// Notes the operands that nobody else needs.
    fn add_operands(
        &self,
        id: InstructionId,
        kernel: usize,
        open: &mut VecDeque<(InstructionId, Direction)>,
        seen: &mut FxHashSet<InstructionId>,
    ) {
        for &operand in &self.module.instructions[id].operands {
            let is_inside = |user: &InstructionId| self.kernel_of.get(user) == Some(&kernel);
            if operand != self.root
                && !seen.contains(&operand)
                && self.users.of(operand).iter().all(is_inside)
            {
                seen.insert(operand);
                open.push_back((operand, Direction::Up));
            }
        }
    }

    /// Notes the only user, or the only kernel that uses it.
    fn add_user(
        &self,
        id: InstructionId,
        open: &mut VecDeque<(InstructionId, Direction)>,
        seen: &mut FxHashSet<InstructionId>,
    ) {
        let [first, others @ ..] = self.users.of(id) else { return };
        let kernel = self.kernel_of.get(first);
        let is_one = others.is_empty()
            || kernel.is_some() && others.iter().all(|user| self.kernel_of.get(user) == kernel);
        if is_one && id != self.root && seen.insert(*first) {
            open.push_back((*first, Direction::Down));
        }
    }

    fn is_supported(&self, id: InstructionId) -> bool {
        LibraryOperations { module: self.module, rules: self.rules }.has(id)
    }
}

impl LibraryOperations<'_> {
    /// Whether the library has an operation, for these arrays.
    pub(super) fn has(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        let operands: Option<SmallVec<[&ArrayShape; 4]>> =
            instruction.operands.iter().map(|&operand| self.module.shape(operand).as_array()).collect();
        let (Some(result), Some(operands)) = (self.module.shape(id).as_array(), operands) else {
            return false;
        };
        let arrays = || operands.iter().copied().chain([result]);
        if !instruction.control_predecessors.is_empty()
            || !arrays().all(|array| is_plain(array, self.rules.max_rank))
        {
            return false;
        }
        let is_large =
            || arrays().any(|array| array.element_count().is_some_and(|n| n >= self.rules.min_elements));
        match &instruction.op {
            Op::Constant(_) => is_element(result.element_type),
            Op::Iota { .. } => matches!(result.element_type, ElementType::F32 | ElementType::S32),
            // Transposes are not in row-major order, and the library has no copies behind them.
            Op::Bitcast | Op::Reshape { .. } => {
                is_element(result.element_type) && result.element_type == operands[0].element_type
            }
            Op::Broadcast { dimensions } => {
                is_element(result.element_type) && dimensions.is_sorted_by(|a, b| a < b)
            }
            Op::Pad { dimensions } => {
                let is_simple = |(padding, &extent): (&memplan_ir::PaddingDimension, &i64)| {
                    padding.interior == 0 && (extent != 1 || padding.low == 0 && padding.high == 0)
                };
                is_element(result.element_type)
                    && dimensions.iter().zip(&operands[0].dimensions).all(is_simple)
            }
            Op::Dot(dot) => self.has_dot(&dot.dimensions, operands[0], operands[1], result),
            Op::Convolution(convolution) => {
                self.has_convolution(convolution, operands[0], operands[1], result)
            }
            Op::Reduce { dimensions } => {
                is_large()
                    && operands.len() == 2
                    && !dimensions.is_empty()
                    && self.has_reducer(instruction.called[0], operands[0], result)
            }
            Op::ReduceWindow(window) => {
                let moves = window.dimensions.iter().filter(|d| d.size > 1 || d.stride > 1);
                let n_new = moves.clone().count();
                let is_simple = |d: &memplan_ir::WindowDimension| {
                    (d.size <= 1 || d.stride == d.size)
                        && d.base_dilation == 1
                        && d.window_dilation == 1
                        && !d.window_reversal
                };
                is_large()
                    && operands.len() == 2
                    && n_new > 0
                    && result.dimensions.len() + n_new <= self.rules.max_rank
                    && moves.clone().all(is_simple)
                    && self.has_reducer(instruction.called[0], operands[0], result)
            }
            op => {
                let has = has_elementwise(op) || self.rules.has_trigonometry && is_trigonometric(op);
                is_large() && has && arrays().all(|array| is_number(array.element_type))
            }
        }
    }

    /// Whether a reduction is a sum, a maximum or a minimum of elements of a type that the library accumulates.
    fn has_reducer(&self, reducer: ComputationId, input: &ArrayShape, result: &ArrayShape) -> bool {
        use ElementType::{Bf16, F16, F32, F64, S8, S32, U8};
        let reducer = &self.module.computations[reducer];
        let root = &self.module.instructions[reducer.root];
        let is_of_parameters = root.operands.len() == 2
            && root.operands[0] != root.operands[1]
            && root.operands.iter().all(|operand| reducer.parameters.contains(operand));
        let types = (input.element_type, result.element_type);
        is_of_parameters
            && match root.op {
                Op::Binary(BinaryOp::Add) => {
                    matches!(types, (F64, F64) | (F32 | F16 | Bf16, F32) | (S8 | U8, S32))
                }
                Op::Binary(BinaryOp::Maximum | BinaryOp::Minimum) => {
                    types.0 == types.1 && matches!(types.0, U8 | S8 | Bf16 | F16 | F32 | F64)
                }
                _ => false,
            }
    }
}

/// Whether an array is in row-major order, with no more dimensions than the library has.
fn is_plain(array: &ArrayShape, max_rank: usize) -> bool {
    array.rank() <= max_rank && array.is_row_major() && array.is_plain()
}

fn is_element(element_type: ElementType) -> bool {
    use ElementType::{Bf16, F16, F32, F64, S4, S8, S32, U4, U8};
    matches!(element_type, S4 | U4 | S8 | U8 | Bf16 | F16 | F32 | F64 | S32)
}

/// The types that elementwise kernels compute with.
fn is_number(element_type: ElementType) -> bool {
    use ElementType::{Bf16, F32, F64, S8, U8};
    matches!(element_type, F64 | F32 | Bf16 | S8 | U8)
}

fn is_trigonometric(op: &Op) -> bool {
    matches!(op.opcode(), Opcode::Cosine | Opcode::Sine | Opcode::Tan)
}

fn has_elementwise(op: &Op) -> bool {
    matches!(
        op.opcode(),
        Opcode::Abs
            | Opcode::Add
            | Opcode::Ceil
            | Opcode::Convert
            | Opcode::Divide
            | Opcode::Erf
            | Opcode::Exponential
            | Opcode::Expm1
            | Opcode::Floor
            | Opcode::Log
            | Opcode::Log1p
            | Opcode::Logistic
            | Opcode::Maximum
            | Opcode::Minimum
            | Opcode::Multiply
            | Opcode::Negate
            | Opcode::Power
            | Opcode::RoundNearestEven
            | Opcode::Rsqrt
            | Opcode::Sign
            | Opcode::Sqrt
            | Opcode::Subtract
            | Opcode::Tanh
    )
}

impl LibraryOperations<'_> {
    /// Products of matrices, not of vectors, with the left one as it is multiplied.
    fn has_dot(
        &self,
        dimensions: &memplan_ir::DotDimensions,
        lhs: &ArrayShape,
        rhs: &ArrayShape,
        result: &ArrayShape,
    ) -> bool {
        use ElementType::{Bf16, F32, F64, S8, S32, U8};
        let types = (lhs.element_type, rhs.element_type, result.element_type);
        let n_batch = dimensions.lhs_batch.len();
        let ([of_lhs], [of_rhs]) = (&dimensions.lhs_contracting[..], &dimensions.rhs_contracting[..]) else {
            return false;
        };
        let is_leading = |batch: &[i64]| batch.iter().enumerate().all(|(i, &d)| i as i64 == d);
        if !matches!(types, (F64, F64, F64) | (F32, F32, F32) | (Bf16, Bf16, F32 | Bf16) | (S8 | U8, S8, S32))
            || !is_leading(&dimensions.lhs_batch)
            || !is_leading(&dimensions.rhs_batch)
            || [lhs, rhs, result].iter().any(|array| array.dimensions.len() != n_batch + 2)
            || *of_lhs != n_batch as i64 + 1
        {
            return false;
        }
        let m = lhs.dimensions[n_batch];
        let k = lhs.dimensions[n_batch + 1];
        let n = rhs.dimensions[2 * n_batch + 1 - *of_rhs as usize];
        m != 1 && n != 1 && m.max(k).max(n) >= self.rules.min_dot_extent
    }

    /// Convolutions over two dimensions, of channels that come last.
    fn has_convolution(
        &self,
        convolution: &memplan_ir::Convolution,
        input: &ArrayShape,
        kernel: &ArrayShape,
        result: &ArrayShape,
    ) -> bool {
        use ElementType::{F32, F64, S8, S32};
        let types = (input.element_type, kernel.element_type, result.element_type);
        let d = &convolution.dimensions;
        let is_in_order =
            (d.input_feature, d.output_feature, d.kernel_input_feature, d.kernel_output_feature)
                == (3, 3, 2, 3)
                && (&d.input_spatial[..], &d.output_spatial[..], &d.kernel_spatial[..])
                    == (&[1, 2], &[1, 2], &[0, 1]);
        matches!(types, (F64, F64, F64) | (F32, F32, F32) | (S8, S8, S32))
            && convolution.batch_group_count == 1
            && is_in_order
            && input.dimensions[3].max(result.dimensions[3]) >= self.rules.min_features
            && (1..3).all(|i| {
                result.dimensions[i] <= input.dimensions[i] && kernel.dimensions[i - 1] <= input.dimensions[i]
            })
            && convolution.window.dimensions.iter().all(|d| d.base_dilation == 1 && !d.window_reversal)
    }
}
