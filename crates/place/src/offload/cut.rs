//! Divides rows in two, so that only a part of each row is kept on the host.
//!
//! ```text
//! forward, step i:  kept[i] = h            =>   first[i] = h[..n]; rest[i] = h[n..]
//! backward, row r:  h = kept[r]            =>   h = concatenate(first[r], rest[r])
//! ```

use memplan_ir::{
    ArrayShape, Cursor, Insert, InstructionId, Module, Names, Op, Shape, SliceDimension, Users,
};
use memplan_rewriter::loops::{Loop, splat};
use rustc_hash::FxHashMap;

use super::{OffloadRows, Stack, is_mark};

/// Where to cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// A dimension that every row has as a whole.
    dimension: usize,
    /// Its extent in the first part.
    first: i64,
    /// Its extent.
    extent: i64,
}

impl Cut {
    /// The cut after so many of 32 parts, along the outermost dimension that all rows have as a whole and that can be cut
    /// about there, or else the longest one. `None` for whole rows, where there is no such dimension, where shardings say how
    /// the rows are spread, and where the rows are the rest of an earlier cut.
    pub(super) fn after(
        parts_of_32: u32,
        module: &Module,
        users: &Users,
        loops: &[Loop],
        stack: &Stack,
    ) -> Option<Cut> {
        let is_rest = |&slice: &InstructionId| {
            let users = users.of(slice).iter().map(|&user| &module.instructions[user]);
            let mut joins = users.filter(|user| matches!(user.op, Op::Concatenate { .. }));
            joins.any(|join| join.operands.iter().any(|&operand| is_mark(module, operand)))
        };
        let is_sharded = stack.places.iter().any(|place| loops[place.of].is_sharded(module));
        if is_sharded || stack.slices.iter().any(is_rest) {
            return None;
        }
        let whole = &array(module, stack.update).dimensions;
        let rows = [module.instructions[stack.update].operands[1]];
        let rows = rows.iter().chain(&stack.slices).map(|&row| &array(module, row).dimensions);
        let rows: Vec<_> = rows.collect();
        let is_whole = |d: usize| whole[d] > 1 && rows.iter().all(|row| row[d] == whole[d]);
        let whole_ones = || (0..whole.len()).filter(|&d| is_whole(d));
        let parts = |d: usize| i128::from(whole[d]) * i128::from(parts_of_32);
        let is_fine = |&d: &usize| {
            whole[d] >= i64::from(OffloadRows::WHOLE) || parts(d) % i128::from(OffloadRows::WHOLE) == 0
        };
        let fine = whole_ones().find(is_fine);
        let dimension = fine.or_else(|| whole_ones().rev().max_by_key(|&d| whole[d]))?;
        let (first, extent) = ((parts(dimension) / i128::from(OffloadRows::WHOLE)) as i64, whole[dimension]);
        (0 < first && first < extent).then_some(Cut { dimension, first, extent })
    }

    /// The bytes of the first part, of so many.
    pub(super) fn first_of(&self, bytes: u64) -> u64 {
        bytes / self.extent.unsigned_abs() * self.first.unsigned_abs()
    }

    /// Makes the first parts of the rows a stack of their own, which is returned, and leaves the rest in the stack. What is
    /// new is listed nowhere yet.
    pub(super) fn apply(
        &self,
        module: &mut Module,
        users: &Users,
        loops: &[Loop],
        stack: &Stack,
        names: &mut Names,
    ) -> Stack {
        // What holds the first parts, for everything that held all.
        let mut firsts: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
        let mut new_update = stack.update;
        for place in &stack.places {
            let of = &loops[place.of];
            let old = module.instructions[of.init].operands[place.element as usize];
            let init = firsts.get(&old).copied().unwrap_or_else(|| {
                let shape = module.shape(old).clone();
                let parent = module.instructions[of.init].parent;
                let [first, rest] = self.parts(&shape).map(|shape| {
                    splat(&mut Cursor::unlisted(module, names, parent).with_metadata_of(old), old, shape)
                });
                module.instructions[of.init].operands[place.element as usize] = rest;
                first
            });
            let element = module.instructions[of.init].operands.len() as u32;
            let [taken, results] = [&of.taken, &of.results].map(|at| at.get(&place.element));
            for &old in taken.into_iter().chain(results).flatten() {
                let first = self.element_beside(module, old, element, names);
                firsts.insert(old, first);
            }
            let next = module.instructions[of.next].operands[place.element as usize];
            let next = firsts.get(&next).copied().unwrap_or_else(|| {
                new_update = self.update_beside(module, stack.update, &firsts, names);
                new_update
            });
            of.add_element(module, init, next);
            of.set_shapes(module);
        }
        let slices = stack.slices.iter();
        let slices = slices.map(|&slice| self.slice_beside(module, users, slice, &firsts, names)).collect();
        Stack { update: new_update, slices, places: Vec::new() }
    }

    /// Takes another element of a loop's state, beside one that shall hold the rest.
    fn element_beside(
        &self,
        module: &mut Module,
        old: InstructionId,
        element: u32,
        names: &mut Names,
    ) -> InstructionId {
        let state = module.instructions[old].operands[0];
        let shape = self.first(module.shape(old));
        self.keep_rest(module, old);
        beside(module, names, old).insert_shaped(Op::GetTupleElement { index: element }, [state], shape)
    }

    /// Writes the first part of a row, beside the update that shall write the rest.
    fn update_beside(
        &self,
        module: &mut Module,
        update: InstructionId,
        firsts: &FxHashMap<InstructionId, InstructionId>,
        names: &mut Names,
    ) -> InstructionId {
        let shape = self.first(module.shape(update));
        let mut operands = module.instructions[update].operands.clone();
        let row = array(module, operands[1]).dimensions.clone();
        let part = |begin, end| {
            let bounds = row.iter().enumerate().map(move |(d, &extent)| {
                let (start, limit) = if d == self.dimension { (begin, end) } else { (0, extent) };
                SliceDimension { start, limit, stride: 1 }
            });
            bounds.collect::<Vec<_>>()
        };
        let whole_row = operands[1];
        let [first, rest] = [part(0, self.first), part(self.first, self.extent)]
            .map(|part| beside(module, names, whole_row).slice(whole_row, part));
        module.instructions[update].operands[1] = rest;
        self.keep_rest(module, update);
        (operands[0], operands[1]) = (firsts[&operands[0]], first);
        beside(module, names, update).insert_shaped(Op::DynamicUpdateSlice, operands, shape)
    }

    /// Reads the first part of a row, beside a slice that shall read the rest, and puts them together for its users.
    fn slice_beside(
        &self,
        module: &mut Module,
        users: &Users,
        slice: InstructionId,
        firsts: &FxHashMap<InstructionId, InstructionId>,
        names: &mut Names,
    ) -> InstructionId {
        let whole = module.shape(slice).clone();
        let [mut first, mut rest] = [(); 2].map(|()| module.instructions[slice].op.clone());
        for (op, extent) in [(&mut first, self.first), (&mut rest, self.extent - self.first)] {
            match op {
                Op::DynamicSlice { slice_sizes } => slice_sizes[self.dimension] = extent,
                Op::Slice { dimensions } => dimensions[self.dimension].limit = extent,
                _ => unreachable!("only slices read the rows"),
            }
        }
        module.instructions[slice].op = rest;
        self.keep_rest(module, slice);
        let mut operands = module.instructions[slice].operands.clone();
        operands[0] = firsts[&operands[0]];
        let shape = self.first(&whole);
        let first = beside(module, names, slice).insert_shaped(first, operands, shape);
        let join = Op::Concatenate { dimension: self.dimension as i64 };
        let join = beside(module, names, slice).insert_shaped(join, [first, slice], whole);
        super::use_instead(module, users.of(slice), slice, join);
        first
    }

    /// Gives a value the shape of the rest.
    fn keep_rest(&self, module: &mut Module, id: InstructionId) {
        let [_, rest] = self.parts(module.shape(id));
        module.instructions[id].shape = module.intern(rest);
    }

    fn first(&self, shape: &Shape) -> Shape {
        let [first, _] = self.parts(shape);
        first
    }

    /// The shapes of both parts of an array.
    fn parts(&self, shape: &Shape) -> [Shape; 2] {
        [self.first, self.extent - self.first].map(|extent| {
            let mut part = shape.as_array().expect("rows are of arrays").clone();
            part.dimensions[self.dimension] = extent;
            part.into()
        })
    }
}

fn array(module: &Module, id: InstructionId) -> &ArrayShape {
    module.shape(id).as_array().expect("rows are of arrays")
}

fn beside<'m>(module: &'m mut Module, names: &'m mut Names, id: InstructionId) -> Cursor<'m> {
    let parent = module.instructions[id].parent;
    Cursor::unlisted(module, names, parent).with_metadata_of(id)
}
