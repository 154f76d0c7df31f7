//! Values that several kernels read and that are stored, because computing them in each kernel would move more bytes.
//!
//! What only one kernel reads joins that kernel first, so that kernels are *chains* of operations and at most one product or
//! reduction. Then, from arguments to results, a chain that several others read is computed in all of them, unless that moves
//! more bytes than storing it:
//!
//! ```text
//!   m = compare(add(a, b), t)        stored: 8 + 1 + 2 x 1 bytes an element     computed twice: 2 x 8 bytes
//!   y = dot(select(m, x, 0), v)
//!   z = dot(select(m, w, 0), u)
//! ```
//!
//! If a kernel already reads an array, it does not move that array again for a chain that it computes. Each kernel computes the
//! broadcasts and views that it reads, and rounds the numbers of its product.
//!
//! Seen in libtpu of jaxlib 0.12: 83 programs of a value that 2 to 4 kernels read.

use memplan_ir::{ElementType, InstructionId, Op};
use memplan_memory::Bytes;
use memplan_rewriter::cost::{self, CostClass, Hero};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::super::report::Verdict;
use super::Grouper;

/// Arrays in memory, and how many bytes of each are read.
type Sources = FxHashMap<InstructionId, u64>;

/// The chains of a computation, each named by its last operation.
pub(super) struct Chains<'g, 'a> {
    grouper: &'g Grouper<'a>,
    /// All instructions, operands first.
    listed: &'g [InstructionId],
    /// The chain of each instruction. One that each reader computes for itself has none.
    chain_of: FxHashMap<InstructionId, InstructionId>,
    /// Chains with a product or a convolution in them, which is not computed twice.
    with_product: FxHashSet<InstructionId>,
    /// What each chain reads.
    sources: FxHashMap<InstructionId, Sources>,
}

impl<'g, 'a> Chains<'g, 'a> {
    /// Linear in the edges of the computation.
    pub(super) fn new(grouper: &'g Grouper<'a>, listed: &'g [InstructionId]) -> Chains<'g, 'a> {
        let mut chains = Chains {
            grouper,
            listed,
            chain_of: FxHashMap::default(),
            with_product: FxHashSet::default(),
            sources: FxHashMap::default(),
        };
        for &id in listed.iter().rev() {
            if chains.belongs_to_readers(id) {
                continue;
            }
            let readers = chains.readers(id);
            let joined = match readers[..] {
                [reader] if id != grouper.root && chains.joins(id, reader) => reader,
                _ => id,
            };
            if is_product(grouper.classes[id]) {
                chains.with_product.insert(joined);
            }
            chains.chain_of.insert(id, joined);
        }
        for &id in listed {
            if let Some(&chain) = chains.chain_of.get(&id) {
                let read = chains.read_by(id, chain);
                let sources = chains.sources.entry(chain).or_default();
                read.into_iter().for_each(|(of, bytes)| add(sources, of, bytes));
            }
        }
        chains
    }

    /// The values that are stored, and why.
    pub(super) fn stored(mut self) -> FxHashMap<InstructionId, Verdict> {
        let mut stored = FxHashMap::default();
        for &id in self.listed {
            let is_chain = self.chain_of.get(&id) == Some(&id);
            let may_be_computed_again = is_chain
                && id != self.grouper.root
                && self.grouper.classes[id] == CostClass::Cheap
                && self.is_kernel(id)
                && !self.with_product.contains(&id);
            if !may_be_computed_again {
                continue;
            }
            let readers = self.readers(id);
            if readers.len() < 2 || !readers.iter().all(|&by| self.is_kernel(by)) {
                continue;
            }
            let own = self.sources[&id].clone();
            let size = self.size_before_rounding(id);
            let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0, u64::saturating_add);
            let through_memory =
                sum(&mut own.values().copied()).saturating_add(size.saturating_mul(1 + readers.len() as u64));
            let limit = (through_memory as f64 * self.grouper.target.fusion.max_traffic_ratio) as u64;
            let moved_for = |reader: &InstructionId| {
                let known = &self.sources[reader];
                sum(&mut own.iter().filter(|(of, _)| !known.contains_key(of)).map(|(_, &bytes)| bytes))
            };
            let moved = sum(&mut readers.iter().map(moved_for));
            if moved > limit {
                stored.insert(id, Verdict::MovesMore { moved: Bytes(moved), limit: Bytes(limit) });
                continue;
            }
            for reader in readers {
                let sources = self.sources.get_mut(&reader).expect("every chain has sources");
                sources.remove(&id);
                own.iter().for_each(|(&of, &bytes)| add(sources, of, bytes));
            }
        }
        stored
    }

    /// The bytes of a value, or of the numbers of 32 bits that it was before it was rounded for products.
    fn size_before_rounding(&self, id: InstructionId) -> u64 {
        let array = self.grouper.module.shape(id).as_array();
        let is_rounded = array.is_some_and(|array| array.element_type == ElementType::Bf16)
            && self.grouper.users.of(id).iter().all(|&user| is_product(self.grouper.classes[user]));
        self.grouper.bytes[id].saturating_mul(1 + u64::from(is_rounded))
    }

    /// Whether an instruction is computed wherever it is read.
    fn belongs_to_readers(&self, id: InstructionId) -> bool {
        let module = self.grouper.module;
        let instruction = &module.instructions[id];
        let is_widened = || self.grouper.bytes[id] > self.grouper.bytes[instruction.operands[0]];
        let is_rounded_for_products = || {
            let users = self.grouper.users.of(id);
            users.iter().all(|&user| is_product(self.grouper.classes[user]))
        };
        match instruction.op {
            Op::Broadcast { .. } | Op::Iota { .. } | Op::Constant(_) => true,
            Op::Convert => is_widened() || is_rounded_for_products(),
            Op::Reshape { .. } | Op::Transpose { .. } | Op::Bitcast => cost::moves_no_bytes(module, id),
            _ => false,
        }
    }

    /// The chains that read a value.
    fn readers(&self, id: InstructionId) -> SmallVec<[InstructionId; 4]> {
        let mut readers: SmallVec<[InstructionId; 4]> = SmallVec::new();
        let mut open: SmallVec<[InstructionId; 4]> = SmallVec::from_elem(id, 1);
        while let Some(at) = open.pop() {
            for &user in self.grouper.users.of(at) {
                match self.chain_of.get(&user) {
                    Some(&chain) => readers.push(chain),
                    None => open.push(user),
                }
            }
        }
        readers.sort_unstable();
        readers.dedup();
        readers
    }

    /// Whether an instruction that only one chain reads is computed in its kernel.
    fn joins(&self, id: InstructionId, reader: InstructionId) -> bool {
        match self.grouper.classes[id] {
            CostClass::Cheap => self.is_kernel(id) && self.is_kernel(reader),
            class => is_product(class) && self.grouper.classes[reader] == CostClass::Cheap,
        }
    }

    /// Whether an instruction is made by a kernel that may compute others along with it.
    fn is_kernel(&self, id: InstructionId) -> bool {
        let looks_up = matches!(self.grouper.module.instructions[id].op, Op::Gather(_));
        matches!(self.grouper.classes[id], CostClass::Cheap | CostClass::Hero(_))
            && (self.grouper.target.fusion.gather_prologue || !looks_up)
    }

    /// What an instruction of a chain reads from outside of it.
    fn read_by(&self, id: InstructionId, chain: InstructionId) -> Vec<(InstructionId, u64)> {
        let module = self.grouper.module;
        let reads_part =
            matches!(module.instructions[id].op, Op::Slice { .. } | Op::DynamicSlice { .. } | Op::Gather(_));
        let most = if reads_part { self.grouper.bytes[id] } else { u64::MAX };
        let mut read = Vec::new();
        let mut open = vec![id];
        while let Some(at) = open.pop() {
            for &operand in &module.instructions[at].operands {
                match self.chain_of.get(&operand) {
                    Some(&of) if of == chain => {}
                    Some(_) => read.push((operand, self.grouper.bytes[operand].min(most))),
                    None => open.push(operand),
                }
            }
        }
        read
    }
}

fn is_product(class: CostClass) -> bool {
    matches!(class, CostClass::Hero(Hero::Dot | Hero::Convolution))
}

fn add(sources: &mut Sources, of: InstructionId, bytes: u64) {
    let known = sources.entry(of).or_default();
    *known = bytes.max(*known);
}
