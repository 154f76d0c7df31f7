//! Writes offsets into a model, as its metadata.
//!
//! The model itself is not rewritten: offsets in a flatbuffer lead forward, so that a new table of the model, with longer
//! lists of buffers and metadata, goes before everything else, and what it takes over stays as it is.

use crate::flatbuffer::{Table, number};
use crate::model::field;
use crate::{IDENTIFIER, Plan, TfliteError, is_model};

/// The name under which TFLite Micro looks for offsets.
pub const METADATA: &str = "OfflineMemoryAllocation";

/// Fields of the table of a model.
const N_FIELDS: usize = 8;

/// The model with the offsets of a plan in it. Those that were in it are replaced.
///
/// # Errors
/// The model is damaged, or has constants behind the flatbuffer.
pub fn write(bytes: &[u8], plan: &Plan) -> Result<Vec<u8>, TfliteError> {
    if !is_model(bytes) {
        return Err(TfliteError::NotAModel);
    }
    let model = Table::root(bytes)?;
    let buffers = model.tables(field::MODEL_BUFFERS, "the buffers")?;
    for buffer in &buffers {
        if buffer.number::<8>(field::BUFFER_OFFSET, "a buffer")? > 1 {
            return Err(TfliteError::ExternalBuffers);
        }
    }
    let metadata = model.tables(field::MODEL_METADATA, "the metadata")?;
    let mut kept = Vec::new();
    for entry in metadata {
        if entry.text(field::METADATA_NAME, "the name of metadata")? != METADATA {
            kept.push(entry.at);
        }
    }
    let mut out = Front::default();
    out.word(0);
    out.bytes.extend(IDENTIFIER);
    // The list of fields, then the table: a distance to the list, and a word for each field.
    let fields = out.bytes.len();
    out.short(4 + 2 * N_FIELDS);
    out.short(4 + 4 * N_FIELDS);
    (0..N_FIELDS).for_each(|index| out.short(4 + 4 * index));
    let root = out.aligned(4);
    out.bytes[..4].copy_from_slice(&(root as u32).to_le_bytes());
    out.word(root - fields);
    let slots: Vec<usize> = (0..N_FIELDS).map(|_| out.word(0)).collect();
    let buffer_list = out.word(buffers.len() + 1);
    let buffer_slots: Vec<usize> = (0..=buffers.len()).map(|_| out.word(0)).collect();
    let metadata_list = out.word(kept.len() + 1);
    let metadata_slots: Vec<usize> = (0..=kept.len()).map(|_| out.word(0)).collect();
    // The entry of metadata: its name and the number of its buffer.
    let entry_fields = out.bytes.len();
    [8, 12, 4, 8].into_iter().for_each(|word| out.short(word));
    let entry = out.bytes.len();
    out.word(entry - entry_fields);
    let name_slot = out.word(0);
    out.word(buffers.len());
    let name = out.word(METADATA.len());
    out.bytes.extend(METADATA.as_bytes());
    out.bytes.push(0);
    out.aligned(4);
    // The buffer with the offsets, which are aligned as other buffers are.
    let data_fields = out.bytes.len();
    [6, 8, 4].into_iter().for_each(|word| out.short(word));
    out.aligned(4);
    let buffer = out.bytes.len();
    out.word(buffer - data_fields);
    let data_slot = out.word(0);
    while !(out.bytes.len() + 4).is_multiple_of(16) {
        out.bytes.push(0);
    }
    let words = offsets(plan)?;
    let data = out.word(words.len());
    out.bytes.extend(words);
    let shift = out.aligned(64);
    // What the old model has is behind all of this.
    for (index, &slot) in slots.iter().enumerate() {
        let target = match index {
            field::MODEL_BUFFERS => Some(buffer_list),
            field::MODEL_METADATA => Some(metadata_list),
            0 => {
                let version = model.number::<4>(0, "the version")?;
                out.bytes[slot..slot + 4].copy_from_slice(&(version as u32).to_le_bytes());
                continue;
            }
            _ => model.target(index, "the model")?.map(|at| at + shift),
        };
        match target {
            Some(target) => out.lead(slot, target),
            // The table has no such field.
            None => out.bytes[fields + 4 + 2 * index..][..2].fill(0),
        }
    }
    for (slot, old) in buffer_slots.iter().zip(buffers.iter().map(|table| table.at + shift).chain([buffer])) {
        out.lead(*slot, old);
    }
    for (slot, old) in metadata_slots.iter().zip(kept.into_iter().map(|at| at + shift).chain([entry])) {
        out.lead(*slot, old);
    }
    out.lead(name_slot, name);
    out.lead(data_slot, data);
    let mut whole = out.bytes;
    whole.extend(bytes);
    // What was written must read back.
    let again = Table::root(&whole)?.tables(field::MODEL_METADATA, "the metadata")?;
    let last = again.last().ok_or(TfliteError::Damaged("the metadata"))?;
    number::<4>(&whole, last.at, "the metadata")?;
    debug_assert_eq!(last.number::<4>(field::METADATA_BUFFER, "the metadata")? as usize, buffers.len());
    Ok(whole)
}

/// The words of the metadata: version 1, subgraph 0, how many offsets, and the offsets.
fn offsets(plan: &Plan) -> Result<Vec<u8>, TfliteError> {
    let mut words = vec![1, 0, plan.offsets.len() as i32];
    for (number, offset) in plan.offsets.iter().enumerate() {
        words.push(match *offset {
            None => -1,
            Some(offset) => i32::try_from(offset).map_err(|_| TfliteError::Offset { number, offset })?,
        });
    }
    Ok(words.into_iter().flat_map(i32::to_le_bytes).collect())
}

/// The bytes before the old model.
#[derive(Default)]
struct Front {
    bytes: Vec<u8>,
}

impl Front {
    fn short(&mut self, value: usize) {
        self.bytes.extend((value as u16).to_le_bytes());
    }

    /// Appends a word, and gives its place.
    fn word(&mut self, value: usize) -> usize {
        let at = self.bytes.len();
        self.bytes.extend((value as u32).to_le_bytes());
        at
    }

    /// Fills up to a multiple of bytes, and gives the place.
    fn aligned(&mut self, alignment: usize) -> usize {
        self.bytes.resize(self.bytes.len().next_multiple_of(alignment), 0);
        self.bytes.len()
    }

    /// Lets a word lead to a place behind it.
    fn lead(&mut self, slot: usize, target: usize) {
        let distance = (target - slot) as u32;
        self.bytes[slot..slot + 4].copy_from_slice(&distance.to_le_bytes());
    }
}
