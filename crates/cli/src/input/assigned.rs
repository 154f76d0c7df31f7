//! XLA's own buffer assignment, as it lies beside a module in a dump.

use memplan::memory::{Assigned, Bytes};

/// Reads the text of a buffer assignment: a line for each allocation, `allocation 3: size 512, preallocated-temp:`, with
/// lines for its values in between. Nothing where it has no allocations.
pub(super) fn parse(text: &str) -> Option<Assigned> {
    text.lines().filter_map(allocation).fold(None, |sum, (bytes, what)| {
        let Assigned { total, temp } = sum.unwrap_or(Assigned { total: Bytes::ZERO, temp: Bytes::ZERO });
        let counted = |is: bool| if is { bytes } else { Bytes::ZERO };
        Some(Assigned {
            total: total.saturating_add(counted(!what.contains("thread-local"))),
            temp: temp.saturating_add(counted(what.contains("preallocated-temp"))),
        })
    })
}

/// The size of an allocation, and what else its line says.
fn allocation(line: &str) -> Option<(Bytes, &str)> {
    let (_, rest) = line.strip_prefix("allocation ")?.split_once(": size ")?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((Bytes(rest[..end].parse().ok()?), &rest[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_summed() {
        let text = "BufferAssignment:\n\
            allocation 0: size 48, parameter 0, shape |f32[12]| at ShapeIndex {}, maybe-live-out:\n \
             value: <73 w @0> (size=48,offset=0): f32[12]{0}\n\
            allocation 1: size 100, preallocated-temp:\n\
            allocation 2: size 7, thread-local:\n\nTotal bytes used: 148\n";
        assert_eq!(parse(text), Some(Assigned { total: Bytes(148), temp: Bytes(100) }));
        assert_eq!(parse("allocation 99999999999999999999999: size x"), None);
        assert_eq!(parse(""), None);
    }
}
