//! `dot-merger`: multiplies once where products have an operand in common.
//!
//! ```text
//!   a = f32[64,16] dot(x, v)                    vw = f32[8,48] concatenate(v, w), dimensions={1}
//!   b = f32[64,32] dot(x, w)           =>       ab = f32[64,48] dot(x, vw)
//!                                               a = f32[64,16] slice(ab)
//!                                               b = f32[64,32] slice(ab)
//! ```
//!
//! XLA's GPU compiler does this where one of two products is small, operands and result together, so chains of merges
//! may end with a large one. Seen in 0.12. Left alone: products of which one depends on the other, and products other
//! than those of the dot decomposer, which must have run. *Changed* means that products were merged.

use memplan_ir::{
    ArrayShape, ComputationId, Cursor, Dot, DotOperand, Insert, InstructionId, Module, Names, Op,
    SliceDimension,
};
use memplan_memory::Bytes;
use memplan_rewriter::{Context, Outcome, Pass, PassError, call_graph};
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Deserialize;

/// The pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct DotMerger {
    /// Which products are small; `None` for what the built-in compiler has that runs the pass.
    pub rules: Option<DotMergerRules>,
}

/// Which products are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DotMergerRules {
    /// The most bytes of operands and result of a small product.
    pub max_bytes: Bytes,
}

/// The pass with the rules of the built-in compiler.
pub const DOT_MERGER: DotMerger = DotMerger { rules: None };

impl Pass for DotMerger {
    fn name(&self) -> &'static str {
        "dot-merger"
    }

    fn description(&self) -> &'static str {
        "multiply once where products share an operand, as XLA's GPU compiler does"
    }

    fn run(&self, module: &mut Module, _: &Context<'_>) -> Result<Outcome, PassError> {
        let rules = self.rules.unwrap_or_else(|| super::built_in(self.name()));
        let computations = call_graph(module, self.name())?.sequential().to_vec();
        let mut names = Names::new(module);
        let mut changed = false;
        for computation in computations {
            let merged = Merger::new(module, rules).merge(computation);
            changed |= !merged.is_empty();
            merged.iter().for_each(|group| multiply_once(module, group, &mut names));
            if !merged.is_empty() {
                module.put_operands_first(computation);
            }
        }
        Ok(changed.into())
    }
}

/// Products that become one: what they share, the others' order.
struct Group {
    products: Vec<InstructionId>,
    /// Which operand is not shared.
    side: DotOperand,
    /// The dimension of that operand along which they are joined.
    along: i64,
}

struct Merger<'a> {
    module: &'a Module,
    rules: DotMergerRules,
    groups: Vec<Group>,
    /// The group of each merged product.
    group_of: FxHashMap<InstructionId, usize>,
    /// Instructions that searches for dependencies may still visit: a limit against hostile programs.
    visits: usize,
}

const MOST_VISITS: usize = 20_000_000;

impl<'a> Merger<'a> {
    fn new(module: &'a Module, rules: DotMergerRules) -> Merger<'a> {
        let (groups, group_of) = (Vec::new(), FxHashMap::default());
        Merger { module, rules, groups, group_of, visits: MOST_VISITS }
    }

    fn merge(mut self, computation: ComputationId) -> Vec<Group> {
        let listed = &self.module.computations[computation].instructions;
        // Readers of each operand, in the order of the first reader.
        let mut classes: Vec<(InstructionId, Vec<InstructionId>)> = Vec::new();
        let mut class_of: FxHashMap<InstructionId, usize> = FxHashMap::default();
        for &id in listed {
            let instruction = &self.module.instructions[id];
            if !matches!(instruction.op, Op::Dot(_)) || !instruction.control_predecessors.is_empty() {
                continue;
            }
            for &operand in &instruction.operands {
                let class = *class_of.entry(operand).or_insert_with(|| {
                    classes.push((operand, Vec::new()));
                    classes.len() - 1
                });
                classes[class].1.push(id);
            }
        }
        for (shared, products) in classes {
            for (i, &product) in products.iter().enumerate() {
                for &other in &products[i + 1..] {
                    self.merge_pair(shared, product, other);
                }
            }
        }
        self.groups
    }

    /// Merges two products, or adds the second to those that the first is merged with, if possible.
    fn merge_pair(&mut self, shared: InstructionId, first: InstructionId, second: InstructionId) {
        if self.group_of.contains_key(&second) {
            return;
        }
        let Some((side, along)) = self.joins(shared, first, second) else { return };
        let group = self.group_of.get(&first).copied();
        let is_large = |id| self.bytes(id) > self.rules.max_bytes.0;
        let of_first = match group {
            // Merged with products that share the other operand.
            Some(group) if self.groups[group].side != side => return,
            Some(group) => self.groups[group].products.clone(),
            None => vec![first],
        };
        // A merged product is at least as large as each of its parts.
        let first_is_large = of_first.len() > 1
            && self.bytes_together(&of_first, side) > self.rules.max_bytes.0
            || of_first.len() == 1 && is_large(first);
        if first_is_large && is_large(second)
            || self.depends(&[second], &of_first)
            || self.depends(&of_first, &[second])
        {
            return;
        }
        let group = group.unwrap_or_else(|| {
            self.groups.push(Group { products: vec![first], side, along });
            self.groups.len() - 1
        });
        self.groups[group].products.push(second);
        self.group_of.extend([(first, group), (second, group)]);
    }

    /// The operand that two products do not share, and its dimension that is neither summed up nor a batch.
    fn joins(
        &self,
        shared: InstructionId,
        first: InstructionId,
        second: InstructionId,
    ) -> Option<(DotOperand, i64)> {
        let [a, b] = [first, second].map(|id| &self.module.instructions[id]);
        let (Op::Dot(of_a), Op::Dot(of_b)) = (&a.op, &b.op) else { return None };
        let at = usize::from(a.operands[0] == shared && b.operands[0] == shared);
        let side = [DotOperand::Lhs, DotOperand::Rhs][at];
        if of_a != of_b || a.operands[1 - at] != b.operands[1 - at] || a.operands[at] == b.operands[at] {
            return None;
        }
        let array = |id: InstructionId| self.module.shape(id).as_array();
        let [x, y] = [array(a.operands[at])?, array(b.operands[at])?];
        let same_type =
            x.element_type == y.element_type && array(first)?.element_type == array(second)?.element_type;
        let free = of_a.dimensions.free(side, x.rank());
        let &[along] = free.as_slice() else { return None };
        let other_rank = array(shared)?.rank();
        let is_matrix = of_a.dimensions.free([DotOperand::Rhs, DotOperand::Lhs][at], other_rank).len() == 1;
        (same_type && is_matrix && x.rank() == y.rank()).then_some((side, along))
    }

    fn size(&self, id: InstructionId) -> u64 {
        self.module.shape(id).as_array().and_then(ArrayShape::dense_bytes).unwrap_or(u64::MAX / 1024)
    }

    /// Bytes of operands and result.
    fn bytes(&self, id: InstructionId) -> u64 {
        let operands = self.module.instructions[id].operands.iter();
        operands.map(|&operand| self.size(operand)).sum::<u64>() + self.size(id)
    }

    /// The same of products that are merged.
    fn bytes_together(&self, products: &[InstructionId], side: DotOperand) -> u64 {
        let shared = self.module.instructions[products[0]].operands[1 - side as usize];
        let all: u64 = products.iter().map(|&id| self.bytes(id) - self.size(shared)).sum();
        all + self.size(shared)
    }

    /// Whether one of the first needs one of the others; yes where the search takes too long.
    fn depends(&mut self, of: &[InstructionId], on: &[InstructionId]) -> bool {
        let mut seen: FxHashSet<InstructionId> = of.iter().copied().collect();
        let mut stack: Vec<InstructionId> = of.to_vec();
        while let Some(id) = stack.pop() {
            let Some(left) = self.visits.checked_sub(1) else { return true };
            self.visits = left;
            let instruction = &self.module.instructions[id];
            let merged = self.group_of.get(&id).map_or(&[][..], |&group| &self.groups[group].products);
            for &before in instruction.operands.iter().chain(&instruction.control_predecessors).chain(merged)
            {
                if on.contains(&before) {
                    return true;
                }
                if seen.insert(before) {
                    stack.push(before);
                }
            }
        }
        false
    }
}

/// Replaces the products of a group by slices of one.
fn multiply_once(module: &mut Module, group: &Group, names: &mut Names) {
    let Group { products, side, along } = group;
    let at = *side as usize;
    let first = module.instructions[products[0]].clone();
    let Op::Dot(dot) = &first.op else { unreachable!("products are merged") };
    let Dot { dimensions, .. } = &**dot;
    let n_batch = dimensions.lhs_batch.len();
    let parts: Vec<InstructionId> =
        products.iter().map(|&product| module.instructions[product].operands[at]).collect();
    let mut cursor = Cursor::unlisted(module, names, first.parent).with_metadata(first.metadata.clone());
    let joined = cursor.concatenate(parts.iter().copied(), *along);
    let mut operands = first.operands.clone();
    operands[at] = joined;
    let whole = cursor.insert(first.op.clone(), operands);
    let mut start = 0;
    for &product in products {
        let array = module.shape(product).as_array().expect("a product is an array").clone();
        let mut slices: smallvec::SmallVec<[SliceDimension; 2]> =
            array.dimensions.iter().map(|&limit| SliceDimension { start: 0, limit, stride: 1 }).collect();
        let cut = &mut slices[n_batch + at];
        (cut.start, cut.limit) = (start, start + cut.limit);
        start = cut.limit;
        let product = &mut module.instructions[product];
        product.op = Op::Slice { dimensions: slices };
        product.operands = [whole].into_iter().collect();
    }
}
