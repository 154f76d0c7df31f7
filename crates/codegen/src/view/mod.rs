//! A planned program for people: its layout with the purpose of each launch and buffer, times, and what keeps each
//! buffer alive. Pictures, traces and the viewer are drawn from this; nothing is decided here.

mod clock;
mod curve;
mod html;
mod lanes;
mod perfetto;
mod svg;

use memplan_analysis::{Sources, ValueId, operation};
use memplan_ir::Module;
use memplan_memory::{AllocationId, Bytes, KindName, MemorySpaceId, Target};
use memplan_plan_hlo::{Planned, ProgramCost, peak_report};

use crate::layout::program::NumberedProgram;
use crate::layout::{Lifetime, ProgramLayout, document};
use clock::Clock;
use curve::curves;

pub use html::{Beside, Page, Row, Stage, Table, html};
pub use perfetto::perfetto;
pub use svg::svg;

/// A planned program to draw. All numbers are those of its [`ProgramLayout`].
#[derive(Clone, Debug)]
pub struct View {
    /// Allocations, buffers, launches and transfers.
    pub layout: ProgramLayout,
    /// The purpose of each launch, by number.
    pub launches: Vec<LaunchNotes>,
    /// The purpose of each buffer, by number.
    pub buffers: Vec<BufferNotes>,
    /// The value that each buffer holds first, by number.
    pub values: Vec<ValueId>,
    /// The beginning of each allocation if those of one memory space are stacked: arguments lowest, the arena on top.
    pub bases: Vec<Bytes>,
    /// Bytes live during each launch, for each memory space that has buffers, main memory first.
    pub curves: Vec<Curve>,
    /// The same for all memories together.
    pub live: Vec<Bytes>,
    /// The moment with most bytes live.
    pub peak: Peak,
    /// Seconds of one run by the cost model, as in reports: with what waits and what overlaps, unlike the sum of launches.
    pub seconds: f64,
    clock: Clock,
}

/// The purpose of a launch.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchNotes {
    /// The framework's name of the operation; empty where it says nothing.
    pub operation: String,
    /// `file:line` of the user's program.
    pub source: Option<String>,
    /// The first launch that runs within it; its own number where nothing does.
    pub begin: u32,
    /// Seconds of all its runs together, without the computations that it runs, by the cost model.
    pub seconds: f64,
}

/// The purpose of a buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct BufferNotes {
    /// Its value in the author's terms.
    pub value: ValueNotes,
    /// The operation that makes it, as HLO names it.
    pub opcode: String,
    /// The launch that makes it; none where the caller does, or where it is there from the start.
    pub made_by: Option<u32>,
}

/// A value in the author's terms. The caller provides these, in the words of its other reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValueNotes {
    /// The framework's name of the operation that makes it; empty where it says nothing.
    pub operation: String,
    /// Its name in lists of holders.
    pub name: String,
    /// `parameter`, `activation`, ...
    pub class: String,
    /// `file:line` of the user's program.
    pub source: Option<String>,
    /// The operation that keeps it alive.
    pub kept_by: String,
}

/// Bytes live in one memory space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Curve {
    /// The space.
    pub space: MemorySpaceId,
    /// Bytes during each launch; at least one entry.
    pub live: Vec<Bytes>,
}

/// The moment with most bytes live, in all memories together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peak {
    /// The launch that runs then, or the next one.
    pub launch: u32,
    /// Bytes live.
    pub bytes: Bytes,
    /// The instruction that runs then.
    pub instruction: String,
    /// The live buffers, largest first, one for each place.
    pub buffers: Vec<u32>,
}

impl View {
    /// Makes the view of a planned program, in time close to linear in it; `notes` is called once for each buffer.
    ///
    /// # Panics
    /// When the plan is of another module.
    pub fn new(
        module: &Module,
        target: &Target,
        planned: &Planned,
        notes: impl Fn(ValueId) -> ValueNotes,
    ) -> View {
        let program = NumberedProgram::new(module, &planned.facts, target, &planned.plan);
        let layout = document(&program);
        let cost = ProgramCost::new(module, &planned.facts, &planned.plan, target);
        let launches = launch_notes(&program, &cost);
        let report = peak_report(module, &planned.facts, &planned.plan);
        let flow = &planned.facts.flow;
        let number = |buffer: &memplan_plan_hlo::PeakBuffer| {
            let mut positions = flow.positions.of(buffer.position.instruction);
            let position = positions.find(|&p| *flow.positions.shape_index(p) == buffer.position.index)?;
            program.buffer_number(flow.value_at(position)?)
        };
        let last = program.n_launches().saturating_sub(1);
        let peak = Peak {
            launch: program.launch_at(report.time).min(last),
            bytes: report.bytes,
            instruction: module.instructions[report.instruction].name.to_string(),
            buffers: report.buffers.iter().filter_map(number).collect(),
        };
        let (curves, live) = curves(&program, planned);
        View {
            bases: bases(&layout),
            buffers: buffer_notes(&program, notes),
            values: program.values.clone(),
            curves,
            live,
            clock: Clock::new(&launches),
            seconds: cost.run.seconds,
            peak,
            launches,
            layout,
        }
    }

    /// The beginning of a buffer if the allocations of its memory space are stacked.
    pub fn base(&self, buffer: u32) -> Bytes {
        let address = self.layout.buffers[buffer as usize].address;
        self.bases[address.allocation as usize].saturating_add(address.offset)
    }

    /// Seconds from the start of the program to the start of a launch; loops count as often as they run.
    pub fn starts_at(&self, launch: u32) -> f64 {
        self.clock.start(launch)
    }

    /// The largest stack of allocations of a memory space.
    pub fn height(&self, space: MemorySpaceId) -> Bytes {
        let inside = self.layout.allocations.iter().zip(&self.bases).filter(|(a, _)| a.space == space);
        inside.map(|(a, base)| base.saturating_add(a.size)).max().unwrap_or(Bytes::ZERO)
    }

    fn end_of(&self, live: Lifetime) -> u32 {
        live.to.max(live.from + 1)
    }
}

fn launch_notes(program: &NumberedProgram<'_>, cost: &ProgramCost) -> Vec<LaunchNotes> {
    let (module, facts) = (program.module, program.facts);
    let kernels = cost.kernels(module, facts, program.target);
    let sources = Sources::new(module);
    let mut notes = Vec::with_capacity(program.n_launches() as usize);
    for &id in facts.line.instructions.iter().filter(|&&id| program.is_launch(id)) {
        let seconds = kernels.of(id).seconds * cost.runs(module.instructions[id].parent);
        notes.push(LaunchNotes {
            operation: operation(module, id).to_string(),
            source: sources.user(id).map(|frame| frame.to_string()),
            begin: program.launch_at(facts.line.begin(id)),
            seconds: if seconds.is_finite() { seconds.max(0.0) } else { 0.0 },
        });
    }
    notes
}

fn buffer_notes(program: &NumberedProgram<'_>, notes: impl Fn(ValueId) -> ValueNotes) -> Vec<BufferNotes> {
    let (module, flow) = (program.module, &program.facts.flow);
    let notes = |&value: &ValueId| {
        let id = flow.positions.instruction(flow.values[value].definition);
        BufferNotes {
            value: notes(value),
            opcode: module.instructions[id].opcode().to_string(),
            made_by: program.is_launch(id).then(|| program.launch_number(id)),
        }
    };
    program.values.iter().map(notes).collect()
}

/// Stacks the allocations of each memory space.
fn bases(layout: &ProgramLayout) -> Vec<Bytes> {
    let rank = |kind| match kind {
        KindName::Argument => 0,
        KindName::Constant => 1,
        KindName::Output => 2,
        KindName::Temp => 3,
    };
    let mut order: Vec<usize> = (0..layout.allocations.len()).collect();
    order.sort_by_key(|&i| (layout.allocations[i].space, rank(layout.allocations[i].kind), i));
    let mut bases = vec![Bytes::ZERO; layout.allocations.len()];
    let mut top = (MemorySpaceId::MAIN, Bytes::ZERO);
    for i in order {
        let allocation = &layout.allocations[i];
        if allocation.space != top.0 {
            top = (allocation.space, Bytes::ZERO);
        }
        bases[i] = top.1;
        top.1 = top.1.saturating_add(allocation.size);
    }
    bases
}

/// The space of an allocation.
fn space_of(planned: &Planned, allocation: AllocationId) -> MemorySpaceId {
    planned.plan.allocations[allocation].space
}
