//! The live bytes at every launch.

use memplan_analysis::Time;
use memplan_memory::{Bytes, MemorySpaceId};
use memplan_plan_hlo::{Load, Planned, lifetimes};

use super::{Curve, space_of};
use crate::layout::program::NumberedProgram;

/// A curve for each memory space that has buffers, and that of all together. The flattened schedule has instants that are
/// no launches; a launch has the most of its own instant and those since the launch before.
pub(super) fn curves(program: &NumberedProgram<'_>, planned: &Planned) -> (Vec<Curve>, Vec<Bytes>) {
    let line = &planned.facts.line;
    let lifetimes = lifetimes(program.module, &planned.facts, &planned.plan);
    let mut spaces: Vec<MemorySpaceId> =
        lifetimes.iter().map(|l| space_of(planned, l.slice.allocation)).collect();
    spaces.push(MemorySpaceId::MAIN);
    spaces.sort_unstable();
    spaces.dedup();
    let mut all = Load::new(line.end());
    let mut loads = vec![Load::new(line.end()); spaces.len()];
    for lifetime in &lifetimes {
        let space = space_of(planned, lifetime.slice.allocation);
        let at = spaces.binary_search(&space).expect("every space is listed");
        loads[at].add(lifetime.live, lifetime.slice.size);
        all.add(lifetime.live, lifetime.slice.size);
    }
    let curve = |(space, load): (MemorySpaceId, Load)| Curve { space, live: by_launch(program, &load) };
    (spaces.into_iter().zip(loads).map(curve).collect(), by_launch(program, &all))
}

fn by_launch(program: &NumberedProgram<'_>, load: &Load) -> Vec<Bytes> {
    let last = program.n_launches().saturating_sub(1);
    let mut live = vec![Bytes::ZERO; last as usize + 1];
    for (time, bytes) in load.curve().enumerate() {
        let launch = program.launch_at(time as Time).min(last);
        live[launch as usize] = live[launch as usize].max(bytes);
    }
    live
}
