//! The buffers that XLA's memory schedulers count: one for each array that an instruction makes, and one for each tuple
//! table. Nothing is written in place; loops and calls write their results over their operands.

use memplan_ir::{InstructionId, Op, Role, Shape};

use crate::given_orders::{ADDRESS, Listed};

/// The size of larger buffers: more than any machine has, and small enough that no sum of them overflows.
const MOST_BYTES: u64 = 1 << 40;

/// The buffers of a computation. Instructions are known by their place in its list.
pub(crate) struct Buffers {
    /// Bytes of each buffer. Those of parameters and constants are somebody else's, and count as none.
    bytes: Vec<u64>,
    /// Buffers that each instruction makes.
    made: Vec<Vec<u32>>,
    /// Buffers that each instruction reads, each once.
    read: Vec<Vec<u32>>,
    /// The number of instructions that read each buffer; the caller reads returned buffers.
    n_reads: Vec<u32>,
    /// The most that is live in what each instruction calls.
    inner: Vec<u64>,
    /// Whether each instruction passes its operands to the computations that it calls.
    calls: Vec<bool>,
}

/// The parts of a value: a buffer, and the parts of a tuple's elements.
#[derive(Clone)]
struct Value {
    buffer: u32,
    elements: Vec<u32>,
}

/// A value for each instruction, as they are found.
struct Values<'a> {
    listed: &'a Listed<'a>,
    buffers: Buffers,
    all: Vec<Value>,
    of: Vec<u32>,
}

impl Buffers {
    /// `inner` gives the peak of the computations that an instruction calls. Linear in instructions and their shapes.
    pub(crate) fn new(listed: &Listed<'_>, inner: impl Fn(InstructionId) -> u64) -> Buffers {
        let n = listed.ids.len();
        let role = |&id: &InstructionId| listed.module.instructions[id].op.traits().role;
        let buffers = Buffers {
            bytes: Vec::new(),
            made: vec![Vec::new(); n],
            read: Vec::with_capacity(n),
            n_reads: Vec::new(),
            inner: listed.ids.iter().map(|&id| inner(id)).collect(),
            calls: listed.ids.iter().map(|id| role(id) == Role::Calls).collect(),
        };
        let mut values = Values { listed, buffers, all: Vec::new(), of: Vec::with_capacity(n) };
        for at in 0..n {
            let value = values.value(at);
            values.of.push(value);
        }
        values.count_reads()
    }

    /// The most bytes live at once in an order.
    pub(crate) fn peak(&self, order: &[u32]) -> u64 {
        let mut n_reads = self.n_reads.clone();
        let (mut live, mut peak) = (0u64, 0u64);
        for &at in order {
            let at = at as usize;
            let made: u64 = self.made[at].iter().map(|&buffer| self.bytes[buffer as usize]).sum();
            let own = if self.calls[at] { 0 } else { made };
            peak = peak.max(live + own + self.inner[at]);
            live += made;
            for &buffer in &self.read[at] {
                n_reads[buffer as usize] -= 1;
            }
            let is_dead = |buffer: &&u32| n_reads[**buffer as usize] == 0;
            let dead = self.read[at].iter().chain(&self.made[at]).filter(is_dead);
            live -= dead.map(|&buffer| self.bytes[buffer as usize]).sum::<u64>();
            peak = peak.max(live);
        }
        peak
    }

    /// The buffers that an instruction reads.
    pub(crate) fn read(&self, at: u32) -> &[u32] {
        &self.read[at as usize]
    }

    /// How often each buffer is read in the whole computation.
    pub(crate) fn n_reads(&self) -> &[u32] {
        &self.n_reads
    }

    /// The bytes that an instruction frees, minus those that it takes, if this many reads of each buffer remain.
    pub(crate) fn freed(&self, at: u32, n_reads: &[u32]) -> i64 {
        let at = at as usize;
        let sum = |buffers: &mut dyn Iterator<Item = &u32>| -> u64 {
            buffers.map(|&buffer| self.bytes[buffer as usize]).sum()
        };
        let freed = sum(&mut self.read[at].iter().filter(|&&buffer| n_reads[buffer as usize] == 1));
        let taken = match (self.calls[at], self.inner[at]) {
            (true, inner) if inner > 0 => inner,
            (_, inner) => inner + sum(&mut self.made[at].iter()),
        };
        freed as i64 - taken as i64
    }
}

impl Values<'_> {
    /// The result of an instruction: its own, or the value that it passes on.
    fn value(&mut self, at: usize) -> u32 {
        let listed = self.listed;
        let instruction = &listed.module.instructions[listed.ids[at]];
        let first = listed.operands[at].first().map(|&operand| self.of[operand as usize]);
        // The result of an asynchronous operation is the second element of its start's result.
        let element = match (&instruction.op, instruction.op.traits().role) {
            (Op::GetTupleElement { index }, _) => Some(*index as usize),
            (_, Role::Ends) => Some(1),
            _ => None,
        };
        if let Some(element) =
            first.zip(element).and_then(|(of, i)| self.all[of as usize].elements.get(i).copied())
        {
            return element;
        }
        match (&instruction.op, instruction.op.traits().role, first) {
            (Op::Tuple, ..) => {
                let elements: Vec<u32> =
                    listed.operands[at].iter().map(|&operand| self.of[operand as usize]).collect();
                let buffer = self.make(at, ADDRESS * elements.len() as u64);
                self.add(Value { buffer, elements })
            }
            (_, Role::PassesOn | Role::Continues, Some(operand)) => operand,
            _ => self.fresh(at, listed.module.shape(listed.ids[at])),
        }
    }

    /// Buffers for all of a shape.
    fn fresh(&mut self, at: usize, shape: &Shape) -> u32 {
        let elements: Vec<u32> =
            shape.as_tuple().unwrap_or_default().iter().map(|element| self.fresh(at, element)).collect();
        let bytes = match shape.as_tuple() {
            Some(elements) => ADDRESS * elements.len() as u64,
            None => self.listed.target.size_of(shape).0,
        };
        let buffer = self.make(at, bytes);
        self.add(Value { buffer, elements })
    }

    fn make(&mut self, at: usize, bytes: u64) -> u32 {
        let op = &self.listed.module.instructions[self.listed.ids[at]].op;
        let is_given = op.is_input();
        let buffer = self.buffers.bytes.len() as u32;
        self.buffers.bytes.push(if is_given { 0 } else { bytes.min(MOST_BYTES) });
        self.buffers.made[at].push(buffer);
        buffer
    }

    fn add(&mut self, value: Value) -> u32 {
        self.all.push(value);
        self.all.len() as u32 - 1
    }

    fn count_reads(mut self) -> Buffers {
        let mut n_reads = vec![0; self.buffers.bytes.len()];
        for at in 0..self.of.len() {
            let mut read = Vec::new();
            for &operand in &self.listed.operands[at] {
                let op = &self.listed.module.instructions[self.listed.ids[at]].op;
                match op {
                    // All of the tuple in XLA, which takes quadratic time where a tuple is wide, and changes little.
                    Op::GetTupleElement { .. } => {
                        read.push(self.all[self.of[operand as usize] as usize].buffer);
                        self.buffers_of(self.of[at], &mut read);
                    }
                    _ => self.buffers_of(self.of[operand as usize], &mut read),
                }
            }
            read.sort_unstable();
            read.dedup();
            read.iter().for_each(|&buffer| n_reads[buffer as usize] += 1);
            self.buffers.read.push(read);
        }
        let mut returned = Vec::new();
        self.buffers_of(self.of[self.listed.root as usize], &mut returned);
        returned.iter().for_each(|&buffer| n_reads[buffer as usize] += 1);
        self.buffers.n_reads = n_reads;
        self.buffers
    }

    fn buffers_of(&self, value: u32, into: &mut Vec<u32>) {
        let Value { buffer, elements } = &self.all[value as usize];
        into.push(*buffer);
        elements.iter().for_each(|&element| self.buffers_of(element, into));
    }
}
