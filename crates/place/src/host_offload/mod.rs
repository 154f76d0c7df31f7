//! Puts arrays into the host's memory, where the program asks for it.
//!
//! JAX marks an array by a call that does nothing else, and by the memory space of parameters and results. This pass
//! turns the marks into layouts, and inserts the transfers.
//!
//! ```text
//!   h = f32[8] custom-call(a), custom_call_target="annotate_device_placement",          // pinned_host
//!   d = f32[8] custom-call(h), custom_call_target="annotate_device_placement",          // device
//!        =>
//!   s = (f32[8]{0:S(5)}, f32[8]{0}, u32[]) copy-start(a)     h = f32[8]{0:S(5)} copy-done(s)
//!   t = (f32[8]{0}, f32[8]{0:S(5)}, u32[]) copy-start(h)     d = f32[8]{0} copy-done(t)
//! ```
//!
//! A view or in-place result of a host array is on the host too: the state of a loop, an element of a tuple, a reshape,
//! an array with an updated slice. A slice of it is transferred alone. Any other reader gets a copy on the device. So a
//! scan that offloads its rows writes each to the host, into an array that exists only there, and the loop that reads
//! them transfers one at a time.
//!
//! If the machine's main memory is the host's, the calls are dropped. Left alone: scheduled modules, whose layouts name
//! memory spaces already. Flattens the call graph, since each call site decides separately. Idempotent. Changed:
//! whether the program had any marks.

mod spread;
mod transfers;

use std::sync::Arc;

use memplan_analysis::{InPlace, dataflow};
use memplan_ir::{EntityRef, Instruction, InstructionId, Layout, Module, Op, Shape, ShapeId};
use memplan_memory::MemorySpaceId;
use memplan_rewriter::interface::{results_in, set_interface};
use memplan_rewriter::{Context, PassError, PassFn, Rewriter, call_graph};

use crate::FLATTEN_CALL_GRAPH;
use crate::copy_insertion::decides_results;
use crate::spell_out::spell_out_tuples;

/// The pass, described at the top of this file.
pub const HOST_OFFLOAD: PassFn =
    PassFn { name: "host-offload", description: "keep arrays on the host that the program wants there", run };

/// The host's memory, beside that of a device.
pub const HOST_MEMORY: MemorySpaceId = MemorySpaceId::HOST;

/// The same, in layouts.
const HOST: i64 = HOST_MEMORY.0 as i64;

/// The memory that a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    Host,
    Device,
}

fn run(module: &mut Module, context: &Context<'_>) -> Result<bool, PassError> {
    let calls = module.instructions.values().any(|instruction| placement(instruction).is_some());
    let has_host = context.target.space(HOST_MEMORY).is_some();
    if module.is_scheduled || !(calls || says_host(module)) {
        return Ok(false);
    }
    if !has_host {
        put_into_main_memory(module);
        drop_calls(module);
        return Ok(true);
    }
    let mut changed = (FLATTEN_CALL_GRAPH.run)(module, context)?;
    let graph = call_graph(module, HOST_OFFLOAD.name)?;
    let mut names = memplan_ir::Names::new(module);
    for &computation in graph.sequential() {
        let root = decides_results(module, &graph, computation);
        changed |= spell_out_tuples(module, computation, root, &mut names);
    }
    let flow = dataflow(module, &graph);
    let in_place = InPlace::new(module);
    let on_host = spread::values_on_host(module, &graph, &flow, &in_place);
    changed |= transfers::insert(module, &graph, &flow, &in_place, &on_host, &mut names);
    changed |= drop_calls(module);
    if changed {
        module.compact();
    }
    Ok(changed)
}

/// The memory that a call asks for its result.
fn placement(instruction: &Instruction) -> Option<Placement> {
    let Op::CustomCall(call) = &instruction.op else { return None };
    match &*call.target {
        "MoveToHost" => Some(Placement::Host),
        "MoveToDevice" => Some(Placement::Device),
        "annotate_device_placement" => match instruction.frontend_attribute("_xla_buffer_placement")? {
            "pinned_host" | "unpinned_host" => Some(Placement::Host),
            _ => Some(Placement::Device),
        },
        _ => None,
    }
}

/// Whether a layout says that an array is on the host.
fn says_host(module: &Module) -> bool {
    let asked = module.config.entry_computation_layout.iter();
    let asked = asked.flat_map(|asked| asked.parameters.iter().chain([&asked.result]));
    module.shapes.iter().chain(asked).any(|shape| shape.leaves().iter().any(|(_, leaf)| is_on_host(leaf)))
}

fn is_on_host(shape: &Shape) -> bool {
    shape.as_array().is_some_and(|array| array.memory_space() == HOST)
}

/// Lets the layouts that say so say nothing of the host.
fn put_into_main_memory(module: &mut Module) {
    let renamed: Vec<ShapeId> = (0..module.shapes.len())
        .map(|i| {
            let mut shape = module.shapes[i].clone();
            leave_host(&mut shape);
            module.intern(shape)
        })
        .collect();
    for instruction in module.instructions.values_mut() {
        instruction.shape = renamed[instruction.shape.index()];
    }
    if let Some(asked) = &mut module.config.entry_computation_layout {
        asked.parameters.iter_mut().chain([&mut asked.result]).for_each(leave_host);
    }
}

fn leave_host(shape: &mut Shape) {
    match shape {
        Shape::Tuple(elements) => Arc::make_mut(elements).iter_mut().for_each(leave_host),
        Shape::Array(array) => {
            if let Some(layout) = array.layout.as_mut().filter(|layout| layout.memory_space == HOST) {
                layout.memory_space = 0;
            }
        }
        Shape::Buffer(_) | Shape::Token | Shape::Opaque => {}
    }
}

/// Replaces the calls by their operands, which are in the requested memory by now.
fn drop_calls(module: &mut Module) -> bool {
    let mut rewriter = Rewriter::new(module);
    rewriter.sweep(|r, id| {
        placement(r.get(id))?;
        let operand: InstructionId = r.operand(id, 0);
        r.unpin(id);
        Some(operand)
    });
    rewriter.finish()
}

/// Lets the caller keep parameters, given by number, and the results that live in them, in the host's memory.
pub fn keep_on_host(module: &mut Module, numbers: &[usize]) {
    set_interface(module);
    let results = results_in(module, numbers);
    let Some(interface) = &mut module.config.entry_computation_layout else { return };
    let to_host = |shape: &mut Shape| {
        if let Some(array) = shape.as_array_mut() {
            let rank = array.rank();
            array.layout.get_or_insert_with(|| Layout::row_major(rank)).memory_space = HOST;
        }
    };
    for &number in numbers {
        to_host(&mut interface.parameters[number]);
    }
    if let Shape::Tuple(elements) = &interface.result {
        let mut elements = elements.to_vec();
        results.iter().for_each(|&result| to_host(&mut elements[result]));
        interface.result = Shape::tuple(elements);
    }
}
