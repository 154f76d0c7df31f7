//! The properties of each operation, in one table.
//!
//! All code that classifies operations uses this table, so that a new operation is described in one place and two parts
//! of the compiler cannot disagree about it. It is a `match` without a wildcard, so an undescribed operation does not
//! compile. The [`Op`] answers questions that depend on attributes.
//!
//! Two other lists remain on purpose: the checker's, which shares nothing with the planner, and those of `memplan-xla`,
//! which follow another compiler.

use strum::VariantArray;

use crate::{Arity, Op, Opcode};

/// The properties of all instructions of one opcode, for any attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Traits {
    /// Which elements of its operands an element of the result depends on.
    pub access: Access,
    /// Its effect on memory.
    pub role: Role,
    /// Its other effects.
    pub effect: Effect,
    /// How much work an element is, for elementwise operations.
    pub arithmetic: Arithmetic,
    /// How many operands it takes.
    pub operands: Arity,
    /// How many computations it calls.
    pub called: Arity,
    /// How it uses called computations.
    pub callees: Callees,
    /// The parts of an asynchronous operation that may come after this one; none after the last.
    pub next: &'static [Opcode],
    /// The parts of an asynchronous operation that may come before this one; none before the first.
    pub previous: &'static [Opcode],
}

/// Which elements of its operands an element of the result depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// On the element at the same place of each operand, and on scalars.
    Elementwise,
    /// On at most one element of one operand, which is only put elsewhere: slices, transposes, padding, gathers. Also
    /// what depends on no operand at all, like an iota.
    Reindexing,
    /// On a sum of products: matrix products and convolutions.
    Contraction,
    /// On several elements of an operand, which a called computation combines.
    Reduction,
    /// On the same element of the first operand, unless an update replaces it.
    Update,
    /// On anything.
    Whole,
}

/// The effect of an operation on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Names bytes that are there before: a parameter or a constant.
    Provides,
    /// Its result is its first operand, under another name or shape. Reads and writes nothing.
    PassesOn,
    /// Makes a tuple of its operands, or takes an element of one. Reads and writes nothing but tables of addresses.
    Regroups,
    /// Makes a scalar that is known without reading an array: an extent, a device's number.
    Queries,
    /// Only says what comes after what.
    Orders,
    /// Reads its operands and writes its result, in a kernel.
    Computes,
    /// Hands control to the computations it calls, which do the work.
    Calls,
    /// Begins what goes on beside others: its operands may not change until that has ended.
    Starts,
    /// Is between the beginning and the end.
    Continues,
    /// Waits for the end of the started operation.
    Ends,
}

/// The effects of an operation besides computing a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// Exchanges data with the host or with another program.
    Host,
    /// Exchanges data with other devices, which wait for each other if they share a channel.
    Devices,
    /// Advances the state of a random number generator.
    State,
    /// Whatever the instruction says.
    Declared,
}

/// How much work one element of an elementwise operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// About one instruction of a vector unit.
    Simple,
    /// An estimate and steps of Newton's method: divisions and roots.
    Division,
    /// A polynomial or a table: exp, log, tanh and the like.
    Transcendental,
}

/// How an operation uses the computations that it calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callees {
    /// It calls none.
    None,
    /// They are applied to elements, within a kernel.
    Applied,
    /// They are the kernel.
    Fused,
    /// They run, instruction by instruction.
    Run,
    /// They are only named; somebody else decides.
    Named,
}

impl Traits {
    /// An operation that reads its operands and writes its result, calls nothing and has no side effect.
    const fn new(access: Access, operands: Arity) -> Traits {
        Traits {
            access,
            role: Role::Computes,
            effect: Effect::None,
            arithmetic: Arithmetic::Simple,
            operands,
            called: Arity::exactly(0),
            callees: Callees::None,
            next: &[],
            previous: &[],
        }
    }

    const fn elementwise(operands: usize) -> Traits {
        Traits::new(Access::Elementwise, Arity::exactly(operands))
    }

    const fn reindexing(operands: Arity) -> Traits {
        Traits::new(Access::Reindexing, operands)
    }

    const fn whole(operands: Arity) -> Traits {
        Traits::new(Access::Whole, operands)
    }

    const fn collective(operands: Arity) -> Traits {
        Traits::whole(operands).with(Effect::Devices)
    }

    /// A transfer that the host or another program takes part in.
    const fn host(operands: usize) -> Traits {
        Traits::whole(Arity::exactly(operands)).with(Effect::Host)
    }

    const fn role(self, role: Role) -> Traits {
        Traits { role, ..self }
    }

    const fn with(self, effect: Effect) -> Traits {
        Traits { effect, ..self }
    }

    const fn costing(self, arithmetic: Arithmetic) -> Traits {
        Traits { arithmetic, ..self }
    }

    const fn calling(self, callees: Callees, called: Arity) -> Traits {
        Traits { callees, called, ..self }
    }

    /// The first part of an asynchronous operation.
    const fn starting(self, next: &'static [Opcode]) -> Traits {
        Traits { next, ..self.role(Role::Starts) }
    }

    /// The last part of an asynchronous operation.
    const fn ending(self, previous: &'static [Opcode]) -> Traits {
        Traits { previous, ..self.role(Role::Ends) }
    }
}

/// The table, by number of the opcode.
static TRAITS: [Traits; Opcode::VARIANTS.len()] = {
    let mut table = [Opcode::VARIANTS[0].describe(); Opcode::VARIANTS.len()];
    let mut i = 0;
    while i < table.len() {
        table[i] = Opcode::VARIANTS[i].describe();
        i += 1;
    }
    table
};

impl Opcode {
    /// The properties of all instructions of this opcode.
    #[inline]
    pub fn traits(self) -> &'static Traits {
        &TRAITS[self as usize]
    }

    const fn describe(self) -> Traits {
        use Opcode::*;
        const ANY: Arity = Arity::ANY;
        const SOME: Arity = Arity::at_least(1);
        const fn exactly(n: usize) -> Arity {
            Arity::exactly(n)
        }
        match self {
            Abs
            | Ceil
            | CountLeadingZeros
            | Floor
            | Imag
            | IsFinite
            | Negate
            | Not
            | PopulationCount
            | Real
            | RoundNearestAwayFromZero
            | RoundNearestEven
            | Sign => Traits::elementwise(1),
            Cbrt | Rsqrt | Sqrt => Traits::elementwise(1).costing(Arithmetic::Division),
            Acos | Acosh | Asin | Asinh | Atanh | Cosh | Cosine | Erf | Exponential | Expm1 | Log | Log1p
            | Logistic | Sine | Sinh | Tan | Tanh => {
                Traits::elementwise(1).costing(Arithmetic::Transcendental)
            }
            Add | And | Complex | Maximum | Minimum | Mulhi | Multiply | Or | ShiftLeft
            | ShiftRightArithmetic | ShiftRightLogical | Subtract | Xor => Traits::elementwise(2),
            Divide | Remainder => Traits::elementwise(2).costing(Arithmetic::Division),
            Atan2 | Power => Traits::elementwise(2).costing(Arithmetic::Transcendental),
            Convert | Copy | ReducePrecision => Traits::elementwise(1),
            Compare | StochasticConvert => Traits::elementwise(2),
            Clamp | Select => Traits::elementwise(3),
            Map => Traits::new(Access::Elementwise, SOME).calling(Callees::Applied, exactly(1)),

            Iota => Traits::reindexing(exactly(0)),
            BitcastConvert | Broadcast | Reshape | Reverse | Slice | Transpose => {
                Traits::reindexing(exactly(1))
            }
            Gather | Pad => Traits::reindexing(exactly(2)),
            Concatenate | DynamicSlice => Traits::reindexing(SOME),

            Convolution | Dot => Traits::new(Access::Contraction, exactly(2)),
            RaggedDot => Traits::new(Access::Contraction, exactly(3)),
            ScaledDot => Traits::new(Access::Contraction, exactly(4)),

            Reduce | ReduceWindow => {
                Traits::new(Access::Reduction, Arity::in_pairs_from(2)).calling(Callees::Applied, exactly(1))
            }

            DynamicUpdateSlice => Traits::new(Access::Update, Arity::at_least(2)),
            Scatter => {
                Traits::new(Access::Update, Arity::in_pairs_from(3)).calling(Callees::Applied, exactly(1))
            }

            Cholesky | Fft | RngBitGenerator | TopK => Traits::whole(exactly(1)),
            SetDimensionSize | TriangularSolve => Traits::whole(exactly(2)),
            BatchNormTraining => Traits::whole(exactly(3)),
            BatchNormGrad | BatchNormInference => Traits::whole(exactly(5)),
            DynamicReshape => Traits::whole(SOME),
            Scan | Sort => Traits::whole(SOME).calling(Callees::Applied, exactly(1)),
            SelectAndScatter => Traits::whole(exactly(3)).calling(Callees::Applied, exactly(2)),
            Rng => Traits::whole(exactly(2)).with(Effect::State),
            RngGetAndUpdateState => Traits::whole(exactly(0)).with(Effect::State),
            Fusion => Traits::whole(ANY).calling(Callees::Fused, exactly(1)),
            CustomCall => Traits::whole(ANY).with(Effect::Declared).calling(Callees::Named, ANY),

            Constant | Parameter => Traits::whole(exactly(0)).role(Role::Provides),
            Bitcast => Traits::reindexing(exactly(1)).role(Role::PassesOn),
            Domain | OptimizationBarrier => Traits::whole(exactly(1)).role(Role::PassesOn),
            AddDependency => Traits::whole(exactly(2)).role(Role::PassesOn),
            GetTupleElement => Traits::whole(exactly(1)).role(Role::Regroups),
            Tuple => Traits::whole(ANY).role(Role::Regroups),
            AfterAll => Traits::whole(ANY).role(Role::Orders),
            GetDimensionSize => Traits::whole(exactly(1)).role(Role::Queries),
            PartitionId | ReplicaId => Traits::whole(exactly(0)).role(Role::Queries),

            Call => Traits::whole(ANY).role(Role::Calls).calling(Callees::Run, exactly(1)),
            Conditional => Traits::whole(Arity::at_least(2)).role(Role::Calls).calling(Callees::Run, SOME),
            While => Traits::whole(exactly(1)).role(Role::Calls).calling(Callees::Run, exactly(2)),

            AllGather | AllToAll | CollectiveBroadcast | CollectivePermute => Traits::collective(SOME),
            AllReduce | ReduceScatter => Traits::collective(SOME).calling(Callees::Applied, exactly(1)),
            RaggedAllToAll => Traits::collective(exactly(6)),
            AllGatherStart => Traits::collective(SOME).starting(&[AllGatherDone]),
            AllGatherDone => Traits::collective(exactly(1)).ending(&[AllGatherStart]),
            AllReduceStart => {
                Traits::collective(SOME).calling(Callees::Applied, exactly(1)).starting(&[AllReduceDone])
            }
            AllReduceDone => Traits::collective(exactly(1)).ending(&[AllReduceStart]),
            CollectivePermuteStart => Traits::collective(SOME).starting(&[CollectivePermuteDone]),
            CollectivePermuteDone => Traits::collective(exactly(1)).ending(&[CollectivePermuteStart]),

            Infeed => Traits::host(1),
            Outfeed => Traits::host(2),
            Send => Traits::host(2).starting(&[SendDone]),
            SendDone => Traits::host(1).ending(&[Send]),
            Recv => Traits::host(1).starting(&[RecvDone]),
            RecvDone => Traits::host(1).ending(&[Recv]),

            CopyStart => Traits::whole(exactly(1)).starting(&[CopyDone]),
            CopyDone => Traits::whole(exactly(1)).ending(&[CopyStart]),
            AsyncStart => {
                Traits::whole(ANY).calling(Callees::Run, exactly(1)).starting(&[AsyncUpdate, AsyncDone])
            }
            AsyncUpdate => Traits {
                next: &[AsyncUpdate, AsyncDone],
                previous: &[AsyncStart, AsyncUpdate],
                ..Traits::whole(exactly(1))
                    .calling(Callees::Named, Arity::between(0, 1))
                    .role(Role::Continues)
            },
            AsyncDone => Traits::whole(exactly(1))
                .calling(Callees::Named, Arity::between(0, 1))
                .ending(&[AsyncStart, AsyncUpdate]),
        }
    }
}

impl Op {
    /// The properties of all instructions of this opcode.
    #[inline]
    pub fn traits(&self) -> &'static Traits {
        self.opcode().traits()
    }

    /// Whether element `i` of the result is computed from element `i` of each operand and from nothing else of them;
    /// scalars among the operands of clamp and select count for every element. Result and operands have the same extents,
    /// which is why bitcast-convert is not among these operations: between types of different width it adds or takes away
    /// a dimension. Nor is map, whose function may be anything.
    pub fn is_elementwise(&self) -> bool {
        let traits = self.traits();
        traits.access == Access::Elementwise && traits.callees == Callees::None
    }

    /// Whether all elements of the result are one scalar, the operand.
    pub fn repeats_scalar(&self) -> bool {
        matches!(self, Op::Broadcast { dimensions } if dimensions.is_empty())
    }

    /// Whether the operation sums up products: a matrix product or a convolution.
    pub fn is_contraction(&self) -> bool {
        self.traits().access == Access::Contraction
    }

    /// Whether the operation is a kernel: it reads its operands and writes its result.
    pub fn is_kernel(&self) -> bool {
        self.traits().role == Role::Computes && !self.only_names_memory()
    }

    /// Whether the operation is a collective that is done when it has its result: neither a start nor an end of one.
    pub fn is_whole_collective(&self) -> bool {
        self.is_kernel() && self.collective().is_some()
    }

    /// Whether the operation does work when it runs: a kernel, a new scalar, a transfer or collective that starts. All
    /// others name bytes, order operations, pass control on, or belong to an operation that started before.
    pub fn does_work(&self) -> bool {
        match self.traits().role {
            Role::Computes => self.is_kernel(),
            Role::Queries => true,
            Role::Starts => !self.runs_callees(),
            Role::Provides
            | Role::PassesOn
            | Role::Regroups
            | Role::Orders
            | Role::Calls
            | Role::Continues
            | Role::Ends => false,
        }
    }

    /// Whether an operation reads its array operands itself. All others pass them on, to a result or to the
    /// computations that they call, or only need them to exist.
    pub fn reads_operands(&self) -> bool {
        match self.traits().role {
            Role::Provides | Role::Computes | Role::Starts | Role::Continues | Role::Ends => true,
            Role::PassesOn | Role::Regroups | Role::Queries | Role::Orders | Role::Calls => false,
        }
    }

    /// Whether the result consists of bytes that exist before: those of a parameter, a constant, or the operands.
    pub fn is_free(&self) -> bool {
        self.traits().role == Role::Provides || self.only_passes_on()
    }

    /// Whether an operation reads no bytes of its operands: its result is made of the same values.
    pub fn only_passes_on(&self) -> bool {
        matches!(self.traits().role, Role::PassesOn | Role::Regroups)
    }

    /// Whether an instruction transfers control to the computations it calls, as opposed to applying them to elements.
    pub fn runs_callees(&self) -> bool {
        self.traits().callees == Callees::Run
    }

    /// Whether the operation is a part of an asynchronous one.
    pub fn is_asynchronous(&self) -> bool {
        matches!(self.traits().role, Role::Starts | Role::Continues | Role::Ends)
    }

    /// Whether the operation continues or ends an asynchronous one, which its first operand has begun.
    pub fn goes_on(&self) -> bool {
        matches!(self.traits().role, Role::Continues | Role::Ends)
    }

    /// Whether the result is still being made: only the operation that continues or ends it may read it.
    pub fn is_in_flight(&self) -> bool {
        matches!(self.traits().role, Role::Starts | Role::Continues)
    }

    /// Whether an operation by itself does more than compute: it talks to the host, waits for other devices, or advances
    /// the state of a random number generator.
    pub fn has_side_effect(&self) -> bool {
        match (self.traits().effect, self) {
            (Effect::Declared, Op::CustomCall(call)) => call.has_side_effect,
            (Effect::Devices, op) => op.collective().is_some_and(|it| it.channel_id.is_some()),
            (effect, _) => matches!(effect, Effect::Host | Effect::State),
        }
    }

    /// Whether this is a parameter or a constant: its value is in memory before the computation runs.
    pub fn is_input(&self) -> bool {
        matches!(self, Op::Parameter { .. } | Op::Constant(_))
    }

    /// Whether this is a custom call of the TPU compiler that only names memory: storage without contents
    /// (`AllocateBuffer`), or neighboring slices seen as one (`ConcatBitcast`).
    pub fn only_names_memory(&self) -> bool {
        self.is_allocation() || self.is_concatenation_in_place()
    }

    /// Whether this is storage without contents, to be written in place: the TPU compiler's custom call `AllocateBuffer`.
    pub fn is_allocation(&self) -> bool {
        matches!(self, Op::CustomCall(call) if &*call.target == "AllocateBuffer")
    }

    /// Whether this is neighboring slices seen as one array: the TPU compiler's custom call `ConcatBitcast`.
    pub fn is_concatenation_in_place(&self) -> bool {
        matches!(self, Op::CustomCall(call) if &*call.target == "ConcatBitcast")
    }
}
