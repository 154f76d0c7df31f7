//! Walks one computation, instruction by instruction.
//!
//! At first, only the parameters are known to be whole in their slices (and the constants in theirs). The walk tracks
//! the value in every byte in two tables: [`Contents`] for bytes, `names` for positions: the value that the program
//! defines there. A read is right if the bytes of the position's slice hold the position's value.
//!
//! The slice of a position does not depend on the caller of its computation, so the walk does not either: each
//! computation is walked once, callees first, and its [`Summary`] is used by all callers.

mod flight;
mod kernel;
mod memory;
mod passing;

use memplan_ir::{ComputationId, EntityRef, InstructionId, Op, PositionId, ShapeIndex};
use memplan_memory::Bytes;
use rustc_hash::FxHashMap;

pub(crate) use self::flight::Flight;
pub(crate) use self::passing::Passing;
use crate::Violation;
use crate::bytes::{Contents, Holder, InFlight, Written};
use crate::facts::{Facts, Report};
use crate::in_place::Memo;
use crate::join::is_joined_in_place;

/// Facts about a walked computation that its callers need.
#[derive(Default)]
pub(crate) struct Summary {
    /// All bytes that it writes, at any depth.
    pub(crate) written: Written,
}

/// State that outlives the walk of one computation.
pub(crate) struct Proving<'a> {
    pub(crate) facts: &'a Facts<'a>,
    pub(crate) report: &'a mut Report,
    pub(crate) memo: Memo,
    /// The value of each position.
    pub(crate) names: Vec<Holder>,
    /// Whether anything reads the value defined at a position. Callers ask it of parameters.
    pub(crate) is_read: Vec<bool>,
    pub(crate) summaries: FxHashMap<ComputationId, Summary>,
    /// The constant that a parameter without memory always is.
    pub(crate) immediates: FxHashMap<PositionId, PositionId>,
    /// Pieces of written memory that may still be looked at on behalf of called computations.
    pub(crate) fuel: usize,
    /// Reads that were proved.
    pub(crate) reads: usize,
    /// Writes that were followed.
    pub(crate) writes: usize,
}

/// The state of the walk of one computation.
pub(crate) struct Walk<'p, 'a> {
    pub(crate) proving: &'p mut Proving<'a>,
    pub(crate) contents: Contents,
    pub(crate) written: Written,
    pub(crate) in_flight: InFlight,
    /// Operations in flight by the name of their tuple.
    pub(crate) flights: FxHashMap<PositionId, Flight>,
}

/// Walks a computation whose callees have been walked.
pub(crate) fn walk(proving: &mut Proving<'_>, computation: ComputationId) -> Summary {
    let facts = proving.facts;
    let mut walk = Walk {
        proving,
        contents: Contents::default(),
        written: Written::default(),
        in_flight: InFlight::default(),
        flights: FxHashMap::default(),
    };
    walk.enter(computation);
    for &id in facts.schedule.sequence(computation) {
        if facts.module.instructions.is_valid(id) && facts.module.instructions[id].parent == computation {
            walk.step(id);
        }
    }
    walk.leave(computation);
    Summary { written: walk.written }
}

impl<'a> Walk<'_, 'a> {
    pub(crate) fn facts(&self) -> &'a Facts<'a> {
        self.proving.facts
    }

    /// Parameters are whole when a computation begins.
    fn enter(&mut self, computation: ComputationId) {
        let facts = self.facts();
        let is_entry = computation == facts.module.entry;
        for &parameter in &facts.module.computations[computation].parameters {
            for (position, part) in facts.parts_of(parameter) {
                let own = Holder::Value(position);
                let name = match facts.slice(position) {
                    None if part.size > 0 && is_entry => {
                        self.violation(Violation::Unplaced {
                            at: facts.place(position),
                            size: Bytes(part.size),
                        });
                        own
                    }
                    // Callers have to pass an immediate then.
                    None if part.size > 0 && !part.is_tuple => Holder::Embedded(position),
                    None => own,
                    Some(slice) if part.is_tuple => {
                        self.contents.write(&slice, facts.table(position));
                        own
                    }
                    Some(slice) if facts.holds_constants(slice.allocation) => {
                        facts.constant_at(&slice).map_or(own, Holder::Value)
                    }
                    Some(slice) => match self.contents.first(&slice) {
                        // Parameters in one slice are one value.
                        Holder::Value(other) if facts.slice(other) == Some(slice) => Holder::Value(other),
                        _ => {
                            self.contents.write(&slice, own);
                            own
                        }
                    },
                };
                self.set_name(position, name);
            }
        }
    }

    /// The result must be whole when a computation ends, and nothing of its own in flight.
    fn leave(&mut self, computation: ComputationId) {
        let facts = self.facts();
        let root = facts.module.computations[computation].root;
        let is_entry = computation == facts.module.entry;
        // Operations in flight in the result are the caller's to end.
        for position in facts.positions.of(root) {
            if !is_entry
                && let Holder::Value(name) = self.name(position)
                && let Some(flight) = self.flights.remove(&name)
            {
                self.land(&flight);
            }
        }
        for (position, part) in facts.parts_of(root) {
            if facts.slice(position).is_none() && part.size > 0 && is_entry {
                // Callers cannot look for results in code.
                self.violation(Violation::Unplaced { at: facts.place(position), size: Bytes(part.size) });
            }
            match is_entry {
                true => self.expect_result(position),
                false => _ = self.expect(root, position),
            }
            if let Holder::Value(name) = self.name(position) {
                self.flights.remove(&name);
            }
        }
        if is_entry {
            self.expect_residents();
        }
        let mut starts: Vec<InstructionId> = self.flights.values().map(|flight| flight.start).collect();
        starts.sort_unstable();
        for start in starts {
            self.violation(Violation::NeverDone { start: facts.place_of(start) });
        }
    }

    fn step(&mut self, id: InstructionId) {
        let facts = self.facts();
        let instruction = &facts.module.instructions[id];
        let operand = |i: usize| instruction.operands.get(i).map(|&o| facts.positions.root(o));
        let whole = facts.positions.root(id);
        match &instruction.op {
            Op::Parameter { .. } => {}
            Op::Constant(_) => self.constant(id),
            Op::Bitcast => self.pass_from(id, whole, operand(0), Passing::Bitcast),
            Op::AddDependency | Op::OptimizationBarrier | Op::Domain(_) => {
                self.pass_from(id, whole, operand(0), Passing::Whole);
            }
            Op::GetTupleElement { index } => {
                let tuple = instruction.operands.first().copied();
                let element = tuple.and_then(|t| facts.positions.find(t, &ShapeIndex::from([*index])));
                self.read_table(id, operand(0));
                self.pass_from(id, whole, element, Passing::Whole);
            }
            Op::Tuple => {
                for i in 0..instruction.operands.len() {
                    let element = facts.positions.find(id, &ShapeIndex::from([i as u32]));
                    self.pass_from(id, element.unwrap_or(whole), operand(i), Passing::Whole);
                }
                self.write_table(id, whole);
            }
            // A tuple is copied by its table; its elements stay in place.
            Op::Copy if facts.part(whole).is_tuple => {
                self.read_table(id, operand(0));
                self.pass_from(id, whole, operand(0), Passing::OwnTables);
            }
            Op::While => self.run_while(id),
            Op::Conditional => self.run_conditional(id),
            Op::Call { .. } => self.run_call(id),
            Op::AsyncStart(_) => self.start_call(id),
            Op::CopyStart { cross_program_prefetch_index: Some(_) }
                if instruction.parent == facts.module.entry =>
            {
                self.expect_untouched(id);
                self.compute(id, true);
            }
            Op::CopyStart { .. }
            | Op::Send(_)
            | Op::Recv(_)
            | Op::AllGatherStart(_)
            | Op::AllReduceStart(_)
            | Op::CollectivePermuteStart(_) => self.compute(id, true),
            Op::AsyncUpdate(_) => {
                let flight = self.name_of(operand(0)).and_then(|name| self.flights.remove(&name));
                self.read_table(id, operand(0));
                self.pass_from(id, whole, operand(0), Passing::OwnTables);
                self.set_name(whole, Holder::Value(whole));
                if let Some(flight) = flight {
                    self.flights.insert(whole, flight);
                }
            }
            Op::CopyDone
            | Op::SendDone(_)
            | Op::RecvDone(_)
            | Op::AllGatherDone(_)
            | Op::AllReduceDone(_)
            | Op::CollectivePermuteDone(_)
            | Op::AsyncDone(_) => self.done(id),
            _ if is_joined_in_place(facts, id) => self.join(id),
            _ => self.compute(id, false),
        }
        if crate::structure::runs_callees(&instruction.op) {
            for slice in facts.scratch(id) {
                self.write(id, &slice, Holder::Scratch(id));
            }
        }
    }

    /// Operands that are all the bytes of the result get its name.
    fn join(&mut self, id: InstructionId) {
        let facts = self.facts();
        for &operand in &facts.module.instructions[id].operands {
            self.expect(id, facts.positions.root(operand));
        }
        let whole = facts.positions.root(id);
        self.set_name(whole, Holder::Value(whole));
        if let Some(slice) = facts.slice(whole) {
            self.write(id, &slice, Holder::Value(whole));
        }
    }

    /// A constant is an immediate, or in memory that nobody writes.
    fn constant(&mut self, id: InstructionId) {
        let facts = self.facts();
        let shape = facts.module.shape(id);
        let is_embedded =
            !shape.is_tuple() && facts.target.unpadded_size_of(shape) <= facts.target.embedded_constant_bytes;
        for (position, part) in facts.parts_of(id) {
            let name = match facts.slice(position) {
                Some(slice) => Holder::Value(facts.constant_at(&slice).unwrap_or(position)),
                None if part.size == 0 => Holder::Value(position),
                None => {
                    if !is_embedded {
                        self.violation(Violation::Unplaced {
                            at: facts.place(position),
                            size: Bytes(part.size),
                        });
                    }
                    Holder::Embedded(position)
                }
            };
            self.set_name(position, name);
        }
    }

    pub(crate) fn name(&self, position: PositionId) -> Holder {
        self.proving.names[position.index()]
    }

    pub(crate) fn set_name(&mut self, position: PositionId, name: Holder) {
        self.proving.names[position.index()] = name;
    }

    /// The position at which the value of a position was defined.
    fn name_of(&self, position: Option<PositionId>) -> Option<PositionId> {
        match self.name(position?) {
            Holder::Value(definition) => Some(definition),
            _ => None,
        }
    }

    pub(crate) fn malformed(&mut self, id: InstructionId, reason: &'static str) {
        let at = self.facts().place_of(id);
        self.violation(Violation::Malformed { at, reason });
    }

    pub(crate) fn violation(&mut self, violation: Violation) {
        self.proving.report.add(violation);
    }
}
