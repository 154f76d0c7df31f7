//! Attributes of operations, in text and in messages.
//!
//! [`table`] has an entry for each operation that has attributes: for each field of the [`Op`], when text says it,
//! by which name ([`Attribute`]), and which field of the message holds it. Reading and writing, of both formats,
//! follow from that.
//!
//! The spelling of a value follows from its type ([`Text`]), and so does its field in a message (`proto::Field`). If
//! more than the value matters, both sides have a function by name.

mod keys;
mod order;
mod table;
mod text;

use std::fmt;

use memplan_ir::*;

use crate::parser::{Operation, Parsed};
use crate::printer::Printer;

pub(crate) use keys::Attribute;
pub(crate) use order::ComparisonOrder;
pub(crate) use table::{fields, operations};
pub(crate) use text::{Count, Text, Unfit, Value};

/// Makes the functions for text of the table.
macro_rules! functions {
    ($($($opcode:ident)|+ => $of:ident $fields:tt)*) => {
        /// The operations that have an entry.
        #[cfg(test)]
        const LISTED: &[Opcode] = &[$($(Opcode::$opcode,)+)*];

        /// The attributes that are fields of an operation.
        fn names(opcode: Opcode) -> &'static [Attribute] {
            match opcode {
                $($(Opcode::$opcode)|+ => names!($fields),)*
                _ => &[],
            }
        }

        /// Reads the fields of an operation; `None` where it has none.
        pub(crate) fn read(operation: &mut Operation<'_, '_>) -> Parsed<Option<Op>> {
            Ok(Some(match operation.opcode() {
                $($(Opcode::$opcode => read!(operation, $opcode, $of, $fields),)+)*
                _ => return Ok(None),
            }))
        }

        /// Writes the fields of an operation.
        pub(crate) fn write<W: fmt::Write>(op: &Op, printer: &mut Printer<'_, W>) -> fmt::Result {
            match op {
                $($(Op::$opcode { .. } => write!(printer, op, $opcode, $of, $fields),)+)*
                _ => {}
            }
            Ok(())
        }
    };
}

/// The names in an entry.
macro_rules! names {
    ({ $($field:ident: $how:ident($($name:ident),*) $message:tt,)* }) => { &[$($(Attribute::$name,)*)*] };
    ({ $how:ident($($name:ident),*) $message:tt, }) => { &[$(Attribute::$name),*] };
}

/// An operation, of values that the methods of a reader give.
macro_rules! read {
    ($from:ident, $opcode:ident, Op, { $($field:ident: $how:ident($($name:ident),*) $message:tt,)* }) => {
        Op::$opcode { $($field: $from.$how([$(Attribute::$name),*])?,)* }
    };
    ($from:ident, $opcode:ident, Itself, { $how:ident($($name:ident),*) $message:tt, }) => {
        Op::$opcode($from.$how([$(Attribute::$name),*])?)
    };
    ($from:ident, $opcode:ident, $of:ident, { $($field:ident: $how:ident($($name:ident),*) $message:tt,)* }) => {
        Op::$opcode($of { $($field: $from.$how([$(Attribute::$name),*])?,)* }.into())
    };
}

/// Hands the fields of an operation to the methods of a writer.
macro_rules! write {
    ($to:ident, $op:ident, $opcode:ident, $of:ident, { $($field:ident: $how:ident($($name:ident),*) $message:tt,)* }) => {{
        fields!($op, $opcode, $of, [$($field)*]);
        $($to.$how([$(Attribute::$name),*], $field)?;)*
    }};
    ($to:ident, $op:ident, $opcode:ident, Itself, { $how:ident($($name:ident),*) $message:tt, }) => {{
        fields!($op, $opcode, Itself, [it]);
        $to.$how([$(Attribute::$name),*], it)?;
    }};
}

operations!(functions);

/// The attributes that an opcode takes beside those every instruction may have.
pub(crate) fn allowed(opcode: Opcode) -> impl Iterator<Item = Attribute> {
    let all = [names(opcode), called(opcode), notes(opcode)].into_iter().flatten().copied();
    all.filter(move |name| !refused(opcode).contains(name))
}

/// Whether an attribute is among those.
pub(crate) fn is_allowed(opcode: Opcode, name: Attribute) -> bool {
    let is_known = [names, called, notes].into_iter().any(|all| all(opcode).contains(&name));
    is_known && !refused(opcode).contains(&name)
}

/// The fields that XLA's parser does not read, though messages may have them.
fn refused(opcode: Opcode) -> &'static [Attribute] {
    use Attribute::*;
    match opcode {
        Opcode::AllGather | Opcode::AllGatherStart | Opcode::ReduceScatter => &[HasDynamicRoot],
        Opcode::AllReduce | Opcode::AllReduceStart => &[Dimensions, HasDynamicRoot],
        Opcode::AllToAll => &[UseGlobalDeviceIds, HasDynamicRoot],
        Opcode::CollectiveBroadcast => &[Dimensions, ConstrainLayout, UseGlobalDeviceIds],
        Opcode::RaggedAllToAll => &[ConstrainLayout, UseGlobalDeviceIds, HasDynamicRoot],
        Opcode::RaggedDot => &[Algorithm],
        _ => &[],
    }
}

/// The attributes that name the computations that an operation calls, in the order in which an instruction has them.
pub(crate) fn called(opcode: Opcode) -> &'static [Attribute] {
    use Attribute::*;
    match opcode {
        Opcode::AsyncStart | Opcode::AsyncUpdate | Opcode::AsyncDone | Opcode::Fusion => &[Calls],
        Opcode::While => &[Body, Condition],
        Opcode::SelectAndScatter => &[Select, Scatter],
        Opcode::Conditional => &[TrueComputation, FalseComputation, BranchComputations],
        Opcode::CustomCall => &[ToApply, CalledComputations],
        other if other.traits().callees == Callees::None => &[],
        _ => &[ToApply],
    }
}

/// Attributes of an operation besides its fields and called computations.
fn notes(opcode: Opcode) -> &'static [Attribute] {
    use Attribute::*;
    let traits = opcode.traits();
    match opcode {
        Opcode::AsyncUpdate | Opcode::AsyncDone => &[AsyncExecutionThread],
        // Functions that may be computed more or less accurately.
        _ if traits.arithmetic != Arithmetic::Simple && traits.operands.max == 1 => &[ResultAccuracy],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use strum::VariantArray;

    use super::*;

    /// An attribute missing in the table would be lost silently.
    #[test]
    fn every_operation_with_attributes_has_an_entry() {
        let by_hand = [Opcode::Constant, Opcode::AsyncUpdate, Opcode::AsyncDone];
        for opcode in Opcode::VARIANTS {
            let entries = LISTED.iter().filter(|listed| *listed == opcode).count();
            let is_bare = opcode.without_attributes().is_some() || by_hand.contains(opcode);
            assert_eq!(entries, usize::from(!is_bare), "{opcode}");
        }
    }
}
