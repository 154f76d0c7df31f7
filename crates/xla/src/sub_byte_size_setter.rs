//! `sub-byte-size-setter`: packs elements of four bits and fewer, as the layout `E(4)` says.
//!
//! ```text
//!   w = s4[4096,4096]{1,0} parameter(0)      =>      w = s4[4096,4096]{1,0:E(4)} parameter(0)
//! ```
//!
//! XLA's CPU and GPU compilers do this to every such array, including those of the caller, so weights of `s4` take half a
//! byte each. Seen in 0.12 on a decoder with quantized weights. Left alone: `pred`. *Changed* means that an array was not
//! packed.

use memplan_ir::{ElementType, InstructionId, Layout, Module, Shape};
use memplan_rewriter::{Context, PassError, PassFn, interface};

/// The pass.
pub const SUB_BYTE_SIZE_SETTER: PassFn = PassFn {
    name: "sub-byte-size-setter",
    description: "pack elements of four bits and fewer, as XLA's CPU and GPU compilers do",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let all: Vec<InstructionId> = module.instructions.keys().collect();
    let mut changed = false;
    for id in all {
        let mut shape = module.shape(id).clone();
        if pack(&mut shape) {
            module.set_shape(id, shape);
            changed = true;
        }
    }
    if changed {
        interface::set_interface(module);
    }
    Ok(changed)
}

/// Packs all arrays of a shape; whether there was one to pack.
fn pack(shape: &mut Shape) -> bool {
    match shape {
        Shape::Tuple(elements) => {
            let mut packed = elements.to_vec();
            let changed = packed.iter_mut().fold(false, |changed, element| pack(element) | changed);
            if changed {
                *shape = Shape::tuple(packed);
            }
            changed
        }
        Shape::Array(array) => {
            let bits = i64::from(array.element_type.bits());
            let is_small = bits <= 4 && array.element_type != ElementType::Pred;
            let layout = array.layout.get_or_insert_with(|| Layout::row_major(array.dimensions.len()));
            let changed = is_small && layout.element_size_in_bits != bits;
            if changed {
                layout.element_size_in_bits = bits;
            }
            changed
        }
        _ => false,
    }
}
