//! `dot-merger`: merges products that have an operand in common into one product.
//!
//! ```text
//!   a = f32[64,16] dot(x, v)                    vw = f32[8,48] concatenate(v, w), dimensions={1}
//!   b = f32[64,32] dot(x, w)           =>       ab = f32[64,48] dot(x, vw)
//!                                               a = f32[64,16] slice(ab)
//!                                               b = f32[64,32] slice(ab)
//! ```
//!
//! XLA's GPU compiler begins with the smallest product and adds the next larger one, as long as the products merged so
//! far are small together and the sizes do not differ too much. Seen in 0.12 on programs of two to five products. Left
//! alone: products that depend on each other, and products with several dimensions of rows or columns, which the dot
//! decomposer decomposes. Not modeled: merging if the operand is transposed for one of the products. *Changed* means
//! that products were merged.

use cranelift_entity::SecondaryMap;
use indexmap::IndexMap;
use memplan_ir::{
    ComputationId, Cursor, Dot, DotOperand, Insert, InstructionId, Module, Names, Op, SliceDimension,
};
use memplan_memory::Bytes;
use memplan_rewriter::{Context, PassError, call_graph};
use rustc_hash::{FxBuildHasher, FxHashMap};
use serde::Deserialize;

/// Which products are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DotMergerRules {
    /// The most bytes of small products: of their results, and of the operands that are not shared.
    pub max_bytes: Bytes,
    /// The most rows or columns of the largest product for one of the smallest.
    pub max_ratio: i64,
}

pass_with_rules!(
    DOT_MERGER = DotMerger(DotMergerRules),
    "dot-merger",
    "multiply once where products share an operand, as XLA's GPU compiler does",
    run
);

fn run(module: &mut Module, _: &Context<'_>, rules: &DotMergerRules) -> Result<bool, PassError> {
    let computations = call_graph(module, "dot-merger")?.sequential().to_vec();
    let mut names = Names::new(module);
    let mut changed = false;
    for computation in computations {
        let merged = Merger::new(module, *rules).merge(computation);
        changed |= !merged.is_empty();
        merged.iter().for_each(|group| multiply_once(module, group, &mut names));
        if !merged.is_empty() {
            module.put_operands_first(computation);
        }
    }
    Ok(changed)
}

/// Products that become one: what they share, the others' order.
struct Group {
    products: Vec<InstructionId>,
    /// Which operand is not shared.
    side: DotOperand,
    /// The dimension of that operand along which they are joined.
    along: i64,
}

/// A product that may be merged.
struct Product {
    id: InstructionId,
    /// Which operand is not shared, and its dimension that is neither summed up nor a batch.
    side: DotOperand,
    along: i64,
    extent: i64,
    /// Bytes of that operand and of the result.
    bytes: u64,
}

struct Merger<'a> {
    module: &'a Module,
    rules: DotMergerRules,
    groups: Vec<Group>,
    /// The group of each merged product.
    group_of: FxHashMap<InstructionId, usize>,
    /// The place of each instruction in the text.
    places: SecondaryMap<InstructionId, u32>,
    /// Pairs of places where the earlier instruction needs the later one: merged products, and control dependencies.
    ahead: Vec<[u32; 2]>,
    /// The last search for dependencies that saw each instruction, and the number of searches.
    seen: SecondaryMap<InstructionId, u32>,
    n_searches: u32,
    /// Instructions that searches may still visit: a limit against hostile programs.
    visits: usize,
}

const MOST_VISITS: usize = 20_000_000;

impl<'a> Merger<'a> {
    fn new(module: &'a Module, rules: DotMergerRules) -> Merger<'a> {
        let (groups, group_of) = (Vec::new(), FxHashMap::default());
        let (places, seen) = (SecondaryMap::new(), SecondaryMap::new());
        let (ahead, n_searches, visits) = (Vec::new(), 0, MOST_VISITS);
        Merger { module, rules, groups, group_of, places, ahead, seen, n_searches, visits }
    }

    fn merge(mut self, computation: ComputationId) -> Vec<Group> {
        // The products that read each operand, and its side, in the order of the first of them.
        let mut classes: IndexMap<(InstructionId, usize), Vec<Product>, FxBuildHasher> = IndexMap::default();
        for (place, &id) in self.module.computations[computation].instructions.iter().enumerate() {
            self.places[id] = place as u32;
        }
        for &id in &self.module.computations[computation].instructions {
            let before = &self.module.instructions[id].control_predecessors;
            let places = before.iter().map(|&before| [self.places[id], self.places[before]]);
            self.ahead.extend(places.filter(|[first, last]| first < last));
            for side in [DotOperand::Lhs, DotOperand::Rhs] {
                if let Some(product) = self.product(id, side) {
                    let shared = 1 - side as usize;
                    let operand = self.module.instructions[id].operands[shared];
                    classes.entry((operand, shared)).or_default().push(product);
                }
            }
        }
        for (_, mut products) in classes {
            products.sort_by_key(|product| product.extent);
            for i in 0..products.len() {
                self.merge_with_larger(&products[i..]);
            }
        }
        self.groups
    }

    /// Merges the first of some products with those of the others that can be.
    fn merge_with_larger(&mut self, products: &[Product]) {
        let (first, others) = (&products[0], &products[1..]);
        if self.group_of.contains_key(&first.id) {
            return;
        }
        let group = self.groups.len();
        let mut merged = vec![first.id];
        let mut bytes = first.bytes;
        for other in others {
            let fits = bytes <= self.rules.max_bytes.0
                && other.extent <= first.extent.saturating_mul(self.rules.max_ratio);
            if !fits {
                break;
            }
            if self.group_of.contains_key(&other.id)
                || !self.is_alike(first, other)
                || self.depends(&[other.id], &merged)
                || self.depends(&merged, &[other.id])
            {
                continue;
            }
            if merged.len() == 1 {
                self.groups.push(Group { products: Vec::new(), side: first.side, along: first.along });
                self.group_of.insert(first.id, group);
            }
            merged.push(other.id);
            bytes = bytes.saturating_add(other.bytes);
            self.group_of.insert(other.id, group);
            let mut places = [first.id, other.id].map(|id| self.places[id]);
            places.sort_unstable();
            self.ahead.push(places);
            self.groups[group].products.clone_from(&merged);
        }
    }

    /// A product of two matrices, or of batches of them, as one that shares its other operand.
    fn product(&self, id: InstructionId, side: DotOperand) -> Option<Product> {
        let instruction = &self.module.instructions[id];
        let Op::Dot(dot) = &instruction.op else { return None };
        let array = |id: InstructionId| self.module.shape(id).as_array();
        let of = |side: DotOperand| {
            let array = array(instruction.operands[side as usize])?;
            match dot.dimensions.free(side, array.rank()).as_slice() {
                &[along] => Some((array, along)),
                _ => None,
            }
        };
        let ((operand, along), _) = (of(side)?, of([DotOperand::Rhs, DotOperand::Lhs][side as usize])?);
        let bytes = operand.dense_bytes()?.saturating_add(array(id)?.dense_bytes()?);
        let is_free = instruction.control_predecessors.is_empty();
        is_free.then_some(Product { id, side, along, extent: operand.dimensions[along as usize], bytes })
    }

    /// Whether two products that share an operand differ only in how many rows or columns they have.
    fn is_alike(&self, one: &Product, other: &Product) -> bool {
        let [a, b] = [one, other].map(|product| &self.module.instructions[product.id]);
        let side = one.side as usize;
        let element_types = |id: InstructionId, operand: InstructionId| {
            [id, operand].map(|id| self.module.shape(id).as_array().map(|array| array.element_type))
        };
        a.op == b.op
            && one.along == other.along
            && a.operands[side] != b.operands[side]
            && element_types(one.id, a.operands[side]) == element_types(other.id, b.operands[side])
    }

    /// Whether one of the first needs one of the others; yes where the search takes too long.
    fn depends(&mut self, of: &[InstructionId], on: &[InstructionId]) -> bool {
        self.n_searches += 1;
        let horizon = self.horizon(on);
        of.iter().for_each(|&id| self.seen[id] = self.n_searches);
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
                let is_new = std::mem::replace(&mut self.seen[before], self.n_searches) != self.n_searches;
                if is_new && self.places[before] >= horizon {
                    stack.push(before);
                }
            }
        }
        false
    }

    /// The place in the text before which no instruction needs one of these: it needs instructions before it, and what
    /// is known to be ahead.
    fn horizon(&self, on: &[InstructionId]) -> u32 {
        let mut horizon = on.iter().map(|&id| self.places[id]).min().unwrap_or(0);
        let across = |horizon| {
            let across = self.ahead.iter().filter(|&&[first, last]| first < horizon && horizon <= last);
            across.map(|&[first, _]| first).min()
        };
        while let Some(earlier) = across(horizon) {
            horizon = earlier;
        }
        horizon
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
