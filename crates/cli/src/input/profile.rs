//! Profiles of XProf (`.xplane.pb`): the programs that ran, with XLA's buffer assignments.
//!
//! An XSpace has planes; that of the host's metadata has an event for each program, whose statistic `Hlo Proto` is the
//! serialized program.

/// A program of a profile: its name, and the bytes of its HloProto.
pub(super) type Program = (String, Vec<u8>);

/// The plane with programs.
const PLANE: &[u8] = b"/host:metadata";

/// The statistic that is a program, by the names of several versions.
const STATISTICS: [&[u8]; 2] = [b"Hlo Proto", b"hlo_proto"];

/// The programs of a profile, in its order; `None` where the bytes are none, or hold no programs.
pub(super) fn programs(bytes: &[u8]) -> Option<Vec<Program>> {
    let mut found = Vec::new();
    for plane in messages(bytes, 1)? {
        if messages(plane, 2)?.first() != Some(&PLANE) {
            continue;
        }
        let entries = |field| -> Option<Vec<&[u8]>> {
            let values =
                messages(plane, field)?.into_iter().map(|entry| messages(entry, 2)?.first().copied());
            values.collect()
        };
        let statistics = entries(5)?;
        let is_program = |statistic: &&&[u8]| {
            messages(statistic, 2)
                .is_some_and(|names| names.first().is_some_and(|name| STATISTICS.contains(name)))
        };
        let Some(kind) = statistics.iter().find(is_program).and_then(|statistic| number(statistic, 1)) else {
            continue;
        };
        for event in entries(4)? {
            let name = String::from_utf8_lossy(messages(event, 2)?.first().copied().unwrap_or_default())
                .into_owned();
            for statistic in messages(event, 5)? {
                if number(statistic, 1) == Some(kind)
                    && let Some(&program) = messages(statistic, 6)?.first()
                {
                    found.push((name.clone(), program.to_vec()));
                }
            }
        }
    }
    found.sort();
    (!found.is_empty()).then_some(found)
}

/// Whether bytes may be a profile: their first field is a plane, with a number and a name that begins with a slash.
pub(super) fn is_profile(bytes: &[u8]) -> bool {
    let plane = field(&mut &bytes[..bytes.len().min(1 << 16)], true);
    let Some((1, Value::Bytes(plane))) = plane else { return false };
    let mut rest = plane;
    while let Some((number, value)) = field(&mut rest, true) {
        if let (2, Value::Bytes(name)) = (number, value) {
            return name.starts_with(b"/");
        }
    }
    false
}

enum Value<'b> {
    Number(u64),
    Bytes(&'b [u8]),
    Other,
}

/// The first field of a message, which is skipped. With `is_cut`, bytes may end within a field.
fn field<'b>(bytes: &mut &'b [u8], is_cut: bool) -> Option<(u64, Value<'b>)> {
    let key = varint(bytes)?;
    let value = match key & 7 {
        0 => Value::Number(varint(bytes)?),
        1 | 5 => {
            *bytes = bytes.get(if key & 7 == 1 { 8 } else { 4 }..)?;
            Value::Other
        }
        2 => {
            let length = usize::try_from(varint(bytes)?).ok()?;
            let length = if is_cut { length.min(bytes.len()) } else { length };
            let (value, rest) = bytes.split_at_checked(length)?;
            *bytes = rest;
            Value::Bytes(value)
        }
        _ => return None,
    };
    Some((key >> 3, value))
}

/// The fields of bytes with a number; `None` where the message is malformed.
fn messages(mut bytes: &[u8], wanted: u64) -> Option<Vec<&[u8]>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        if let (number, Value::Bytes(value)) = field(&mut bytes, false)?
            && number == wanted
        {
            found.push(value);
        }
    }
    Some(found)
}

/// The last value of a number.
fn number(mut bytes: &[u8], wanted: u64) -> Option<u64> {
    let mut found = None;
    while !bytes.is_empty() {
        if let (number, Value::Number(value)) = field(&mut bytes, false)?
            && number == wanted
        {
            found = Some(value);
        }
    }
    found
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field of bytes.
    fn bytes(number: u8, value: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2];
        let mut length = value.len();
        while length >= 0x80 {
            out.push(length as u8 | 0x80);
            length >>= 7;
        }
        out.push(length as u8);
        [out, value.to_vec()].concat()
    }

    fn profile(program: &[u8]) -> Vec<u8> {
        let statistic = [vec![8, 4], bytes(2, b"Hlo Proto")].concat();
        let event = [bytes(2, b"jit_f(3)"), bytes(5, &[vec![8, 4], bytes(6, program)].concat())].concat();
        let entry = |value: &[u8]| [vec![8, 1], bytes(2, value)].concat();
        let plane = [bytes(2, PLANE), bytes(4, &entry(&event)), bytes(5, &entry(&statistic))].concat();
        [bytes(1, &bytes(2, b"/host:CPU")), bytes(1, &plane)].concat()
    }

    #[test]
    fn programs_of_a_profile_are_found() {
        let profile = profile(&[7; 300]);
        assert!(is_profile(&profile));
        assert_eq!(programs(&profile), Some(vec![("jit_f(3)".to_owned(), vec![7; 300])]));
        for end in 0..profile.len() {
            programs(&profile[..end]);
            is_profile(&profile[..end]);
        }
        assert!(!is_profile(b"\x0a\x05hello"));
        assert_eq!(programs(b"HloModule m"), None);
    }
}
