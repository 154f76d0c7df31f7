//! Rewrites a segment in bands.
//!
//! ```text
//!   first bands     written out: arrays ahead of the end get their first rows
//!   loop            state: counter, the end, kept rows, what is read whole
//!                   body: rows of what it reads -> the members on a band -> the end, kept rows
//!   last bands      written out: the last rows, up to the padding
//! ```

use std::sync::Arc;

use memplan_ir::{
    BinaryOp, ComparisonDirection, ComputationId, Cursor, ElementType, Insert, InstructionId, Metadata,
    Module, Names, Op, Shape, SliceDimension,
};
use memplan_rewriter::loops::splat;
use rustc_hash::FxHashMap;

use super::choose::Choice;
use super::reach::{Rows, on_band};
use super::segment::Member;

/// The attribute of the end of a segment that says how many bands there are.
pub(super) const ATTRIBUTE: &str = "memplan_bands";

/// Replaces segments by their bands. What is not read any more is left to dead code elimination.
pub(super) fn build(module: &mut Module, choices: &[Choice], names: &mut Names) {
    let mut stands_for: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    for choice in choices {
        let end = Writer { module, names, choice, stands_for: &stands_for }.write();
        stands_for.insert(choice.to, end);
    }
    let entry = module.entry;
    for id in module.computations[entry].instructions.clone() {
        for operand in &mut module.instructions[id].operands {
            *operand = stands_for.get(operand).copied().unwrap_or(*operand);
        }
    }
    let root = &mut module.computations[entry].root;
    *root = stands_for.get(root).copied().unwrap_or(*root);
    module.put_operands_first(entry);
}

/// Rows of an array that are there, as an array.
type Part = (InstructionId, Rows);

/// Where a band is written to.
struct Place {
    computation: ComputationId,
    /// In a loop, how many bands came before in it.
    counter: Option<InstructionId>,
    /// What stands for an array from outside, if it is another one.
    outside: FxHashMap<InstructionId, InstructionId>,
    /// Rows from the band before.
    carried: FxHashMap<InstructionId, Part>,
}

/// Writes the bands of a segment.
struct Writer<'a> {
    module: &'a mut Module,
    names: &'a mut Names,
    choice: &'a Choice,
    /// The ends of earlier segments.
    stands_for: &'a FxHashMap<InstructionId, InstructionId>,
}

impl Writer<'_> {
    /// The array that stands for the end of the segment.
    fn write(mut self) -> InstructionId {
        let choice = self.choice;
        let (entry, end) = (self.module.entry, choice.to);
        let note = self.module.instructions[end].metadata.clone();
        let element_type = self.module.plain_array(end).expect("the end is an array").element_type;
        let shape = self.module.shape(end).clone();
        let mut at = self.at(entry, &note);
        let zero = at.integer(element_type, 0);
        let mut whole = at.fill(zero, shape);
        let mut place = Place {
            computation: entry,
            counter: None,
            outside: self.stands_for.clone(),
            carried: FxHashMap::default(),
        };
        let ranges = &choice.ranges;
        let mut band = ranges.bands.start;
        while band < ranges.bands.end {
            if band == ranges.in_loop.start && !ranges.in_loop.is_empty() {
                whole = self.write_loop(&mut place, whole);
                band = ranges.in_loop.end;
            } else {
                whole = self.band(&mut place, band, whole);
                band += 1;
            }
        }
        let bands = (ranges.bands.end - ranges.bands.start).to_string().into();
        self.module.instructions[whole].extras_mut().frontend_attributes.insert(ATTRIBUTE.into(), bands);
        whole
    }

    /// Adds the loop; returns the end of the segment after it.
    fn write_loop(&mut self, place: &mut Place, whole: InstructionId) -> InstructionId {
        let choice = self.choice;
        let ranges = &choice.ranges;
        let note = self.module.instructions[choice.to].metadata.clone();
        let entry = place.computation;
        let carried: Vec<InstructionId> =
            choice.in_text().map(|member| member.id).filter(|id| place.carried.contains_key(id)).collect();
        let inputs = self.inputs();
        let mut initial = vec![self.at(entry, &note).integer(ElementType::S32, 0), whole];
        initial.extend(carried.iter().map(|id| place.carried[id].0));
        initial.extend(inputs.iter().map(|id| place.outside.get(id).copied().unwrap_or(*id)));
        let state = Shape::tuple(initial.iter().map(|&id| self.module.shape(id).clone()).collect::<Vec<_>>());

        let [body, condition] = ["bands_body", "bands_condition"].map(|stem| self.computation(stem, entry));
        let mut at = self.at(body, &note);
        let parameter = at.parameter(state.clone());
        let elements = at.elements(parameter);
        let mut inner = Place {
            computation: body,
            counter: Some(elements[0]),
            outside: inputs.iter().copied().zip(elements[2 + carried.len()..].iter().copied()).collect(),
            carried: FxHashMap::default(),
        };
        for (id, &element) in carried.iter().zip(&elements[2..]) {
            inner.carried.insert(*id, (element, place.carried[id].1.clone()));
        }
        let written = self.band(&mut inner, ranges.in_loop.start, elements[1]);
        let mut at = self.at(body, &note);
        let one = at.integer(ElementType::S32, 1);
        let mut next = vec![at.binary(BinaryOp::Add, elements[0], one), written];
        next.extend(carried.iter().map(|id| inner.carried[id].0));
        next.extend(&elements[2 + carried.len()..]);
        let root = at.tuple(next);
        self.module.computations[body].root = root;

        let mut at = self.at(condition, &note);
        let parameter = at.parameter(state);
        let counter = at.get_tuple_element(parameter, 0);
        let n = at.integer(ElementType::S32, ranges.in_loop.end - ranges.in_loop.start);
        let root = at.compare(ComparisonDirection::Lt, counter, n);
        self.module.computations[condition].root = root;

        let mut at = self.at(entry, &note);
        let initial = at.tuple(initial);
        let last = at.while_loop(initial, condition, body);
        let elements = at.elements(last);
        for (id, &element) in carried.iter().zip(&elements[2..]) {
            place.carried.insert(*id, (element, ranges.carried(*id, ranges.in_loop.end)));
        }
        elements[1]
    }

    /// Writes the members on a band, and the rows of the end into it. Leaves the rows that the next band needs.
    fn band(&mut self, place: &mut Place, band: i64, whole: InstructionId) -> InstructionId {
        let choice = self.choice;
        let computed = choice.ranges.computed(&choice.members, band);
        let mut new: FxHashMap<InstructionId, Part> = FxHashMap::default();
        let mut known: FxHashMap<(InstructionId, Rows), InstructionId> = FxHashMap::default();
        for member in choice.in_text().filter(|member| !computed[&member.id].is_empty()) {
            let rows = computed[&member.id].clone();
            if let Some(padding) = self.padding_only(place, member, &rows) {
                new.insert(member.id, (padding, rows));
                continue;
            }
            let operands = self.module.instructions[member.id].operands.clone();
            let reaches = operands.iter().zip(&member.treatment.operands);
            let operands: Vec<InstructionId> = reaches
                .map(|(&operand, reach)| match reach {
                    None => self.outside(place, operand),
                    Some(reach) => {
                        let needed = choice.ranges.needed(operand, *reach, &rows);
                        let key = (operand, needed.clone());
                        if let Some(&known) = known.get(&key) {
                            return known;
                        }
                        let found = self.rows_of(place, &new, operand, reach.dimension, &needed);
                        known.insert(key, found);
                        found
                    }
                })
                .collect();
            new.insert(member.id, (self.copy(place, member, operands, &rows), rows));
        }
        let mut carried = FxHashMap::default();
        for member in choice.in_text() {
            let rows = choice.ranges.carried(member.id, band + 1);
            if !rows.is_empty() {
                let part = self.rows_of(place, &new, member.id, member.treatment.dimension, &rows);
                carried.insert(member.id, (part, rows));
            }
        }
        place.carried = carried;
        let Some((part, rows)) = new.remove(&choice.to) else { return whole };
        let dimension = choice.members[0].treatment.dimension;
        let note = self.note(choice.to);
        let starts = self.starts(place, choice.to, dimension, rows.start, &note);
        self.at(place.computation, &note).dynamic_update_slice(whole, part, starts)
    }

    /// A band of a padded array that has no row of the array itself.
    fn padding_only(&mut self, place: &mut Place, member: &Member, rows: &Rows) -> Option<InstructionId> {
        let instruction = &self.module.instructions[member.id];
        let reach = member.treatment.operands.first().copied().flatten()?;
        let needed = self.choice.ranges.needed(instruction.operands[0], reach, rows);
        if !matches!(instruction.op, Op::Pad { .. }) || !needed.is_empty() {
            return None;
        }
        let value = instruction.operands[1];
        let note = self.note(member.id);
        let shape = self.band_shape(member, rows);
        let value = self.outside(place, value);
        let mut at = self.at(place.computation, &note);
        Some(at.fill(value, shape))
    }

    /// The shape of a band of a member.
    fn band_shape(&self, member: &Member, rows: &Rows) -> Shape {
        let mut shape = self.module.shape(member.id).clone();
        let array = shape.as_array_mut().expect("members are arrays");
        array.dimensions[member.treatment.dimension] = rows.end - rows.start;
        shape
    }

    /// An instruction that computes a band of a member.
    fn copy(
        &mut self,
        place: &Place,
        member: &Member,
        operands: Vec<InstructionId>,
        rows: &Rows,
    ) -> InstructionId {
        let Member { id, treatment } = member;
        let note = self.note(*id);
        let shape = self.band_shape(member, rows);
        if matches!(self.module.instructions[*id].op, Op::Constant(_)) {
            return splat(&mut self.at(place.computation, &note), *id, shape);
        }
        let op = on_band(self.module, *id, treatment, rows);
        let new = self.at(place.computation, &note).copy_of(*id, operands);
        self.module.instructions[new].op = op;
        self.module.set_shape(new, shape);
        new
    }

    /// Rows of an array: of what this band and the one before have of it, or of the whole array.
    fn rows_of(
        &mut self,
        place: &mut Place,
        new: &FxHashMap<InstructionId, Part>,
        id: InstructionId,
        dimension: usize,
        rows: &Rows,
    ) -> InstructionId {
        let note = self.note(id);
        let is_member = self.choice.ranges.is_member(id);
        if !is_member {
            let whole = self.outside(place, id);
            return match place.counter {
                None => self.slice(place.computation, whole, dimension, rows, &note),
                Some(_) => {
                    let starts = self.starts(place, id, dimension, rows.start, &note);
                    let mut sizes =
                        self.module.plain_array(id).expect("rows are of arrays").dimensions.clone();
                    sizes[dimension] = rows.end - rows.start;
                    self.at(place.computation, &note).dynamic_slice(whole, starts, sizes)
                }
            };
        }
        let parts: Vec<Part> = place.carried.get(&id).into_iter().chain(new.get(&id)).cloned().collect();
        let pieces: Vec<InstructionId> = parts
            .into_iter()
            .filter_map(|(part, of)| {
                let common = rows.start.max(of.start) - of.start..rows.end.min(of.end) - of.start;
                (!common.is_empty()).then(|| self.slice(place.computation, part, dimension, &common, &note))
            })
            .collect();
        match pieces[..] {
            [piece] => piece,
            _ => self.at(place.computation, &note).concatenate(pieces, dimension as i64),
        }
    }

    /// Rows of an array by their numbers.
    fn slice(
        &mut self,
        computation: ComputationId,
        id: InstructionId,
        dimension: usize,
        rows: &Rows,
        note: &Note,
    ) -> InstructionId {
        let extents = self.module.plain_array(id).expect("rows are of arrays").dimensions.clone();
        if *rows == (0..extents[dimension]) {
            return id;
        }
        let whole = |(d, &extent): (usize, &i64)| match d == dimension {
            true => SliceDimension { start: rows.start, limit: rows.end, stride: 1 },
            false => SliceDimension { start: 0, limit: extent, stride: 1 },
        };
        self.at(computation, note).slice(id, extents.iter().enumerate().map(whole))
    }

    /// The first index of rows of an array, in every dimension: in a loop, they advance with the counter.
    fn starts(
        &mut self,
        place: &Place,
        id: InstructionId,
        dimension: usize,
        first: i64,
        note: &Note,
    ) -> Vec<InstructionId> {
        let rank = self.module.plain_array(id).expect("rows are of arrays").rank();
        let step = self.choice.ranges.step(id);
        let mut at = self.at(place.computation, note);
        let zero = at.integer(ElementType::S32, 0);
        let mut start = at.integer(ElementType::S32, first);
        if let Some(counter) = place.counter {
            let step = at.integer(ElementType::S32, step);
            let advance = at.binary(BinaryOp::Multiply, counter, step);
            start = at.binary(BinaryOp::Add, advance, start);
        }
        (0..rank).map(|d| if d == dimension { start } else { zero }).collect()
    }

    /// An array that the segment reads whole.
    fn outside(&mut self, place: &mut Place, id: InstructionId) -> InstructionId {
        if let Some(&known) = place.outside.get(&id) {
            return known;
        }
        if place.counter.is_none() {
            return id;
        }
        // Only numbers that are literals in the code are not in the state of the loop.
        let copy = self.at(place.computation, &None).copy_of(id, []);
        place.outside.insert(id, copy);
        copy
    }

    /// The arrays from outside that the loop is given.
    fn inputs(&self) -> Vec<InstructionId> {
        let mut inputs: Vec<InstructionId> = Vec::new();
        for member in self.choice.in_text() {
            for &operand in &self.module.instructions[member.id].operands {
                let is_literal = matches!(self.module.instructions[operand].op, Op::Constant(_))
                    && self.module.shape(operand).as_array().is_some_and(|array| array.rank() == 0);
                if !self.choice.ranges.is_member(operand) && !is_literal && !inputs.contains(&operand) {
                    inputs.push(operand);
                }
            }
        }
        inputs
    }

    fn computation(&mut self, stem: &str, beside: ComputationId) -> ComputationId {
        let computation = self.module.add_computation(self.names.fresh(stem));
        let thread = self.module.computations[beside].execution_thread.clone();
        self.module.computations[computation].execution_thread = thread;
        computation
    }

    fn note(&self, id: InstructionId) -> Note {
        self.module.instructions[id].metadata.clone()
    }

    fn at(&mut self, computation: ComputationId, note: &Note) -> Cursor<'_> {
        Cursor::end(self.module, self.names, computation).with_metadata(note.clone())
    }
}

/// The metadata of a new instruction.
type Note = Option<Arc<Metadata>>;
