//! Plans that are safe to run, but make false claims.

use memplan_check::Violation as V;
use memplan_ir::{Position, ShapeIndex};
use memplan_memory::{Alignment, Bytes, MemorySpaceId};

use crate::mutate::{Mutation, PROGRAM, find_and_name};
use crate::support::Case;

const FIGURES: &[Mutation] = &[
    (
        "a slice of more bytes than its value",
        |c| c.slice("i", &[]).size = Bytes(5),
        |v| matches!(v, V::TooLarge { needed: Bytes(4), .. }),
    ),
    (
        "more alignment than the machine gives",
        |c| c.allocation("y").alignment = Alignment::new(64).unwrap(),
        |v| matches!(v, V::OverAligned { .. }),
    ),
    (
        "more alignment of an argument than the caller gives",
        |c| c.allocation("p").alignment = Alignment::new(1 << 63).unwrap(),
        |v| matches!(v, V::OverAligned { .. }),
    ),
    (
        "a bound that is too high",
        |c| claim_bound(c, 1),
        |v| matches!(v, V::BoundTooHigh { space: MemorySpaceId::MAIN, .. }),
    ),
    (
        "a bound in fast memory that is too high",
        |c| c.plan.spaces[1].temp_lower_bound = Bytes(17),
        |v| matches!(v, V::BoundTooHigh { space: MemorySpaceId(1), claimed: Bytes(17), found: Bytes(16) }),
    ),
    (
        "two bounds for one arena",
        |c| c.plan.spaces[0].temp_lower_bound = Bytes(1),
        |v| matches!(v, V::WrongTotal { name, .. } if &**name == "temp_lower_bound of S(0)"),
    ),
    (
        "a bound that is too low",
        |c| claim_bound(c, -1),
        |v| matches!(v, V::BoundTooLow { space: MemorySpaceId::MAIN, .. }),
    ),
    (
        "a bound in fast memory that is too low",
        |c| c.plan.spaces[1].temp_lower_bound = Bytes(15),
        |v| matches!(v, V::BoundTooLow { space: MemorySpaceId(1), claimed: Bytes(15), found: Bytes(16) }),
    ),
    (
        "an arena that is minimal, and not used to its end",
        |c| {
            c.plan.spaces[1].proved_minimal = true;
            c.plan.spaces[1].temp.0 += 64;
        },
        |v| matches!(v, V::NotMinimal { space: MemorySpaceId(1), used: Bytes(16), .. }),
    ),
    ("a peak that is too high", |c| c.plan.totals.peak_live.0 += 1, |v| matches!(v, V::PeakTooHigh { .. })),
    ("a peak that is too low", |c| c.plan.totals.peak_live.0 -= 1, |v| matches!(v, V::PeakTooLow { .. })),
    ("no peak at all", |c| c.plan.totals.peak_live = Bytes::ZERO, |v| matches!(v, V::PeakTooLow { .. })),
    (
        "padding where there is none",
        |c| c.plan.totals.padding = Bytes(4),
        |v| matches!(v, V::WrongTotal { name, .. } if &**name == "padding"),
    ),
    (
        "less fragmentation",
        |c| c.plan.totals.fragmentation.0 += 1,
        |v| matches!(v, V::WrongTotal { name, .. } if &**name == "fragmentation"),
    ),
    (
        "less in a space",
        |c| c.plan.spaces[1].total.0 -= 1,
        |v| matches!(v, V::WrongTotal { name, .. } if &**name == "total of S(1)"),
    ),
    (
        "no figures of a space",
        |c| _ = c.plan.spaces.pop(),
        |v| matches!(v, V::SpaceListed { space: MemorySpaceId(1), found: 0 }),
    ),
    (
        "figures twice",
        |c| c.plan.spaces.push(c.plan.spaces[0].clone()),
        |v| matches!(v, V::SpaceListed { space: MemorySpaceId::MAIN, found: 2 }),
    ),
    (
        "another name",
        |c| c.plan.spaces[0].name = "hbm".into(),
        |v| matches!(v, V::OtherSpace { what: "name", .. }),
    ),
    (
        "more capacity",
        |c| c.plan.spaces[1].capacity = None,
        |v| matches!(v, V::OtherSpace { what: "capacity", .. }),
    ),
];

fn claim_bound(case: &mut Case, more: i64) {
    let totals = &mut case.plan.totals;
    totals.temp_lower_bound.0 =
        totals.temp_lower_bound.0.checked_add_signed(more).expect("the bound is not 0");
    totals.fragmentation = totals.temp.saturating_sub(totals.temp_lower_bound);
    case.plan.spaces[0].temp_lower_bound = totals.temp_lower_bound;
}

#[test]
fn wrong_figures_are_found_and_named() {
    find_and_name(PROGRAM, FIGURES);
}

const FUSED: &str = "HloModule m, is_scheduled=true
fused {
  x = f32[4]{0} parameter(0)
  e = f32[4]{0} exponential(x)
  n = f32[4]{0} negate(e)
  ROOT m = f32[4]{0} multiply(n, x)
}
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  a = f32[4]{0} negate(p)             // temp+0
  b = f32[4]{0} reverse(a), dimensions={0} // temp+16
  f = f32[4]{0} fusion(b), kind=kLoop, calls=fused // temp+16
  d = f32[4]{0} reverse(f), dimensions={0} // temp+32
  ROOT r = f32[4]{0} reverse(d), dimensions={0} // out+0
}";

fn reorder_fused(case: &mut Case, change: fn(&mut Vec<memplan_ir::InstructionId>)) {
    let fused = case.module.instructions[case.find("e")].parent;
    let mut sequence = case.schedule.sequence(fused).to_vec();
    change(&mut sequence);
    case.schedule.set(fused, sequence);
}

const INSIDE: &[Mutation] = &[
    (
        "users before operands in a kernel",
        |c| reorder_fused(c, |s| s.swap(1, 2)),
        |v| matches!(v, V::OutOfOrder { .. }),
    ),
    (
        "half an order of a kernel",
        |c| reorder_fused(c, |s| s.truncate(2)),
        |v| matches!(v, V::NotScheduled { .. }),
    ),
    (
        "an instruction of a kernel twice",
        |c| reorder_fused(c, |s| s.push(s[0])),
        |v| matches!(v, V::ScheduledTwice { .. }),
    ),
    (
        "a value inside a kernel that has a place",
        |c| {
            let position = Position { instruction: c.find("e"), index: ShapeIndex::root() };
            let slice = *c.slice("b", &[]);
            c.plan.slices.insert(position, slice);
        },
        |v| matches!(v, V::InsideKernel { at } if &*at.instruction == "e"),
    ),
    (
        "scratch memory of a value inside a kernel",
        |c| {
            let (inside, slice) = (c.find("n"), *c.slice("d", &[]));
            c.plan.scratch.entry(inside).or_default().push(slice);
        },
        |v| matches!(v, V::InsideKernel { at } if &*at.instruction == "n"),
    ),
];

#[test]
fn wrong_insides_of_kernels_are_found_and_named() {
    find_and_name(FUSED, INSIDE);
    // Kernels need no order.
    let mut case = Case::new("toy", FUSED);
    reorder_fused(&mut case, |sequence| sequence.clear());
    assert_eq!(case.complaints(), "");
}

/// Half of what is in this arena is there at once, so it takes a search to know that it can be no smaller.
#[test]
fn what_only_a_search_knows_is_not_verified() {
    let mut case = Case::new("toy", FUSED);
    assert_eq!(case.check().expect("the plan is right").on_trust, []);
    case.plan.spaces[0].proved_minimal = true;
    assert_eq!(case.check().expect("the plan is right").on_trust, [MemorySpaceId::MAIN]);
    // A smaller arena, and as much of it is in use at once.
    let mut case = Case::new("toy", &FUSED.replace("temp+32", "temp+0"));
    case.plan.spaces[0].proved_minimal = true;
    assert_eq!(case.check().expect("the plan is right").on_trust, []);
}

/// What the checker finds, where it can be counted by hand.
#[test]
fn peaks_are_those_of_the_schedule() {
    let case = Case::new("toy", FUSED);
    // While `b` runs, `a` and `b` are in the arena; while `d` runs, `f` and `d`; the argument is there all the time,
    // and while `r` runs, so is the result.
    assert_eq!(case.plan.totals.temp, Bytes(48));
    assert_eq!(case.plan.totals.temp_lower_bound, Bytes(32));
    assert_eq!(case.plan.totals.peak_live, Bytes(48));
}
