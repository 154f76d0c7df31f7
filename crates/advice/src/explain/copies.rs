//! The reason for each copy.
//!
//! A copy exists because two values would have to share bytes and cannot, or because bytes have to be in another order or
//! in another memory. For copies that memplan inserts, copy insertion records the reason. For copies that came with the
//! program, as in modules that another compiler has scheduled, the reason is found from the users: which instruction
//! overwrites the copy, and which still needs the original.

use memplan_analysis::{ValueId, ValueKind, operation};
use memplan_ir::{InstructionId, Op, PositionId, Shape};
use memplan_memory::Bytes;
use memplan_passes::{Conflict, InsertedCopy, MustShare};
use memplan_plan_hlo::ProgramCost;
use serde::Serialize;
use strum::IntoStaticStr;

use super::Subject;

/// A copy, and why it is there.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CopyNote {
    /// The copy.
    pub instruction: String,
    /// Its computation.
    pub computation: String,
    /// What is copied.
    pub of: String,
    /// Bytes of the copy.
    pub bytes: Bytes,
    /// How often it runs in one run of the program, by the cost model.
    pub runs: f64,
    /// The framework's operation that it belongs to; empty where nothing is said.
    pub operation: String,
    /// The line of the user's program.
    pub source: Option<String>,
    /// The kind of reason.
    pub cause: CopyCause,
    /// The reason, in words.
    pub why: String,
}

/// Why a copy is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, IntoStaticStr)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum CopyCause {
    /// The bytes have to be in another order.
    Layout,
    /// The bytes have to be in another memory.
    Memory,
    /// It would be overwritten, but belongs to the caller, who does not give it up.
    KeptByCaller,
    /// It would be overwritten, but is constant data.
    Constant,
    /// It would be overwritten, but is read later.
    ReadLater,
    /// One value is wanted in two places: two results, two operands, two elements of a loop's state.
    TwoPlaces,
    /// The next state of a loop is computed while the old one is still needed, or handed on in another order.
    LoopState,
    /// A result has memory of its own.
    Result,
    /// Nothing in the program needs it.
    Unexplained,
}

/// Every copy that runs by itself, the largest first; none that stays where its original is. Linear in the module.
pub(super) fn copies(subject: &Subject<'_>, cost: &ProgramCost) -> Vec<CopyNote> {
    let is_copy = |&&id: &&InstructionId| {
        copied(subject, id).is_some_and(|source| !stays_in_place(subject, id, source))
    };
    let mut notes: Vec<CopyNote> =
        subject.facts().line.instructions.iter().filter(is_copy).map(|&id| note(subject, cost, id)).collect();
    notes.sort_by_key(|note| std::cmp::Reverse(note.bytes));
    notes
}

/// What an instruction copies, if that is all it does. Kernels of one copy are copies.
fn copied(subject: &Subject<'_>, id: InstructionId) -> Option<InstructionId> {
    let instruction = &subject.module.instructions[id];
    let is_array = |id: InstructionId| matches!(subject.module.shape(id), Shape::Array(a) if a.rank() > 0);
    let source = match &instruction.op {
        Op::Copy | Op::CopyStart { .. } => instruction.operands[0],
        Op::Fusion(_) => {
            let interior = &subject.module.computations[instruction.called[0]];
            let root = &subject.module.instructions[interior.root];
            let parameter = root.operands.first().map(|&operand| &subject.module.instructions[operand].op);
            match (&root.op, parameter) {
                (Op::Copy, Some(&Op::Parameter { number })) => *instruction.operands.get(number as usize)?,
                _ => return None,
            }
        }
        _ => return None,
    };
    is_array(source).then_some(source)
}

/// Whether the plan has a copy where its original is, so that nothing moves: compilers remove such copies.
fn stays_in_place(subject: &Subject<'_>, id: InstructionId, source: InstructionId) -> bool {
    let flow = &subject.facts().flow;
    let place = |id: InstructionId| {
        let value = flow.value_of(id)?;
        let position = flow.positions.position(flow.values[value].definition);
        let slice = subject.plan().slices.get(&position)?;
        Some((slice.allocation, slice.offset))
    };
    let (copy, original) = (place(id), place(source));
    copy.is_some() && copy == original && subject.module.shape(id) == subject.module.shape(source)
}

fn note(subject: &Subject<'_>, cost: &ProgramCost, id: InstructionId) -> CopyNote {
    let module = subject.module;
    let instruction = &module.instructions[id];
    let source = copied(subject, id).expect("only copies are noted");
    let (cause, why) = why(subject, id, source);
    CopyNote {
        instruction: subject.name(id),
        computation: module.computations[instruction.parent].name.to_string(),
        of: subject.name(source),
        bytes: subject.bytes(source),
        runs: cost.runs(instruction.parent),
        operation: operation(module, id).to_string(),
        source: subject.words.sources.user(id).map(|frame| frame.to_string()),
        cause,
        why,
    }
}

/// Why an instruction copies, if it is a copy that runs by itself, in words. Linear in the computation.
pub(crate) fn why_copied(subject: &Subject<'_>, id: InstructionId) -> Option<String> {
    Some(why(subject, id, copied(subject, id)?).1)
}

fn why(subject: &Subject<'_>, id: InstructionId, source: InstructionId) -> (CopyCause, String) {
    let name = &subject.module.instructions[id].name;
    match subject.inserted.iter().find(|copy| copy.copy == *name) {
        Some(copy) => (cause(copy), why_inserted(copy)),
        None => found(subject, id, source),
    }
}

/// Why memplan has inserted a copy, in words.
pub fn why_inserted(copy: &InsertedCopy) -> String {
    let sharing = match &copy.because.sharing {
        MustShare::Update { by, operand } => format!("`{by}` overwrites operand {operand}"),
        MustShare::LoopState { of, index } => format!("`{of}` overwrites element {index} of its state"),
        MustShare::Result { index } if index.is_root() => {
            format!("it is the result of `{}`", copy.computation)
        }
        MustShare::Result { index } => format!("it is result {index} of `{}`", copy.computation),
        MustShare::Receive { by } => format!("`{by}` receives into its buffer"),
        other => format!("{other:?}"),
    };
    let conflict = match &copy.because.conflict {
        Conflict::ReadOnly => "it may not be: it is constant, or the caller keeps it",
        Conflict::Returned => "it is also returned",
        Conflict::ReadElsewhere => "other computations read it, too",
        Conflict::ComputedElsewhere => "it is not computed here",
        Conflict::ReadWhileOverwritten => "it is read while it is overwritten",
        Conflict::ReadLater { by } => return format!("{sharing}, but `{by}` reads it later"),
        Conflict::ReadInAnyOrder { by } => {
            return format!("{sharing}, and nothing says that `{by}` reads it before");
        }
        Conflict::InTwoPlaces => "it is needed in two places",
        Conflict::Promised => "its buffer is promised to another result",
        Conflict::SearchLimit => "finding an order without a copy took too many steps",
        other => return format!("{sharing}, but {other:?}"),
    };
    format!("{sharing}, but {conflict}")
}

fn cause(copy: &InsertedCopy) -> CopyCause {
    match &copy.because.conflict {
        Conflict::ReadOnly => CopyCause::KeptByCaller,
        Conflict::Returned | Conflict::InTwoPlaces => CopyCause::TwoPlaces,
        Conflict::ReadElsewhere
        | Conflict::ReadWhileOverwritten
        | Conflict::ReadLater { .. }
        | Conflict::ReadInAnyOrder { .. } => CopyCause::ReadLater,
        Conflict::ComputedElsewhere | Conflict::Promised => CopyCause::Result,
        _ => CopyCause::Unexplained,
    }
}

/// What is found from who overwrites the copy, and who needs the original.
fn found(subject: &Subject<'_>, id: InstructionId, source: InstructionId) -> (CopyCause, String) {
    let module = subject.module;
    let result = match module.shape(id) {
        Shape::Tuple(elements) => elements.first().and_then(Shape::as_array),
        shape => shape.as_array(),
    };
    if let (Some(from), Some(to)) = (module.shape(source).as_array(), result) {
        if from.memory_space() != to.memory_space() {
            let name = |space: i64| {
                let named = subject.target.spaces.iter().find(|s| i64::from(s.id.0) == space);
                named.map_or_else(|| format!("memory {space}"), |space| space.name.clone())
            };
            let what = match to.memory_space() {
                0 => "which makes room for others",
                _ => "to be read there",
            };
            let (from, to) = (name(from.memory_space()), name(to.memory_space()));
            return (CopyCause::Memory, format!("moves it from {from} to {to}, {what}"));
        }
        if from.minor_to_major() != to.minor_to_major() {
            let reader = module.instructions[id].parent;
            let reader = module.computations[reader]
                .instructions
                .iter()
                .find(|&&user| module.instructions[user].operands.contains(&id));
            let whom = reader
                .map_or_else(String::new, |&reader| format!(", which `{}` wants", subject.name(reader)));
            return (CopyCause::Layout, format!("puts its bytes into another order{whom}"));
        }
    }
    let flow = &subject.facts().flow;
    let position = match module.shape(id) {
        Shape::Tuple(_) => flow.positions.find(id, &[0].into()),
        _ => Some(flow.positions.root(id)),
    };
    let value = position.and_then(|position| flow.value_at(position));
    let (Some(value), Some(original)) = (value, flow.value_of(source)) else {
        return (CopyCause::Unexplained, "nothing is known of it".to_string());
    };
    match wanted_for(subject, value) {
        Some(sharing) => {
            let (cause, conflict) = conflict(subject, id, value, original);
            (cause, format!("{sharing}, but {conflict}"))
        }
        None => (
            CopyCause::Unexplained,
            "nobody overwrites the copy or the original: whoever scheduled this module left it".to_string(),
        ),
    }
}

/// Why a copy has to be at a place of its own.
fn wanted_for(subject: &Subject<'_>, value: ValueId) -> Option<String> {
    let facts = subject.facts();
    let instruction_of = |at: PositionId| facts.flow.positions.instruction(at);
    let values = &facts.buffers.values[facts.buffers.of(value)];
    let other = values.iter().copied().filter(|&other| other != value);
    // The first that shares the place is the one that comes first in the program's numbering.
    let described =
        other.map(|other| (other, facts.flow.values[other])).find_map(|(other, of)| match of.kind {
            ValueKind::LoopPhi => {
                let parameter = instruction_of(of.definition);
                let caller = facts.graph.caller(subject.module.instructions[parameter].parent)?;
                let index = facts.flow.positions.shape_index(of.definition);
                Some(format!(
                    "it is element {index} of the state that loop `{}` overwrites",
                    subject.name(caller)
                ))
            }
            ValueKind::ExitPhi => {
                Some(format!("it becomes a result of `{}`", subject.name(instruction_of(of.definition))))
            }
            ValueKind::Parameter => {
                let parameter = instruction_of(of.definition);
                Some(format!("the result lives in argument `{}`", subject.words.name(parameter)))
            }
            ValueKind::Written => {
                let by = instruction_of(of.definition);
                (facts.live.of(other).start > facts.live.of(value).start)
                    .then(|| format!("`{}` overwrites it in place", subject.name(by)))
            }
        });
    described.or_else(|| facts.live.is_live_out(value).then(|| "it is a result of the program".to_string()))
}

/// Why the original cannot be at that place.
fn conflict(
    subject: &Subject<'_>,
    id: InstructionId,
    value: ValueId,
    original: ValueId,
) -> (CopyCause, String) {
    let (module, facts) = (subject.module, subject.facts());
    let of = facts.flow.values[original];
    let definition = facts.flow.positions.instruction(of.definition);
    if matches!(module.instructions[definition].op, Op::Constant(_)) {
        return (CopyCause::Constant, "the original is constant data".to_string());
    }
    if of.kind == ValueKind::Parameter && !facts.live.is_given_up(original) {
        let name = subject.words.name(definition);
        return (
            CopyCause::KeptByCaller,
            format!("the original is argument `{name}`, which the caller keeps: donate it"),
        );
    }
    if facts.buffers.of(value) == facts.buffers.of(original) {
        return (
            CopyCause::LoopState,
            "the original is already at that place, and is needed until the copy is made".to_string(),
        );
    }
    if of.kind == ValueKind::LoopPhi {
        return (
            CopyCause::LoopState,
            "the original is state of a loop, which has a place of its own".to_string(),
        );
    }
    if facts.live.is_live_out(original) {
        return (CopyCause::TwoPlaces, "the original is also a result".to_string());
    }
    let live = facts.live.of(original);
    let now = facts.line.time(id);
    if live.end > now + 1 {
        let last = facts.line.instructions[(live.end - 1) as usize];
        let caller = facts.graph.caller(module.instructions[last].parent);
        return (
            CopyCause::ReadLater,
            match (&module.instructions[last].op, caller) {
                // Nothing reads it then: it has to be whole when the loop goes round.
                (Op::Tuple | Op::Parameter { .. }, Some(caller)) => {
                    format!("the original is needed again when `{}` goes on", subject.name(caller))
                }
                _ => format!("`{}` still reads the original", subject.name(last)),
            },
        );
    }
    match facts.buffers.values[facts.buffers.of(original)].len() {
        1 => (
            CopyCause::Unexplained,
            "the original is not needed afterwards: it could be there itself".to_string(),
        ),
        _ => (CopyCause::TwoPlaces, "the original shares its place with other values".to_string()),
    }
}
