//! Operations: which fields of an instruction each of them uses, by the table of attributes.

use memplan_ir::*;

use super::FieldError;
use super::convert::Field;
use super::export::Export;
use super::import::Import;
use crate::attributes::{fields, operations};

/// Makes the functions for messages of the table.
macro_rules! functions {
    ($($($opcode:ident)|+ => $of:ident $fields:tt)*) => {
        /// Takes the fields of an operation out of a message; `None` where it has none.
        pub(super) fn import(opcode: Opcode, message: &mut Import<'_>) -> Result<Option<Op>, FieldError> {
            Ok(Some(match opcode {
                $($(Opcode::$opcode => import!(message, $opcode, $of, $fields),)+)*
                _ => return Ok(None),
            }))
        }

        /// Puts the fields of an operation into a message.
        pub(super) fn export(op: &Op, message: &mut Export<'_>) {
            match op {
                $($(Op::$opcode { .. } => export!(message, op, $opcode, $of, $fields),)+)*
                _ => {}
            }
        }
    };
}

/// An operation, of values out of a message.
macro_rules! import {
    ($from:ident, $opcode:ident, Op, { $($field:ident: $how:ident $names:tt $message:tt,)* }) => {
        Op::$opcode { $($field: get!($from, $message),)* }
    };
    ($from:ident, $opcode:ident, Itself, { $how:ident $names:tt $message:tt, }) => {
        Op::$opcode(get!($from, $message))
    };
    ($from:ident, $opcode:ident, $of:ident, { $($field:ident: $how:ident $names:tt $message:tt,)* }) => {
        Op::$opcode($of { $($field: get!($from, $message),)* }.into())
    };
}

/// Puts the fields of an operation into a message.
macro_rules! export {
    ($to:ident, $op:ident, $opcode:ident, $of:ident, { $($field:ident: $how:ident $names:tt $message:tt,)* }) => {{
        fields!($op, $opcode, $of, [$($field)*]);
        $(set!($to, $message, $field);)*
    }};
    ($to:ident, $op:ident, $opcode:ident, Itself, { $how:ident $names:tt $message:tt, }) => {{
        fields!($op, $opcode, Itself, [it]);
        set!($to, $message, it);
    }};
}

/// The value that part of a message represents.
macro_rules! get {
    ($from:ident, []) => {
        Default::default()
    };
    ($from:ident, [via $method:ident]) => {
        $from.$method()?
    };
    ($from:ident, [$field:ident]) => {
        Field::get(&mut $from.message.$field, stringify!($field))?
    };
    ($from:ident, [$part:ident?.$field:ident]) => {
        Field::get(&mut $from.message.$part.get_or_insert_default().$field, stringify!($field))?
    };
    ($from:ident, [$part:ident.$field:ident]) => {{
        let part = $from.message.$part.as_mut().ok_or(FieldError::Missing(stringify!($part)))?;
        Field::get(&mut part.$field, stringify!($field))?
    }};
}

/// Sets part of a message from a value.
macro_rules! set {
    ($to:ident, [], $value:ident) => {
        let _ = $value;
    };
    ($to:ident, [via $method:ident], $value:ident) => {
        $to.$method($value)
    };
    ($to:ident, [$field:ident], $value:ident) => {
        $to.message.$field = Field::set($value)
    };
    ($to:ident, [$part:ident $(?)?.$field:ident], $value:ident) => {
        $to.message.$part.get_or_insert_default().$field = Field::set($value)
    };
}

operations!(functions);
