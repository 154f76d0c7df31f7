//! The data of constants as C arrays, in the layouts of the program.

use memplan_ir::{ArrayLiteral, ArrayShape, ElementType, InstructionId, Literal, LiteralData, Module};
use memplan_memory::Addressing;

use crate::error::{Refusal, refusal};
use crate::expression::literal;
use crate::pull::constant_bits;
use crate::runtime::stored_type;

/// Columns of a line of numbers.
const WIDTH: usize = 116;

/// An array of C with the elements of a literal at the places of a shape.
pub(crate) fn array(
    module: &Module,
    id: InstructionId,
    data: &ArrayLiteral,
    shape: &ArrayShape,
    name: &str,
) -> Result<String, Refusal> {
    if let LiteralData::Elided = data.data {
        return Err(refusal(module, id, "its elements are not in the program"));
    }
    let t = data.element_type;
    let width = t.byte_width() as usize;
    let addressing = Addressing::new(shape).filter(|a| a.packed_bits.is_none());
    let addressing =
        addressing.ok_or_else(|| refusal(module, id, "its layout packs or combines elements"))?;
    let bytes = data.bytes();
    let mut placed = vec![0u8; addressing.size];
    let mut index = vec![0i64; data.dimensions.len()];
    for element in bytes.chunks_exact(width) {
        let at = addressing.offset(index.iter().copied()) as usize;
        placed[at..at + width].copy_from_slice(element);
        for (i, &extent) in index.iter_mut().zip(&data.dimensions).rev() {
            *i += 1;
            if *i < extent {
                break;
            }
            *i = 0;
        }
    }
    let n = placed.len() / width;
    let mut text = format!("static const {} {name}[{n}] = {{", stored_type(t));
    let mut line = String::new();
    for element in placed.chunks_exact(width) {
        let item = format!(" {},", number(t, element));
        if line.len() + item.len() > WIDTH {
            text.push_str(&format!("\n   {line}"));
            line.clear();
        }
        line.push_str(&item);
    }
    text.push_str(&format!("\n   {line}\n}};\n"));
    Ok(text)
}

fn number(t: ElementType, bytes: &[u8]) -> String {
    match t {
        ElementType::Pred => u8::from(bytes[0] != 0).to_string(),
        ElementType::Bf16 | ElementType::F16 => format!("0x{:02x}{:02x}", bytes[1], bytes[0]),
        t => literal(t, constant_bits(t, bytes)).text,
    }
}

/// The part of a literal.
pub(crate) fn part<'l>(literal: &'l Literal, index: &[u32]) -> Option<&'l ArrayLiteral> {
    let part = index.iter().try_fold(literal, |literal, &step| match literal {
        Literal::Tuple(elements) => elements.get(step as usize),
        _ => None,
    });
    part.and_then(Literal::as_array)
}
