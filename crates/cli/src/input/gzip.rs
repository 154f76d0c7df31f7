//! Files that are compressed with gzip.

use std::io::Read;

use flate2::read::MultiGzDecoder;

use crate::failure::Failure;

/// The first bytes of every gzip file.
const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Contents may be this many times as large as the file: HLO text of many equal layers shrinks to a twentieth. Deflate
/// can reach a thousand.
const MOST_TIMES: u64 = 100;

/// Contents up to this size are read at any compression ratio.
const SMALL: u64 = 64 << 20;

/// Decompresses a gzip file; returns other bytes unchanged.
///
/// # Errors
/// The file is damaged, or its contents are disproportionately large.
pub(super) fn unpack(bytes: Vec<u8>, name: &str) -> Result<Vec<u8>, Failure> {
    if !bytes.starts_with(&MAGIC) {
        return Ok(bytes);
    }
    let most = SMALL.max(MOST_TIMES * bytes.len() as u64);
    let mut contents = Vec::new();
    MultiGzDecoder::new(&bytes[..])
        .take(most + 1)
        .read_to_end(&mut contents)
        .map_err(|error| Failure::Input(format!("error: `{name}` is compressed and damaged: {error}")))?;
    match contents.len() as u64 <= most {
        true => Ok(contents),
        false => Err(Failure::Input(format!(
            "error: `{name}` unpacks to more than {MOST_TIMES} times its size, which no program does"
        ))),
    }
}
