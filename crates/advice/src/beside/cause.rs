//! Why a value is in memory on one side and not on the other, or takes other bytes there.

use memplan_analysis::{Time, ValueId, folded_operation, operation};
use memplan_ir::{ArrayShape, ElementType, InstructionId, Opcode, Shape};
use serde::Serialize;
use strum::IntoStaticStr;

use super::origin::Move;
use super::side::{Made, Operations, Side, Stored};
use crate::explain::why_copied;

/// What two compilers, or a compiler and what is expected of it, may decide otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, IntoStaticStr)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum CauseKind {
    /// The same value has another order of its bytes, or another padding; or a value is turned into another order.
    Layout,
    /// One side stores a value that the other computes within a kernel.
    Fusion,
    /// One side writes a result over an operand, the other beside it.
    InPlace,
    /// One side copies a value.
    Copy,
    /// One side has a value in another memory.
    Memory,
    /// An operation of the program became other operations.
    Expansion,
    /// The same value has another element type.
    ElementType,
    /// The same values are in memory at other times.
    Order,
    /// Products were merged, or one was split.
    Products,
    /// What a library has for itself.
    Workspace,
    /// One side found that an operation is not needed.
    Algebra,
    /// Memory of the arena that holds nothing at the peak.
    Packing,
    /// Memory of arguments and results that holds nothing at the peak: results that are not written yet, and have memory of
    /// their own.
    Results,
    /// Memory for the program itself.
    Code,
    /// None of these is found.
    Unexplained,
}

/// Why something differs.
#[derive(Clone, Debug)]
pub(super) struct Reason {
    pub(super) kind: CauseKind,
    /// In words.
    pub(super) why: String,
    /// What needs the value last on the other side, if that is over there.
    pub(super) last_reader: Option<InstructionId>,
}

impl Reason {
    fn new(kind: CauseKind, why: String) -> Reason {
        Reason { kind, why, last_reader: None }
    }
}

/// Whose plan: that of what is expected, and that of the compiler.
pub(super) const NAMES: [&str; 2] = ["the estimate", "XLA"];

/// The plans of a program, each at an instant.
pub(super) struct At<'c> {
    pub(super) sides: &'c [Side<'c>; 2],
    pub(super) times: [Time; 2],
    /// What the operations of the program are.
    pub(super) program: &'c Operations,
}

impl At<'_> {
    /// Why one side has a value in memory, where the other has none like it.
    pub(super) fn alone(&self, side: usize, stored: Stored) -> Reason {
        let (here, there) = (&self.sides[side], &self.sides[1 - side]);
        let (me, it) = (NAMES[side], NAMES[1 - side]);
        let described = here.described(stored);
        let array = self.array(side, stored);
        if is_workspace(here, stored, array) {
            return Reason::new(CauseKind::Workspace, format!("{me} gives a library memory of its own"));
        }
        let alike = there.stored(&described.holder);
        if let Some(shared) = alike.iter().find(|other| self.is_live(1 - side, **other)) {
            let others = there.sharing(shared.lifetime, self.times[1 - side]);
            let over = others.filter(|&value| value != shared.value).map(|value| there.position(value));
            if let Some(over) = over.last() {
                let over = there.name(over.instruction);
                return Reason::new(CauseKind::InPlace, format!("{it} has it in one place with `{over}`"));
            }
        }
        if let Some(operand) = self.operand_beside(side, stored)
            && alike.iter().any(|&other| self.is_over_another(1 - side, other))
        {
            let operand = here.subject.name_at(&here.position(operand));
            let what = format!("{me} writes it beside its operand `{operand}`, {it} over it");
            return Reason::new(CauseKind::InPlace, what);
        }
        let n_here = here.stored(&described.holder).len();
        if let Some((other, memory)) = there.elsewhere(&described.holder).filter(|_| n_here > alike.len()) {
            return Reason::new(CauseKind::Memory, format!("{it} has it in {memory}, as `{other}`"));
        }
        let name = &described.origin.name;
        let elements = array.and_then(ArrayShape::element_count);
        let made_by = described.origin.stacked_by.as_ref().unwrap_or(name);
        let within = there.made.of(made_by).iter().filter(|made| Some(made.elements) == elements);
        let within: Vec<&Made> = within.filter(|made| made.kernel.is_some()).collect();
        let is_made = described.origin.stacked_by.is_some() || described.origin.prefix().is_empty();
        if is_made && n_here > alike.len() && within.len() > alike.len() {
            let kernel = within.last().and_then(|made| made.kernel).map_or("", |kernel| there.name(kernel));
            return Reason::new(CauseKind::Fusion, format!("{it} computes it within `{kernel}`"));
        }
        if let Some(other) = alike.iter().find(|other| !self.is_live(1 - side, **other)).or(alike.last()) {
            return self.when(1 - side, *other);
        }
        let reader = self.reader(side, stored);
        if described.origin.is_padded {
            let what = format!("{me} pads it in memory for `{reader}`, {it} does not");
            return Reason::new(CauseKind::Expansion, what);
        }
        if let Some((how, from)) = described.origin.moved {
            return self.moved(side, stored, how, from);
        }
        let computes = &here.subject.module.instructions[described.origin.computes].op;
        if is_product(computes.opcode())
            && let Some(other) = there.made.of(name).iter().find(|made| is_product(made.opcode))
        {
            let what = "products are merged, cut in parts or padded";
            return Reason::new(CauseKind::Products, format!("{what}: {it} has {} elements each", other.elements));
        }
        if described.origin.stacked_by.is_some() {
            return Reason::new(CauseKind::Unexplained, format!("{it} keeps no such stack"));
        }
        // What a compiler has put there is part of what it is for.
        let of = if described.origin.is_named { name } else { &reader };
        let given = self.program.of_any(of);
        let is_same = |made: &Made| Some(made.elements) == elements && made.opcode == computes.opcode();
        match given.first() {
            _ if given.iter().any(is_same) => {
                Reason::new(CauseKind::Algebra, format!("{it} does without this {}", computes.opcode()))
            }
            Some(first) => {
                let what = format!("`{of}` (a {} in the program)", first.opcode);
                let became = format!("became other operations, one of them this {}", computes.opcode());
                Reason::new(CauseKind::Expansion, format!("{what} {became}"))
            }
            None => Reason::new(CauseKind::Unexplained, format!("{it} has no {} like it", computes.opcode())),
        }
    }

    /// The operation that needs a value last.
    fn reader(&self, side: usize, stored: Stored) -> String {
        let here = &self.sides[side];
        let end = here.subject.planned.facts.live.of(stored.value).end;
        let reader = here.at(end.saturating_sub(1));
        match operation(here.subject.module, reader) {
            "" => here.name(reader).to_string(),
            name => folded_operation(name),
        }
    }

    /// Why a value takes other bytes than its partner on the other side.
    pub(super) fn resized(&self, ours: Stored, theirs: Stored) -> Reason {
        let (a, b) = (self.array(0, ours), self.array(1, theirs));
        let (Some(a), Some(b)) = (a, b) else {
            return Reason::new(CauseKind::Unexplained, "other tables".to_string());
        };
        let text = |array: &ArrayShape| memplan_hlo::shape_text(&Shape::Array(array.clone()));
        let both = format!("{} in {}, {} in {}", text(b), NAMES[1], text(a), NAMES[0]);
        let op = |side: usize, stored| {
            let origin = &self.sides[side].described(stored).origin;
            self.sides[side].subject.module.instructions[origin.computes].op.opcode()
        };
        let kind = if a.element_type != b.element_type {
            CauseKind::ElementType
        } else if a.element_count() == b.element_count() {
            CauseKind::Layout
        } else if is_product(op(0, ours)) && is_product(op(1, theirs)) {
            CauseKind::Products
        } else {
            CauseKind::Expansion
        };
        Reason::new(kind, both)
    }

    /// Why a value is moved.
    fn moved(&self, side: usize, stored: Stored, how: Move, from: InstructionId) -> Reason {
        let (here, me) = (&self.sides[side], NAMES[side]);
        let copy = here.position(stored.value).instruction;
        let of = here.name(from);
        match how {
            Move::Copied => {
                let why = why_copied(&here.subject, copy).map_or_else(String::new, |why| format!(": {why}"));
                Reason::new(CauseKind::Copy, format!("{me} copies `{of}`{why}"))
            }
            Move::Turned => {
                let reader = self.reader(side, stored);
                Reason::new(CauseKind::Layout, format!("{me} turns `{of}` into another order for `{reader}`"))
            }
            Move::Converted => {
                Reason::new(CauseKind::ElementType, format!("{me} has `{of}` in another type, too"))
            }
        }
    }

    /// When a value is in memory that is not at the instant.
    fn when(&self, side: usize, stored: Stored) -> Reason {
        let (here, me) = (&self.sides[side], NAMES[side]);
        let live = here.subject.planned.facts.live.of(stored.value);
        if live.end <= self.times[side] {
            let reader = here.at(live.end.saturating_sub(1));
            let why = format!("{me} needs it last for `{}`, before", here.name(reader));
            return Reason { last_reader: Some(reader), ..Reason::new(CauseKind::Order, why) };
        }
        let why = match live.start > self.times[side] {
            true => format!("{me} makes it later, by `{}`", here.name(here.at(live.start))),
            false => format!("{me} has fewer of them at a time"),
        };
        Reason::new(CauseKind::Order, why)
    }

    /// An operand that a value could be written over: as large, and not needed afterwards.
    fn operand_beside(&self, side: usize, stored: Stored) -> Option<ValueId> {
        let here = &self.sides[side];
        let facts = &here.subject.planned.facts;
        let start = facts.live.of(stored.value).start;
        let maker = &here.subject.module.instructions[here.position(stored.value).instruction];
        let bytes = here.lifetime(stored).slice.size;
        maker.operands.iter().filter_map(|&operand| facts.flow.value_of(operand)).find(|&operand| {
            let slice = here.subject.planned.plan.slices.get(&here.position(operand));
            facts.live.of(operand).end == start + 1 && slice.is_some_and(|slice| slice.size == bytes)
        })
    }

    /// Whether a value is written over another one that ends there.
    fn is_over_another(&self, side: usize, stored: Stored) -> bool {
        let live = &self.sides[side].subject.planned.facts.live;
        let start = live.of(stored.value).start;
        let mut others = self.sides[side].sharing(stored.lifetime, start);
        others.any(|other| other != stored.value && live.of(other).end == start + 1)
    }

    fn is_live(&self, side: usize, stored: Stored) -> bool {
        self.sides[side].subject.planned.facts.live.of(stored.value).is_live_at(self.times[side])
    }

    fn array(&self, side: usize, stored: Stored) -> Option<&ArrayShape> {
        let here = &self.sides[side];
        let position = here.position(stored.value);
        here.subject.module.shape(position.instruction).subshape(&position.index)?.as_array()
    }
}

/// Whether bytes are a result of a kernel that nobody reads.
fn is_workspace(side: &Side<'_>, stored: Stored, array: Option<&ArrayShape>) -> bool {
    let position = side.position(stored.value);
    let is_bytes = array.is_some_and(|array| {
        matches!(array.element_type, ElementType::U8 | ElementType::S8) && array.rank() == 1
    });
    let opcode = side.subject.module.instructions[position.instruction].op.opcode();
    is_bytes && !position.index.is_root() && matches!(opcode, Opcode::CustomCall | Opcode::Fusion)
}

fn is_product(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Dot | Opcode::RaggedDot | Opcode::ScaledDot | Opcode::Convolution | Opcode::CustomCall
    )
}
