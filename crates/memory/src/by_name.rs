//! Tables and lists in files of targets and compilers whose keys are names of HLO, so that a wrong name or value is reported with its line.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::marker::PhantomData;
use std::str::FromStr;

use memplan_ir::{ElementType, Opcode};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

/// A key of such a table.
pub trait Name: FromStr + Display + Ord {
    /// What it names, with its article.
    const WHAT: &'static str;
}

impl Name for ElementType {
    const WHAT: &'static str = "an element type";
}

impl Name for Opcode {
    const WHAT: &'static str = "an operation";
}

/// Writes a table.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer, K: Name, V: Serialize>(
    table: &BTreeMap<K, V>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(table.iter().map(|(name, value)| (name.to_string(), value)))
}

/// Reads a table.
///
/// # Errors
/// A key is no name, or a value is wrong.
pub fn deserialize<'de, D: Deserializer<'de>, K: Name, V: Deserialize<'de>>(
    deserializer: D,
) -> Result<BTreeMap<K, V>, D::Error> {
    deserializer.deserialize_map(Table(PhantomData))
}

struct Table<K, V>(PhantomData<(K, V)>);

impl<'de, K: Name, V: Deserialize<'de>> Visitor<'de> for Table<K, V> {
    type Value = BTreeMap<K, V>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a table whose keys are each the name of {}", K::WHAT)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut table = BTreeMap::new();
        while let Some(Key(name)) = map.next_key()? {
            table.insert(name, map.next_value()?);
        }
        Ok(table)
    }
}

/// Lists of names.
pub mod list {
    use serde::de::{Deserialize, Deserializer};
    use serde::ser::Serializer;

    use super::{Key, Name};

    /// Writes a list.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer, K: Name>(list: &[K], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(list.iter().map(ToString::to_string))
    }

    /// Reads a list.
    ///
    /// # Errors
    /// An entry is no name.
    pub fn deserialize<'de, D: Deserializer<'de>, K: Name>(deserializer: D) -> Result<Vec<K>, D::Error> {
        let list = Vec::<Key<K>>::deserialize(deserializer)?;
        Ok(list.into_iter().map(|Key(name)| name).collect())
    }
}

struct Key<K>(K);

impl<'de, K: Name> Deserialize<'de> for Key<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Key<K>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let name = text.parse().map_err(|_| D::Error::custom(format!("`{text}` is not {}", K::WHAT)))?;
        Ok(Key(name))
    }
}
