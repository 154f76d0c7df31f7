//! Cost: the operations, reads and writes of one run of every instruction, and how often it runs.
//!
//! An *access* is a part of an operand that a kernel reads, or a part of its result that it writes, with the bytes that
//! move if the part is in memory. A kernel reads only what it needs: for a slice of a parameter inside a fusion, the
//! slice; an in-place update writes the update; a gather reads the gathered rows.
//!
//! ```text
//!   fusion(stack f32[48,512,512], i)     accesses: operand 0, 1 MiB (the slice)
//!     dynamic-slice(stack, i, 0, 0)                result,    1 MiB
//!     exponential
//! ```
//!
//! Scalars have no accesses: they are in registers or scalar memory. Instructions that only pass values on cost
//! nothing, and a loop's work is that of its body, [`Costs::frequency`] times.
//!
//! Bytes are padded bytes, counted once even if a kernel reads them several times.

mod library_calls;
mod links;
mod machine;
mod matrix_unit;
mod operations;
mod reads;
mod registers;
mod run;

use cranelift_entity::SecondaryMap;
use memplan_ir::{ComputationId, ElementType, InstructionId, Module, Op, Position, Role, Shape, ShapeIndex};
use memplan_memory::{Bytes, MemorySpaceId, Target, memory_space_of};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::{CallGraph, InPlace, noted_trip_count, trip_count};

pub use machine::Machine;
use reads::Interior;
pub use registers::Registers;
pub use run::{Durations, KernelCosts, RunEstimate};

/// Runs of a loop whose number of iterations is not known. XLA's memory planner weighs a level of loops by 5; a loop
/// that somebody wrote as a loop rather than unrolled it runs more often than that.
const UNKNOWN_TRIPS: f64 = 10.0;

/// One part of an operand or of the result that a kernel reads or writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Access {
    /// The number of the operand that is read; `None` for the result, which is written.
    pub operand: Option<u32>,
    /// Which part of it.
    pub index: ShapeIndex,
    /// Bytes that move.
    pub bytes: Bytes,
}

/// Matrix products or convolutions of one element type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Products {
    /// The type of the operands.
    pub element_type: ElementType,
    /// Operations; a multiplication with its addition counts two.
    pub operations: f64,
    /// Operations that the matrix units make of them, which work on whole tiles and are not always all at work.
    pub padded: f64,
    /// Seconds that pass before they are at that rate.
    pub start: f64,
}

impl Products {
    /// A part of them, or several.
    fn times(self, n: f64) -> Products {
        Products { operations: n * self.operations, padded: n * self.padded, ..self }
    }
}

/// The work of one run of an instruction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// The work of the matrix units, by element type.
    pub matrix: SmallVec<[Products; 1]>,
    /// Operations of the vector units, each worth one addition.
    pub vector: f64,
    /// Vector registers that go through the vector units.
    pub registers: Registers,
    /// Seconds before anything of that begins: launches of kernels, or what the cores take to get going.
    pub overhead: f64,
    /// Seconds that links carry its bytes to other devices.
    pub link_seconds: f64,
    /// Its reads and writes: operands in order, then results. Lists only accesses that move bytes.
    pub accesses: SmallVec<[Access; 4]>,
}

/// The operations of an instruction other than a fusion, on any machine: without tiles, registers, reads and writes.
pub fn operations(module: &Module, id: InstructionId) -> Work {
    let mut work = Work::default();
    operations::add(module, None, id, 1.0, &mut work.matrix, &mut work.vector);
    work
}

impl Work {
    /// Operations of matrix products and convolutions, of all types.
    pub fn matrix_operations(&self) -> f64 {
        // Not `sum`: that of no floats is -0.
        self.matrix.iter().fold(0.0, |sum, products| sum + products.operations)
    }

    /// The read of an operand that is an array; `None` where nothing is read of it, or it is a tuple. A binary search.
    pub fn read_of(&self, operand: u32) -> Option<&Access> {
        self.access(Some(operand), &ShapeIndex::default())
    }

    /// The write of a part of the result; `None` where nothing is written of it. A binary search.
    pub fn write_of(&self, index: &ShapeIndex) -> Option<&Access> {
        self.access(None, index)
    }

    fn access(&self, operand: Option<u32>, index: &ShapeIndex) -> Option<&Access> {
        // Operands come before results.
        let place = |operand: Option<u32>| (operand.is_none(), operand);
        let wanted = (place(operand), index);
        let at = self.accesses.binary_search_by(|it| (place(it.operand), &it.index).cmp(&wanted));
        at.ok().map(|at| &self.accesses[at])
    }

    /// The bytes of all accesses.
    pub fn accessed(&self) -> f64 {
        self.accesses.iter().map(|access| access.bytes.0 as f64).sum()
    }
}

/// The cost of every instruction of a module.
#[derive(Clone, Debug)]
pub struct Costs {
    works: SecondaryMap<InstructionId, Work>,
    frequencies: SecondaryMap<ComputationId, f64>,
    /// Where a plan has values whose layouts leave their memory to it.
    places: FxHashMap<Position, MemorySpaceId>,
}

impl Costs {
    /// Finds the cost of every instruction of every sequential computation, in time linear in the module.
    pub fn new(module: &Module, graph: &CallGraph, in_place: &InPlace, target: &Target) -> Costs {
        let mut costing =
            Costing { module, in_place, target, interiors: FxHashMap::default(), works: SecondaryMap::new() };
        for &computation in graph.sequential() {
            for &id in &module.computations[computation].instructions {
                let work = costing.work(id);
                costing.works[id] = work;
            }
        }
        Costs { works: costing.works, frequencies: frequencies(module, graph), places: FxHashMap::default() }
    }

    /// The costs where a plan has values in memories that their layouts do not name: constants in flash, say.
    #[must_use]
    pub fn placed(mut self, places: impl Iterator<Item = (Position, MemorySpaceId)>) -> Costs {
        self.places = places.filter(|&(_, space)| space != MemorySpaceId::MAIN).collect();
        self
    }

    /// The memory of a part of an instruction's result.
    pub fn space(&self, module: &Module, id: InstructionId, index: &ShapeIndex) -> MemorySpaceId {
        let of_layout = module.shape(id).subshape(index).map_or(MemorySpaceId::MAIN, memory_space_of);
        if of_layout != MemorySpaceId::MAIN || self.places.is_empty() {
            return of_layout;
        }
        let position = Position { instruction: id, index: index.clone() };
        self.places.get(&position).copied().unwrap_or(of_layout)
    }

    /// The work of one run of an instruction; empty unless it is in a sequential computation.
    pub fn work(&self, id: InstructionId) -> &Work {
        &self.works[id]
    }

    /// How often a computation runs in one run of the program. A loop whose iterations cannot be counted is taken to
    /// run ten times; each branch of a conditional with `n` branches once in `n` times.
    pub fn frequency(&self, computation: ComputationId) -> f64 {
        self.frequencies[computation]
    }
}

/// How often each computation runs in one run of the program: see [`Costs::frequency`].
pub fn frequencies(module: &Module, graph: &CallGraph) -> SecondaryMap<ComputationId, f64> {
    let mut frequencies: SecondaryMap<ComputationId, f64> = SecondaryMap::new();
    frequencies[module.entry] = 1.0;
    // Callers before callees.
    for &computation in graph.sequential().iter().rev() {
        let Some(caller) = graph.caller(computation) else { continue };
        let instruction = &module.instructions[caller];
        let times = match instruction.op {
            Op::While => {
                let trips = trip_count(module, caller).or_else(|| noted_trip_count(instruction));
                let trips = trips.map_or(UNKNOWN_TRIPS, |trips| trips as f64);
                if instruction.called[0] == computation { trips } else { trips + 1.0 }
            }
            Op::Conditional => 1.0 / instruction.called.len() as f64,
            _ => 1.0,
        };
        frequencies[computation] = frequencies[instruction.parent] * times;
    }
    frequencies
}

struct Costing<'a> {
    module: &'a Module,
    in_place: &'a InPlace,
    target: &'a Target,
    /// Facts about fused computations, by the computation and the leaves of its root that are written in place.
    interiors: FxHashMap<(ComputationId, Vec<bool>), Interior>,
    works: SecondaryMap<InstructionId, Work>,
}

impl Costing<'_> {
    fn work(&mut self, id: InstructionId) -> Work {
        let (module, instruction) = (self.module, &self.module.instructions[id]);
        if !moves_bytes(&instruction.op) {
            return Work::default();
        }
        let pairs = self.in_place.must_alias(module, id);
        let leaves = leaves_of(module, id);
        let overwriting: FxHashSet<&ShapeIndex> = pairs.iter().map(|pair| &pair.output_index).collect();
        let is_in_place: Vec<bool> = leaves.iter().map(|(index, _)| overwriting.contains(index)).collect();
        let mut work = Work {
            overhead: self.target.kernel_overhead,
            link_seconds: links::seconds(module, id, self.target),
            ..Work::default()
        };
        let (reads, writes) = match instruction.op {
            Op::Fusion(_) => {
                let interior = self.interior(instruction.called[0], is_in_place);
                work.matrix = interior.matrix.iter().copied().collect();
                work.vector = interior.vector;
                work.registers.evaluated = interior.evaluated;
                (interior.reads.clone(), interior.writes.clone())
            }
            _ => {
                operations::add(module, Some(self.target), id, 1.0, &mut work.matrix, &mut work.vector);
                work.registers = registers::of_kernel(module, self.target, id);
                let in_place = is_in_place.first().copied().unwrap_or(false);
                let reads = reads::operand_shares(module, self.target, id, 1.0, in_place);
                let writes = reads::written_shares(module, self.target, id, &leaves, in_place);
                (reads.to_vec(), writes)
            }
        };
        work.overhead += work.matrix.iter().fold(0.0, |longest: f64, products| longest.max(products.start));
        for (number, &operand) in instruction.operands.iter().enumerate() {
            let share = reads.get(number).copied().unwrap_or(1.0);
            for (index, leaf) in leaves_of(module, operand) {
                self.add_access(&mut work, Some(number as u32), index, leaf, share);
            }
        }
        for (i, (index, leaf)) in leaves.into_iter().enumerate() {
            self.add_access(&mut work, None, index, leaf, writes[i]);
        }
        work.registers.accessed = registers::of_bytes(self.target, work.accessed());
        if work.accesses.is_empty() && self.target.vector_unit.is_some() {
            // Such a machine computes scalars in a unit of their own, between kernels.
            work.overhead = 0.0;
        }
        work
    }

    fn add_access(&self, work: &mut Work, operand: Option<u32>, index: ShapeIndex, leaf: &Shape, share: f64) {
        let is_scalar = leaf.as_array().is_none_or(|array| array.rank() == 0);
        let bytes = Bytes((self.target.size_of(leaf).0 as f64 * share).ceil() as u64);
        if !is_scalar && bytes > Bytes::ZERO {
            work.accesses.push(Access { operand, index, bytes });
        }
    }

    fn interior(&mut self, fused: ComputationId, in_place: Vec<bool>) -> &Interior {
        let (module, target) = (self.module, self.target);
        // Fusions nest as deep as the text does, which is bounded; each fusion's interior is visited once.
        let nested: Vec<InstructionId> = module.computations[fused]
            .instructions
            .iter()
            .copied()
            .filter(|&id| matches!(module.instructions[id].op, Op::Fusion(_)))
            .collect();
        let mut inside: FxHashMap<InstructionId, Interior> = FxHashMap::default();
        for id in nested {
            let leaves = leaves_of(module, id).len();
            let interior = self.interior(module.instructions[id].called[0], vec![false; leaves]).clone();
            inside.insert(id, interior);
        }
        self.interiors
            .entry((fused, in_place))
            .or_insert_with_key(|(_, in_place)| Interior::new(module, target, fused, in_place, &inside))
    }
}

/// Whether an instruction itself moves bytes between memory and the cores: a kernel, or the start of a collective,
/// which reads its operands. An asynchronous copy is not work of the cores.
fn moves_bytes(op: &Op) -> bool {
    op.does_work() && op.traits().role != Role::Queries && !matches!(op, Op::CopyStart { .. })
}

/// The leaves of an instruction's shape with their indices, in order.
fn leaves_of(module: &Module, id: InstructionId) -> Vec<(ShapeIndex, &Shape)> {
    module.shape(id).leaves()
}
