//! What changed between two plans: totals, the holders of the peak, and the reasons.
//!
//! Plans are compared as plan files, so a program can be compared with a file of last week. Holders of the peak are
//! matched by name, then by class and shape ([`Matched`]); changes that have the same reason are one [`Cause`]. Each
//! memory has its own peak, and is compared separately.

mod causes;
mod matching;
mod moved;
mod partners;
mod shape;

use memplan_memory::{Bytes, HolderEntry, MemorySpaceId, PeakEntry, PlanFile, SpaceTotals};
use serde::Serialize;

pub use causes::{Cause, CauseKind, signed};
pub(crate) use matching::COMPILED_TWICE;
use matching::{CHANGED, Part, pairs};
use moved::Elsewhere;
pub(crate) use moved::Values;
pub use moved::{Moved, Place, PlannedModule};
pub use partners::partners;
pub(crate) use partners::partners_by;

/// The difference of two plans.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Diff {
    /// The plan that is compared with.
    pub before: Side,
    /// The plan that is compared.
    pub after: Side,
    /// Main memory.
    #[serde(flatten)]
    pub main: MemoryDiff,
    /// Other memories that differ, in the order of their numbers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub other_memories: Vec<MemoryDiff>,
}

/// The difference in one memory.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MemoryDiff {
    /// Its number.
    pub space: MemorySpaceId,
    /// Its name.
    pub memory: String,
    /// Each figure: of main memory those of the plan file's totals.
    pub totals: Vec<Figure>,
    /// Why, the most bytes first.
    pub causes: Vec<Cause>,
    /// Holders of the peak that differ, the largest change first. Where the peak moved, holders of one place of both programs:
    /// of that of the larger peak.
    pub changes: Vec<ValueChange>,
    /// Where the peak was and where it is, if that explains more than if it were one place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved: Option<Moved>,
}

/// One of the two plans.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Side {
    /// The module.
    pub module: String,
    /// The machine.
    pub target: String,
    /// What the program needs.
    pub total: Bytes,
    /// Whether the plan says who holds its peak. Files of earlier versions do not.
    pub has_peak: bool,
}

/// A figure on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Figure {
    /// Its name in the plan file.
    pub name: &'static str,
    /// Before.
    pub before: Bytes,
    /// After.
    pub after: Bytes,
}

/// How the two sides of a change were found to be the same thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Matched {
    /// Operation and class are the same; mostly the source line, too.
    Name,
    /// Names moved: class and shape are the same, or class, type, rank and number.
    Shape,
    /// One side has nothing like it.
    Alone,
}

/// Values of one kind that hold another number of bytes than before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ValueChange {
    /// Where they come from, after the change where they are there.
    pub operation: String,
    /// The operation before, where it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation_before: Option<String>,
    /// The line of the user's program.
    pub source: Option<String>,
    /// What they are.
    pub class: String,
    /// How the sides were found.
    pub matched: Matched,
    /// Before; none where they are new.
    pub before: Option<Held>,
    /// After; none where they are gone.
    pub after: Option<Held>,
}

/// What values of one kind hold at the peak.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Held {
    /// Bytes of all.
    pub bytes: Bytes,
    /// How many there are.
    pub count: usize,
    /// The shape of each.
    pub shape: String,
}

/// The difference of two plans, in time linear in the holders of their peaks but for sorting.
pub fn diff(before: &PlanFile, after: &PlanFile) -> Diff {
    difference_with(before, after, None)
}

/// The same of plans whose programs are there, so that it can be seen whether the peak is at another place now. Takes time
/// n log n in the values of both.
pub fn diff_programs(before: (&PlanFile, PlannedModule<'_>), after: (&PlanFile, PlannedModule<'_>)) -> Diff {
    difference_with(before.0, after.0, Some(Elsewhere::new(before.1, after.1)))
}

fn difference_with(before: &PlanFile, after: &PlanFile, elsewhere: Option<Elsewhere>) -> Diff {
    let of = |space| changes(holders(before, space), holders(after, space));
    let at_peak = of(MemorySpaceId::MAIN);
    let others = other_memories(before, after).into_iter().map(|space| {
        MemoryDiff::new(space, figures_of(space, before, after), of(space), &at_peak, [before, after])
    });
    let differs = |memory: &MemoryDiff| memory.totals.iter().any(|figure| figure.before != figure.after);
    let other_memories = others.filter(differs).collect();
    let by_place = elsewhere.and_then(|elsewhere| ByPlace::new(before, after, elsewhere, &at_peak));
    let (at_peak, moved) = match by_place {
        None => (at_peak, None),
        Some(ByPlace { changes, moved, cause }) => (changes, Some((moved, cause))),
    };
    let arguments = at_peak.clone();
    let totals = figures(before, after);
    let mut main = MemoryDiff::new(MemorySpaceId::MAIN, totals, at_peak, &arguments, [before, after]);
    if let Some((moved, cause)) = moved {
        main.moved = Some(moved);
        main.causes.push(cause);
    }
    main.causes.extend(causes::donation(before, after));
    causes::sort(&mut main.causes);
    Diff { before: Side::new(before), after: Side::new(after), main, other_memories }
}

/// What changed at one place of both programs, where the peak moved.
struct ByPlace {
    changes: Vec<ValueChange>,
    moved: Moved,
    cause: Cause,
}

impl ByPlace {
    /// None where fewer bytes are without a partner, or without a reason but that the peak moved, if both peaks are taken for
    /// one place.
    fn new(
        before: &PlanFile,
        after: &PlanFile,
        elsewhere: Elsewhere,
        at_peaks: &[ValueChange],
    ) -> Option<ByPlace> {
        let main = MemorySpaceId::MAIN;
        let at_old = changes(holders(before, main), &elsewhere.after.holders);
        let at_new = changes(&elsewhere.before.holders, holders(after, main));
        let Moved { from, to } = &elsewhere.places;
        let grew = to.after >= from.before;
        let (here, there) = if grew { (at_new, at_old) } else { (at_old, at_new) };
        let bytes = if grew { difference(from.before, to.before) } else { difference(from.after, to.after) };
        if alone(&here).saturating_add(bytes.unsigned_abs()) >= alone(at_peaks) {
            return None;
        }
        let cause = causes::moved(&elsewhere.places, bytes, grew, &there);
        Some(ByPlace { changes: here, moved: elsewhere.places, cause })
    }
}

/// Bytes of values that one side alone has.
fn alone(changes: &[ValueChange]) -> u128 {
    let alone = changes.iter().filter(|change| change.matched == Matched::Alone);
    alone.map(|change| change.bytes().unsigned_abs()).sum()
}

impl Diff {
    /// By how much the total grew.
    pub fn bytes(&self) -> i128 {
        difference(self.before.total, self.after.total)
    }

    /// The total after for each byte of the total before.
    pub fn ratio(&self) -> f64 {
        match (self.before.total, self.after.total) {
            (before, after) if before == after => 1.0,
            (before, after) => after.0 as f64 / before.0 as f64,
        }
    }
}

impl MemoryDiff {
    fn new(
        space: MemorySpaceId,
        totals: Vec<Figure>,
        changes: Vec<ValueChange>,
        arguments: &[ValueChange],
        plans: [&PlanFile; 2],
    ) -> MemoryDiff {
        let named = plans.into_iter().find_map(|plan| totals_of(plan, space));
        MemoryDiff {
            space,
            memory: named.map_or_else(|| format!("memory {space}"), |totals| totals.name.clone()),
            causes: causes::causes(&changes, arguments, &totals),
            changes,
            totals,
            moved: None,
        }
    }

    /// By how much a figure grew; nothing where there is no such figure.
    pub fn growth(&self, name: &str) -> i128 {
        let figure = self.totals.iter().find(|figure| figure.name == name);
        figure.map_or(0, |figure| difference(figure.before, figure.after))
    }
}

impl Side {
    fn new(plan: &PlanFile) -> Side {
        Side {
            module: plan.module.clone(),
            target: plan.target.clone(),
            total: plan.totals.total,
            has_peak: plan.peak.is_some(),
        }
    }
}

impl ValueChange {
    fn new(before: Option<Part<'_>>, after: Option<Part<'_>>, matched: Matched) -> ValueChange {
        let one = after.or(before).expect("a change has a side").holder;
        let was = before.and_then(|before| before.holder.operation.clone());
        let operation = one.operation.clone().unwrap_or_default();
        ValueChange {
            operation_before: was.filter(|was| after.is_some() && *was != operation),
            operation,
            source: one.source.clone(),
            class: one.class.clone().unwrap_or_default(),
            matched,
            before: before.map(Held::new),
            after: after.map(Held::new),
        }
    }

    /// By how much it grew.
    pub fn bytes(&self) -> i128 {
        let of = |held: &Option<Held>| held.as_ref().map_or(Bytes::ZERO, |held| held.bytes);
        difference(of(&self.before), of(&self.after))
    }
}

impl Held {
    fn new(Part { holder, count, .. }: Part<'_>) -> Held {
        // All values of a holder have one shape; a file that says otherwise gets the share.
        let share = u128::from(holder.bytes.0) * count as u128 / holder.count.max(1) as u128;
        Held {
            bytes: Bytes(u64::try_from(share).unwrap_or(u64::MAX)),
            count,
            shape: holder.shape.clone().unwrap_or_default(),
        }
    }
}

/// Holders that differ, the largest change first.
fn changes(before: &[HolderEntry], after: &[HolderEntry]) -> Vec<ValueChange> {
    let mut changes: Vec<ValueChange> = pairs(before, after, &CHANGED)
        .into_iter()
        .map(|(a, b, matched)| ValueChange::new(a, b, matched))
        .filter(|change| change.before != change.after)
        .collect();
    changes.sort_by_key(|change| std::cmp::Reverse(change.bytes().unsigned_abs()));
    changes
}

/// Memories that either plan uses, other than main memory.
fn other_memories(before: &PlanFile, after: &PlanFile) -> Vec<MemorySpaceId> {
    let spaces = [before, after].into_iter().flat_map(|plan| &plan.spaces).map(|totals| totals.space);
    let mut others: Vec<MemorySpaceId> = spaces.filter(|&space| space != MemorySpaceId::MAIN).collect();
    others.sort_unstable();
    others.dedup();
    others
}

fn peak_of(plan: &PlanFile, space: MemorySpaceId) -> Option<&PeakEntry> {
    plan.peak.iter().chain(&plan.other_peaks).find(|peak| peak.space == space)
}

fn holders(plan: &PlanFile, space: MemorySpaceId) -> &[HolderEntry] {
    peak_of(plan, space).map_or(&[], |peak| &peak.holders)
}

fn totals_of(plan: &PlanFile, space: MemorySpaceId) -> Option<&SpaceTotals> {
    plan.spaces.iter().find(|totals| totals.space == space)
}

fn figures(before: &PlanFile, after: &PlanFile) -> Vec<Figure> {
    let (a, b) = (&before.totals, &after.totals);
    [
        ("arguments", a.arguments, b.arguments),
        ("outputs", a.outputs, b.outputs),
        ("aliased", a.aliased, b.aliased),
        ("constants", a.constants, b.constants),
        ("temp", a.temp, b.temp),
        ("total", a.total, b.total),
        ("peak_live", a.peak_live, b.peak_live),
        ("fragmentation", a.fragmentation, b.fragmentation),
        ("padding", a.padding, b.padding),
    ]
    .map(|(name, before, after)| Figure { name, before, after })
    .to_vec()
}

/// The same of a memory that has no totals but its own.
fn figures_of(space: MemorySpaceId, before: &PlanFile, after: &PlanFile) -> Vec<Figure> {
    let of = |plan| totals_of(plan, space);
    let figure = |name, get: fn(&SpaceTotals) -> Bytes| Figure {
        name,
        before: of(before).map_or(Bytes::ZERO, get),
        after: of(after).map_or(Bytes::ZERO, get),
    };
    let live = |plan| peak_of(plan, space).map_or(Bytes::ZERO, |peak| peak.bytes);
    vec![
        figure("arguments", |totals| totals.arguments),
        figure("outputs", |totals| totals.outputs),
        figure("constants", |totals| totals.constants),
        figure("temp", |totals| totals.temp),
        figure("total", |totals| totals.total),
        Figure { name: "peak_live", before: live(before), after: live(after) },
        figure("fragmentation", |totals| totals.temp.saturating_sub(totals.temp_lower_bound)),
    ]
}

fn difference(before: Bytes, after: Bytes) -> i128 {
    i128::from(after.0) - i128::from(before.0)
}
