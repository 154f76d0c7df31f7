//! Kernels of the search, and how often they read each element.
//!
//! How often follows from *use roots*. An operand that is read element by element is used as often as its reader, and at
//! the same indices: it has the reader's roots. One that is read in any other way is a root of its own, used as often as
//! all its readers ask for it. So a value that two readers use at the same indices is counted once
//! (`GpuHloCostAnalysis::FusionCalculateUtilizations`).

use memplan_ir::{InstructionId, Op};
use memplan_rewriter::cost;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::super::kernel::elements;
use super::super::limits::updated_operands;
use super::Search;
use super::time::elements_under;

/// What a kernel needs to know about an operation.
#[derive(Default)]
pub(super) struct Operation {
    is_elementwise: bool,
    reduces: bool,
    /// Cycles for all elements of the result.
    cycles: f64,
    /// Blocks of threads that read columns, where these are few.
    blocks: Option<f64>,
    /// Of each operand: how often it reads each element, on average, and how many there are.
    shares: SmallVec<[(f64, f64); 3]>,
}

/// A kernel with one result.
pub(super) struct Candidate {
    /// The operations, users before operands: the first is the root.
    pub(super) members: Vec<Member>,
    pub(super) reads: Vec<Read>,
    pub(super) cycles: f64,
    /// Operations in the kernel's code.
    pub(super) code: u64,
    /// Whether it reduces many elements to one.
    pub(super) reduces: bool,
    /// Bytes of the result.
    pub(super) written: f64,
    /// Blocks of threads that read columns, where these are few.
    pub(super) blocks: Option<f64>,
    pub(super) seconds: f64,
}

/// An operation of a kernel. A value that a kernel computes at several places is a member for each of them.
#[derive(Clone)]
pub(super) struct Member {
    id: InstructionId,
    operands: SmallVec<[Source; 3]>,
}

/// Where an operand comes from.
#[derive(Clone, Copy)]
enum Source {
    /// Another member, by its place.
    Inside(u32),
    Memory(InstructionId),
}

/// An operand of a kernel.
pub(super) struct Read {
    pub(super) id: InstructionId,
    /// How often each of its elements is read, by use root: a member by its place, or a read behind the members. The
    /// kernel's root is 0.
    pub(super) uses: SmallVec<[(u32, f64); 2]>,
    /// How often the code that reads it is in the kernel.
    pub(super) copies: u64,
}

impl Read {
    pub(super) fn times(&self) -> f64 {
        self.uses.iter().map(|(_, times)| times).sum()
    }
}

impl Candidate {
    pub(super) fn root(&self) -> InstructionId {
        self.members[0].id
    }

    pub(super) fn read_of(&self, id: InstructionId) -> Option<&Read> {
        self.reads.iter().find(|read| read.id == id)
    }
}

/// The operations of a kernel that also computes an operand which another one computed.
pub(super) fn merged(mut members: Vec<Member>, producer: &Candidate) -> Vec<Member> {
    let first = members.len() as u32;
    for source in members.iter_mut().flat_map(|member| &mut member.operands) {
        if matches!(source, Source::Memory(id) if *id == producer.root()) {
            *source = Source::Inside(first);
        }
    }
    members.extend(producer.members.iter().cloned().map(|mut member| {
        for source in &mut member.operands {
            if let Source::Inside(place) = source {
                *place += first;
            }
        }
        member
    }));
    members
}

/// What is known about the members and reads of a kernel: members by their places, reads behind them.
struct Uses {
    /// The use roots.
    roots: Vec<SmallVec<[u32; 2]>>,
    /// How often each element of a use root is used.
    times: Vec<f64>,
    /// How often a use root is in the code.
    copies: Vec<u64>,
}

impl Uses {
    fn new(n_members: usize) -> Uses {
        let mut uses = Uses {
            roots: vec![SmallVec::new(); n_members],
            times: vec![0.0; n_members],
            copies: vec![0; n_members],
        };
        (uses.roots[0], uses.times[0], uses.copies[0]) = (SmallVec::from_iter([0]), 1.0, 1);
        uses
    }

    /// Adds a read; returns its place.
    fn push(&mut self) -> usize {
        self.roots.push(SmallVec::new());
        self.times.push(0.0);
        self.copies.push(0);
        self.roots.len() - 1
    }

    fn times_of(&self, place: usize) -> f64 {
        self.roots[place].iter().map(|&root| self.times[root as usize]).sum()
    }

    fn copies_of(&self, place: usize) -> u64 {
        self.roots[place].iter().map(|&root| self.copies[root as usize]).fold(0, u64::saturating_add)
    }

    fn add_root(&mut self, place: usize, root: u32) {
        if !self.roots[place].contains(&root) {
            self.roots[place].push(root);
        }
    }
}

impl Search<'_, '_> {
    pub(super) fn operation(&self, id: InstructionId) -> Operation {
        if !self.is_kernel(id) {
            return Operation::default();
        }
        let module = self.grouper.module;
        let is_elementwise = cost::is_pointwise(module, id);
        let operands = module.instructions[id].operands.iter().enumerate();
        let share = |(at, &operand): (usize, &InstructionId)| {
            (self.share_read(id, at), elements(module, operand).max(1.0))
        };
        Operation {
            is_elementwise,
            reduces: self.grouper.reduces_many(id),
            cycles: self.cycles(id),
            blocks: self.blocks_of_columns(id),
            shares: if is_elementwise { SmallVec::new() } else { operands.map(share).collect() },
        }
    }

    fn operation_of(&self, member: &Member) -> &Operation {
        &self.operations[self.grouper.positions[member.id] as usize]
    }

    /// The kernel of one operation.
    pub(super) fn kernel_of(&self, id: InstructionId) -> Candidate {
        let operands = &self.grouper.module.instructions[id].operands;
        let operands = operands.iter().map(|&operand| Source::Memory(operand)).collect();
        self.analyze(vec![Member { id, operands }])
    }

    /// A kernel of these operations.
    pub(super) fn analyze(&self, members: Vec<Member>) -> Candidate {
        let module = self.grouper.module;
        let mut uses = Uses::new(members.len());
        let mut read: Vec<InstructionId> = Vec::new();
        let mut place_of: FxHashMap<InstructionId, usize> = FxHashMap::default();
        let (mut cycles, mut blocks, mut code) = (0.0, None, 0_u64);
        for (place, member) in members.iter().enumerate() {
            let (times, copies) = (uses.times_of(place), uses.copies_of(place));
            code = code.saturating_add(copies);
            let operation = self.operation_of(member);
            cycles += times * operation.cycles;
            blocks = blocks.or(operation.blocks);
            for (at, source) in member.operands.iter().enumerate() {
                let operand = match *source {
                    Source::Inside(place) => place as usize,
                    Source::Memory(id) => *place_of.entry(id).or_insert_with(|| {
                        read.push(id);
                        uses.push()
                    }),
                };
                if operation.is_elementwise {
                    for at in 0..uses.roots[place].len() {
                        uses.add_root(operand, uses.roots[place][at]);
                    }
                } else {
                    let (share, count) = operation.shares[at];
                    uses.times[operand] += (times * share * count).ceil() / count;
                    uses.copies[operand] = uses.copies[operand].saturating_add(copies);
                    uses.add_root(operand, operand as u32);
                }
            }
        }
        let of_read = |(at, &id): (usize, &InstructionId)| {
            let place = members.len() + at;
            let of = uses.roots[place].iter().map(|&root| (root, uses.times[root as usize]));
            Read { id, copies: uses.copies_of(place), uses: of.collect() }
        };
        let reads = read.iter().enumerate().map(of_read).collect();
        let root = &module.instructions[members[0].id];
        let written = match (updated_operands(root), root.operands.last()) {
            // An update writes its elements.
            ([_, ..], Some(&update)) => self.bytes(update),
            _ => self.bytes(members[0].id),
        };
        let reduces = members.iter().any(|member| self.operation_of(member).reduces);
        let mut kernel = Candidate { members, reads, cycles, code, reduces, written, blocks, seconds: 0.0 };
        kernel.seconds = self.seconds_of(&kernel);
        kernel
    }

    /// How often an operation reads each element of an operand, on average.
    fn share_read(&self, id: InstructionId, at: usize) -> f64 {
        let module = self.grouper.module;
        let instruction = &module.instructions[id];
        let ratio = || elements(module, id) / elements(module, instruction.operands[at]).max(1.0);
        match &instruction.op {
            Op::Broadcast { .. } | Op::Slice { .. } => ratio(),
            Op::DynamicSlice { .. } | Op::Gather(_) if at == 0 => ratio(),
            Op::ReduceWindow(window) => ratio() * elements_under(window),
            _ if updated_operands(instruction).contains(&instruction.operands[at]) => 0.0,
            _ => 1.0,
        }
    }
}
