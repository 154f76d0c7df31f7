//! Layouts without meaning.
//!
//! JAX's modules come before layout assignment. Their interior layouts are leftovers of tracing: a call may pass a
//! column-major array to a parameter declared row-major, because only the elements matter. In memory the difference
//! matters, so such a module gets one layout throughout before it is run or planned.

use std::borrow::Cow;

use memplan_ir::{Module, Op, Shape, expand_bitcasts, use_default_layouts};

/// The module with row-major layouts everywhere, where its layouts are not yet assigned: it has no schedule, and no
/// bitcast, whose meaning would depend on them, unless they do not agree anyway. Any other module as it is.
pub fn with_meaningful_layouts(module: &Module) -> Cow<'_, Module> {
    if module.is_scheduled || module.shapes.iter().all(Shape::is_plain) {
        return Cow::Borrowed(module);
    }
    let mut plain = module.clone();
    if has_bitcast(module) && !expand_bitcasts(&mut plain) {
        return Cow::Borrowed(module);
    }
    use_default_layouts(&mut plain);
    Cow::Owned(plain)
}

fn has_bitcast(module: &Module) -> bool {
    let mut instructions = module.computations.values().flat_map(|computation| &computation.instructions);
    instructions.any(|&id| module.instructions[id].op == Op::Bitcast)
}
