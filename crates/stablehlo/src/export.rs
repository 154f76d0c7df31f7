//! Artifacts of `jax.export`: a flatbuffer with the program as portable bytecode in one of its fields.

use crate::bytecode::MAGIC;

/// The number of the field `mlir_module_serialized` of the table `Exported`. Fields of flatbuffers keep their numbers.
const PROGRAM: usize = 13;

/// The bytecode in an artifact of `jax.export`; `None` where the bytes are none.
pub(crate) fn bytecode(artifact: &[u8]) -> Option<&[u8]> {
    let number = |at: usize| -> Option<usize> {
        let bytes = artifact.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let short = |at: usize| -> Option<usize> {
        let bytes = artifact.get(at..at.checked_add(2)?)?;
        Some(usize::from(u16::from_le_bytes(bytes.try_into().ok()?)))
    };
    let table = number(0)?;
    // A table begins with the distance back to the list of its fields, in which each has two bytes after the first four.
    let distance = u32::try_from(number(table)?).ok()?.cast_signed();
    let fields = usize::try_from(i64::try_from(table).ok()? - i64::from(distance)).ok()?;
    let entry = 4 + 2 * PROGRAM;
    if short(fields)? < entry + 2 {
        return None;
    }
    let offset = short(fields + entry)?;
    if offset == 0 {
        return None;
    }
    let field = table.checked_add(offset)?;
    let vector = field.checked_add(number(field)?)?;
    let start = vector.checked_add(4)?;
    let program = artifact.get(start..start.checked_add(number(vector)?)?)?;
    program.starts_with(MAGIC).then_some(program)
}
