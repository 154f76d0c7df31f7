//! The flattened schedule: one instant per instruction of every sequential computation.
//!
//! The instructions of a called computation precede their caller: first those of a call or of each branch of a
//! conditional; for a loop, those of its condition, then of its body. A loop appears once, however often it runs.
//!
//! ```text
//!   0 p    1 init   [2 c0 3 c1 | 4 b0 5 b1]  6 while   7 r
//!                   ^ begin(while) = 2       ^ time(while) = 6
//! ```

use cranelift_entity::SecondaryMap;
use memplan_ir::{ComputationId, InstructionId, Module, Op, Schedule};
use memplan_program::Time;

use crate::CallGraph;

/// When every instruction of a sequential computation runs.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The instruction at each instant.
    pub instructions: Vec<InstructionId>,
    times: SecondaryMap<InstructionId, Time>,
    begins: SecondaryMap<InstructionId, Time>,
    /// First instant of each computation, and one past its last.
    ranges: SecondaryMap<ComputationId, (Time, Time)>,
}

/// Lays out the schedule of every sequential computation, in linear time.
///
/// # Panics
/// When the schedule lacks a sequential computation, or the module has 2^32 instructions or more.
pub fn timeline(module: &Module, graph: &CallGraph, schedule: &Schedule) -> Timeline {
    let mut lengths: SecondaryMap<ComputationId, u32> = SecondaryMap::new();
    for &computation in graph.sequential() {
        let sequence = schedule.sequence(computation);
        assert_eq!(
            sequence.len(),
            module.computations[computation].instructions.len(),
            "a schedule has every instruction of a sequential computation once"
        );
        let callees = sequence.iter().flat_map(|&id| callees_in_order(module, graph, id));
        let inner: u32 = callees.map(|callee| lengths[callee]).sum();
        lengths[computation] = inner + sequence.len() as u32;
    }
    let mut line = Timeline {
        instructions: vec![InstructionId::from_u32(0); lengths[module.entry] as usize],
        times: SecondaryMap::new(),
        begins: SecondaryMap::new(),
        ranges: SecondaryMap::new(),
    };
    line.times.resize(module.instructions.len());
    line.begins.resize(module.instructions.len());
    line.ranges[module.entry] = (0, lengths[module.entry]);
    // Callers first, so that a computation's place is known when its own instructions are laid out.
    for &computation in graph.sequential().iter().rev() {
        let mut now = line.ranges[computation].0;
        for &id in schedule.sequence(computation) {
            line.begins[id] = now;
            for callee in callees_in_order(module, graph, id) {
                line.ranges[callee] = (now, now + lengths[callee]);
                now += lengths[callee];
            }
            line.times[id] = now;
            line.instructions[now as usize] = id;
            now += 1;
        }
    }
    line
}

impl Timeline {
    /// When an instruction runs; for one that calls computations, the instant after them.
    pub fn time(&self, instruction: InstructionId) -> Time {
        self.times[instruction]
    }

    /// When an instruction begins: the first instant of the computations it calls, if any.
    pub fn begin(&self, instruction: InstructionId) -> Time {
        self.begins[instruction]
    }

    /// The first instant of a computation, and one past its last.
    pub fn range(&self, computation: ComputationId) -> (Time, Time) {
        self.ranges[computation]
    }

    /// One past the last instant.
    pub fn end(&self) -> Time {
        self.instructions.len() as Time
    }
}

/// The sequential computations that an instruction calls, in the order in which the timeline lays them out.
fn callees_in_order<'m>(
    module: &'m Module,
    graph: &'m CallGraph,
    id: InstructionId,
) -> impl Iterator<Item = ComputationId> + 'm {
    let instruction = &module.instructions[id];
    // A loop's condition runs before its body, but is called second.
    let is_loop = instruction.op == Op::While;
    let n = instruction.called.len();
    (0..n)
        .map(move |i| instruction.called[if is_loop { n - 1 - i } else { i }])
        .filter(move |&callee| graph.caller(callee) == Some(id))
}
