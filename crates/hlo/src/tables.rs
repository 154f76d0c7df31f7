//! Names to meanings, for the words that appear on every line.

use std::sync::LazyLock;

use memplan_ir::{ElementType, Opcode};
use rustc_hash::FxHashMap;
use strum::IntoEnumIterator;

use crate::attributes::Attribute;

static OPCODES: LazyLock<FxHashMap<&'static str, Opcode>> = LazyLock::new(table);
static ELEMENT_TYPES: LazyLock<FxHashMap<&'static str, ElementType>> = LazyLock::new(table);
static ATTRIBUTES: LazyLock<FxHashMap<&'static str, Attribute>> = LazyLock::new(table);

/// The opcode of a name.
pub(crate) fn opcode(name: &str) -> Option<Opcode> {
    OPCODES.get(name).copied()
}

/// The element type of a name.
pub(crate) fn element_type(name: &str) -> Option<ElementType> {
    ELEMENT_TYPES.get(name).copied()
}

/// The attribute of a name.
pub(crate) fn attribute(name: &str) -> Option<Attribute> {
    ATTRIBUTES.get(name).copied()
}

fn table<T: IntoEnumIterator + Into<&'static str> + Copy>() -> FxHashMap<&'static str, T> {
    T::iter().map(|value| (value.into(), value)).collect()
}
