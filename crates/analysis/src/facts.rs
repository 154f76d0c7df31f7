//! All analyses of a scheduled module that the planner needs, at once.

use memplan_ir::{Module, Schedule};

use crate::{
    Buffers, CallGraph, CallGraphError, Dataflow, InPlace, LiveRanges, Parts, Timeline, buffers, dataflow,
    live_ranges, timeline,
};

/// Facts about a module that do not depend on its schedule.
#[derive(Clone, Debug)]
#[must_use]
pub struct Aliasing {
    /// Which computations run, and from where: no computation from two places.
    pub graph: CallGraph,
    /// Which value is where.
    pub flow: Dataflow,
    /// Which operations work in place.
    pub in_place: InPlace,
    /// Which values must share storage.
    pub buffers: Buffers,
}

impl Aliasing {
    /// Finds what shares storage, in time close to linear in the module.
    ///
    /// # Errors
    /// When the call graph has a cycle or is not flat.
    pub fn new(module: &Module) -> Result<Aliasing, CallGraphError> {
        let graph = CallGraph::new(module)?;
        graph.require_flat(module)?;
        let flow = dataflow(module, &graph);
        let in_place = InPlace::new(module);
        let buffers = buffers(module, &graph, &flow, &in_place);
        Ok(Aliasing { graph, flow, in_place, buffers })
    }

    /// The facts under a schedule, in time close to linear in the module, which is to be the one that this is known of.
    pub fn under(self, module: &Module, schedule: &Schedule) -> Facts {
        let Aliasing { graph, flow, in_place, buffers } = self;
        let line = timeline(module, &graph, schedule);
        let mut live = live_ranges(module, &graph, &flow, &line);
        let parts = Parts::new(module, &flow, &buffers, &line, &live);
        live.end_parts(&parts, &line);
        Facts { graph, flow, in_place, buffers, line, live, parts }
    }
}

/// The facts about one module under one schedule.
#[derive(Clone, Debug)]
#[must_use]
pub struct Facts {
    /// Which computations run, and from where.
    pub graph: CallGraph,
    /// Which value is where.
    pub flow: Dataflow,
    /// Which operations work in place.
    pub in_place: InPlace,
    /// Which values must share storage.
    pub buffers: Buffers,
    /// When everything runs.
    pub line: Timeline,
    /// From when to when every value is needed.
    pub live: LiveRanges,
    /// Adjacent values that become one value later.
    pub parts: Parts,
}

impl Facts {
    /// Finds the facts, in time close to linear in the module.
    ///
    /// # Errors
    /// When the call graph has a cycle or is not flat.
    pub fn new(module: &Module, schedule: &Schedule) -> Result<Facts, CallGraphError> {
        Ok(Aliasing::new(module)?.under(module, schedule))
    }
}
