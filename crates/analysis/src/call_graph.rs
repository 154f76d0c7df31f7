//! The call graph: which computations run as part of the program's control flow, and their callers.
//!
//! A computation reached through call, while, conditional and asynchronous operations is *sequential*: its instructions
//! have buffers. A computation called by a fusion, a reduction, a sort, ... is *embedded*: it describes a function of
//! elements or the interior of a kernel, and its instructions have no buffers.

use cranelift_entity::SecondaryMap;
use memplan_ir::{ComputationId, InstructionId, Module, Op, PackedOption};
use petgraph::graphmap::DiGraphMap;
use rustc_hash::FxBuildHasher;

/// How a computation is reached from the entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Context {
    /// Not at all.
    #[default]
    Dead,
    /// As a part of the control flow: its instructions have buffers.
    Sequential,
    /// As a function applied to elements, or as a kernel's interior.
    Embedded,
}

/// Contexts and call sites of all computations.
#[derive(Clone, Debug)]
pub struct CallGraph {
    contexts: SecondaryMap<ComputationId, Context>,
    /// The call site of each sequential computation but the entry.
    callers: SecondaryMap<ComputationId, PackedOption<InstructionId>>,
    /// Sequential computations, callees before callers.
    sequential: Vec<ComputationId>,
}

/// Why a call graph is not one that memory can be planned for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallGraphError {
    /// A computation calls itself, directly or not.
    #[error("computation `{0}` calls itself, directly or through others")]
    Recursion(Box<str>),
    /// A computation has two call sites, so its buffers would have to serve both.
    #[error(
        "computation `{0}` is called from several places; flatten the call graph first (pass `flatten-call-graph`)"
    )]
    Shared(Box<str>),
    /// A computation is called both as control flow and from within a kernel.
    #[error(
        "computation `{0}` is called both as control flow and from within a kernel; flatten the call graph first"
    )]
    MixedContext(Box<str>),
}

impl CallGraph {
    /// Contexts and call sites, in time linear in the module.
    ///
    /// # Errors
    /// A computation calls itself. [`CallGraph::require_flat`] checks whether the graph is flat.
    pub fn new(module: &Module) -> Result<CallGraph, CallGraphError> {
        let order = callees_first(module)?;
        let mut graph =
            CallGraph { contexts: SecondaryMap::new(), callers: SecondaryMap::new(), sequential: Vec::new() };
        graph.contexts[module.entry] = Context::Sequential;
        // Callers before callees, so that a context is final before it is passed down.
        for &caller in order.iter().rev() {
            let context = graph.contexts[caller];
            if context == Context::Dead {
                continue;
            }
            for (id, instruction) in module.instructions_of(caller) {
                for &callee in &instruction.called {
                    if context == Context::Sequential && instruction.op.runs_callees() {
                        graph.contexts[callee] = Context::Sequential;
                        graph.callers[callee] = id.into();
                    } else if graph.contexts[callee] == Context::Dead {
                        graph.contexts[callee] = Context::Embedded;
                    }
                }
            }
        }
        graph.sequential = order;
        graph.sequential.retain(|&computation| graph.contexts[computation] == Context::Sequential);
        Ok(graph)
    }

    /// Checks that every sequential computation has exactly one call site, and none in a kernel.
    pub fn require_flat(&self, module: &Module) -> Result<(), CallGraphError> {
        let mut called: SecondaryMap<ComputationId, bool> = SecondaryMap::new();
        for (caller, computation) in module.computations.iter() {
            if self.contexts[caller] == Context::Dead {
                continue;
            }
            for &id in &computation.instructions {
                let instruction = &module.instructions[id];
                // An async chain names its computation again at -update and -done; the -start calls it.
                if matches!(instruction.op, Op::AsyncUpdate(_) | Op::AsyncDone(_)) {
                    continue;
                }
                for &callee in &instruction.called {
                    if self.contexts[callee] != Context::Sequential {
                        continue;
                    }
                    let name = || module.computations[callee].name.clone();
                    if self.contexts[caller] == Context::Embedded || !instruction.op.runs_callees() {
                        return Err(CallGraphError::MixedContext(name()));
                    }
                    if std::mem::replace(&mut called[callee], true) {
                        return Err(CallGraphError::Shared(name()));
                    }
                }
            }
        }
        Ok(())
    }

    /// How a computation is reached.
    pub fn context(&self, computation: ComputationId) -> Context {
        self.contexts[computation]
    }

    /// Whether the instructions of a computation have buffers.
    pub fn is_sequential(&self, computation: ComputationId) -> bool {
        self.contexts[computation] == Context::Sequential
    }

    /// The instruction that calls a sequential computation; `None` for the entry.
    pub fn caller(&self, computation: ComputationId) -> Option<InstructionId> {
        self.callers[computation].expand()
    }

    /// The sequential computations, callees before callers; the entry is last.
    pub fn sequential(&self) -> &[ComputationId] {
        &self.sequential
    }
}

/// All computations, callees before callers.
fn callees_first(module: &Module) -> Result<Vec<ComputationId>, CallGraphError> {
    let mut graph: DiGraphMap<ComputationId, (), FxBuildHasher> = DiGraphMap::default();
    for (caller, computation) in module.computations.iter() {
        graph.add_node(caller);
        for &id in &computation.instructions {
            for &callee in &module.instructions[id].called {
                graph.add_edge(callee, caller, ());
            }
        }
    }
    petgraph::algo::toposort(&graph, None)
        .map_err(|cycle| CallGraphError::Recursion(module.computations[cycle.node_id()].name.clone()))
}
