//! Layouts that mean nothing.
//!
//! JAX hands over modules before layout assignment. Their interior layouts are leftovers of tracing: a call may pass a
//! column-major array to a parameter that is declared row-major, because both are only the elements. Memory is not
//! that forgiving, so such a module gets one layout throughout before it is run or planned.

use std::borrow::Cow;

use memplan_ir::{Layout, Module, Op, Shape, use_default_layouts};

/// The module with row-major layouts everywhere, where its layouts are not yet assigned: it has no schedule, and no
/// bitcast, whose meaning would depend on them. Any other module as it is.
pub fn with_meaningful_layouts(module: &Module) -> Cow<'_, Module> {
    let has_bitcast = module
        .computations
        .values()
        .flat_map(|c| &c.instructions)
        .any(|&i| module.instructions[i].op == Op::Bitcast);
    if module.is_scheduled || has_bitcast || module.shapes.iter().all(is_row_major) {
        return Cow::Borrowed(module);
    }
    let mut module = module.clone();
    use_default_layouts(&mut module);
    Cow::Owned(module)
}

fn is_row_major(shape: &Shape) -> bool {
    match shape {
        Shape::Tuple(elements) => elements.iter().all(is_row_major),
        Shape::Array(a) | Shape::Buffer(a) => a.layout.as_ref().is_none_or(Layout::is_default),
        Shape::Token | Shape::Opaque => true,
    }
}
