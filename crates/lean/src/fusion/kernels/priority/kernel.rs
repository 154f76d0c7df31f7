//! Kernels of the search, and how often they read each element.
//!
//! How often follows from *use roots*. An operand that is read element by element is used as often as its reader, and at
//! the same indices: it has the reader's roots. One that is read in any other way is a root of its own, used as often as
//! all its readers ask for it. So a value that two readers use at the same indices is counted once
//! (`GpuHloCostAnalysis::FusionCalculateUtilizations`).

use std::cell::Cell;

use memplan_ir::{InstructionId, Op};
use memplan_rewriter::cost;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::super::kernel::elements;
use super::super::limits::updated_operands;
use super::Search;
use super::time::elements_under;

/// The place of an operation in the text.
pub(super) type Place = u32;

/// What a kernel needs to know about an operation.
#[derive(Default)]
pub(super) struct Operation {
    /// Bytes of the result.
    pub(super) bytes: f64,
    /// Bytes that it writes.
    written: f64,
    pub(super) is_view: bool,
    /// Whether all its readers could compute it.
    pub(super) may_be_fused: bool,
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
    place: Place,
    operands: SmallVec<[Source; 3]>,
}

/// Where an operand comes from.
#[derive(Clone, Copy)]
enum Source {
    /// Another member, by its number.
    Inside(u32),
    Memory(Place),
}

/// An operand of a kernel.
pub(super) struct Read {
    pub(super) place: Place,
    /// How often each of its elements is read, by use root: the number of a member, or of a read behind the members. The
    /// kernel's root is 0.
    pub(super) uses: SmallVec<[(u32, f64); 2]>,
    /// How often the code that reads it is in the kernel.
    pub(super) copies: u64,
    /// Seconds that the kernel saves if it computes the operand itself, once that was asked.
    pub(super) saved: Cell<Option<f64>>,
}

impl Read {
    pub(super) fn times(&self) -> f64 {
        self.uses.iter().map(|(_, times)| times).sum()
    }
}

impl Candidate {
    pub(super) fn root(&self) -> Place {
        self.members[0].place
    }

    pub(super) fn read_of(&self, place: Place) -> Option<&Read> {
        self.reads.iter().find(|read| read.place == place)
    }
}

/// The operations of a kernel that also computes an operand which another one computed.
pub(super) fn merged(mut members: Vec<Member>, producer: &Candidate) -> Vec<Member> {
    let first = members.len() as u32;
    for source in members.iter_mut().flat_map(|member| &mut member.operands) {
        if matches!(source, Source::Memory(place) if *place == producer.root()) {
            *source = Source::Inside(first);
        }
    }
    members.extend(producer.members.iter().cloned().map(|mut member| {
        for source in &mut member.operands {
            if let Source::Inside(number) = source {
                *number += first;
            }
        }
        member
    }));
    members
}

/// What is known about the members and reads of a kernel: members by their numbers, reads behind them.
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

    /// Adds a read; returns its number.
    fn push(&mut self) -> usize {
        self.roots.push(SmallVec::new());
        self.times.push(0.0);
        self.copies.push(0);
        self.roots.len() - 1
    }

    fn times_of(&self, number: usize) -> f64 {
        self.roots[number].iter().map(|&root| self.times[root as usize]).sum()
    }

    fn copies_of(&self, number: usize) -> u64 {
        self.roots[number].iter().map(|&root| self.copies[root as usize]).fold(0, u64::saturating_add)
    }

    fn add_root(&mut self, number: usize, root: u32) {
        if !self.roots[number].contains(&root) {
            self.roots[number].push(root);
        }
    }
}

impl Search<'_, '_> {
    pub(super) fn operation(&self, id: InstructionId) -> Operation {
        let module = self.grouper.module;
        let bytes = self.bytes(id);
        if !self.is_kernel(id) {
            return Operation { bytes, ..Operation::default() };
        }
        let is_elementwise = cost::is_pointwise(module, id);
        let operands = module.instructions[id].operands.iter().enumerate();
        let share = |(at, &operand): (usize, &InstructionId)| {
            (self.share_read(id, at), elements(module, operand).max(1.0))
        };
        Operation {
            bytes,
            written: self.written(id),
            is_view: cost::moves_no_bytes(module, id),
            may_be_fused: self.may_be_fused(id),
            is_elementwise,
            reduces: self.grouper.reduces_many(id),
            cycles: self.cycles(id),
            blocks: self.blocks_of_columns(id),
            shares: if is_elementwise { SmallVec::new() } else { operands.map(share).collect() },
        }
    }

    /// The kernel of one operation.
    pub(super) fn kernel_of(&self, id: InstructionId) -> Candidate {
        let place = |id: &InstructionId| self.grouper.positions[*id];
        let operands = self.grouper.module.instructions[id].operands.iter();
        let operands = operands.map(|operand| Source::Memory(place(operand))).collect();
        self.analyze(vec![Member { place: place(&id), operands }])
    }

    /// A kernel of these operations.
    pub(super) fn analyze(&self, members: Vec<Member>) -> Candidate {
        let mut uses = Uses::new(members.len());
        let mut read: Vec<Place> = Vec::new();
        let mut number_of: FxHashMap<Place, usize> = FxHashMap::default();
        let (mut cycles, mut blocks, mut code, mut reduces) = (0.0, None, 0_u64, false);
        for (number, member) in members.iter().enumerate() {
            let (times, copies) = (uses.times_of(number), uses.copies_of(number));
            code = code.saturating_add(copies);
            let operation = self.operation_at(member.place);
            cycles += times * operation.cycles;
            blocks = blocks.or(operation.blocks);
            reduces |= operation.reduces;
            for (at, source) in member.operands.iter().enumerate() {
                let operand = match *source {
                    Source::Inside(number) => number as usize,
                    Source::Memory(place) => *number_of.entry(place).or_insert_with(|| {
                        read.push(place);
                        uses.push()
                    }),
                };
                if operation.is_elementwise {
                    for at in 0..uses.roots[number].len() {
                        uses.add_root(operand, uses.roots[number][at]);
                    }
                } else {
                    let (share, count) = operation.shares[at];
                    uses.times[operand] += (times * share * count).ceil() / count;
                    uses.copies[operand] = uses.copies[operand].saturating_add(copies);
                    uses.add_root(operand, operand as u32);
                }
            }
        }
        let of_read = |(at, &place): (usize, &Place)| {
            let number = members.len() + at;
            let of = uses.roots[number].iter().map(|&root| (root, uses.times[root as usize]));
            Read { place, copies: uses.copies_of(number), uses: of.collect(), saved: Cell::new(None) }
        };
        let reads = read.iter().enumerate().map(of_read).collect();
        let written = self.operation_at(members[0].place).written;
        let mut kernel = Candidate { members, reads, cycles, code, reduces, written, blocks, seconds: 0.0 };
        kernel.seconds = self.seconds_of(&kernel);
        kernel
    }

    /// Bytes that an operation writes: an update those of its elements.
    fn written(&self, id: InstructionId) -> f64 {
        let instruction = &self.grouper.module.instructions[id];
        match (updated_operands(instruction), instruction.operands.last()) {
            ([_, ..], Some(&update)) => self.bytes(update),
            _ => self.bytes(id),
        }
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
