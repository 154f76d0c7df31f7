use petgraph::algo::dinics;
use petgraph::graph::{DiGraph, NodeIndex};
use proptest::prelude::*;

use super::*;

type Edges = [(u32, u32, u64)];

fn network(nodes: u32, edges: &Edges) -> Network {
    let mut network = Network::with_nodes(nodes as usize);
    edges.iter().for_each(|&(from, to, capacity)| network.add_edge(from, to, capacity));
    network
}

#[track_caller]
fn check(nodes: u32, edges: &Edges, sink_side: &[u32]) {
    let cut = network(nodes, edges).cut_nearest_to_sink(0, nodes - 1).expect("there is a cut");
    let on_sink_side: Vec<u32> = (0..nodes).filter(|&node| cut.on_sink_side[node as usize]).collect();
    assert_eq!(on_sink_side, sink_side);
    assert_eq!(cut.capacity, across(edges, &cut.on_sink_side));
}

fn across(edges: &Edges, on_sink_side: &[bool]) -> u64 {
    let crosses =
        |&&(from, to, _): &&(u32, u32, u64)| !on_sink_side[from as usize] && on_sink_side[to as usize];
    edges.iter().filter(crosses).map(|&(_, _, capacity)| capacity).sum()
}

#[test]
fn cuts_the_narrowest_edge_of_a_path() {
    check(4, &[(0, 1, 5), (1, 2, 3), (2, 3, 4)], &[2, 3]);
}

#[test]
fn among_equal_cuts_takes_the_last() {
    check(4, &[(0, 1, 3), (1, 2, 3), (2, 3, 3)], &[3]);
}

#[test]
fn one_source_of_two_values_is_cheaper_than_both() {
    check(4, &[(0, 1, 4), (1, 2, 3), (1, 3, 3), (2, 3, 9)], &[1, 2, 3]);
}

#[test]
fn flow_can_be_taken_back() {
    // The path 0-1-4-5 found first must give way for both 0-1-3-5 and 0-2-4-5.
    let edges = [(0, 1, 1), (0, 2, 1), (1, 4, 1), (1, 3, 1), (2, 4, 1), (3, 5, 1), (4, 5, 1)];
    check(6, &edges, &[5]);
}

#[test]
fn long_and_short_ways_are_cut_together() {
    // A chain from 1 to 9, with a way in of width 2 at each place and a way out of width 1 at every other.
    let mut edges: Vec<(u32, u32, u64)> = (1..9).map(|i| (i, i + 1, 3)).collect();
    edges.extend((1..10).map(|i| (0, i, 2)));
    edges.extend((1..10).filter(|i| i % 2 == 1).map(|i| (i, 10, 1)));
    check(11, &edges, &[10]);
}

#[test]
fn there_may_be_no_cut() {
    assert_eq!(network(2, &[(0, 1, UNCUTTABLE)]).cut_nearest_to_sink(0, 1), None);
}

#[test]
fn what_is_not_connected_costs_nothing() {
    check(3, &[(0, 1, 7)], &[2]);
}

proptest! {
    /// The cut separates, carries what petgraph's maximum flow does, and no cut nearer to the sink is as narrow: with
    /// any node of the sink's side fixed to the source's, cuts are wider.
    #[test]
    fn agrees_with_petgraph(edges in prop::collection::vec((0u32..9, 0u32..9, 0u64..20), 0..40)) {
        let edges: Vec<(u32, u32, u64)> = edges.into_iter().filter(|(from, to, _)| from != to).collect();
        let flow = |edges: &Edges| {
            let mut graph: DiGraph<(), u64> = DiGraph::new();
            (0..9).for_each(|_| _ = graph.add_node(()));
            for &(from, to, capacity) in edges {
                graph.add_edge(NodeIndex::new(from as usize), NodeIndex::new(to as usize), capacity);
            }
            dinics(&graph, NodeIndex::new(0), NodeIndex::new(8)).0
        };
        let cut = network(9, &edges).cut_nearest_to_sink(0, 8).expect("capacities are small");
        prop_assert!(!cut.on_sink_side[0] && cut.on_sink_side[8]);
        prop_assert_eq!(cut.capacity, flow(&edges));
        prop_assert_eq!(cut.capacity, across(&edges, &cut.on_sink_side));
        for node in (1..8).filter(|&node| cut.on_sink_side[node as usize]) {
            let mut fixed = edges.clone();
            fixed.push((0, node, 1_000_000));
            prop_assert!(flow(&fixed) > cut.capacity, "{node} need not be on the sink's side");
        }
    }
}
