//! Properties on random graphs, compared with all topological orders.

use cranelift_entity::EntityRef;
use memplan_program::{Buffer, BufferId, NodeId, Region, Reuse};
use memplan_units::Bytes;

use super::graph::{Graph, Node};
use super::profile::Profile;
use super::{RegionSchedule, ScheduleOptions, best_order, cut, search, starts};

/// A small generator of numbers (xorshift64*), so that cases are the same everywhere.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }
}

/// A random region: every node defines a buffer or two, reads some earlier ones, and may write over one of them.
fn random_graph(random: &mut Random, n: usize) -> Graph {
    let mut region = Region::new(n);
    let mut calls = Vec::new();
    for _ in 0..random.below(3) {
        let bytes = Bytes(1 + random.below(6));
        region.buffers.push(Buffer { bytes, live_in: true, live_out: random.below(4) == 0 });
    }
    // For each buffer, the node that defines it.
    let mut defined_by: Vec<Option<NodeId>> = vec![None; region.buffers.len()];
    for node in (0..n).map(NodeId::new) {
        let mut operands = Vec::new();
        for _ in 0..random.below(4).min(region.buffers.len() as u64) {
            let buffer = BufferId::new(random.below(region.buffers.len() as u64) as usize);
            region.touches.push((node, buffer));
            region.dependencies.extend(defined_by[buffer.index()].map(|before| (before, node)));
            operands.push(buffer);
        }
        operands.sort_unstable();
        operands.dedup();
        for _ in 0..random.below(3) {
            let bytes = Bytes(1 + random.below(6));
            let live_out = random.below(8) == 0;
            let result = region.buffers.push(Buffer { bytes, live_in: false, live_out });
            defined_by.push(Some(node));
            region.touches.push((node, result));
            region.definitions.push((node, result));
            let alike = operands.iter().copied().filter(|&b| region.buffers[b].bytes == bytes);
            let operands: Vec<BufferId> = alike.collect();
            if random.below(2) == 0 && region.reuses.iter().all(|reuse| reuse.node != node) {
                region.reuses.push(Reuse { node, result, n_results: 1, operands });
            }
        }
        if random.below(6) == 0 && region.reuses.iter().all(|reuse| reuse.node != node) {
            calls.push((node.as_u32(), 12 + random.below(8)));
        }
        if node.index() > 0 && random.below(10) == 0 {
            region.dependencies.push((NodeId::new(random.below(node.index() as u64) as usize), node));
        }
    }
    // Buffers that nothing touches are not part of a problem.
    for (buffer, counted) in &mut region.buffers {
        if region.touches.iter().all(|touch| touch.1 != buffer) && !counted.live_out {
            counted.bytes = Bytes::ZERO;
        }
    }
    Graph::new(region, &calls)
}

/// The lowest peak over all orders, by trying them all.
fn lowest_peak(graph: &Graph) -> u64 {
    fn extend(graph: &Graph, order: &mut Vec<Node>, waiting: &mut Vec<u32>, best: &mut u64) {
        if order.len() == graph.len() {
            *best = (*best).min(graph.peak(order));
        }
        for node in graph.nodes() {
            if waiting[node as usize] == 0 && !order.contains(&node) {
                order.push(node);
                graph.successors.row(node).iter().for_each(|&next| waiting[next as usize] -= 1);
                extend(graph, order, waiting, best);
                graph.successors.row(node).iter().for_each(|&next| waiting[next as usize] += 1);
                order.pop();
            }
        }
    }
    let mut best = u64::MAX;
    extend(graph, &mut Vec::new(), &mut graph.in_degrees(), &mut best);
    best
}

#[test]
fn search_finds_the_lowest_peak_of_small_graphs() {
    let mut random = Random(7);
    let (mut n_improved, mut n_optimal) = (0, 0);
    for case in 0..1500 {
        let n = 1 + random.below(8) as usize;
        let graph = random_graph(&mut random, n);
        let lowest = lowest_peak(&graph);
        let RegionSchedule { order, report } = best_order(&graph, 1_000_000, &ScheduleOptions::default())
            .expect("edges go from earlier to later nodes");
        let order: Vec<Node> = order.into_iter().map(NodeId::as_u32).collect();
        assert!(graph.is_legal(&order), "case {case}");
        assert_eq!(report.peak.0, graph.peak(&order), "case {case}");
        assert_eq!(report.peak.0, lowest, "case {case}: {graph:?}");
        assert!(report.is_optimal, "case {case}");
        let best_start = report.candidates.iter().filter(|c| c.0 != super::Method::Search);
        n_improved += u32::from(best_start.map(|c| c.1.0).min() > Some(lowest));
        n_optimal += u32::from(report.candidates[0].1.0 == lowest);
    }
    assert!(n_improved > 10, "cases that the starts do not solve: {n_improved}");
    assert!(n_optimal < 1400, "cases that textual order solves: {n_optimal}");
}

#[test]
fn every_start_is_legal() {
    let mut random = Random(11);
    for case in 0..200 {
        let n = 1 + random.below(60) as usize;
        let graph = random_graph(&mut random, n);
        let textual = starts::textual(&graph).expect("edges go from earlier to later nodes");
        let all = [
            starts::list(&graph),
            starts::depth_first(&graph, &textual),
            starts::post_order(&graph),
            starts::tree(&graph, &textual),
            starts::reverse(&graph),
        ];
        for (i, order) in all.iter().enumerate() {
            assert!(graph.is_legal(order), "case {case}, start {i}");
        }
    }
}

#[test]
fn improvement_never_raises_the_peak_and_keeps_orders_legal() {
    let mut random = Random(13);
    let mut n_lower = 0;
    for case in 0..60 {
        let n = 100 + random.below(300) as usize;
        let graph = random_graph(&mut random, n);
        let textual = starts::textual(&graph).expect("edges go from earlier to later nodes");
        let before = graph.peak(&textual);
        let improved = search::improve(&graph, textual, 50_000, &ScheduleOptions::default());
        assert!(graph.is_legal(&improved.order), "case {case}");
        assert_eq!(improved.peak, graph.peak(&improved.order), "case {case}");
        assert!(improved.peak <= before, "case {case}");
        n_lower += u32::from(improved.peak < before);
    }
    assert!(n_lower > 30, "cases improved: {n_lower}");
}

#[test]
fn profile_follows_the_replay() {
    let mut random = Random(17);
    for _ in 0..50 {
        let graph = random_graph(&mut random, 40);
        let order = starts::textual(&graph).expect("edges go from earlier to later nodes");
        let mut profile = Profile::new(&graph, order);
        // Swapping two neighbors that do not depend on each other.
        for _ in 0..40 {
            let place = random.below(39) as usize;
            let (a, b) = (profile.order[place], profile.order[place + 1]);
            if !graph.successors.row(a).contains(&b) {
                profile.reorder(&graph, place, &[b, a]);
            }
            let fresh = Profile::new(&graph, profile.order.clone());
            assert_eq!(profile.peak(), fresh.peak());
            assert_eq!(profile.before, fresh.before);
            assert_eq!(profile.peak_place(), fresh.peak_place());
        }
    }
}

#[test]
fn a_cut_finds_the_least_that_can_be_live() {
    let mut random = Random(19);
    let mut n_lower = 0;
    for case in 0..300 {
        let n = 1 + random.below(8) as usize;
        let graph = random_graph(&mut random, n);
        let order = starts::textual(&graph).expect("edges go from earlier to later nodes");
        let profile = Profile::new(&graph, order.clone());
        for (place, &node) in order.iter().enumerate() {
            let found = cut::least_live(&graph, &profile, place, 0..n).expect("graphs are small");
            let least = least_live_before(&graph, node);
            assert_eq!(found.bytes, least, "case {case}, place {place}: {graph:?}");
            n_lower += u32::from(least < profile.before[place]);
        }
    }
    assert!(n_lower > 50, "places where less can be live than in textual order: {n_lower}");
}

/// The least live before a node, over all sets of nodes that may have run by then.
fn least_live_before(graph: &Graph, node: Node) -> u64 {
    let has = |set: u32, node: Node| set >> node & 1 == 1;
    let sets = (0..1u32 << graph.len()).filter(|&set| {
        let is_closed = graph
            .nodes()
            .filter(|&after| has(set, after) || after == node)
            .all(|after| graph.predecessors.row(after).iter().all(|&before| has(set, before)));
        is_closed && !has(set, node)
    });
    let live = sets.map(|set| {
        let mut state = graph.start();
        let ran = graph.nodes().filter(|&node| has(set, node));
        ran.for_each(|node| {
            graph.run(&mut state, node);
        });
        state.live
    });
    live.min().expect("what a node depends on may run before it")
}
