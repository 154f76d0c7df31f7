//! How long a minimum cut takes here and with petgraph's `dinics`, on networks like those of deep programs: a chain of
//! values, of which the first half comes from the source and the second half goes to the sink.
//!
//! ```text
//! cargo run --release -p memplan-min-cut --example beside_petgraph
//! ```
#![allow(clippy::print_stdout, reason = "a table for people")]

use std::time::Instant;

use memplan_min_cut::Network;
use petgraph::algo::dinics;
use petgraph::graph::{DiGraph, NodeIndex};

fn main() {
    println!("{:>8} {:>14} {:>14}", "values", "min_cut", "petgraph");
    for n in [100, 1000, 10_000] {
        let edges = chain(n);
        let start = Instant::now();
        let mut network = Network::with_nodes(n as usize + 2);
        edges.iter().for_each(|&(from, to, capacity)| network.add_edge(from, to, capacity));
        let ours = network.cut_nearest_to_sink(0, n + 1).expect("capacities are small").capacity;
        let our_time = start.elapsed();

        let start = Instant::now();
        let mut graph: DiGraph<(), u64> = DiGraph::new();
        (0..n + 2).for_each(|_| _ = graph.add_node(()));
        for &(from, to, capacity) in &edges {
            graph.add_edge(NodeIndex::new(from as usize), NodeIndex::new(to as usize), capacity);
        }
        let theirs = dinics(&graph, NodeIndex::new(0), NodeIndex::new(n as usize + 1)).0;
        let their_time = start.elapsed();
        assert_eq!(ours, theirs);
        println!("{n:>8} {our_time:>14.1?} {their_time:>14.1?}");
    }
}

/// Edges between the source 0, values 1 to `n`, and the sink.
fn chain(n: u32) -> Vec<(u32, u32, u64)> {
    let mut edges = Vec::new();
    for i in 1..=n {
        // Widths that neither grow nor fall, so that ways of every length carry something.
        let width = |salt: u32| u64::from((i.wrapping_mul(2_654_435_761).wrapping_add(salt) >> 7) % 13 + 1);
        // The forward half makes values, the backward half needs them.
        edges.push(if i <= n / 2 { (0, i, width(1)) } else { (i, n + 1, width(2)) });
        if i < n {
            edges.push((i, i + 1, u64::from(n)));
        }
    }
    edges
}
