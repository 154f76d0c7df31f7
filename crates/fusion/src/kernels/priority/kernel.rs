//! Kernels of the search, and how often they read each element.
//!
//! How often follows from *use roots*. An operand that is read element by element is used as often as its reader, and at
//! the same indices: it has the reader's roots. One that is read in any other way is a root of its own, used as often as
//! all its readers ask for it. So a value that two readers use at the same indices is counted once
//! (`GpuHloCostAnalysis::FusionCalculateUtilizations`).

use std::cell::Cell;

use indexmap::IndexMap;
use memplan_ir::{InstructionId, Op};
use memplan_rewriter::cost;
use rustc_hash::FxBuildHasher;
use smallvec::SmallVec;

use super::super::kernel::elements;
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
#[derive(Default)]
pub(super) struct Candidate {
    /// The operations, users before operands: the first is the root.
    pub(super) members: Vec<Member>,
    /// The operands, in the order in which members first read them.
    pub(super) reads: IndexMap<Place, Read, FxBuildHasher>,
    pub(super) cycles: f64,
    /// Operations in the kernel's code.
    pub(super) code: u64,
    /// Whether it reduces many elements to one.
    pub(super) reduces: bool,
    /// Bytes of the result.
    pub(super) written: f64,
    /// Blocks of threads that read columns, where these are few.
    pub(super) blocks: Option<f64>,
    /// Seconds to read all operands.
    pub(super) read_seconds: f64,
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
#[derive(Default)]
pub(super) struct Read {
    pub(super) uses: Uses,
    /// Seconds to read it.
    pub(super) seconds: f64,
    /// Seconds that the kernel saves if it computes the operand itself, once that was asked.
    pub(super) saved: Cell<Option<f64>>,
}

/// How a kernel uses a value, by use root.
#[derive(Clone, Default)]
pub(super) struct Uses(SmallVec<[Use; 2]>);

/// How often a value is used by one of its use roots.
#[derive(Clone, Copy)]
struct Use {
    root: Root,
    /// How often each element is used.
    times: f64,
    /// How often the code that uses it is in the kernel.
    copies: u64,
}

/// A use root.
#[derive(Clone, Copy, PartialEq)]
enum Root {
    /// A member, by its number. The kernel's root is 0.
    Member(u32),
    /// An operand that is the only one with this root.
    Itself,
}

impl Uses {
    /// How often each element is used.
    pub(super) fn times(&self) -> f64 {
        self.0.iter().map(|of| of.times).sum()
    }

    /// How often the code that uses it is in the kernel.
    pub(super) fn copies(&self) -> u64 {
        self.0.iter().map(|of| of.copies).fold(0, u64::saturating_add)
    }

    /// Whether it is used at the indices of the kernel's result, and nowhere else.
    pub(super) fn is_elementwise(&self) -> bool {
        self.0.iter().all(|of| of.root == Root::Member(0))
    }

    /// How often it is used at the same indices as another value.
    pub(super) fn common(&self, other: &Uses) -> f64 {
        let is_shared =
            |of: &&Use| of.root != Root::Itself && other.0.iter().any(|other| other.root == of.root);
        self.0.iter().filter(is_shared).map(|of| of.times).sum()
    }

    /// Adds that a value with these uses reads it element for element.
    fn inherit(&mut self, uses: &Uses) {
        for of in &uses.0 {
            if self.0.iter().all(|known| known.root != of.root) {
                self.0.push(*of);
            }
        }
    }

    /// Adds that it is read at indices of its own.
    fn add(&mut self, root: Root, times: f64, copies: u64) {
        match self.0.iter_mut().find(|of| of.root == root) {
            Some(of) => {
                of.times += times;
                of.copies = of.copies.saturating_add(copies);
            }
            None => self.0.push(Use { root, times, copies }),
        }
    }
}

impl Candidate {
    pub(super) fn root(&self) -> Place {
        self.members[0].place
    }

    pub(super) fn read_of(&self, place: Place) -> Option<&Read> {
        self.reads.get(&place)
    }

    /// Stops reading an operand, since the next members compute it; returns how it is used.
    fn take_read(&mut self, place: Place) -> Uses {
        let first = self.members.len() as u32;
        for source in self.members.iter_mut().flat_map(|member| &mut member.operands) {
            if matches!(source, Source::Memory(read) if *read == place) {
                *source = Source::Inside(first);
            }
        }
        let mut uses = self.reads.shift_remove(&place).map(|read| read.uses).unwrap_or_default();
        let own = uses.0.iter_mut().find(|of| of.root == Root::Itself);
        own.into_iter().for_each(|own| own.root = Root::Member(first));
        uses
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
        let root = Member { place: place(&id), operands };
        let mut kernel = Candidate { written: self.operation_at(root.place).written, ..Candidate::default() };
        let mut uses = Uses::default();
        uses.add(Root::Member(0), 1.0, 1);
        self.add(&mut kernel, &[root], uses);
        kernel
    }

    /// Lets a kernel compute an operand that another one computed.
    pub(super) fn absorb(&self, kernel: &mut Candidate, producer: &Candidate) {
        let uses = kernel.take_read(producer.root());
        self.add(kernel, &producer.members, uses);
    }

    /// Adds members to a kernel, which uses the first of them as `uses` says. The uses of its other members stay the same.
    fn add(&self, kernel: &mut Candidate, members: &[Member], uses: Uses) {
        let first = kernel.members.len() as u32;
        let mut uses_of = vec![Uses::default(); members.len()];
        uses_of[0] = uses;
        for (number, member) in members.iter().enumerate() {
            let uses = std::mem::take(&mut uses_of[number]);
            let (times, copies) = (uses.times(), uses.copies());
            let operation = self.operation_at(member.place);
            kernel.code = kernel.code.saturating_add(copies);
            kernel.cycles += times * operation.cycles;
            kernel.blocks = kernel.blocks.or(operation.blocks);
            kernel.reduces |= operation.reduces;
            for (at, source) in member.operands.iter().enumerate() {
                let (operand, root) = match *source {
                    Source::Inside(number) => (&mut uses_of[number as usize], Root::Member(first + number)),
                    Source::Memory(place) => (&mut kernel.reads.entry(place).or_default().uses, Root::Itself),
                };
                if operation.is_elementwise {
                    operand.inherit(&uses);
                } else {
                    let (share, count) = operation.shares[at];
                    operand.add(root, (times * share * count).ceil() / count, copies);
                }
            }
        }
        kernel.members.extend(members.iter().cloned().map(|mut member| {
            for source in &mut member.operands {
                if let Source::Inside(number) = source {
                    *number += first;
                }
            }
            member
        }));
        self.time(kernel);
    }

    /// Bytes that an operation writes: an update those of its elements.
    fn written(&self, id: InstructionId) -> f64 {
        let instruction = &self.grouper.module.instructions[id];
        match (self.grouper.updated_operands(id), instruction.operands.last()) {
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
            _ if self.grouper.updated_operands(id).contains(&instruction.operands[at]) => 0.0,
            _ => 1.0,
        }
    }
}
