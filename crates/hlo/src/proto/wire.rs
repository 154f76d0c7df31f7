//! The wire format below the messages: fields that a message does not list, found, kept and reported.
//!
//! prost drops unknown fields. [`Kept`] wraps a message to keep such fields as bytes, and [`scan`] compares the wire
//! with the table of messages beforehand to find those that are not kept.

use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint};
use prost::{DecodeError, Message};

use super::ImportError;

/// The fields of a message.
pub(super) struct Schema {
    pub(super) name: &'static str,
    /// Whether fields that are not listed are kept as bytes.
    pub(super) keeps: bool,
    /// Numbers, ascending, with the message that a field holds.
    pub(super) fields: &'static [(u32, Option<&'static Schema>)],
}

/// A message that has a schema.
pub(super) trait HasSchema: Message + Default {
    const SCHEMA: &'static Schema;
}

/// A message with the fields that it does not list, as bytes of the wire.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Kept<M> {
    pub(super) message: M,
    pub(super) unknown: Vec<u8>,
}

impl Schema {
    fn field(&self, number: u32) -> Option<Option<&'static Schema>> {
        let at = self.fields.binary_search_by_key(&number, |&(number, _)| number).ok()?;
        Some(self.fields[at].1)
    }
}

impl<M: HasSchema> Message for Kept<M> {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        self.message.encode_raw(buf);
        buf.put_slice(&self.unknown);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        if M::SCHEMA.field(tag).is_some() {
            return self.message.merge_field(tag, wire_type, buf, ctx);
        }
        encode_key(tag, wire_type, &mut self.unknown);
        let length = match wire_type {
            WireType::Varint => {
                encode_varint(decode_varint(buf)?, &mut self.unknown);
                return Ok(());
            }
            WireType::SixtyFourBit => 8,
            WireType::ThirtyTwoBit => 4,
            WireType::LengthDelimited => {
                let length = decode_varint(buf)?;
                encode_varint(length, &mut self.unknown);
                length
            }
            // Protobuf dropped groups long ago; prost rejects malformed ones.
            WireType::StartGroup | WireType::EndGroup => {
                return prost::encoding::skip_field(wire_type, tag, buf, ctx);
            }
        };
        match usize::try_from(length) {
            Ok(length) if length <= buf.remaining() => {
                self.unknown.put(buf.take(length));
                Ok(())
            }
            // Asking prost to read past the end makes its own error.
            _ => prost::encoding::skip_field(WireType::SixtyFourBit, tag, &mut &[][..], ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        self.message.encoded_len() + self.unknown.len()
    }

    fn clear(&mut self) {
        self.message.clear();
        self.unknown.clear();
    }
}

/// Walks a message; calls `report(message, field)` for each field that is neither listed nor kept.
///
/// # Errors
/// Malformed wire, and messages nested deeper than [`MAX_DEPTH`].
pub(super) fn scan(
    schema: &'static Schema,
    bytes: &[u8],
    report: &mut impl FnMut(&'static str, u32),
) -> Result<(), ImportError> {
    scan_message(schema, bytes, MAX_DEPTH, report)
}

/// As deep as protobuf implementations go.
const MAX_DEPTH: u32 = 100;

fn scan_message(
    schema: &'static Schema,
    mut bytes: &[u8],
    depth: u32,
    report: &mut impl FnMut(&'static str, u32),
) -> Result<(), ImportError> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(ImportError::TooDeep);
    };
    while !bytes.is_empty() {
        let (number, wire_type, payload) = next_field(&mut bytes)?;
        match (schema.field(number), wire_type) {
            (Some(Some(child)), WireType::LengthDelimited) => scan_message(child, payload, depth, report)?,
            (Some(_), _) => (),
            (None, _) if schema.keeps => (),
            (None, _) => report(schema.name, number),
        }
    }
    Ok(())
}

/// The next field, off the front: its number, and the contents where it has a length.
pub(super) fn next_field<'a>(bytes: &mut &'a [u8]) -> Result<(u32, WireType, &'a [u8]), ImportError> {
    let (number, wire_type) = decode_key(bytes)?;
    let length = match wire_type {
        WireType::Varint => {
            decode_varint(bytes)?;
            0
        }
        WireType::SixtyFourBit => 8,
        WireType::ThirtyTwoBit => 4,
        WireType::LengthDelimited => decode_varint(bytes)?,
        WireType::StartGroup | WireType::EndGroup => return Err(ImportError::Group),
    };
    match usize::try_from(length).ok().and_then(|length| bytes.split_at_checked(length)) {
        Some((payload, rest)) => {
            *bytes = rest;
            Ok((number, wire_type, payload))
        }
        None => Err(ImportError::Truncated),
    }
}

/// Appends bytes as a field.
pub(super) fn put_bytes(number: u32, bytes: &[u8], out: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}
