//! The attributes of operations. Dimension numbers are XLA's, with XLA's names.

use smallvec::SmallVec;

use crate::{Dimensions, ElementType, Literal, Opcode, Shape, ShapeIndex, Sharding};

/// How two values are compared.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "UPPERCASE")]
#[allow(missing_docs, reason = "the names say it")]
pub enum ComparisonDirection {
    Eq,
    Ne,
    Ge,
    Gt,
    Le,
    Lt,
}

/// In which order values are compared.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "UPPERCASE")]
#[allow(missing_docs, reason = "the names say it")]
pub enum ComparisonType {
    Float,
    #[strum(serialize = "TOTALORDER")]
    TotalOrder,
    Signed,
    Unsigned,
}

/// One dimension of a slice: elements `start, start + stride, ...` below `limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the struct's own line defines them")]
pub struct SliceDimension {
    pub start: i64,
    pub limit: i64,
    pub stride: i64,
}

/// Padding of one dimension. Low and high may be negative, which crops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PaddingDimension {
    /// Elements before the first.
    pub low: i64,
    /// Elements after the last.
    pub high: i64,
    /// Elements between any two neighbors.
    pub interior: i64,
}

impl PaddingDimension {
    /// The extent after padding; `None` beyond 64 bits. May be negative.
    pub fn padded(self, extent: i64) -> Option<i64> {
        crate::infer::padded(extent, self.low, self.high, self.interior)
    }
}

/// Dimension numbers of a gather.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct GatherDimensions {
    pub offset_dims: Dimensions,
    pub collapsed_slice_dims: Dimensions,
    pub start_index_map: Dimensions,
    pub index_vector_dim: i64,
    pub operand_batching_dims: Dimensions,
    pub start_indices_batching_dims: Dimensions,
    pub slice_sizes: Dimensions,
    pub indices_are_sorted: bool,
}

/// Dimension numbers of a scatter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct ScatterDimensions {
    pub update_window_dims: Dimensions,
    pub inserted_window_dims: Dimensions,
    pub scatter_dims_to_operand_dims: Dimensions,
    pub index_vector_dim: i64,
    pub input_batching_dims: Dimensions,
    pub scatter_indices_batching_dims: Dimensions,
    pub indices_are_sorted: bool,
    pub unique_indices: bool,
}

/// One dimension of a window that moves over an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowDimension {
    /// Elements under the window.
    pub size: i64,
    /// Distance between two placements.
    pub stride: i64,
    /// Padding before the first element; negative crops.
    pub padding_low: i64,
    /// Padding after the last element; negative crops.
    pub padding_high: i64,
    /// Distance between two elements of the window; 1 is dense (`rhs_dilate`).
    pub window_dilation: i64,
    /// Distance between two elements of the base; 1 is dense (`lhs_dilate`).
    pub base_dilation: i64,
    /// Whether the window is read backwards (`rhs_reversal`).
    pub window_reversal: bool,
}

impl Default for WindowDimension {
    fn default() -> WindowDimension {
        WindowDimension {
            size: 1,
            stride: 1,
            padding_low: 0,
            padding_high: 0,
            window_dilation: 1,
            base_dilation: 1,
            window_reversal: false,
        }
    }
}

impl WindowDimension {
    /// The number of positions of the window over this many elements; `None` beyond 64 bits. Stride and dilations must
    /// be those of a valid window.
    pub fn placements(&self, extent: i64) -> Option<i64> {
        crate::infer::placements(extent, self)
    }

    /// Whether it has one place for each element, and is on that element alone.
    pub fn is_still(&self) -> bool {
        let still = WindowDimension { window_dilation: self.window_dilation, ..WindowDimension::default() };
        WindowDimension { window_reversal: false, ..*self } == still
    }

    /// Whether it has a place for each of several elements, on this element (or its neighbour) and all before it, or all after
    /// it: reductions of such windows are running sums.
    ///
    /// ```
    /// use memplan_ir::WindowDimension;
    ///
    /// let up_to_each = WindowDimension { size: 4, padding_low: 3, ..WindowDimension::default() };
    /// assert!(up_to_each.is_running(4));
    /// assert!(!up_to_each.is_running(8));
    /// let pairs = WindowDimension { size: 2, padding_high: 1, ..WindowDimension::default() };
    /// assert!(!pairs.is_running(4));
    /// ```
    pub fn is_running(&self, extent: i64) -> bool {
        self.size == extent
            && extent > 1
            && [self.stride, self.window_dilation, self.base_dilation] == [1; 3]
            && self.padding_low.min(self.padding_high) <= 0
            && self.placements(extent) == Some(extent)
    }
}

/// A window, one entry per dimension.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Window {
    /// The dimensions.
    pub dimensions: SmallVec<[WindowDimension; 4]>,
}

/// Contracting and batch dimensions of a dot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct DotDimensions {
    pub lhs_contracting: Dimensions,
    pub rhs_contracting: Dimensions,
    pub lhs_batch: Dimensions,
    pub rhs_batch: Dimensions,
}

/// One of the two operands of a dot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "XLA's names")]
pub enum DotOperand {
    Lhs,
    Rhs,
}

impl DotDimensions {
    /// Sums products over dimensions of the left operand, paired with dimensions of the right one.
    pub fn new(
        lhs_contracting: impl IntoIterator<Item = i64>,
        rhs_contracting: impl IntoIterator<Item = i64>,
    ) -> DotDimensions {
        DotDimensions {
            lhs_contracting: lhs_contracting.into_iter().collect(),
            rhs_contracting: rhs_contracting.into_iter().collect(),
            ..DotDimensions::default()
        }
    }

    /// The same, for each index of the batch dimensions.
    #[must_use]
    pub fn with_batch(
        self,
        lhs_batch: impl IntoIterator<Item = i64>,
        rhs_batch: impl IntoIterator<Item = i64>,
    ) -> DotDimensions {
        let (lhs_batch, rhs_batch) = (lhs_batch.into_iter().collect(), rhs_batch.into_iter().collect());
        DotDimensions { lhs_batch, rhs_batch, ..self }
    }

    /// The batch dimensions of an operand.
    pub fn batch(&self, operand: DotOperand) -> &Dimensions {
        match operand {
            DotOperand::Lhs => &self.lhs_batch,
            DotOperand::Rhs => &self.rhs_batch,
        }
    }

    /// The dimensions of an operand that products are summed over.
    pub fn contracting(&self, operand: DotOperand) -> &Dimensions {
        match operand {
            DotOperand::Lhs => &self.lhs_contracting,
            DotOperand::Rhs => &self.rhs_contracting,
        }
    }

    /// The other dimensions of an operand of some rank, in order. The result has the batch dimensions first, then the
    /// left operand's, then the right one's. Linear in the rank.
    pub fn free(&self, operand: DotOperand, rank: usize) -> Dimensions {
        let mut is_free: SmallVec<[bool; 8]> = SmallVec::from_elem(true, rank);
        for &d in self.batch(operand).iter().chain(self.contracting(operand)) {
            is_free.get_mut(d as usize).into_iter().for_each(|free| *free = false);
        }
        (0..rank as i64).filter(|&d| is_free[d as usize]).collect()
    }
}

/// Requested precision of one operand.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "lowercase")]
#[allow(missing_docs, reason = "XLA's names")]
pub enum Precision {
    #[default]
    Default,
    High,
    Highest,
}

/// The algorithm of a dot, spelled `dot_...` in text.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "snake_case")]
#[allow(missing_docs, reason = "XLA's names")]
pub enum PrecisionAlgorithm {
    #[default]
    Unset,
    #[strum(serialize = "dot_any_f8_any_f8_f32")]
    AnyF8AnyF8F32,
    #[strum(serialize = "dot_any_f8_any_f8_f32_fast_accum")]
    AnyF8AnyF8F32FastAccum,
    #[strum(serialize = "dot_f16_f16_f16")]
    F16F16F16,
    #[strum(serialize = "dot_f16_f16_f32")]
    F16F16F32,
    #[strum(serialize = "dot_bf16_bf16_bf16")]
    Bf16Bf16Bf16,
    #[strum(serialize = "dot_bf16_bf16_f32")]
    Bf16Bf16F32,
    #[strum(serialize = "dot_bf16_bf16_f32_x3")]
    Bf16Bf16F32X3,
    #[strum(serialize = "dot_bf16_bf16_f32_x6")]
    Bf16Bf16F32X6,
    #[strum(serialize = "dot_bf16_bf16_f32_x9")]
    Bf16Bf16F32X9,
    #[strum(serialize = "dot_tf32_tf32_f32")]
    Tf32Tf32F32,
    #[strum(serialize = "dot_tf32_tf32_f32_x3")]
    Tf32Tf32F32X3,
    #[strum(serialize = "dot_f32_f32_f32")]
    F32F32F32,
    #[strum(serialize = "dot_f64_f64_f64")]
    F64F64F64,
}

/// Precision of dots and convolutions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PrecisionConfig {
    /// One entry per operand; empty when all are default.
    pub operand_precision: SmallVec<[Precision; 3]>,
    /// The algorithm.
    pub algorithm: PrecisionAlgorithm,
}

/// Attributes of dot and scaled-dot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the types say it")]
pub struct Dot {
    pub dimensions: DotDimensions,
    pub precision: PrecisionConfig,
}

/// Attributes of ragged-dot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct RaggedDot {
    pub dimensions: DotDimensions,
    pub lhs_ragged_dims: Dimensions,
    pub rhs_group_dims: Dimensions,
    pub precision: PrecisionConfig,
}

/// Which dimension of input, kernel and output means what: `dim_labels=b01f_01io->b01f`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct ConvolutionDimensions {
    pub input_batch: i64,
    pub input_feature: i64,
    pub input_spatial: Dimensions,
    pub kernel_input_feature: i64,
    pub kernel_output_feature: i64,
    pub kernel_spatial: Dimensions,
    pub output_batch: i64,
    pub output_feature: i64,
    pub output_spatial: Dimensions,
}

/// Which convolution of a training step this is.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "snake_case")]
#[allow(missing_docs, reason = "XLA's names")]
pub enum ConvolutionKind {
    #[default]
    Unset,
    Fprop,
    Dgrad,
    Wgrad,
}

/// Structured sparsity of one convolution operand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct TensorSparsity {
    pub num_non_zero: i64,
    pub block_size: i64,
    pub dimension: i64,
    pub stride: i64,
}

/// Attributes of a convolution.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct Convolution {
    pub window: Window,
    pub dimensions: ConvolutionDimensions,
    pub feature_group_count: i64,
    pub batch_group_count: i64,
    pub kind: ConvolutionKind,
    pub precision: PrecisionConfig,
    /// Sparsity of the left and right operand.
    pub sparsity: [Option<TensorSparsity>; 2],
}

/// Kind of a Fourier transform.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "UPPERCASE")]
#[allow(missing_docs, reason = "the names say it")]
pub enum FftKind {
    Fft,
    Ifft,
    Rfft,
    Irfft,
}

/// Which form of the matrix a triangular solve uses.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs, reason = "the names say it")]
pub enum TriangularTranspose {
    #[default]
    NoTranspose,
    Transpose,
    Adjoint,
}

/// Attributes of triangular-solve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct TriangularSolve {
    pub left_side: bool,
    pub lower: bool,
    pub unit_diagonal: bool,
    pub transpose_a: TriangularTranspose,
}

/// Distribution of `rng`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum RngDistribution {
    RngUniform,
    RngNormal,
}

/// Algorithm of `rng-bit-generator`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum RngAlgorithm {
    RngDefault,
    RngThreeFry,
    RngPhilox,
}

/// The kind of kernel that a fusion describes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
pub enum FusionKind {
    /// One loop over an elementwise root.
    #[strum(serialize = "kLoop")]
    Loop,
    /// A reduction, scatter or similar root with its producers.
    #[strum(serialize = "kInput")]
    Input,
    /// A dot or convolution with an epilogue.
    #[strum(serialize = "kOutput")]
    Output,
    /// Whatever the backend says.
    #[strum(serialize = "kCustom")]
    Custom,
}

/// One declared aliasing of an output with an operand: `{out}: (operand, {index})`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OutputOperandAlias {
    /// Position in the result.
    pub output_index: ShapeIndex,
    /// Number of the operand.
    pub operand: u32,
    /// Position in the operand.
    pub operand_index: ShapeIndex,
}

/// Attributes of a fusion.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fusion {
    /// The kind of kernel that the fusion describes.
    pub kind: FusionKind,
    /// Declared in-place operands.
    pub output_operand_aliasing: Vec<OutputOperandAlias>,
}

/// Padding convention of a custom call.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs, reason = "the names say it")]
pub enum PaddingType {
    PaddingInvalid,
    PaddingValid,
    PaddingSame,
}

/// When to schedule a custom call.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs, reason = "XLA's names")]
pub enum CustomCallSchedule {
    #[default]
    ScheduleNone,
    ScheduleLatest,
    ScheduleEarliest,
}

/// Calling convention of a custom call.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "SCREAMING_SNAKE_CASE")]
#[allow(missing_docs, reason = "XLA's names")]
pub enum CustomCallApiVersion {
    ApiVersionUnspecified,
    #[default]
    ApiVersionOriginal,
    ApiVersionStatusReturning,
    ApiVersionStatusReturningUnified,
    ApiVersionTypedFfi,
}

/// Attributes of a custom call. Called computations are in `Instruction::called`.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct CustomCall {
    pub target: Box<str>,
    pub window: Option<Window>,
    pub dimensions: Option<ConvolutionDimensions>,
    pub feature_group_count: Option<i64>,
    pub batch_group_count: Option<i64>,
    pub operand_layout_constraints: Option<Vec<Shape>>,
    pub has_side_effect: bool,
    pub output_operand_aliasing: Vec<OutputOperandAlias>,
    pub padding_type: Option<PaddingType>,
    pub literal: Option<Literal>,
    pub precision: PrecisionConfig,
    pub schedule: CustomCallSchedule,
    pub api_version: CustomCallApiVersion,
    /// Whether the called computation was written as `to_apply=` rather than `called_computations=`.
    pub uses_to_apply: bool,
}

impl CustomCall {
    /// The rank of one problem of a routine of linear algebra that solves a batch of them, by its target: 2 for matrices
    /// (`lapack_sgetrf_ffi`, `cusolver_potrf_ffi`), 1 for the pivots of one. The dimensions before it count problems, in all
    /// operands and results. `None` for other calls.
    pub fn problem_rank(&self) -> Option<usize> {
        let name = self.target.strip_suffix("_ffi").unwrap_or(&self.target);
        let routine = match name.split_once('_')? {
            // LAPACK's names begin with the type of the numbers.
            ("lapack", routine) => routine.get(1..)?,
            ("cusolver" | "hipsolver", routine) => routine,
            ("cu" | "hip", "lu_pivots_to_permutation") => return Some(1),
            _ => return None,
        };
        let is_known = matches!(
            routine,
            "getrf"
                | "potrf"
                | "geqrf"
                | "orgqr"
                | "ungqr"
                | "ormqr"
                | "unmqr"
                | "trsm"
                | "syevd"
                | "heevd"
                | "gesvd"
                | "gesvdj"
                | "gesdd"
        );
        is_known.then_some(2)
    }
}

/// The devices that take part in a collective.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReplicaGroups {
    /// `{{0,1},{2,3}}`; empty: all devices in one group.
    List(Vec<Vec<i64>>),
    /// `[2,4]<=[4,2]T(1,0)`: an iota, reshaped, transposed, reshaped to groups x members.
    Iota {
        /// Groups x members.
        dimensions: [i64; 2],
        /// Shape of the iota.
        reshape: Dimensions,
        /// Permutation of that shape; identity when not written.
        transpose: Dimensions,
    },
    /// `mesh['x'=2,'y'=4]{'x'}`: axes of a named mesh.
    Mesh {
        /// The mesh.
        mesh: crate::Mesh,
        /// The axes that vary within a group.
        axes: Vec<crate::AxisRef>,
    },
}

impl Default for ReplicaGroups {
    fn default() -> ReplicaGroups {
        ReplicaGroups::List(Vec::new())
    }
}

/// How the ids in replica groups are meant.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "snake_case")]
#[allow(missing_docs, reason = "XLA's names")]
pub enum CollectiveGroupMode {
    CrossReplica,
    CrossPartition,
    CrossReplicaAndPartition,
    FlattenedId,
}

/// Attributes shared by all collectives; those a given collective does not have keep their default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct Collective {
    pub replica_groups: ReplicaGroups,
    pub channel_id: Option<i64>,
    pub constrain_layout: bool,
    pub use_global_device_ids: bool,
    /// Gathered, scattered or split dimension (all-gather, reduce-scatter, array all-to-all).
    pub dimension: Option<i64>,
    pub mode: Option<CollectiveGroupMode>,
    /// collective-permute only.
    pub source_target_pairs: Vec<(i64, i64)>,
    /// collective-permute in its in-place form only.
    pub slice_sizes: Vec<Dimensions>,
    /// collective-broadcast only.
    pub has_dynamic_root: bool,
}

impl Collective {
    /// The meaning of the ids in the replica groups of this collective: as written, or as its opcode, its channel and
    /// the kind of its ids imply (XLA's `GetCollectiveOpGroupMode`). Only reductions and gathers over a channel let a
    /// replica represent all its partitions; operations that move values between peers name partitions then.
    pub fn group_mode(&self, opcode: Opcode) -> CollectiveGroupMode {
        use CollectiveGroupMode::*;
        let is_between_peers = matches!(
            opcode,
            Opcode::AllToAll
                | Opcode::RaggedAllToAll
                | Opcode::CollectivePermute
                | Opcode::CollectivePermuteStart
                | Opcode::CollectiveBroadcast
        );
        self.mode.unwrap_or(match (self.channel_id, self.use_global_device_ids) {
            (_, true) => FlattenedId,
            (Some(_), false) if is_between_peers => CrossPartition,
            (Some(_), false) => CrossReplicaAndPartition,
            (None, false) => CrossReplica,
        })
    }
}

/// Attributes of `scan`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct Scan {
    pub dimension: i64,
    pub num_carries: i64,
    pub is_reverse: bool,
    pub is_associative: Option<bool>,
}

/// Attributes of send, recv and their done halves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct Transfer {
    pub channel_id: Option<i64>,
    pub is_host_transfer: bool,
}

/// Attributes of async-start, async-update and async-done. The wrapped computation is `Instruction::called[0]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Async {
    /// Name of the thread it runs on; empty is the main thread.
    pub execution_thread: Box<str>,
    /// Declared in-place operands (async-start).
    pub output_operand_aliasing: Vec<OutputOperandAlias>,
}

/// Attributes of `domain`.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct Domain {
    pub entry: Sharding,
    pub exit: Sharding,
}

/// Required accuracy of a transcendental function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResultAccuracy {
    /// As accurate as the backend can.
    Highest,
    /// Within these bounds.
    #[allow(missing_docs, reason = "XLA's names")]
    Tolerance { rtol: f64, atol: f64, ulps: i64 },
}

/// Attributes of `infeed` and `outfeed`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Feed {
    /// `infeed_config` or `outfeed_config`.
    pub config: Box<[u8]>,
    /// `outfeed_shape`, outfeed only.
    pub shape: Option<Shape>,
}

/// Not an attribute, but used by several of them: the default type of a comparison.
impl ComparisonType {
    /// The order in which values of a type are compared when the program does not say.
    pub fn default_for(element_type: ElementType) -> ComparisonType {
        if element_type.is_signed() {
            ComparisonType::Signed
        } else if element_type.is_unsigned() || element_type == ElementType::Pred {
            ComparisonType::Unsigned
        } else {
            ComparisonType::Float
        }
    }
}
