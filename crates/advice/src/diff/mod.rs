//! What changed between two plans: totals, who holds the peak, and why.
//!
//! Plans are compared as plan files, so that a program of today can be held against a file of last week. Holders of the
//! peak are matched by name, then by what they are ([`Matched`]); changes that have the same reason are one [`Cause`].

mod causes;
mod matching;
mod shape;

use memplan_memory::{Bytes, HolderEntry, PlanFile};
use serde::Serialize;

pub use causes::{Cause, CauseKind, signed};
use matching::pairs;

/// The difference of two plans.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    /// The plan that is compared with.
    pub before: Side,
    /// The plan that is compared.
    pub after: Side,
    /// Each figure, those of the plan file's totals.
    pub totals: Vec<Figure>,
    /// Why, the most bytes first.
    pub causes: Vec<Cause>,
    /// Holders of the peak of main memory that differ, the largest change first.
    pub changes: Vec<Change>,
}

/// One of the two plans.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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
pub struct Change {
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
    let (a, b) = (holders(before), holders(after));
    let mut changes: Vec<Change> = pairs(a, b)
        .into_iter()
        .map(|(a, b, matched)| Change::new(a, b, matched))
        .filter(|change| change.before != change.after)
        .collect();
    changes.sort_by_key(|change| std::cmp::Reverse(change.bytes().unsigned_abs()));
    Diff {
        before: Side::new(before),
        after: Side::new(after),
        totals: figures(before, after),
        causes: causes::causes(before, after, &changes),
        changes,
    }
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

impl Change {
    fn new(before: Option<&HolderEntry>, after: Option<&HolderEntry>, matched: Matched) -> Change {
        let one = after.or(before).expect("a change has a side");
        let was = before.and_then(|before| before.operation.clone());
        let operation = one.operation.clone().unwrap_or_default();
        Change {
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
    fn new(holder: &HolderEntry) -> Held {
        Held { bytes: holder.bytes, count: holder.count, shape: holder.shape.clone().unwrap_or_default() }
    }
}

fn holders(plan: &PlanFile) -> &[HolderEntry] {
    plan.peak.as_ref().map_or(&[], |peak| &peak.holders)
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

fn difference(before: Bytes, after: Bytes) -> i128 {
    i128::from(after.0) - i128::from(before.0)
}
