//! Working memory of an instruction, as an additional result without readers.

use memplan_ir::{
    Cursor, ElementType, Fusion, FusionKind, Insert, InstructionId, Module, Names, Op, Operands, Shape,
};
use memplan_memory::Bytes;
use memplan_rewriter::{PassError, call_graph};

/// Gives working memory to the instructions that need some bytes of it, in kernels of a name. Returns whether there were any.
pub(super) fn give(
    module: &mut Module,
    (pass, name): (&'static str, &str),
    needed: impl Fn(&Module, InstructionId) -> Option<Bytes>,
) -> Result<bool, PassError> {
    let computations = call_graph(module, pass)?.sequential().to_vec();
    let mut names = Names::new(module);
    let mut changed = false;
    for computation in computations {
        module.edit_in_order(computation, |module, id| {
            if let Some(bytes) = needed(module, id) {
                add(module, id, bytes, name, &mut names);
                changed = true;
            }
            module.list(id);
        });
    }
    if changed {
        // Kernels precede what runs them.
        module.compact();
    }
    Ok(changed)
}

/// Puts an instruction and its working memory into a kernel named after it; the instruction becomes what the kernel makes
/// for its readers.
fn add(module: &mut Module, id: InstructionId, bytes: Bytes, name: &str, names: &mut Names) {
    let inner = module.instructions[id].clone();
    let result = module.shape(id).clone();
    let parts = result.as_tuple().map_or(1, <[Shape]>::len) as u32;
    let is_tuple = result.is_tuple();
    let mut at = Cursor::beside(module, names, id);
    let fused = at.new_computation(&format!("fused_{name}"), |inside| {
        let shapes = inner.operands.iter().map(|&operand| inside.module().shape(operand).clone());
        let shapes: Vec<Shape> = shapes.collect();
        let operands: Operands = shapes.into_iter().map(|shape| inside.parameter(shape)).collect();
        let made = inside.insert_shaped(inner.op.clone(), operands, result);
        let zero = inside.integer(ElementType::U8, 0);
        let workspace = inside.broadcast(zero, [bytes.0 as i64], []);
        let mut results = match is_tuple {
            true => (0..parts).map(|index| inside.get_tuple_element(made, index)).collect(),
            false => vec![made],
        };
        results.push(workspace);
        inside.tuple(results)
    });
    let op = Op::Fusion(Box::new(Fusion { kind: FusionKind::Custom, output_operand_aliasing: Vec::new() }));
    let call = at.named(&format!("{name}_fusion")).insert_calling(op, inner.operands, [fused]);
    let elements: Vec<InstructionId> = match is_tuple {
        true => (0..parts).map(|index| at.get_tuple_element(call, index)).collect(),
        false => Vec::new(),
    };
    let element = &mut module.instructions[id];
    element.backend_config = None;
    (element.op, element.operands) = match is_tuple {
        true => (Op::Tuple, elements.into_iter().collect()),
        false => (Op::GetTupleElement { index: 0 }, Operands::from_iter([call])),
    };
}
