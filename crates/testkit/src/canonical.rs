//! A text of what a module computes, without the names and the order that two readers of one program may choose.

use std::collections::HashMap;
use std::fmt::Write;

use memplan_ir::{ComparisonType, ComputationId, InstructionId, Literal, Module, Op, Shape};

/// What a module computes, from its result back: operations, shapes without layouts, and called computations. Two modules
/// with equal texts are the same program up to names, order and notes.
///
/// `with_sources` adds the framework's operation of each instruction.
pub fn canonical(module: &Module, with_sources: bool) -> String {
    let mut texts: HashMap<ComputationId, String> = HashMap::new();
    let mut all = String::new();
    for id in module.computations.keys() {
        let text = computation(module, id, with_sources, &texts);
        if id == module.entry {
            all.clone_from(&text);
        }
        texts.insert(id, text);
    }
    let mut out = String::new();
    // Called computations, as the entry calls them.
    let mut called: Vec<&String> = texts.values().filter(|text| **text != all).collect();
    called.sort();
    called.dedup();
    for text in called {
        let _ = writeln!(out, "[{:016x}]:\n{text}", hash(text));
    }
    let _ = writeln!(out, "{all}");
    for alias in &module.config.input_output_alias {
        let _ =
            writeln!(out, "alias {:?} {} {:?}", alias.output_index, alias.parameter, alias.parameter_index);
    }
    for donor in &module.config.buffer_donors {
        let _ = writeln!(out, "donor {} {:?}", donor.parameter, donor.index);
    }
    out
}

fn computation(
    module: &Module,
    id: ComputationId,
    with_sources: bool,
    texts: &HashMap<ComputationId, String>,
) -> String {
    let computation = &module.computations[id];
    let mut out = String::new();
    let mut numbers: HashMap<InstructionId, usize> = HashMap::new();
    let mut equal: HashMap<String, usize> = HashMap::new();
    for &parameter in &computation.parameters {
        let number = equal.len();
        let text = format!("parameter {number} {}", shape_text(module.shape(parameter)));
        let _ = writeln!(out, "{number} = {text}{}", sharding_text(module, parameter));
        equal.insert(text, number);
        numbers.insert(parameter, number);
    }
    let mut next = computation.parameters.len();
    let mut stack = vec![(computation.root, false)];
    while let Some((at, is_ready)) = stack.pop() {
        if numbers.contains_key(&at) {
            continue;
        }
        let instruction = &module.instructions[at];
        if !is_ready {
            stack.push((at, true));
            stack.extend(instruction.operands.iter().rev().map(|&operand| (operand, false)));
            continue;
        }
        let mut text = format!("{} {}", op_text(module, at), shape_text(module.shape(at)));
        for operand in &instruction.operands {
            let _ = write!(text, " {}", numbers[operand]);
        }
        for called in &instruction.called {
            let _ = write!(text, " [{:016x}]", hash(&texts[called]));
        }
        text += &sharding_text(module, at);
        if let Some(extras) = &instruction.extras {
            let mut notes: Vec<_> = extras.frontend_attributes.iter().collect();
            notes.sort();
            let _ = write!(text, "{}", notes.iter().map(|(k, v)| format!(" {k}={v}")).collect::<String>());
            if let Some(accuracy) = &extras.result_accuracy {
                let _ = write!(text, " {accuracy:?}");
            }
        }
        if let Some(config) = &instruction.backend_config {
            let _ = write!(text, " {}", String::from_utf8_lossy(config));
        }
        // Constants that are repeated are made where they are used; of which use they have the name differs.
        let is_constant = |&id: &InstructionId| matches!(module.instructions[id].op, Op::Constant(_));
        let is_repeated =
            matches!(instruction.op, Op::Broadcast { .. }) && instruction.operands.iter().all(is_constant);
        if with_sources
            && !is_repeated
            && let Some(metadata) = &instruction.metadata
        {
            // XLA joins the names of operations that it makes one.
            let name = metadata.op_name.split(';').next().unwrap_or_default();
            let _ = write!(text, " @{name}");
        }
        // Equal operations are one, since readers differ in which constants they repeat.
        let is_pure = matches!(
            instruction.op,
            Op::Constant(_) | Op::Broadcast { .. } | Op::Tuple | Op::GetTupleElement { .. }
        );
        let number = match is_pure {
            true => *equal.entry(text.clone()).or_insert(next),
            false => next,
        };
        if number == next {
            next += 1;
            let _ = writeln!(out, "{number} = {text}");
        }
        numbers.insert(at, number);
    }
    let _ = writeln!(out, "root {}", numbers[&computation.root]);
    out
}

fn sharding_text(module: &Module, id: InstructionId) -> String {
    match module.instructions[id].extras.as_ref().and_then(|extras| extras.sharding.as_ref()) {
        Some(sharding) => format!(" {sharding:?}"),
        None => String::new(),
    }
}

/// Element type and extents, without layouts.
fn shape_text(shape: &Shape) -> String {
    match shape {
        Shape::Tuple(elements) => {
            format!("({})", elements.iter().map(shape_text).collect::<Vec<_>>().join(","))
        }
        Shape::Array(array) | Shape::Buffer(array) => {
            format!(
                "{}{:?}{}",
                array.element_type,
                array.dimensions,
                if array.is_dynamic() { "?" } else { "" }
            )
        }
        Shape::Token => "token".to_owned(),
        Shape::Opaque => "opaque".to_owned(),
    }
}

fn op_text(module: &Module, id: InstructionId) -> String {
    let instruction = &module.instructions[id];
    match &instruction.op {
        Op::Constant(Literal::Array(literal)) => format!("constant {:016x}", hash(&format!("{literal:?}"))),
        Op::Compare { direction, comparison_type } => {
            let operand = module.shape(instruction.operands[0]).as_array();
            let default = operand.map(|array| ComparisonType::default_for(array.element_type));
            format!("compare {direction} {:?}", comparison_type.or(default))
        }
        Op::Dot(dot) if dot.precision.operand_precision.iter().all(|p| *p == Default::default()) => {
            format!("dot {:?} {:?}", dot.dimensions, dot.precision.algorithm)
        }
        Op::Convolution(convolution) => {
            let mut plain = convolution.clone();
            if plain.precision.operand_precision.iter().all(|p| *p == Default::default()) {
                plain.precision.operand_precision.clear();
            }
            format!("{plain:?}")
        }
        Op::TopK { k, largest, .. } => format!("top-k {k} {largest}"),
        op => format!("{op:?}"),
    }
}

fn hash(text: &str) -> u64 {
    // FNV-1a: the same in every run.
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
