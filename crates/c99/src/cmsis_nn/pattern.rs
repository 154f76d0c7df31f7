//! Patterns of instructions, and the search for one in a fusion.
//!
//! Broadcasts, and conversions to wider integers, may be anywhere: they change no number. A pattern matches from the result
//! to the operands, and notes which instruction each of its parts is.

use memplan_ir::{
    ArrayShape, BinaryOp, ComparisonDirection, ElementType, InstructionId, Literal, Module, Op, UnaryOp,
};

/// A part of a fusion that a kernel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// What is added up: a convolution, a product or a reduction.
    Sum,
    /// Numbers from memory, one for each channel or one for all.
    Bias,
    Multiplier,
    Shift,
    /// Constants of the program.
    Count,
    Half,
}

/// How many there are.
const PARTS: usize = Part::Half as usize + 1;

/// What an instruction computes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pattern {
    Part(Part),
    /// A constant.
    Integer(i64),
    Unary(UnaryOp, &'static Pattern),
    Binary(BinaryOp, &'static Pattern, &'static Pattern),
    /// Whether the first is less than the second.
    Less(&'static Pattern, &'static Pattern),
    /// As an `s64`.
    Wide(&'static Pattern),
    /// An `s64`, perhaps as an `s32`, which can hold it.
    Narrow(&'static Pattern),
}

/// The instructions of a kernel: those of a fusion, or one alone.
pub(super) struct Instructions<'m> {
    pub(super) module: &'m Module,
    /// The one that makes the result.
    pub(super) root: InstructionId,
    /// The kernel's operands, as these instructions name them.
    operands: Vec<InstructionId>,
}

/// Where a kernel's function finds an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The kernel's operand of that number.
    Operand(usize),
    /// A constant within the kernel.
    Constant(InstructionId),
    /// The kernel's result.
    Result,
}

impl<'m> Instructions<'m> {
    /// Those of an instruction that makes one array of arrays.
    pub(super) fn of(module: &'m Module, id: InstructionId) -> Option<Instructions<'m>> {
        let instruction = &module.instructions[id];
        let (root, operands) = match instruction.op {
            Op::Fusion(_) => {
                let fused = &module.computations[instruction.called[0]];
                (fused.root, fused.parameters.to_vec())
            }
            _ => (id, instruction.operands.to_vec()),
        };
        let are_arrays = operands.iter().chain([&id]).all(|&id| module.shape(id).as_array().is_some());
        are_arrays.then_some(Instructions { module, root, operands })
    }

    pub(super) fn op(&self, id: InstructionId) -> &'m Op {
        &self.module.instructions[id].op
    }

    pub(super) fn operand(&self, id: InstructionId, k: usize) -> InstructionId {
        self.module.instructions[id].operands[k]
    }

    pub(super) fn shape(&self, id: InstructionId) -> Option<&'m ArrayShape> {
        self.module.shape(id).as_array().filter(|shape| !shape.is_dynamic())
    }

    /// Where an instruction's array is, if the kernel gets it.
    pub(super) fn source(&self, id: InstructionId) -> Option<Source> {
        match (self.operands.iter().position(|&operand| operand == id), self.op(id)) {
            (Some(k), _) => Some(Source::Operand(k)),
            (None, Op::Constant(_)) => Some(Source::Constant(id)),
            _ => None,
        }
    }

    /// The only number of a constant, also where it is broadcast.
    pub(super) fn integer(&self, id: InstructionId) -> Option<i64> {
        match self.op(id) {
            Op::Constant(Literal::Array(array)) => array.as_integer(),
            Op::Broadcast { .. } => self.integer(self.operand(id, 0)),
            _ => None,
        }
    }

    /// Through conversions to wider integers.
    pub(super) fn narrow(&self, id: InstructionId) -> InstructionId {
        match self.op(id) {
            Op::Convert if self.is_widened(id) => self.narrow(self.operand(id, 0)),
            _ => id,
        }
    }

    fn is_widened(&self, id: InstructionId) -> bool {
        let type_of = |id| self.shape(id).map(|shape| shape.element_type);
        let is_integer = |t: ElementType| t.is_signed() || t == ElementType::Pred;
        match (type_of(self.operand(id, 0)), type_of(id)) {
            (Some(from), Some(to)) => is_integer(from) && to.is_signed() && from.bits() <= to.bits(),
            _ => false,
        }
    }
}

/// A place in the instructions: which dimension of an array is that of the channels.
#[derive(Clone, Copy)]
struct Place {
    id: InstructionId,
    channel: Option<usize>,
}

/// A search for a pattern, with the instructions that match its parts.
pub(super) struct Search<'s, 'm> {
    of: &'s Instructions<'m>,
    /// The extents of the whole result, whose last dimension is that of the channels.
    extents: &'m [i64],
    parts: [Option<InstructionId>; PARTS],
}

impl<'s, 'm> Search<'s, 'm> {
    /// Whether an instruction computes a pattern, each channel with numbers of its own.
    pub(super) fn find(
        of: &'s Instructions<'m>,
        pattern: &Pattern,
        id: InstructionId,
    ) -> Option<Search<'s, 'm>> {
        let extents = &*of.shape(id)?.dimensions;
        let mut search = Search { of, extents, parts: [None; PARTS] };
        let channel = extents.len().checked_sub(1)?;
        search.matches(pattern, Place { id, channel: Some(channel) }).then_some(search)
    }

    /// The instruction that is a part of the pattern.
    pub(super) fn part(&self, part: Part) -> InstructionId {
        self.parts[part as usize].expect("a pattern that matches has all its parts")
    }

    fn channels(&self) -> i64 {
        self.extents[self.extents.len() - 1]
    }

    fn matches(&mut self, pattern: &Pattern, at: Place) -> bool {
        let of = self.of;
        let at = self.plain(at);
        let Some(shape) = of.shape(at.id) else { return false };
        let operand = |k| Place { id: of.operand(at.id, k), channel: at.channel };
        match (*pattern, of.op(at.id)) {
            (Pattern::Part(part), _) => self.is_part(part, at, shape),
            (Pattern::Integer(n), _) => of.integer(at.id) == Some(n),
            (Pattern::Unary(op, x), Op::Unary(found)) => op == *found && self.matches(x, operand(0)),
            (Pattern::Binary(op, x, y), Op::Binary(found)) => {
                op == *found
                    && (self.both((x, operand(0)), (y, operand(1)))
                        || op.is_commutative() && self.both((x, operand(1)), (y, operand(0))))
            }
            (Pattern::Less(x, y), Op::Compare { direction, .. }) => match direction {
                ComparisonDirection::Lt => self.both((x, operand(0)), (y, operand(1))),
                ComparisonDirection::Gt => self.both((x, operand(1)), (y, operand(0))),
                _ => false,
            },
            (Pattern::Wide(x), _) => shape.element_type == ElementType::S64 && self.matches(x, at),
            (Pattern::Narrow(x), op) => {
                let is_narrowed = *op == Op::Convert && shape.element_type == ElementType::S32;
                self.matches(x, if is_narrowed { operand(0) } else { at })
            }
            _ => false,
        }
    }

    /// Whether two patterns match together; nothing is noted if they do not.
    fn both(&mut self, x: (&Pattern, Place), y: (&Pattern, Place)) -> bool {
        let before = self.parts;
        let do_match = self.matches(x.0, x.1) && self.matches(y.0, y.1);
        if !do_match {
            self.parts = before;
        }
        do_match
    }

    fn is_part(&mut self, part: Part, at: Place, shape: &ArrayShape) -> bool {
        let is_here = match part {
            Part::Sum => *shape.dimensions == *self.extents && shape.element_type == ElementType::S32,
            Part::Count | Part::Half => self.of.integer(at.id).is_some(),
            _ => {
                let n = shape.dimensions.iter().product::<i64>();
                let is_along = at.channel.is_some_and(|d| shape.dimensions[d] == n) && n == self.channels();
                let is_given = self.of.source(at.id).is_some();
                is_given && shape.element_type == ElementType::S32 && (n == 1 || is_along)
            }
        };
        let known = &mut self.parts[part as usize];
        is_here && *known.get_or_insert(at.id) == at.id
    }

    /// Through what changes no number.
    fn plain(&self, mut at: Place) -> Place {
        loop {
            let Some(shape) = self.of.shape(at.id) else { return at };
            let channel = match self.of.op(at.id) {
                Op::Broadcast { dimensions } if dimensions.is_sorted() => {
                    dimensions.iter().position(|&d| at.channel == Some(d as usize))
                }
                // Of one row of channels: the only dimension that is longer than 1 stays that.
                Op::Reshape { .. } | Op::Bitcast => {
                    let n = shape.dimensions.iter().product::<i64>();
                    let is_row = n == 1 || at.channel.is_some_and(|d| shape.dimensions[d] == n);
                    let operand = self.of.shape(self.of.operand(at.id, 0));
                    let Some(operand) = operand.filter(|it| is_row && it.element_type == shape.element_type)
                    else {
                        return at;
                    };
                    operand.dimensions.iter().position(|&extent| extent == n)
                }
                Op::Convert if self.of.is_widened(at.id) => at.channel,
                _ => return at,
            };
            at = Place { id: self.of.operand(at.id, 0), channel };
        }
    }
}
