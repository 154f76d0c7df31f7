//! Operations: what an instruction computes, attributes included.

use std::sync::LazyLock;

use smallvec::SmallVec;
use strum::{IntoEnumIterator, VariantArray};

use crate::{
    Async, Collective, ComparisonDirection, ComparisonType, Convolution, CustomCall, Dimensions, Domain, Dot,
    DotDimensions, Feed, FftKind, Fusion, GatherDimensions, Literal, Opcode, PaddingDimension, RaggedDot,
    RngAlgorithm, RngDistribution, Scan, ScatterDimensions, SliceDimension, Transfer, TriangularSolve,
    Window,
};

/// Elementwise operations of one operand that need no attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, strum::EnumIter)]
#[allow(missing_docs, reason = "each variant is the HLO operation of the same name")]
pub enum UnaryOp {
    Abs,
    Acos,
    Acosh,
    Asin,
    Asinh,
    Atanh,
    Cbrt,
    Ceil,
    Cosine,
    Cosh,
    CountLeadingZeros,
    Erf,
    Exponential,
    Expm1,
    Floor,
    Imag,
    IsFinite,
    Log,
    Log1p,
    Logistic,
    Negate,
    Not,
    PopulationCount,
    Real,
    RoundNearestAwayFromZero,
    RoundNearestEven,
    Rsqrt,
    Sign,
    Sine,
    Sinh,
    Sqrt,
    Tan,
    Tanh,
}

/// Elementwise operations of two operands that need no attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, strum::EnumIter)]
#[allow(missing_docs, reason = "each variant is the HLO operation of the same name")]
pub enum BinaryOp {
    Add,
    And,
    Atan2,
    Complex,
    Divide,
    Maximum,
    Minimum,
    Mulhi,
    Multiply,
    Or,
    Power,
    Remainder,
    ShiftLeft,
    ShiftRightArithmetic,
    ShiftRightLogical,
    Subtract,
    Xor,
}

/// The operation of an instruction. Operands and called computations are fields of the
/// [`Instruction`](crate::Instruction); their roles are documented here.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is the HLO operation of the same name, fields have XLA's names")]
pub enum Op {
    Unary(UnaryOp),
    Binary(BinaryOp),
    /// `comparison_type` is `None` where the program does not say: see [`ComparisonType::default_for`].
    Compare {
        direction: ComparisonDirection,
        comparison_type: Option<ComparisonType>,
    },
    Select,
    Clamp,
    Convert,
    BitcastConvert,
    StochasticConvert,
    /// A copy, which may change layout or memory space.
    Copy,
    Bitcast,
    DynamicReshape,
    DynamicUpdateSlice,
    AddDependency,
    AfterAll,
    Tuple,
    /// Called: body, then condition (XLA's order).
    While,
    /// Operand 0 selects; operand `i + 1` goes to called computation `i`. For a `pred`, called: true, false.
    Conditional,
    CopyDone,
    ReplicaId,
    PartitionId,
    OptimizationBarrier,
    Parameter {
        number: u32,
    },
    Constant(Literal),
    Iota {
        dimension: i64,
    },
    ReducePrecision {
        exponent_bits: i32,
        mantissa_bits: i32,
    },
    /// `dimensions[i]` is the result dimension that operand dimension `i` becomes.
    Broadcast {
        dimensions: Dimensions,
    },
    Reshape {
        inferred_dimension: Option<i64>,
    },
    /// Result dimension `i` is operand dimension `dimensions[i]`.
    Transpose {
        dimensions: Dimensions,
    },
    Reverse {
        dimensions: Dimensions,
    },
    Slice {
        dimensions: SmallVec<[SliceDimension; 2]>,
    },
    DynamicSlice {
        slice_sizes: Dimensions,
    },
    Concatenate {
        dimension: i64,
    },
    Pad {
        dimensions: SmallVec<[PaddingDimension; 2]>,
    },
    Gather(Box<GatherDimensions>),
    /// Operands: n arrays, the indices, n updates. Called: the combiner.
    Scatter(Box<ScatterDimensions>),
    /// Operands: n arrays, n initial values. Called: the reducer.
    Reduce {
        dimensions: Dimensions,
    },
    /// Operands: n arrays, n initial values. Called: the reducer.
    ReduceWindow(Box<Window>),
    /// Operands: array, source, initial value. Called: select, then scatter.
    SelectAndScatter(Box<Window>),
    Map {
        dimensions: Dimensions,
    },
    Scan(Box<Scan>),
    Sort {
        dimension: i64,
        is_stable: bool,
    },
    TopK {
        k: i64,
        largest: bool,
        is_stable: Option<bool>,
    },
    Dot(Box<Dot>),
    /// Operands: lhs, rhs, lhs scale, rhs scale.
    ScaledDot(Box<Dot>),
    /// Operands: lhs, rhs, group sizes.
    RaggedDot(Box<RaggedDot>),
    Convolution(Box<Convolution>),
    Fft {
        kind: FftKind,
        lengths: Dimensions,
    },
    TriangularSolve(TriangularSolve),
    Cholesky {
        lower: bool,
    },
    BatchNormTraining {
        epsilon: f32,
        feature_index: i64,
    },
    BatchNormInference {
        epsilon: f32,
        feature_index: i64,
    },
    BatchNormGrad {
        epsilon: f32,
        feature_index: i64,
    },
    Rng {
        distribution: RngDistribution,
    },
    RngBitGenerator {
        algorithm: RngAlgorithm,
    },
    RngGetAndUpdateState {
        delta: i64,
    },
    GetDimensionSize {
        dimension: i64,
    },
    SetDimensionSize {
        dimension: i64,
    },
    GetTupleElement {
        index: u32,
    },
    Call {
        is_composite: bool,
    },
    Fusion(Box<Fusion>),
    CustomCall(Box<CustomCall>),
    Domain(Box<Domain>),
    Infeed(Box<Feed>),
    Outfeed(Box<Feed>),
    Send(Transfer),
    SendDone(Transfer),
    Recv(Transfer),
    RecvDone(Transfer),
    /// Result: (destination, source, context).
    CopyStart {
        cross_program_prefetch_index: Option<i32>,
    },
    AllGather(Box<Collective>),
    AllGatherStart(Box<Collective>),
    AllGatherDone(Box<Collective>),
    AllReduce(Box<Collective>),
    AllReduceStart(Box<Collective>),
    AllReduceDone(Box<Collective>),
    ReduceScatter(Box<Collective>),
    AllToAll(Box<Collective>),
    RaggedAllToAll(Box<Collective>),
    CollectiveBroadcast(Box<Collective>),
    CollectivePermute(Box<Collective>),
    CollectivePermuteStart(Box<Collective>),
    CollectivePermuteDone(Box<Collective>),
    AsyncStart(Box<Async>),
    AsyncUpdate(Box<Async>),
    AsyncDone(Box<Async>),
}

impl Op {
    /// The operation's name.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        match self {
            Op::Unary(op) => op.opcode(),
            Op::Binary(op) => op.opcode(),
            Op::Compare { .. } => Opcode::Compare,
            Op::Select => Opcode::Select,
            Op::Clamp => Opcode::Clamp,
            Op::Convert => Opcode::Convert,
            Op::BitcastConvert => Opcode::BitcastConvert,
            Op::StochasticConvert => Opcode::StochasticConvert,
            Op::Copy => Opcode::Copy,
            Op::Bitcast => Opcode::Bitcast,
            Op::DynamicReshape => Opcode::DynamicReshape,
            Op::DynamicUpdateSlice => Opcode::DynamicUpdateSlice,
            Op::AddDependency => Opcode::AddDependency,
            Op::AfterAll => Opcode::AfterAll,
            Op::Tuple => Opcode::Tuple,
            Op::While => Opcode::While,
            Op::Conditional => Opcode::Conditional,
            Op::CopyDone => Opcode::CopyDone,
            Op::ReplicaId => Opcode::ReplicaId,
            Op::PartitionId => Opcode::PartitionId,
            Op::OptimizationBarrier => Opcode::OptimizationBarrier,
            Op::Parameter { .. } => Opcode::Parameter,
            Op::Constant { .. } => Opcode::Constant,
            Op::Iota { .. } => Opcode::Iota,
            Op::ReducePrecision { .. } => Opcode::ReducePrecision,
            Op::Broadcast { .. } => Opcode::Broadcast,
            Op::Reshape { .. } => Opcode::Reshape,
            Op::Transpose { .. } => Opcode::Transpose,
            Op::Reverse { .. } => Opcode::Reverse,
            Op::Slice { .. } => Opcode::Slice,
            Op::DynamicSlice { .. } => Opcode::DynamicSlice,
            Op::Concatenate { .. } => Opcode::Concatenate,
            Op::Pad { .. } => Opcode::Pad,
            Op::Gather { .. } => Opcode::Gather,
            Op::Scatter { .. } => Opcode::Scatter,
            Op::Reduce { .. } => Opcode::Reduce,
            Op::ReduceWindow { .. } => Opcode::ReduceWindow,
            Op::SelectAndScatter { .. } => Opcode::SelectAndScatter,
            Op::Map { .. } => Opcode::Map,
            Op::Scan { .. } => Opcode::Scan,
            Op::Sort { .. } => Opcode::Sort,
            Op::TopK { .. } => Opcode::TopK,
            Op::Dot { .. } => Opcode::Dot,
            Op::ScaledDot { .. } => Opcode::ScaledDot,
            Op::RaggedDot { .. } => Opcode::RaggedDot,
            Op::Convolution { .. } => Opcode::Convolution,
            Op::Fft { .. } => Opcode::Fft,
            Op::TriangularSolve { .. } => Opcode::TriangularSolve,
            Op::Cholesky { .. } => Opcode::Cholesky,
            Op::BatchNormTraining { .. } => Opcode::BatchNormTraining,
            Op::BatchNormInference { .. } => Opcode::BatchNormInference,
            Op::BatchNormGrad { .. } => Opcode::BatchNormGrad,
            Op::Rng { .. } => Opcode::Rng,
            Op::RngBitGenerator { .. } => Opcode::RngBitGenerator,
            Op::RngGetAndUpdateState { .. } => Opcode::RngGetAndUpdateState,
            Op::GetDimensionSize { .. } => Opcode::GetDimensionSize,
            Op::SetDimensionSize { .. } => Opcode::SetDimensionSize,
            Op::GetTupleElement { .. } => Opcode::GetTupleElement,
            Op::Call { .. } => Opcode::Call,
            Op::Fusion { .. } => Opcode::Fusion,
            Op::CustomCall { .. } => Opcode::CustomCall,
            Op::Domain { .. } => Opcode::Domain,
            Op::Infeed { .. } => Opcode::Infeed,
            Op::Outfeed { .. } => Opcode::Outfeed,
            Op::Send { .. } => Opcode::Send,
            Op::SendDone { .. } => Opcode::SendDone,
            Op::Recv { .. } => Opcode::Recv,
            Op::RecvDone { .. } => Opcode::RecvDone,
            Op::CopyStart { .. } => Opcode::CopyStart,
            Op::AllGather { .. } => Opcode::AllGather,
            Op::AllGatherStart { .. } => Opcode::AllGatherStart,
            Op::AllGatherDone { .. } => Opcode::AllGatherDone,
            Op::AllReduce { .. } => Opcode::AllReduce,
            Op::AllReduceStart { .. } => Opcode::AllReduceStart,
            Op::AllReduceDone { .. } => Opcode::AllReduceDone,
            Op::ReduceScatter { .. } => Opcode::ReduceScatter,
            Op::AllToAll { .. } => Opcode::AllToAll,
            Op::RaggedAllToAll { .. } => Opcode::RaggedAllToAll,
            Op::CollectiveBroadcast { .. } => Opcode::CollectiveBroadcast,
            Op::CollectivePermute { .. } => Opcode::CollectivePermute,
            Op::CollectivePermuteStart { .. } => Opcode::CollectivePermuteStart,
            Op::CollectivePermuteDone { .. } => Opcode::CollectivePermuteDone,
            Op::AsyncStart { .. } => Opcode::AsyncStart,
            Op::AsyncUpdate { .. } => Opcode::AsyncUpdate,
            Op::AsyncDone { .. } => Opcode::AsyncDone,
        }
    }

    /// The collective attributes of a collective operation.
    pub fn collective(&self) -> Option<&Collective> {
        match self {
            Op::AllGather(c)
            | Op::AllGatherStart(c)
            | Op::AllGatherDone(c)
            | Op::AllReduce(c)
            | Op::AllReduceStart(c)
            | Op::AllReduceDone(c)
            | Op::ReduceScatter(c)
            | Op::AllToAll(c)
            | Op::RaggedAllToAll(c)
            | Op::CollectiveBroadcast(c)
            | Op::CollectivePermute(c)
            | Op::CollectivePermuteStart(c)
            | Op::CollectivePermuteDone(c) => Some(c),
            _ => None,
        }
    }

    /// The dimension numbers of an operation that multiplies its first two operands as a dot does. Convolutions have
    /// others.
    pub fn dot_dimensions(&self) -> Option<&DotDimensions> {
        match self {
            Op::Dot(dot) | Op::ScaledDot(dot) => Some(&dot.dimensions),
            Op::RaggedDot(dot) => Some(&dot.dimensions),
            _ => None,
        }
    }

    /// Whether this is a collective-permute that writes slices of its first operand into its second, which is its result;
    /// operands 2 and 3 say where. Others have as many results as operands.
    pub fn permutes_in_place(&self) -> bool {
        match self {
            Op::CollectivePermute(c) | Op::CollectivePermuteStart(c) => !c.slice_sizes.is_empty(),
            _ => false,
        }
    }
}

impl Opcode {
    /// The operation of an opcode that has no attributes, so that the opcode says everything.
    pub fn without_attributes(self) -> Option<Op> {
        static TABLE: LazyLock<Vec<Option<Op>>> = LazyLock::new(|| {
            let mut table = vec![None; Opcode::VARIANTS.len()];
            let unary = UnaryOp::iter().map(Op::Unary);
            for op in unary.chain(BinaryOp::iter().map(Op::Binary)).chain(WITHOUT_ATTRIBUTES) {
                let opcode = op.opcode();
                table[opcode as usize] = Some(op);
            }
            table
        });
        TABLE[self as usize].clone()
    }
}

/// Operations without attributes, beside unary and binary ones.
const WITHOUT_ATTRIBUTES: [Op; 18] = [
    Op::Select,
    Op::Clamp,
    Op::Convert,
    Op::BitcastConvert,
    Op::StochasticConvert,
    Op::Copy,
    Op::Bitcast,
    Op::DynamicReshape,
    Op::DynamicUpdateSlice,
    Op::AddDependency,
    Op::AfterAll,
    Op::Tuple,
    Op::While,
    Op::Conditional,
    Op::CopyDone,
    Op::ReplicaId,
    Op::PartitionId,
    Op::OptimizationBarrier,
];

impl UnaryOp {
    /// The operation's name.
    #[inline]
    pub fn opcode(self) -> Opcode {
        match self {
            UnaryOp::Abs => Opcode::Abs,
            UnaryOp::Acos => Opcode::Acos,
            UnaryOp::Acosh => Opcode::Acosh,
            UnaryOp::Asin => Opcode::Asin,
            UnaryOp::Asinh => Opcode::Asinh,
            UnaryOp::Atanh => Opcode::Atanh,
            UnaryOp::Cbrt => Opcode::Cbrt,
            UnaryOp::Ceil => Opcode::Ceil,
            UnaryOp::Cosine => Opcode::Cosine,
            UnaryOp::Cosh => Opcode::Cosh,
            UnaryOp::CountLeadingZeros => Opcode::CountLeadingZeros,
            UnaryOp::Erf => Opcode::Erf,
            UnaryOp::Exponential => Opcode::Exponential,
            UnaryOp::Expm1 => Opcode::Expm1,
            UnaryOp::Floor => Opcode::Floor,
            UnaryOp::Imag => Opcode::Imag,
            UnaryOp::IsFinite => Opcode::IsFinite,
            UnaryOp::Log => Opcode::Log,
            UnaryOp::Log1p => Opcode::Log1p,
            UnaryOp::Logistic => Opcode::Logistic,
            UnaryOp::Negate => Opcode::Negate,
            UnaryOp::Not => Opcode::Not,
            UnaryOp::PopulationCount => Opcode::PopulationCount,
            UnaryOp::Real => Opcode::Real,
            UnaryOp::RoundNearestAwayFromZero => Opcode::RoundNearestAwayFromZero,
            UnaryOp::RoundNearestEven => Opcode::RoundNearestEven,
            UnaryOp::Rsqrt => Opcode::Rsqrt,
            UnaryOp::Sign => Opcode::Sign,
            UnaryOp::Sine => Opcode::Sine,
            UnaryOp::Sinh => Opcode::Sinh,
            UnaryOp::Sqrt => Opcode::Sqrt,
            UnaryOp::Tan => Opcode::Tan,
            UnaryOp::Tanh => Opcode::Tanh,
        }
    }
}

impl BinaryOp {
    /// Whether its operands may change places.
    pub fn is_commutative(self) -> bool {
        use BinaryOp::*;
        matches!(self, Add | And | Maximum | Minimum | Mulhi | Multiply | Or | Xor)
    }

    /// The operation's name.
    #[inline]
    pub fn opcode(self) -> Opcode {
        match self {
            BinaryOp::Add => Opcode::Add,
            BinaryOp::And => Opcode::And,
            BinaryOp::Atan2 => Opcode::Atan2,
            BinaryOp::Complex => Opcode::Complex,
            BinaryOp::Divide => Opcode::Divide,
            BinaryOp::Maximum => Opcode::Maximum,
            BinaryOp::Minimum => Opcode::Minimum,
            BinaryOp::Mulhi => Opcode::Mulhi,
            BinaryOp::Multiply => Opcode::Multiply,
            BinaryOp::Or => Opcode::Or,
            BinaryOp::Power => Opcode::Power,
            BinaryOp::Remainder => Opcode::Remainder,
            BinaryOp::ShiftLeft => Opcode::ShiftLeft,
            BinaryOp::ShiftRightArithmetic => Opcode::ShiftRightArithmetic,
            BinaryOp::ShiftRightLogical => Opcode::ShiftRightLogical,
            BinaryOp::Subtract => Opcode::Subtract,
            BinaryOp::Xor => Opcode::Xor,
        }
    }
}
