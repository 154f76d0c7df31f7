//! Merges values that must share memory into one candidate.

use cranelift_entity::EntityRef;
use memplan_analysis::{LiveRange, ValueId, ValueKind, in_place_values, union_of_ranges};
use memplan_ir::{EntitySet, Op, Shape};
use petgraph::unionfind::UnionFind;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::uses::together;
use super::{Collector, Context};
use crate::Selection;
use crate::candidate::{Candidate, ValueCandidate, View};

impl Collector<'_> {
    /// Candidates of values; values of `arrays`, of which slices are prefetched, stay in main memory as a whole.
    pub(super) fn candidates(
        self,
        mut views: FxHashMap<ValueId, Vec<View>>,
        arrays: &EntitySet<ValueId>,
    ) -> Vec<Candidate> {
        let Context { module, facts, .. } = self.context;
        let flow = &facts.flow;
        let mut sets: UnionFind<u32> = UnionFind::new(flow.values.len());
        for &(phi, input) in &flow.phi_inputs {
            sets.union(phi.as_u32(), input.as_u32());
        }
        for &id in &facts.line.instructions {
            for (before, after) in in_place_values(module, flow, &facts.in_place, id) {
                sets.union(before.as_u32(), after.as_u32());
            }
        }
        let labels = sets.into_labeling();
        let mut groups: Vec<SmallVec<[ValueId; 1]>> = vec![SmallVec::new(); flow.values.len()];
        for value in flow.values.keys() {
            groups[labels[value.index()] as usize].push(value);
        }
        let groups = groups.into_iter().filter(|values| !values.is_empty());
        groups.filter_map(|values| self.candidate(values, &mut views, arrays)).map(Candidate::Value).collect()
    }

    fn candidate(
        self,
        values: SmallVec<[ValueId; 1]>,
        views: &mut FxHashMap<ValueId, Vec<View>>,
        arrays: &EntitySet<ValueId>,
    ) -> Option<ValueCandidate> {
        let bytes = values
            .iter()
            .map(|&v| bytes_of(self.context, v))
            .collect::<Option<Vec<u64>>>()?
            .into_iter()
            .max()?;
        if bytes == 0 || bytes > self.context.options.capacity.min(self.context.options.largest) {
            return None;
        }
        let is_read = |value: &ValueId| views.get(value).is_some_and(|views| !views.is_empty());
        if self.context.options.selection == Selection::AsXla && !values.iter().any(is_read) {
            return None;
        }
        let is_sliced = values.iter().any(|&value| arrays.contains(value));
        let pinned = if is_sliced { None } else { self.pinned(&values, bytes, views) };
        let write = values.iter().map(|&v| self.uses.writes[v]).sum();
        let saved_as_xla = self.saved_as_xla(&values);
        let evicted = if !is_sliced && values.len() == 1 { self.evicted(values[0], bytes) } else { None };
        let movable = values.iter().filter(|&&v| !self.uses.unsplittable.contains(v));
        let mut views: Vec<View> = movable.flat_map(|v| views.remove(v).unwrap_or_default()).collect();
        views.retain(|view| view.events.iter().any(|e| e.main > 0.0 || !e.inside.is_empty()));
        if pinned.is_none() && views.is_empty() {
            return None;
        }
        let live = self.live(&values);
        let main_price = 0.0;
        Some(ValueCandidate { values, bytes, pinned, write, saved_as_xla, main_price, live, evicted, views })
    }

    /// The seconds that XLA expects to save with values in fast memory: where the first is written, and where they are read.
    fn saved_as_xla(self, values: &[ValueId]) -> f64 {
        let first = values.iter().copied().min_by_key(|&value| self.context.facts.live.of(value).start);
        let written = first.map_or(0.0, |value| self.uses.saved_by_writing[value]);
        values.iter().filter_map(|&value| self.uses.saved[value]).fold(written, together)
    }

    /// When values that are nothing but temporaries are live.
    fn live(self, values: &[ValueId]) -> Vec<LiveRange> {
        let live = &self.context.facts.live;
        match values.iter().any(|&v| starts_in_main_memory(self.context, v) || live.is_live_out(v)) {
            true => Vec::new(),
            false => union_of_ranges(values.iter().map(|&v| live.of(v)).collect()),
        }
    }
}

/// Padded bytes of an array that may be in fast memory.
pub(super) fn bytes_of(context: Context<'_>, value: ValueId) -> Option<u64> {
    let flow = &context.facts.flow;
    let mut bytes = 0;
    for &position in flow.positions_of(value) {
        let id = flow.positions.instruction(position);
        let part = context.module.shape(id).subshape(flow.positions.shape_index(position))?;
        let Shape::Array(array) = part else { return None };
        if array.rank() == 0 || array.is_dynamic() || array.memory_space() != 0 || array.layout.is_none() {
            return None;
        }
        bytes = bytes.max(context.target.size_of(part).0);
    }
    let definition = flow.positions.instruction(flow.values[value].definition);
    let is_code = matches!(context.module.instructions[definition].op, Op::Constant(_))
        && bytes <= context.target.embedded_constant_bytes.0;
    (!is_code).then_some(bytes)
}

/// Whether a value is in main memory to begin with.
pub(super) fn starts_in_main_memory(context: Context<'_>, value: ValueId) -> bool {
    let flow = &context.facts.flow;
    let definition = flow.positions.instruction(flow.values[value].definition);
    flow.values[value].kind == ValueKind::Parameter
        || matches!(context.module.instructions[definition].op, Op::Constant(_))
}
