//! Numbers of bytes in files: a number, or text with a unit.

use core::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

use crate::Bytes;

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        struct NumberOrText;

        impl Visitor<'_> for NumberOrText {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of bytes, or text such as \"8 MiB\"")
            }

            fn visit_u64<E: Error>(self, bytes: u64) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }

            fn visit_i64<E: Error>(self, bytes: i64) -> Result<Bytes, E> {
                let not_negative = u64::try_from(bytes);
                not_negative
                    .map(Bytes)
                    .map_err(|_| E::invalid_value(serde::de::Unexpected::Signed(bytes), &self))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Bytes, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(NumberOrText)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn files_have_numbers_or_text() {
        assert_eq!(serde_json::from_str::<Vec<Bytes>>(r#"[8388608, "8 MiB"]"#).unwrap(), [Bytes(8 << 20); 2]);
        for wrong in ["-1", "1.5", "\"8\"", "true"] {
            assert!(serde_json::from_str::<Bytes>(wrong).is_err(), "{wrong}");
        }
    }
}
