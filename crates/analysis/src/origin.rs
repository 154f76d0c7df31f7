//! The origin of an instruction in the framework: the operation, and the operation without layer numbers, by which
//! similar values are grouped.

use memplan_ir::{InstructionId, Module};

/// The framework's name of the operation that an instruction comes from; empty where it says nothing.
pub fn operation(module: &Module, instruction: InstructionId) -> &str {
    module.instructions[instruction].metadata.as_ref().map_or("", |metadata| &metadata.op_name)
}

/// The framework's name of the operation that an instruction comes from, or else the instruction's own name.
pub fn operation_or_name(module: &Module, instruction: InstructionId) -> &str {
    match operation(module, instruction) {
        "" => &module.instructions[instruction].name,
        name => name,
    }
}

/// An operation for people, with layer numbers replaced by `*`: without the names of JAX's transformations, and with
/// the prefix `backward` for gradients.
///
/// ```
/// # use memplan_analysis::folded_operation;
/// assert_eq!(folded_operation("jit(step)/jvp()/layers_3/mlp/dot_general"), "layers_*/mlp/dot_general");
/// assert_eq!(folded_operation("jit(step)/transpose(jvp(jit(silu)))/mul"), "backward/silu/mul");
/// assert_eq!(folded_operation("params['layers'][11]['w1']"), "params['layers'][*]['w1']");
/// ```
pub fn folded_operation(op_name: &str) -> String {
    let parts = components(op_name);
    let is_backward = parts.iter().any(|part| part.starts_with("transpose("));
    let mut folded = String::new();
    let mut add = |part: &str| {
        if !folded.is_empty() {
            folded.push('/');
        }
        fold_numbers(part, &mut folded);
    };
    if is_backward {
        add("backward");
    }
    for (i, part) in parts.iter().enumerate() {
        // The outermost function is the program.
        let is_program = i == 0 && parts.len() > 1 && part.starts_with("jit(");
        let name = innermost(part);
        if !is_program && !name.is_empty() && !matches!(name, "closed_call" | "checkpoint" | "body") {
            add(name);
        }
    }
    match folded.as_str() {
        "" => op_name.to_string(),
        _ => folded,
    }
}

/// The parts between slashes that are outside of parentheses.
fn components(name: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, c) in name.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '/' if depth == 0 => {
                parts.push(&name[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&name[start..]);
    parts
}

/// The function within transformations: `silu` of `transpose(jvp(jit(silu)))`, nothing of `jvp()`.
fn innermost(part: &str) -> &str {
    const TRANSFORMATIONS: [&str; 7] =
        ["transpose(", "jvp(", "vmap(", "jit(", "pjit(", "remat(", "checkpoint("];
    let mut part = part;
    loop {
        let inner = TRANSFORMATIONS.iter().find_map(|name| part.strip_prefix(name)?.strip_suffix(')'));
        match inner {
            Some(inner) => part = inner,
            None => return part,
        }
    }
}

/// Writes a part of a name with numbers of layers as `*`: whole parts between dots and brackets (`layers.3`, `[3]`), and
/// what follows an underscore (`layers_3`). Other digits are parts of names: `conv2d`, `w1`.
fn fold_numbers(part: &str, folded: &mut String) {
    let mut before = None;
    let mut rest = part;
    while let Some(c) = rest.chars().next() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let after = rest[digits..].chars().next();
        let is_number = digits > 0
            && matches!(before, None | Some('_' | '.' | '['))
            && !after.is_some_and(char::is_alphanumeric);
        let taken = match digits {
            0 => c.len_utf8(),
            digits => digits,
        };
        if is_number {
            folded.push('*');
        } else {
            folded.push_str(&rest[..taken]);
        }
        before = rest[..taken].chars().last();
        rest = &rest[taken..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_layers_are_folded() {
        for (name, folded) in [
            ("", ""),
            ("jit(step)/jvp(Model)/layers_12/attn/q/dot_general", "Model/layers_*/attn/q/dot_general"),
            ("jit(step)/transpose(jvp(Model))/h.3.mlp/conv2d", "backward/Model/h.*.mlp/conv2d"),
            ("jit(f)/jvp()/while/body/closed_call/add", "while/add"),
            (
                "jit(step)/transpose(jvp())/while/body/closed_call/checkpoint/rematted_computation/mul",
                "backward/while/rematted_computation/mul",
            ),
            ("jit(step)", "step"),
            ("m['layers'][1]['w13']", "m['layers'][*]['w13']"),
            ("bthd,bshd->bhts/dot_general", "bthd,bshd->bhts/dot_general"),
            ("jvp()", "jvp()"),
            ("layer_norm_2", "layer_norm_*"),
            ("3/4)/é(", "*/*)/é("),
        ] {
            assert_eq!(folded_operation(name), folded, "{name}");
        }
    }
}
