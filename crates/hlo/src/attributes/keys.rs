//! The names of attributes, as an enumeration. They decide how the values are read.

use strum::{EnumIter, IntoStaticStr};

use super::Value;
use super::table::attributes;
use crate::parser::{Parsed, Parser, value};

macro_rules! keys {
    ($($key:ident: $kind:ident,)*) => {
        /// The attributes that only some opcodes take.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, EnumIter, IntoStaticStr)]
        #[strum(serialize_all = "snake_case")]
        pub(crate) enum Attribute {
            $($key,)*
        }

        impl Attribute {
            /// Reads what follows the name and its `=`.
            pub(crate) fn read<'s>(self, parser: &mut Parser<'s>) -> Parsed<Value<'s>> {
                match self {
                    $(Attribute::$key => value::$kind(parser),)*
                }
            }
        }
    };
}

attributes!(keys);
