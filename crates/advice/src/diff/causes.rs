//! Causes: groups the changes at the peak by their reason.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use memplan_memory::{Bytes, KindName, PlanFile};
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::moved::{Moved, Place};
use super::shape::{Ratio, ShapeText};
use super::{Figure, ValueChange, difference};
use crate::words::RECOMPUTED;

/// A reason for several changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cause {
    /// The kind of reason.
    pub kind: CauseKind,
    /// The growth of the peak for this reason; for [`CauseKind::Donation`] and [`CauseKind::Fragmentation`], of the
    /// total.
    pub bytes: i128,
    /// The reason in words.
    pub what: String,
}

/// Kinds of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CauseKind {
    /// A dimension of the inputs, or of the model, has another size.
    Dimension,
    /// Values have another element type.
    ElementType,
    /// Values for the backward half are kept, or are not kept any more.
    Residuals,
    /// There are more or fewer values of the same kind.
    Number,
    /// Values have other shapes, which no single dimension explains.
    Shape,
    /// Values are live at the peak that were not there before.
    New,
    /// Values are not live at the peak any more.
    Gone,
    /// The peak is at another place of the program: the growth there, in the program whose peak is the smaller.
    PeakMoved,
    /// Results live in arguments, or do not any more.
    Donation,
    /// The arena has more or fewer unused bytes.
    Fragmentation,
}

/// The most kinds of values to name per cause.
const NAMED: usize = 3;

/// The classes of `ValueChange` as the plan file writes them.
const INPUT: &str = "input";
const PARAMETER: &str = "parameter";
const ACTIVATION: &str = "activation";

/// Finds the causes of changes at the peak of one memory, the most bytes first. Arguments name dimensions; changed
/// arguments are among the changes of main memory. Linear in the changes.
pub(super) fn causes(changes: &[ValueChange], arguments: &[ValueChange], totals: &[Figure]) -> Vec<Cause> {
    let mut scaled: Scaled<'_> = FxHashMap::default();
    for argument in arguments.iter().filter(|change| [INPUT, PARAMETER].contains(&change.class.as_str())) {
        for ratio in ratios_of(argument) {
            scaled.entry(ratio).or_default().push(argument);
        }
    }
    let mut groups: IndexMap<Reason, Vec<&ValueChange>> = IndexMap::new();
    for change in changes {
        groups.entry(Reason::of(change, &scaled)).or_default().push(change);
    }
    let mut causes: Vec<Cause> =
        groups.iter().map(|(reason, changes)| reason.cause(changes, &scaled)).collect();
    let is_recomputed =
        changes.iter().any(|change| change.after.is_some() && change.operation.contains(RECOMPUTED));
    for cause in causes.iter_mut().filter(|cause| cause.kind == CauseKind::Residuals && cause.bytes < 0) {
        if is_recomputed {
            cause.what.push_str(&format!("; it is recomputed there (`{RECOMPUTED}`)"));
        }
    }
    causes.extend(totals.iter().filter(|figure| figure.name == "fragmentation").map(fragmentation));
    sort(&mut causes);
    causes
}

/// The most bytes first, without causes of zero bytes.
pub(super) fn sort(causes: &mut Vec<Cause>) {
    causes.retain(|cause| cause.bytes != 0);
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.bytes.unsigned_abs()));
}

/// Arguments by the ratios of their dimensions.
type Scaled<'c> = FxHashMap<Ratio, Vec<&'c ValueChange>>;

/// The common property of changes with one cause.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Reason {
    /// Dimensions changed by these ratios.
    Ratios(Vec<Ratio>),
    ElementType(String, String),
    Number(usize, usize),
    Shape,
    /// The class, and whether it exists after the change.
    Alone(String, bool),
}

impl Reason {
    fn of(change: &ValueChange, scaled: &Scaled<'_>) -> Reason {
        let (Some(before), Some(after)) = (&change.before, &change.after) else {
            return Reason::Alone(change.class.clone(), change.after.is_some());
        };
        let ratios = ratios_of(change);
        // Several ratios are a cause only if arguments changed by them too; otherwise it is another shape.
        if ratios.len() == 1 || (ratios.len() > 1 && ratios.iter().all(|ratio| scaled.contains_key(ratio))) {
            return Reason::Ratios(ratios);
        }
        let (from, to) = (ShapeText::new(&before.shape), ShapeText::new(&after.shape));
        match (from.element == to.element, before.count == after.count) {
            _ if from.dimensions() != to.dimensions() => Reason::Shape,
            (false, _) => Reason::ElementType(from.element.to_string(), to.element.to_string()),
            (true, false) => Reason::Number(before.count, after.count),
            (true, true) => Reason::Shape,
        }
    }

    fn cause(&self, changes: &[&ValueChange], scaled: &Scaled<'_>) -> Cause {
        let kind = match self {
            Reason::Ratios(_) => CauseKind::Dimension,
            Reason::ElementType(..) => CauseKind::ElementType,
            Reason::Number(..) => CauseKind::Number,
            Reason::Shape => CauseKind::Shape,
            Reason::Alone(class, _) if class == ACTIVATION => CauseKind::Residuals,
            Reason::Alone(_, true) => CauseKind::New,
            Reason::Alone(_, false) => CauseKind::Gone,
        };
        let what = match self {
            Reason::Ratios(ratios) => dimensions(ratios, changes, scaled),
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

/// The dimensions that differ, with their numbers; none if their number changed.
fn changed_dimensions(change: &ValueChange) -> Vec<(usize, u64, u64)> {
    let (Some(before), Some(after)) = (&change.before, &change.after) else { return Vec::new() };
    let (from, to) = (ShapeText::new(&before.shape).dimensions(), ShapeText::new(&after.shape).dimensions());
    if from.len() != to.len() {
        return Vec::new();
    }
    let pairs = from.into_iter().zip(to).enumerate();
    pairs.filter(|(_, (a, b))| a != b).map(|(d, (a, b))| (d, a, b)).collect()
}

/// The ratios by which dimensions changed: each once, in order.
fn ratios_of(change: &ValueChange) -> Vec<Ratio> {
    let mut ratios: Vec<Ratio> = Vec::new();
    for (_, a, b) in changed_dimensions(change) {
        let ratio = Ratio::of(a, b);
        if !ratios.contains(&ratio) {
            ratios.push(ratio);
        }
    }
    ratios.sort_unstable();
    ratios
}

/// `batch 8 -> 16: ...`, or `batch 8 -> 16 and a dimension of the inputs 128 -> 192: ...`.
fn dimensions(ratios: &[Ratio], changes: &[&ValueChange], scaled: &Scaled<'_>) -> String {
    let which: Vec<String> = ratios.iter().map(|&ratio| dimension(ratio, changes, scaled)).collect();
    let mut classes: BTreeMap<&str, i128> = BTreeMap::new();
    for change in changes {
        *classes.entry(&change.class).or_default() += change.bytes();
    }
    let mut classes: Vec<(&str, i128)> = classes.into_iter().collect();
    classes.sort_by_key(|(_, bytes)| std::cmp::Reverse(bytes.unsigned_abs()));
    let classes: Vec<String> =
        classes.iter().map(|(class, bytes)| format!("{} {}", plural(class), signed(*bytes))).collect();
    let squared = changes.iter().any(|change| changed_dimensions(change).len() > ratios.len());
    let squared = match (squared, ratios.len()) {
        (false, _) => "",
        (true, 1) => "; some values have it twice",
        (true, _) => "; some values have one of them twice",
    };
    let how = if let [ratio] = ratios { factor(*ratio) } else { "changed".to_string() };
    format!(
        "{}: {} {how}, {}{squared}: {}",
        which.join(" and "),
        kinds(changes.len()),
        classes.join(", "),
        named(changes),
    )
}

/// `batch 8 -> 16`: the dimension of the inputs, else of the parameters, else the smallest one, since larger ones are
/// products of it.
fn dimension(ratio: Ratio, changes: &[&ValueChange], scaled: &Scaled<'_>) -> String {
    let arguments = scaled.get(&ratio).map_or(&[][..], |arguments| arguments);
    let of_class =
        |class: &'static str| arguments.iter().copied().filter(move |change| change.class == class);
    let (inputs, parameters) = (size(of_class(INPUT), ratio), size(of_class(PARAMETER), ratio));
    let bytes = |class: &'static str| of_class(class).map(ValueChange::bytes).sum::<i128>().unsigned_abs();
    // A table of few values may look like a weight; if the model grew, most of the growth is in its weights.
    let is_model = bytes(PARAMETER) > bytes(INPUT);
    let (what, sizes) = match (inputs, parameters, size(changes.iter().copied(), ratio)) {
        (Some((sizes, true)), _, _) if !is_model => ("batch", sizes),
        (Some((sizes, _)), _, _) => ("a dimension of the inputs", sizes),
        (None, Some((sizes, _)), _) => ("a dimension of the parameters", sizes),
        (None, None, Some((sizes, _))) => ("a dimension", sizes),
        (None, None, None) => ("a dimension", (ratio.0, ratio.1)),
    };
    format!("{what} {} -> {}", sizes.0, sizes.1)
}

/// The smallest dimension that changed by a ratio, before and after, and whether it is the first dimension of a value
/// and the only one that changed by it.
fn size<'c>(changes: impl Iterator<Item = &'c ValueChange>, ratio: Ratio) -> Option<((u64, u64), bool)> {
    let sizes = changes.filter_map(|change| {
        let mut by_ratio = changed_dimensions(change);
        by_ratio.retain(|&(_, a, b)| Ratio::of(a, b) == ratio);
        let &(d, a, b) = by_ratio.first()?;
        Some(((a, b), d == 0 && by_ratio.len() == 1))
    });
    sizes.min_by_key(|&(sizes, is_first)| (sizes, !is_first))
}

/// The largest of some changes by operation, and the number of others.
fn named(changes: &[&ValueChange]) -> String {
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

/// Results that live in donated arguments on only one side.
pub(super) fn donation(before: &PlanFile, after: &PlanFile) -> Option<Cause> {
    let share = |plan: &PlanFile| (plan.totals.outputs.0, plan.totals.aliased.0);
    let ((outputs_a, aliased_a), (outputs_b, aliased_b)) = (share(before), share(after));
    // Only all or none: a larger batch has larger results in the same arguments.
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

/// The move of the peak to another place; `there` is the change at the compared place without the other causes: the
/// place of the old peak if the program grew.
pub(super) fn moved(Moved { from, to }: &Moved, bytes: i128, grew: bool, there: &[ValueChange]) -> Cause {
    let name = |place: &Place| match &place.source {
        Some(source) => format!("{} ({source})", place.operation),
        None => place.operation.clone(),
    };
    let became = |place: &Place| format!("{} became {}", place.before, place.after);
    let first = causes(there, there, &[]).into_iter().next();
    let why = first.map_or_else(String::new, |cause| {
        format!(" ({})", cause.what.split(": ").next().unwrap_or(&cause.what))
    });
    let (why_from, why_to) = if grew { (why, String::new()) } else { (String::new(), why) };
    Cause {
        kind: CauseKind::PeakMoved,
        bytes,
        what: format!(
            "the peak moved: at {}, where it is now, {}{why_to}; at {}, where it was, {}{why_from}",
            name(to),
            became(to),
            name(from),
            became(from)
        ),
    }
}

fn fragmentation(&Figure { before, after, .. }: &Figure) -> Cause {
    Cause {
        kind: CauseKind::Fragmentation,
        bytes: difference(before, after),
        what: format!("fragmentation of the arena: {before} became {after}"),
    }
}
