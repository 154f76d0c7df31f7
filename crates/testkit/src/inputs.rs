//! Inputs to evaluate a module with.

use memplan_ir::{ArrayShape, ElementType, Literal, Module, Shape};

use crate::Random;

/// One literal for each parameter of the entry: floats between -2 and 2, integers near zero. The same seed gives the
/// same inputs to all modules with the same parameters.
///
/// # Panics
/// When a parameter has a dynamic extent that overflows.
pub fn random_inputs(module: &Module, seed: u64) -> Vec<Literal> {
    let mut random = Random::new(seed);
    let parameters = &module.entry_computation().parameters;
    parameters.iter().map(|&p| literal(module.shape(p), &mut random)).collect()
}

fn literal(shape: &Shape, random: &mut Random) -> Literal {
    match shape {
        Shape::Tuple(elements) => Literal::Tuple(elements.iter().map(|e| literal(e, random)).collect()),
        Shape::Array(array) | Shape::Buffer(array) => array_literal(array, random),
        Shape::Token | Shape::Opaque => Literal::Token,
    }
}

fn array_literal(array: &ArrayShape, random: &mut Random) -> Literal {
    let component = array.element_type.component();
    let (whole, width) = (array.element_type.byte_width() as usize, component.byte_width() as usize);
    let count = array.element_count().expect("the extents are those of a test") as usize * (whole / width);
    let mut bytes = Vec::with_capacity(count * width);
    for _ in 0..count {
        let draw = random.bits();
        let bits = match component {
            ElementType::Pred => draw & 1,
            float if float.is_floating() => float.encode_float((draw % 4001) as f64 / 1000.0 - 2.0),
            signed if signed.is_signed() => ((draw % 9) as i64 - 4) as u64,
            _ => draw % 5,
        };
        bytes.extend_from_slice(&bits.to_le_bytes()[..width]);
    }
    Literal::array(array.element_type, array.dimensions.iter().copied(), bytes)
}
