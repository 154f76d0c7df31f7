//! A program as a graph that Graphviz draws, whole or around one instruction.

use std::collections::VecDeque;
use std::fmt::Write as _;

use memplan_hlo::shape_text;
use memplan_ir::{ComputationId, InstructionId, Module, Op, SecondaryMap, Shape, Users};
use memplan_memory::Bytes;
use memplan_plan_hlo::{Planned, peak_report};

/// The part of a program to draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Around {
    /// The instruction in the middle.
    pub instruction: InstructionId,
    /// How many steps to producers, readers, callers and callees.
    pub depth: u32,
}

/// The instructions of a planned program in Graphviz's language, a box for each computation that runs in sequence; what
/// makes the peak is marked. Takes time linear in the module.
///
/// # Panics
/// When the plan is of another module.
pub fn dot(module: &Module, planned: &Planned, around: Option<Around>) -> String {
    let graph = &planned.facts.graph;
    let mut is_drawn: SecondaryMap<InstructionId, bool> = SecondaryMap::new();
    let mut is_sequential: SecondaryMap<ComputationId, bool> = SecondaryMap::new();
    graph.sequential().iter().for_each(|&computation| is_sequential[computation] = true);
    match around {
        Some(around) => {
            neighbours(module, planned, &is_sequential, around).into_iter().for_each(|id| is_drawn[id] = true)
        }
        None => {
            let all = graph.sequential().iter().flat_map(|&c| &module.computations[c].instructions);
            all.for_each(|&id| is_drawn[id] = true);
        }
    }
    let mut at_peak: SecondaryMap<InstructionId, Bytes> = SecondaryMap::new();
    for buffer in peak_report(module, &planned.facts, &planned.plan).buffers {
        let bytes = &mut at_peak[buffer.position.instruction];
        *bytes = bytes.saturating_add(buffer.slice.size);
    }
    let mut text = format!("digraph \"{}\" {{\n{STYLE}", escaped(&module.name));
    // The entry last is the module's order; it reads better first.
    for &computation in graph.sequential().iter().rev() {
        let drawn = module.computations[computation].instructions.iter().filter(|&&id| is_drawn[id]);
        let drawn: Vec<InstructionId> = drawn.copied().collect();
        if drawn.is_empty() {
            continue;
        }
        let name = escaped(&module.computations[computation].name);
        let _ = writeln!(text, "  subgraph \"cluster_{}\" {{\n    label=\"{name}\";", computation.as_u32());
        for &id in &drawn {
            let middle = around.is_some_and(|around| around.instruction == id);
            text.push_str(&node(module, id, at_peak[id], middle));
        }
        text.push_str("  }\n");
        for &id in &drawn {
            edges(module, id, &is_drawn, &mut text);
        }
    }
    text.push_str("}\n");
    text
}

const STYLE: &str = "  rankdir=TB;
  graph [fontname=\"sans-serif\", style=rounded, color=\"#8c959f\"];
  node [shape=box, style=\"rounded,filled\", fillcolor=\"#eef2f6\", color=\"#8c959f\", fontname=\"sans-serif\", fontsize=10];
  edge [color=\"#57606a\", fontname=\"sans-serif\", fontsize=9];
";

/// The instructions within some number of steps, in any direction.
fn neighbours(
    module: &Module,
    planned: &Planned,
    is_sequential: &SecondaryMap<ComputationId, bool>,
    around: Around,
) -> Vec<InstructionId> {
    let graph = &planned.facts.graph;
    let users = Users::new(module);
    let mut distance: SecondaryMap<InstructionId, Option<u32>> = SecondaryMap::new();
    distance[around.instruction] = Some(0);
    let mut found = vec![around.instruction];
    let mut queue = VecDeque::from([(around.instruction, 0)]);
    while let Some((id, steps)) = queue.pop_front() {
        if steps == around.depth {
            continue;
        }
        let instruction = &module.instructions[id];
        let callees = instruction.called.iter().filter(|&&callee| is_sequential[callee]);
        let roots = callees.map(|&callee| module.computations[callee].root);
        let caller = matches!(instruction.op, Op::Parameter { .. })
            .then(|| graph.caller(instruction.parent))
            .flatten();
        let near = instruction.operands.iter().chain(users.of(id)).copied();
        for next in near.chain(roots).chain(caller) {
            if distance[next].is_none() {
                distance[next] = Some(steps + 1);
                found.push(next);
                queue.push_back((next, steps + 1));
            }
        }
    }
    found
}

fn node(module: &Module, id: InstructionId, at_peak: Bytes, middle: bool) -> String {
    let instruction = &module.instructions[id];
    let mut label = format!(
        "{}\\n{} {}",
        escaped(&instruction.name),
        instruction.opcode(),
        escaped(&shape_of(module.shape(id)))
    );
    let mut style = String::new();
    if at_peak > Bytes::ZERO {
        let _ = write!(label, "\\n{at_peak} at the peak");
        style.push_str(", fillcolor=\"#f7c6c5\"");
    }
    if middle {
        style.push_str(", penwidth=3");
    }
    format!("    n{} [label=\"{label}\"{style}];\n", id.as_u32())
}

fn edges(
    module: &Module,
    id: InstructionId,
    is_drawn: &SecondaryMap<InstructionId, bool>,
    text: &mut String,
) {
    let instruction = &module.instructions[id];
    let mut edge = |from: InstructionId, style: &str| {
        if is_drawn[from] {
            let _ = writeln!(text, "  n{} -> n{}{style};", from.as_u32(), id.as_u32());
        }
    };
    instruction.operands.iter().for_each(|&operand| edge(operand, ""));
    instruction.control_predecessors.iter().for_each(|&before| edge(before, " [style=dashed]"));
    for &callee in &instruction.called {
        edge(module.computations[callee].root, " [style=dotted, arrowhead=empty]");
    }
}

/// Shapes of many elements would be all there is to see.
fn shape_of(shape: &Shape) -> String {
    match shape {
        Shape::Tuple(elements) if elements.len() > 2 => format!("({} elements)", elements.len()),
        shape => shape_text(shape),
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', " ")
}
