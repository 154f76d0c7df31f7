//! Proves a memory plan, or lists its violations.
//!
//! ```
//! use memplan_check::check;
//! use memplan_memory::{Bytes, Target};
//! use memplan_plan_hlo::{PlanOptions, plan};
//!
//! let module = memplan_hlo::parse(
//!     "HloModule m, is_scheduled=true
//!      ENTRY main {
//!        p = f32[8]{0} parameter(0)
//!        a = f32[8]{0} exponential(p)
//!        b = f32[8]{0} reverse(a), dimensions={0}
//!        ROOT r = f32[8]{0} multiply(a, b)
//!      }",
//! )?;
//! let target = Target::find("cpu")?;
//! let mut planned = plan(&module, &target, &PlanOptions::default())?;
//! let proof = check(&module, &planned.schedule, &target, &planned.plan)?;
//! assert_eq!(proof.instructions, 4);
//!
//! // A plan in which `b` is where `a` is, which is still needed, is not right.
//! let slices: Vec<_> = planned.plan.slices.values().copied().collect();
//! *planned.plan.slices.values_mut().nth(2).unwrap() = slices[1];
//! let violations = check(&module, &planned.schedule, &target, &planned.plan).unwrap_err();
//! println!("{violations}");
//! # let _ = Bytes(0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`check()`] sees a module, its schedule, the target and the plan, and none of the analyses that made the plan, so
//! that it cannot repeat their mistakes. It walks the program and tracks the value in every byte. The plan is right if
//!
//! * the schedule has every instruction once, after its operands and control predecessors, and every position that
//!   needs bytes has a slice that is large enough, aligned, in bounds, and in the memory space of its layout;
//! * every read sees its value whole: all bytes of the slice hold the value that the program defines, with the elements
//!   in the layout that the reader expects;
//! * no instruction overwrites an operand while reading it, except element by element in place, and not with dynamic
//!   extents;
//! * nothing writes the operands of an operation in flight, or touches its results, until it is done; a computation
//!   that runs asynchronously reads all of its operands;
//! * every kernel has the scratch that the target says it reserves ([`MemorySpace::scratch_of_kernel`]), and
//!   nothing that is still needed is in it;
//! * constants, and arguments that the caller keeps, are never written;
//! * the result of a copy that the next call reuses (`cross_program_prefetch_index`) stays from before the copy starts
//!   to the end;
//! * results end where the caller expects them, aliased ones in their parameter;
//! * totals, figures of memory spaces and padding equal those of allocations and shapes, and the claimed peaks equal
//!   those of a replay of the schedule.
//!
//! The method is that of register allocation checkers (see regalloc2's `checker.rs`), with byte ranges for registers.
//! It is linear because slices belong to positions, not to calls: each computation is walked once, and callers use the
//! set of bytes that it writes. So nested calls cannot multiply the work. The time is O(n log n) in positions, plus the
//! number of separate written ranges of a callee for each of its calls. A budget limits the latter; above it, the
//! answer is [`Violation::TooComplex`]. Real plans have dense arenas and are far below.
//!
//! An arena is proved minimal (`proved_minimal`) if its peak of live bytes equals its size. A search can prove more,
//! and is not repeated: such claims are listed in [`Proof::on_trust`]. Both are about the values in the arena. The
//! claim that no plan takes less, with any values in the arena (`total_lower_bound`), is the planner's own proof: it is
//! rejected only if the plan itself takes less.
//!
//! Not checked: whether a program fits the capacities of memory spaces, peaks if a computation has several callers, and
//! the span of an asynchronous operation that starts in one computation and ends in another (as in pipelined loops):
//! there each computation is checked as if the operation were not in flight.
//!
//! [`MemorySpace::scratch_of_kernel`]: memplan_memory::MemorySpace::scratch_of_kernel
//!
//! [`check_placement`] and [`check_order`] do the same, in a simpler way, for placements and schedules of programs of
//! any IR.

mod bytes;
mod calls;
mod effective_layout;
mod facts;
mod figures;
mod in_place;
mod join;
mod kernel_scratch;
mod live;
mod structure;
mod violation;
mod walk;

use memplan_ir::{Module, Schedule, SecondaryMap};
use memplan_memory::{MemoryPlan, MemorySpaceId, Target};
use rustc_hash::FxHashMap;

use bytes::Holder;
use facts::{Facts, Report};
pub use memplan_check_placement::{Misplacement, Tenant, check_order, check_placement};
pub use violation::{Contents, Place, Violation, Violations};
use walk::Proving;

/// Pieces of memory written by callees that may be looked at in all, beyond a share for every instruction.
const LEAST_FUEL: usize = 1 << 24;

/// The work done to prove a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// Computations that were walked.
    pub computations: usize,
    /// Instructions in them.
    pub instructions: usize,
    /// Reads that found their value whole.
    pub reads: usize,
    /// Writes that were followed.
    pub writes: usize,
    /// Memory spaces whose arenas the plan calls minimal, which nothing here could verify.
    pub on_trust: Vec<MemorySpaceId>,
}

/// Proves that a plan is right for a module that the verifier accepts, run in the order of `schedule`.
///
/// # Errors
/// What is wrong with the plan.
pub fn check(
    module: &Module,
    schedule: &Schedule,
    target: &Target,
    plan: &MemoryPlan,
) -> Result<Proof, Violations> {
    let mut report = Report::default();
    if plan.target != target.name {
        report.add(Violation::OtherTarget {
            plan: plan.target.as_str().into(),
            target: target.name.as_str().into(),
        });
    }
    let mut facts = Facts::new(module, schedule, target, plan, &mut report);
    let Some(computations) = structure::planned_computations(&facts, &mut report) else {
        return report.into_result().map(|()| Proof::default());
    };
    let mut planned = SecondaryMap::new();
    computations.iter().for_each(|&c| planned[c] = true);
    facts.place_constants(&planned, &mut report);

    structure::check_schedule(&facts, &planned, &mut report);
    structure::check_kernels(&facts, &planned, &mut report);
    structure::check_slices(&facts, &computations, &mut report);
    kernel_scratch::check_kernel_scratch(&facts, &mut report);
    structure::check_arguments(&facts, &mut report);
    structure::check_results(&facts, &mut report);
    figures::check_totals(&facts, &mut report);
    figures::check_spaces(&facts, &mut report);
    figures::check_ends(&facts, &mut report);

    let mut proving = Proving {
        facts: &facts,
        report: &mut report,
        memo: Default::default(),
        names: vec![Holder::Nothing; facts.positions.len()],
        is_read: vec![false; facts.positions.len()],
        summaries: FxHashMap::default(),
        immediates: FxHashMap::default(),
        fuel: LEAST_FUEL + 16 * module.instruction_count(),
        reads: 0,
        writes: 0,
    };
    for &computation in &computations {
        let summary = walk::walk(&mut proving, computation);
        proving.summaries.insert(computation, summary);
    }
    let Proving { reads, writes, names, .. } = proving;
    // Live bytes are defined only for right plans.
    let peaks = if report.is_empty() { live::replay(&facts, &names, &computations) } else { None };
    if let Some(peaks) = &peaks {
        figures::check_peaks(&facts, peaks, &mut report);
    }
    report.into_result()?;
    let on_trust = figures::said_to_be_minimal(&facts, peaks.is_some());
    let instructions = computations.iter().map(|&c| module.computations[c].instructions.len()).sum();
    Ok(Proof { computations: computations.len(), instructions, reads, writes, on_trust })
}
