//! Random bits equal to XLA's.
//!
//! Each counter gives two words (ThreeFry) or four (Philox). XLA chooses how words fill an array: ThreeFry's two are next
//! to each other along one dimension, Philox' four in row-major order.

use memplan_ir::scopes::Name;
use memplan_ir::{ElementType, RngAlgorithm};

use crate::dag::{NodeId, Type};
use crate::error::{Refusal, refusal};
use crate::lower::Lower;
use crate::operations::{self, Form, Function};

const U64: ElementType = ElementType::U64;

impl Lower<'_> {
    /// An element of the new state (leaf 0), or of the bits (leaf 1).
    pub(crate) fn pull_random_bits(
        &mut self,
        name: Name,
        rows: &[NodeId],
        algorithm: RngAlgorithm,
    ) -> Result<NodeId, Refusal> {
        let module = self.module;
        let operand = module.instructions[name.instruction].operands[0];
        let state = self.shape(operand)?;
        let leaves = module.shape(name.instruction).leaves();
        let array = |k: usize| {
            let shape = leaves.get(k).and_then(|(_, shape)| shape.as_array());
            shape.ok_or_else(|| refusal(module, name.instruction, "its results are no arrays"))
        };
        if state.element_type != U64 || state.rank() != 1 || state.dimensions[0] < 2 {
            return Err(refusal(module, name.instruction, "its state is not of u64"));
        }
        let bits = array(1)?;
        let (t, extents) = (bits.element_type, &bits.dimensions);
        let count: i64 = extents.iter().product();
        let is_wide = t.bits() == 64;
        let of = Name { instruction: operand, leaf: 0, ..name };
        let word = |lower: &mut Self, k: i64| {
            let at = lower.dag.integer(k);
            lower.value(of, &[at])
        };
        let (key, counter) = (word(self, 0)?, word(self, 1)?);
        if algorithm == RngAlgorithm::RngThreeFry {
            let pairs = Pairs::new(extents);
            if name.leaf == 0 {
                let n = if is_wide { count } else { pairs.n_counters };
                let next = self.plus(counter, n);
                let old = self.value(of, rows)?;
                return Ok(self.one_of(rows[0], 1, next, old));
            }
            let (at, which) =
                if is_wide { (self.position(rows, extents), None) } else { pairs.counter(self, rows) };
            let at = self.number(at, U64);
            let counter = self.add(counter, at);
            let form = Form::Helper("threefry", U64, None);
            let words = self.dag.apply(Function { form, result: Type::Element(U64) }, &[counter, key]);
            let Some(which) = which else { return Ok(self.as_type(words, U64, t)) };
            let shift = self.dag.affine(&[(which, 32)], 0);
            let shift = self.number(shift, U64);
            let form = Form::Helper("shift_right_logical", U64, None);
            let word = self.dag.apply(Function { form, result: Type::Element(U64) }, &[words, shift]);
            return Ok(self.as_type(word, U64, t));
        }
        // A state of two words uses its key as the upper half of the counter.
        let high = if state.dimensions[0] > 2 { word(self, 2)? } else { key };
        let per_counter = if is_wide { 2 } else { 4 };
        let (blocks, k) = match name.leaf {
            0 => (self.dag.integer((count + per_counter - 1) / per_counter), None),
            _ => {
                let position = self.position(rows, extents);
                let k = self.dag.remainder(position, per_counter);
                (self.dag.quotient(position, per_counter), Some(k))
            }
        };
        let blocks = self.number(blocks, U64);
        let low = self.add(counter, blocks);
        let less = Function { form: Form::Infix("<"), result: Type::Element(ElementType::Pred) };
        let carry = self.dag.apply(less, &[low, counter]);
        let carry = self.dag.apply(operations::cast(U64), &[carry]);
        let high = self.add(high, carry);
        let Some(k) = k else {
            let old = self.value(of, rows)?;
            let state = self.one_of(rows[0], 1, low, old);
            return Ok(self.one_of(rows[0], 2, high, state));
        };
        let draw = |lower: &mut Self, scale: i64, base: i64| {
            let k = lower.dag.affine(&[(k, scale)], base);
            let k = lower.number(k, ElementType::S32);
            let function =
                Function { form: Form::Helper("philox", U64, None), result: Type::Element(ElementType::U32) };
            lower.dag.apply(function, &[low, high, key, k])
        };
        if !is_wide {
            let word = draw(self, 1, 0);
            return Ok(self.as_type(word, ElementType::U32, t));
        }
        let [low, high] = [0, 1].map(|base| {
            let word = draw(self, 2, base);
            self.dag.apply(operations::cast(U64), &[word])
        });
        let shift = self.dag.constant(U64, 32);
        let shifted = Function { form: Form::Infix("<<"), result: Type::Element(U64) };
        let high = self.dag.apply(shifted, &[high, shift]);
        let joined = Function { form: Form::Infix("|"), result: Type::Element(U64) };
        let word = self.dag.apply(joined, &[low, high]);
        Ok(self.as_type(word, U64, t))
    }

    /// The row-major position of indices.
    pub(crate) fn position(&mut self, rows: &[NodeId], extents: &[i64]) -> NodeId {
        let count = extents.iter().product();
        self.reshaped(rows, extents, &[count])[0]
    }

    fn add(&mut self, x: NodeId, y: NodeId) -> NodeId {
        let add = Function { form: Form::Infix("+"), result: Type::Element(U64) };
        self.dag.apply(add, &[x, y])
    }

    fn plus(&mut self, x: NodeId, n: i64) -> NodeId {
        let n = self.dag.constant(U64, n as u64);
        self.add(x, n)
    }

    fn as_type(&mut self, x: NodeId, from: ElementType, to: ElementType) -> NodeId {
        let functions = operations::convert(from, to);
        self.chain(functions, &[x])
    }

    /// `x` at an index, and `y` elsewhere.
    fn one_of(&mut self, row: NodeId, at: i64, x: NodeId, y: NodeId) -> NodeId {
        match self.dag.in_range(row, at, at + 1) {
            Some(p) => self.choose(p, x, y),
            None => x,
        }
    }
}

/// Words of two per counter, next to each other along one dimension: the first of even extent, else the longest, which is
/// padded.
struct Pairs {
    dimension: Option<usize>,
    /// Extents of the counters.
    extents: Vec<i64>,
    n_counters: i64,
}

impl Pairs {
    fn new(extents: &[i64]) -> Pairs {
        let even = extents.iter().position(|e| e % 2 == 0);
        let longest = (0..extents.len()).max_by_key(|&d| (extents[d], std::cmp::Reverse(d)));
        let dimension = even.or(longest);
        let mut extents = extents.to_vec();
        if let Some(d) = dimension {
            extents[d] = (extents[d] + 1) / 2;
        }
        Pairs { dimension, n_counters: extents.iter().product(), extents }
    }

    /// The counter of an element, and which of its words.
    fn counter(&self, lower: &mut Lower<'_>, rows: &[NodeId]) -> (NodeId, Option<NodeId>) {
        let Some(d) = self.dimension else { return (lower.dag.integer(0), Some(lower.dag.integer(0))) };
        let mut at = rows.to_vec();
        at[d] = lower.dag.quotient(rows[d], 2);
        let which = lower.dag.remainder(rows[d], 2);
        (lower.position(&at, &self.extents), Some(which))
    }
}
