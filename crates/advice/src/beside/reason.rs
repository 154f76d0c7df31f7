//! Why a value is in memory on one side only, or takes more bytes there.

use memplan_analysis::Time;
use memplan_ir::{Access, ArrayShape, InstructionId, Opcode, Shape};
use memplan_memory::Bytes;
use serde::Serialize;
use strum::IntoStaticStr;

use super::Instant;
use super::lone::Lone;
use super::side::{Operations, Side, Stored};

/// What an estimate and a compiler can decide differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, IntoStaticStr)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum CauseKind {
    /// A value has another order of dimensions in memory, or one side transposes or copies it into another layout.
    Layout,
    /// One side stores a value that the other computes inside a kernel and never stores.
    Fusion,
    /// One side writes a result over its operand, the other gives it memory of its own.
    InPlace,
    /// One side copies a value.
    Copy,
    /// One side pads a value: with an operation, or with the tiles of its layout.
    Padding,
    /// One side computes a value again for its later readers, as `jax.checkpoint` asks for, where the other keeps it.
    Recomputation,
    /// One side has a value in another memory.
    Memory,
    /// One side computes an operation of the program by other operations, and stores what is between them.
    Expansion,
    /// A value has another element type, or one side converts it and stores the result.
    ElementType,
    /// Both sides compute the same values, but hold them at other times.
    Order,
    /// One side merges products, or splits one.
    Products,
    /// A library's kernel needs memory of its own.
    Workspace,
    /// One side does without an operation of the program.
    Algebra,
    /// Memory for temporaries is unused at the peak.
    Packing,
    /// Memory of arguments and results is unused at the peak: results that are not written yet.
    Results,
    /// Memory for the program itself.
    Code,
    /// No reason is found.
    Unexplained,
}

/// Why something differs.
#[derive(Clone, Debug)]
pub(super) struct Reason {
    pub(super) kind: CauseKind,
    /// In words.
    pub(super) why: String,
    /// The last instruction that reads the value on the other side, where it has run by the compared instant.
    pub(super) last_reader: Option<InstructionId>,
}

impl Reason {
    pub(super) fn new(kind: CauseKind, why: String) -> Reason {
        Reason { kind, why, last_reader: None }
    }
}

/// The sides: the estimate's plan, and the compiler's.
pub(super) const NAMES: [&str; 2] = ["the estimate", "XLA"];

/// The two plans, each at the instant that is compared.
pub(super) struct At<'c> {
    pub(super) sides: &'c [Side<'c>; 2],
    pub(super) times: [Time; 2],
    /// The operations of the program as it was given to both.
    pub(super) program: &'c Operations,
}

impl At<'_> {
    /// Why only one side has a value in memory.
    pub(super) fn alone(&self, side: usize, stored: Stored) -> Reason {
        let lone = Lone::new(self, side, stored);
        lone.workspace()
            .or_else(|| lone.in_place_there())
            .or_else(|| lone.in_place_of_operand())
            .or_else(|| lone.overwritten_there())
            .or_else(|| lone.in_another_memory())
            .or_else(|| lone.computed_again())
            .or_else(|| lone.inside_a_kernel())
            .or_else(|| lone.at_another_time())
            .or_else(|| lone.padded())
            .or_else(|| lone.moved())
            .or_else(|| lone.product())
            .unwrap_or_else(|| lone.of_other_operations())
    }

    /// Why a value takes more bytes on one side.
    pub(super) fn resized(&self, ours: Stored, theirs: Stored) -> Reason {
        let (a, b) = (self.sides[0].array(ours), self.sides[1].array(theirs));
        let (Some(a), Some(b)) = (a, b) else {
            return Reason::new(CauseKind::Unexplained, "the tables have other sizes".to_string());
        };
        let text = |array: &ArrayShape| memplan_hlo::shape_text(&Shape::Array(array.clone()));
        let both = format!("{} in {}, {} in {}", text(b), NAMES[1], text(a), NAMES[0]);
        let is_product = |side: usize, stored| is_product(self.sides[side].computed_by(stored));
        let kind = if a.element_type != b.element_type {
            CauseKind::ElementType
        } else if a.element_count() == b.element_count() {
            match a.minor_to_major() == b.minor_to_major() && a.dimensions == b.dimensions {
                true => CauseKind::Padding,
                false => CauseKind::Layout,
            }
        } else if is_product(0, ours) && is_product(1, theirs) {
            CauseKind::Products
        } else {
            CauseKind::Expansion
        };
        Reason::new(kind, both)
    }

    /// Bytes that are live at the peak of each side.
    pub(super) fn peaks(&self) -> [Bytes; 2] {
        self.sides.each_ref().map(|side| side.bytes_at(side.peak()))
    }

    /// The instant of a side.
    pub(super) fn instant(&self, side: usize) -> Instant {
        let (of, time) = (&self.sides[side], self.times[side]);
        let (bytes, peak) = (of.bytes_at(time), self.peaks()[side]);
        Instant { instruction: of.name(of.at(time)).to_string(), bytes, peak, is_peak: bytes == peak }
    }
}

/// Whether an operation multiplies arrays; libraries do so by custom calls.
pub(super) fn is_product(opcode: Opcode) -> bool {
    opcode.traits().access == Access::Contraction || opcode == Opcode::CustomCall
}
