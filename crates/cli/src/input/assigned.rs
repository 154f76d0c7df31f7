//! XLA's own buffer assignment: a text beside a module in a dump, or a part of the module's protobuf.

use memplan::hlo::proto::{AllocationRole, BufferAllocation};
use memplan::memory::{Assigned, Bytes};

/// Sums up the allocations of a buffer assignment. Nothing where it has none.
pub(super) fn sum(allocations: &[BufferAllocation]) -> Option<Assigned> {
    let sum = |is_counted: &dyn Fn(&&BufferAllocation) -> bool| {
        let counted = allocations.iter().filter(is_counted).map(|allocation| Bytes(allocation.size));
        counted.fold(Bytes::ZERO, Bytes::saturating_add)
    };
    // What XLA calls a preallocated temp.
    let is_temp = |it: &&BufferAllocation| it.role == AllocationRole::Other && !it.live_out;
    (!allocations.is_empty())
        .then(|| Assigned { total: sum(&|it| it.role != AllocationRole::ThreadLocal), temp: sum(&is_temp) })
}

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
    use memplan::ir::ShapeIndex;

    use super::*;

    #[test]
    fn allocations_of_protobufs_are_summed() {
        let allocation = |size, role, live_out| BufferAllocation { role, space: 0, size, live_out };
        let parameter = AllocationRole::Parameter { number: 0, index: ShapeIndex::root() };
        let all = [
            allocation(48, parameter, true),
            allocation(5, AllocationRole::Constant, false),
            allocation(100, AllocationRole::Other, false),
            allocation(30, AllocationRole::Other, true),
            allocation(7, AllocationRole::ThreadLocal, false),
        ];
        assert_eq!(sum(&all), Some(Assigned { total: Bytes(183), temp: Bytes(100) }));
        assert_eq!(sum(&[]), None);
    }

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
