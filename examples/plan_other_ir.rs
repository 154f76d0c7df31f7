//! Plans a graph that is not HLO, a `petgraph` with operations of its own: an order, a place for each value, a proof.
#![allow(clippy::print_stdout, reason = "an example talks")]

use memplan::check::{check_order, check_placement};
use memplan::plan::{PlaceOptions, ScheduleOptions, place, schedule_region};
use memplan::program::{LiveRange, Program, Region, Time, Value, ValueId};
use memplan::units::{Alignment, Bytes, OneMemory};
use petgraph::graph::{DiGraph, NodeIndex};

enum Op {
    Input,
    Dense,
    Relu,
}

/// A graph in an order of its nodes; each node computes the value of its number, of so many bytes.
struct Ordered<'a>(&'a DiGraph<(Op, u64), ()>, Vec<u32>);

impl Program for Ordered<'_> {
    fn end(&self) -> Time {
        self.1.len() as Time
    }
    fn n_values(&self) -> usize {
        self.1.len()
    }
    fn value(&self, value: ValueId) -> Value {
        let time = |node: u32| self.1.iter().position(|&n| n == node).map_or(0, |time| time as Time);
        let (op, bytes) = &self.0[NodeIndex::from(value.as_u32())];
        let last = self.0.neighbors(value.as_u32().into()).map(|user| time(user.index() as u32)).max();
        let live = LiveRange { start: time(value.as_u32()), end: last.map_or(self.end(), |last| last + 1) };
        let computed = Value { is_result: last.is_none(), ..Value::computed(Bytes(*bytes), live) };
        if let Op::Input = op { Value::given(computed.size, value.as_u32(), live.end) } else { computed }
    }
    fn reads(&self, time: Time) -> impl Iterator<Item = ValueId> {
        let operands = self.0.neighbors_directed(self.1[time as usize].into(), petgraph::Incoming);
        operands.map(|operand| ValueId::from_u32(operand.index() as u32))
    }
    fn writes(&self, time: Time) -> impl Iterator<Item = ValueId> {
        std::iter::once(ValueId::from_u32(self.1[time as usize]))
    }
    fn may_overwrite(&self, _: Time, _: ValueId, result: ValueId) -> bool {
        matches!(self.0[NodeIndex::from(result.as_u32())].0, Op::Relu)
    }
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut graph = DiGraph::new();
    let nodes = [(Op::Input, 8), (Op::Dense, 64), (Op::Relu, 64), (Op::Dense, 8)].map(|n| graph.add_node(n));
    [(0, 1), (1, 2), (2, 3), (0, 3)].iter().for_each(|&(a, b)| _ = graph.add_edge(nodes[a], nodes[b], ()));
    let region = Region::of(&Ordered(&graph, (0..4).collect()));
    let order = schedule_region(region.clone(), &ScheduleOptions::default())?.order;
    check_order(&region, &order)?;
    let program = Ordered(&graph, order.iter().map(|node| node.as_u32()).collect());
    let device = OneMemory { name: "hbm".into(), capacity: None, alignment: Alignment::new(8)? };
    let placement = place(&program, &device, &PlaceOptions::default())?;
    placement.slices.iter().for_each(|(value, slice)| println!("{value} {slice:?}"));
    assert_eq!(placement.totals.temp, Bytes(64), "the second layer is written over the first");
    Ok(check_placement(&program, &device, &placement)?)
}
