//! Why a plan needs another number of bytes: changes at the peak that have one reason.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use memplan_memory::{Bytes, KindName, PlanFile};
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::shape::{Ratio, ShapeText};
use super::{Change, Figure, Held, difference};

/// A reason for several changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// What kind of reason.
    pub kind: CauseKind,
    /// By how many bytes the peak grew for it; of [`CauseKind::Donation`] and [`CauseKind::Fragmentation`], the total.
    pub bytes: i128,
    /// The reason in words.
    pub what: String,
}

/// Kinds of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CauseKind {
    /// A dimension of the inputs, or of the model, has another size.
    Dimension,
    /// Values have another element type.
    ElementType,
    /// What the backward half needs is kept, or not kept any more.
    Residuals,
    /// There are more or fewer values of the same kind.
    Number,
    /// Values have other shapes, which no single dimension explains.
    Shape,
    /// Values are live at the peak that were not there before.
    New,
    /// Values are not live at the peak any more.
    Gone,
    /// Results live in arguments, or do so no more.
    Donation,
    /// The arena has more or fewer bytes that hold nothing.
    Fragmentation,
}

/// Kinds of values that are named for a reason.
const NAMED: usize = 3;

/// The classes of `Change` as the plan file writes them.
const INPUT: &str = "input";
const PARAMETER: &str = "parameter";
const ACTIVATION: &str = "activation";

/// What JAX calls operations that the backward half computes again.
const RECOMPUTED: &str = "rematted_computation";

/// Finds the reasons for what changed at the peak of one memory, the most bytes first. Arguments are named for dimensions;
/// those that changed are among the changes of main memory. Linear in the changes.
pub(super) fn causes(changes: &[Change], arguments: &[Change], totals: &[Figure]) -> Vec<Cause> {
    let mut groups: IndexMap<Reason, Vec<&Change>> = IndexMap::new();
    for change in changes {
        groups.entry(Reason::of(change)).or_default().push(change);
    }
    let mut arguments_by_reason: FxHashMap<Reason, Vec<&Change>> = FxHashMap::default();
    for argument in arguments.iter().filter(|change| [INPUT, PARAMETER].contains(&change.class.as_str())) {
        arguments_by_reason.entry(Reason::of(argument)).or_default().push(argument);
    }
    let arguments = |reason| arguments_by_reason.get(reason).map_or(&[][..], |arguments| arguments);
    let mut causes: Vec<Cause> =
        groups.iter().map(|(reason, changes)| reason.cause(changes, arguments(reason))).collect();
    let is_recomputed =
        changes.iter().any(|change| change.after.is_some() && change.operation.contains(RECOMPUTED));
    for cause in causes.iter_mut().filter(|cause| cause.kind == CauseKind::Residuals && cause.bytes < 0) {
        if is_recomputed {
            cause.what.push_str(&format!("; it is computed again there (`{RECOMPUTED}`)"));
        }
    }
    causes.extend(totals.iter().filter(|figure| figure.name == "fragmentation").map(fragmentation));
    sort(&mut causes);
    causes
}

/// The most bytes first, without those that make no difference.
pub(super) fn sort(causes: &mut Vec<Cause>) {
    causes.retain(|cause| cause.bytes != 0);
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.bytes.unsigned_abs()));
}

/// What changes with one reason have in common.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Reason {
    /// Dimensions changed by this ratio.
    Ratio(Ratio),
    ElementType(String, String),
    Number(usize, usize),
    Shape,
    /// The class, and whether it is there after the change.
    Alone(String, bool),
}

impl Reason {
    fn of(change: &Change) -> Reason {
        let (Some(before), Some(after)) = (&change.before, &change.after) else {
            return Reason::Alone(change.class.clone(), change.after.is_some());
        };
        let (from, to) = (ShapeText::new(&before.shape), ShapeText::new(&after.shape));
        if let Some(&(a, b)) = changed_dimensions(before, after).first() {
            return Reason::Ratio(Ratio::of(a, b));
        }
        match (from.element == to.element, before.count == after.count) {
            _ if from.dimensions() != to.dimensions() => Reason::Shape,
            (false, _) => Reason::ElementType(from.element.to_string(), to.element.to_string()),
            (true, false) => Reason::Number(before.count, after.count),
            (true, true) => Reason::Shape,
        }
    }

    fn cause(&self, changes: &[&Change], arguments: &[&Change]) -> Cause {
        let kind = match self {
            Reason::Ratio(_) => CauseKind::Dimension,
            Reason::ElementType(..) => CauseKind::ElementType,
            Reason::Number(..) => CauseKind::Number,
            Reason::Shape => CauseKind::Shape,
            Reason::Alone(class, _) if class == ACTIVATION => CauseKind::Residuals,
            Reason::Alone(_, true) => CauseKind::New,
            Reason::Alone(_, false) => CauseKind::Gone,
        };
        let what = match self {
            Reason::Ratio(ratio) => dimension(*ratio, changes, arguments),
            Reason::ElementType(from, to) => format!("{from} became {to}: {}", named(changes)),
            Reason::Number(from, to) => format!("{from} became {to} of one shape: {}", named(changes)),
            Reason::Shape => format!("other shapes: {}", named(changes)),
            Reason::Alone(class, is_new) => match (kind, is_new) {
                (CauseKind::Residuals, true) => {
                    format!("now kept for the backward half: {}", named(changes))
                }
                (CauseKind::Residuals, false) => {
                    format!("not kept for the backward half any more: {}", named(changes))
                }
                (_, true) => format!("new at the peak, class {class}: {}", named(changes)),
                (_, false) => format!("not at the peak any more, class {class}: {}", named(changes)),
            },
        };
        Cause { kind, bytes: changes.iter().map(|change| change.bytes()).sum(), what }
    }
}

/// The dimensions that differ, where all of them changed by the same factor.
fn changed_dimensions(before: &Held, after: &Held) -> Vec<(u64, u64)> {
    let (from, to) = (ShapeText::new(&before.shape), ShapeText::new(&after.shape));
    let (from, to) = (from.dimensions(), to.dimensions());
    if from.len() != to.len() {
        return Vec::new();
    }
    let changed: Vec<(u64, u64)> = from.into_iter().zip(to).filter(|(a, b)| a != b).collect();
    let is_one_factor = changed
        .iter()
        .all(|&(a, b)| u128::from(a) * u128::from(changed[0].1) == u128::from(b) * u128::from(changed[0].0));
    if is_one_factor { changed } else { Vec::new() }
}

/// `batch 8 -> 16: ...`: the dimension as the inputs have it, else as the parameters have it, else the smallest that there
/// is, since others are products of it. Arguments are those of the program, in whatever memory.
fn dimension(ratio: Ratio, changes: &[&Change], arguments: &[&Change]) -> String {
    let of_class =
        |class: &'static str| arguments.iter().copied().filter(move |change| change.class == class);
    let (inputs, parameters) = (size(of_class(INPUT)), size(of_class(PARAMETER)));
    let bytes = |class: &'static str| of_class(class).map(Change::bytes).sum::<i128>().unsigned_abs();
    // A table of few values may look like a weight; where the model grew, its weights are most of what did.
    let is_model = bytes(PARAMETER) > bytes(INPUT);
    let (what, sizes) = match (inputs, parameters, size(changes.iter().copied())) {
        (Some((sizes, true)), _, _) if !is_model => ("batch", sizes),
        (Some((sizes, _)), _, _) => ("a dimension of the inputs", sizes),
        (None, Some((sizes, _)), _) => ("a dimension of the parameters", sizes),
        (None, None, Some((sizes, _))) => ("a dimension", sizes),
        (None, None, None) => ("a dimension", (ratio.0, ratio.1)),
    };
    let mut classes: BTreeMap<&str, i128> = BTreeMap::new();
    for change in changes {
        *classes.entry(&change.class).or_default() += change.bytes();
    }
    let mut classes: Vec<(&str, i128)> = classes.into_iter().collect();
    classes.sort_by_key(|(_, bytes)| std::cmp::Reverse(bytes.unsigned_abs()));
    let classes: Vec<String> =
        classes.iter().map(|(class, bytes)| format!("{} {}", plural(class), signed(*bytes))).collect();
    let squared = changes.iter().any(|change| match (&change.before, &change.after) {
        (Some(before), Some(after)) => changed_dimensions(before, after).len() > 1,
        _ => false,
    });
    let squared = if squared { "; some values have it twice" } else { "" };
    format!(
        "{what} {} -> {}: {} {}, {}{squared}: {}",
        sizes.0,
        sizes.1,
        kinds(changes.len()),
        factor(ratio),
        classes.join(", "),
        named(changes),
    )
}

/// The smallest dimension that changed, before and after, and whether it is the first of a value.
fn size<'c>(changes: impl Iterator<Item = &'c Change>) -> Option<((u64, u64), bool)> {
    let sizes = changes.filter_map(|change| {
        let (before, after) = (change.before.as_ref()?, change.after.as_ref()?);
        Some((*changed_dimensions(before, after).first()?, is_first(before, after)))
    });
    sizes.min_by_key(|&(sizes, is_first)| (sizes, !is_first))
}

/// Whether it is the first dimension that changed, and only that.
fn is_first(before: &Held, after: &Held) -> bool {
    let (from, to) = (ShapeText::new(&before.shape), ShapeText::new(&after.shape));
    let (from, to) = (from.dimensions(), to.dimensions());
    from.first() != to.first() && from.get(1..) == to.get(1..)
}

/// The largest of some changes by operation, and how many others there are.
fn named(changes: &[&Change]) -> String {
    let mut names: Vec<String> = Vec::new();
    for change in changes {
        let name = match &change.source {
            Some(source) => format!("{} ({source})", change.operation),
            None => change.operation.clone(),
        };
        if !names.contains(&name) {
            names.push(name);
        }
        if names.len() > NAMED {
            break;
        }
    }
    let others = changes.len().saturating_sub(NAMED);
    match names.len() > NAMED {
        true => format!("{} and {others} more", names[..NAMED].join(", ")),
        false => names.join(", "),
    }
}

fn kinds(n: usize) -> String {
    format!("{n} kind{} of values", if n == 1 { "" } else { "s" })
}

fn factor(Ratio(from, to): Ratio) -> String {
    match (from, to) {
        (1, 2) => "doubled".to_string(),
        (2, 1) => "halved".to_string(),
        _ => format!("x {:.2}", to as f64 / from.max(1) as f64),
    }
}

fn plural(class: &str) -> String {
    match class {
        "" => "others".to_string(),
        "optimizer-state" | "state" => class.to_string(),
        "temporary" => "temporaries".to_string(),
        class => format!("{class}s"),
    }
}

/// Bytes with their sign, for people.
pub fn signed(bytes: i128) -> String {
    let size = Bytes(u64::try_from(bytes.unsigned_abs()).unwrap_or(u64::MAX));
    format!("{}{size}", if bytes < 0 { "-" } else { "+" })
}

/// Results that live in donated arguments on one side only.
pub(super) fn donation(before: &PlanFile, after: &PlanFile) -> Option<Cause> {
    let share = |plan: &PlanFile| (plan.totals.outputs.0, plan.totals.aliased.0);
    let ((outputs_a, aliased_a), (outputs_b, aliased_b)) = (share(before), share(after));
    // All or nothing: a larger batch has larger results in the same arguments.
    let is_lost = aliased_a > 0
        && u128::from(aliased_b) * u128::from(outputs_a) < u128::from(aliased_a) * u128::from(outputs_b) / 2;
    let is_won = aliased_b > 0
        && u128::from(aliased_a) * u128::from(outputs_b) < u128::from(aliased_b) * u128::from(outputs_a) / 2;
    let donated = |plan: &PlanFile| {
        plan.allocations.iter().filter(|entry| entry.kind == KindName::Argument && entry.live_out).count()
    };
    let what = match (is_lost, is_won) {
        (true, _) => "results do not live in donated arguments any more",
        (_, true) => "results live in donated arguments now",
        _ => return None,
    };
    Some(Cause {
        kind: CauseKind::Donation,
        bytes: difference(after.totals.aliased, before.totals.aliased),
        what: format!("{what}: {} arguments were donated, now {}", donated(before), donated(after)),
    })
}

fn fragmentation(&Figure { before, after, .. }: &Figure) -> Cause {
    Cause {
        kind: CauseKind::Fragmentation,
        bytes: difference(before, after),
        what: format!("fragmentation of the arena: {before} became {after}"),
    }
}
