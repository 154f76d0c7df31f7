//! XLA's own buffer assignment: a text beside a module in a dump, or a part of the module's protobuf.

use std::collections::HashMap;

use memplan::hlo::proto::{AllocationRole, BufferAllocation, BufferAssignment, LogicalBuffer};
use memplan::ir::{InstructionId, Module, Position, ShapeIndex};
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
/// lines for its values in between, `value: <17 fusion.3{0} @0> (size=256,offset=128): f32[64]{0}`. Nothing where it has no
/// allocations. Without a module, or where it does not have their instructions, buffers are left out.
pub(super) fn parse(text: &str, module: Option<&Module>) -> Option<BufferAssignment> {
    let named: HashMap<&str, InstructionId> =
        module.into_iter().flat_map(|module| &module.instructions).map(|(id, it)| (&*it.name, id)).collect();
    let mut assignment = BufferAssignment::default();
    for line in text.lines() {
        if let Some(allocation) = allocation(line) {
            assignment.allocations.push(allocation);
        } else if let Some(last) = assignment.allocations.len().checked_sub(1) {
            let buffer = buffer(line, &named, last);
            assignment.buffers.extend(buffer);
        }
    }
    (!assignment.allocations.is_empty()).then_some(assignment)
}

/// An allocation, of its line.
fn allocation(line: &str) -> Option<BufferAllocation> {
    let (_, rest) = line.strip_prefix("allocation ")?.split_once(": size ")?;
    let (size, what) = number(rest)?;
    let parameter = what.split_once("parameter ").and_then(|(_, rest)| Some(number(rest)?.0));
    let role = match parameter {
        _ if what.contains("thread-local") => AllocationRole::ThreadLocal,
        _ if what.contains("constant") => AllocationRole::Constant,
        Some(parameter) => AllocationRole::Parameter {
            number: u32::try_from(parameter).ok()?,
            index: what.split_once("ShapeIndex ").and_then(|(_, rest)| index(rest)).unwrap_or_default(),
        },
        None => AllocationRole::Other,
    };
    let live_out = what.contains("maybe-live-out");
    let space = what.split_once("color ").and_then(|(_, rest)| Some(number(rest)?.0)).unwrap_or(0);
    Some(BufferAllocation { role, space: u32::try_from(space).ok()?, size, live_out })
}

/// A value, of its line.
fn buffer(line: &str, named: &HashMap<&str, InstructionId>, allocation: usize) -> Option<LogicalBuffer> {
    let (what, place) = line.trim_start().strip_prefix("value: <")?.split_once("> (size=")?;
    let at = what.split(' ').nth(1)?;
    let (name, rest) = at.split_once('{').map_or((at, None), |(name, rest)| (name, Some(rest)));
    let instruction = *named.get(name)?;
    let index = match rest {
        Some(rest) => index(&format!("{{{rest}"))?,
        None => ShapeIndex::root(),
    };
    let (size, rest) = number(place)?;
    let (offset, _) = number(rest.strip_prefix(",offset=")?)?;
    Some(LogicalBuffer { defined_at: Position { instruction, index }, allocation, offset, size })
}

/// `{0,1}` at the beginning of a text.
fn index(text: &str) -> Option<ShapeIndex> {
    let (steps, _) = text.strip_prefix('{')?.split_once('}')?;
    let steps = steps.split(',').filter(|step| !step.is_empty()).map(|step| step.trim().parse().ok());
    Some(ShapeIndex(steps.collect::<Option<_>>()?))
}

/// The digits at the beginning of a text, and what follows.
fn number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

#[cfg(test)]
mod tests {
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
    fn texts_are_read() {
        let text = "BufferAssignment:\n\
            allocation 0: size 48, parameter 0, shape |f32[12]| at ShapeIndex {1,0}, maybe-live-out:\n \
             value: <73 w @0> (size=48,offset=0): f32[12]{0}\n\
            allocation 1: size 100, preallocated-temp:\n \
             value: <74 s{1} (phi) @0> (size=16,offset=64): f32[4]{0}\n \
             value: <75 nowhere{} @0> (size=16,offset=80): f32[4]{0}\n\
            allocation 2: size 7, thread-local:\n\nTotal bytes used: 148\n";
        let module =
            memplan::hlo::parse("ENTRY e { w = f32[12] parameter(0) ROOT s = f32[12] abs(w) }").unwrap();
        let found = parse(text, Some(&module)).unwrap();
        assert_eq!(sum(&found.allocations), Some(Assigned { total: Bytes(148), temp: Bytes(100) }));
        let parameter = AllocationRole::Parameter { number: 0, index: ShapeIndex::from([1, 0]) };
        assert_eq!(found.allocations[0].role, parameter);
        let places =
            found.buffers.iter().map(|it| (it.allocation, it.offset, it.size, it.defined_at.index.clone()));
        let expected = [(0, 0, 48, ShapeIndex::root()), (1, 64, 16, ShapeIndex::from([1]))];
        assert_eq!(places.collect::<Vec<_>>(), expected);
        assert_eq!(parse("allocation 99999999999999999999999: size x", None), None);
        assert_eq!(parse("", None), None);
    }
}
