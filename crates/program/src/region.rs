//! The input of scheduling: nodes that must run in some order, and the bytes that they touch.

use alloc::vec::Vec;

use cranelift_entity::{PrimaryMap, entity_impl};
use memplan_units::Bytes;

/// A region: a part of the program that is scheduled by itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(u32);
entity_impl!(RegionId, "region");

/// An operation of a region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);
entity_impl!(NodeId, "node");

/// Bytes that nodes of a region touch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(u32);
entity_impl!(BufferId, "buffer");

/// A part of a program that is scheduled by itself: the body of a function, a loop or a branch.
///
/// Each byte is counted in one region: an operand that only the callee needs counts in the callee, any other in the
/// caller. Bytes that exist under every order, such as arguments that the caller keeps, need not be counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Region {
    /// How many nodes there are, in the order of the source: their ids count from zero.
    pub n_nodes: usize,
    /// (before, after): what every order keeps. May repeat.
    pub dependencies: Vec<(NodeId, NodeId)>,
    /// The bytes that nodes touch.
    pub buffers: PrimaryMap<BufferId, Buffer>,
    /// The nodes that touch each buffer, including those that define it. May repeat.
    pub touches: Vec<(NodeId, BufferId)>,
    /// The nodes that a buffer begins with.
    pub definitions: Vec<(NodeId, BufferId)>,
    /// The results that may take over bytes of operands.
    pub reuses: Vec<Reuse>,
    /// The nodes that run other regions.
    pub calls: Vec<Call>,
    /// Orders of all nodes that are known without looking at bytes, to be tried as they are, but for what
    /// [`dependencies`](Region::dependencies) forbid.
    pub given: Vec<Vec<NodeId>>,
}

/// Bytes that are live from the first node that touches them to the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    /// How many.
    pub bytes: Bytes,
    /// Whether they are live before the first node runs.
    pub live_in: bool,
    /// Whether they are live after the last node.
    pub live_out: bool,
}

/// Results of a node, alike in size, each of which may take over one of some operands that nobody touches later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// The node.
    pub node: NodeId,
    /// One of the results, which are buffers that begin with the node.
    pub result: BufferId,
    /// How many there are.
    pub n_results: u32,
    /// The operands, of the same size.
    pub operands: Vec<BufferId>,
}

/// A node that runs other regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The node.
    pub node: NodeId,
    /// The regions, each with the bytes that are live beside it but counted neither by it nor by the caller.
    pub callees: Vec<(RegionId, Bytes)>,
    /// Bytes of the operands that the callees count.
    pub handed_over: Bytes,
    /// For an asynchronous call: the buffers that are live until it is done.
    pub in_flight: Option<InFlight>,
}

/// The buffers that an asynchronous call keeps live until it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The buffer of everything the call writes, less its results: the scheduler sets its bytes.
    pub buffer: BufferId,
    /// Bytes of the results, which are buffers of their own.
    pub results: Bytes,
}

impl Region {
    /// A region of so many nodes that nothing is known of yet.
    pub fn new(n_nodes: usize) -> Region {
        Region { n_nodes, ..Region::default() }
    }
}
