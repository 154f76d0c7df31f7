//! The region of a program without calls, made from the program itself, so that scheduling and placement use the same
//! data.

use alloc::vec::Vec;

use cranelift_entity::{EntityRef, SecondaryMap};
use memplan_units::Bytes;

use crate::{Buffer, BufferId, NodeId, Origin, Program, Region, Reuse, Time, ValueId};

impl Region {
    /// The region of a program without calls, whose instants are in any order that respects dependencies: each becomes
    /// a node. Only dependencies that follow from the program's data are known; the caller can add others.
    ///
    /// Close to linear in what instants read and write.
    pub fn of(program: &impl Program) -> Region {
        let mut region = Region { n_nodes: program.end() as usize, ..Region::default() };
        let mut versions = Versions::default();
        for value in (0..program.n_values()).map(ValueId::new) {
            if !matches!(program.value(value).origin, Origin::Computed) {
                versions.define(&mut region, program, value, None);
            }
        }
        for time in 0..program.end() {
            let node = NodeId::from_u32(time);
            let reads: Vec<ValueId> = program.reads(time).collect();
            reads.iter().for_each(|&value| versions.read(&mut region, value, node));
            for value in program.writes(time) {
                if let Origin::Computed = program.value(value).origin {
                    versions.define(&mut region, program, value, Some(node));
                }
            }
            if program.may_reuse(time) {
                versions.find_reuses(&mut region, program, time, &reads);
            }
        }
        for value in (0..program.n_values()).map(ValueId::new) {
            if let Some(version) =
                versions.of_value[value].as_ref().filter(|_| program.value(value).is_result)
            {
                region.buffers[version.buffer].live_out = true;
            }
        }
        region
    }
}

/// The facts about the values of a region while it is built from a program.
#[derive(Default)]
struct Versions {
    of_value: SecondaryMap<ValueId, Option<Version>>,
    /// The last value of each group so far, by the first.
    last_of_group: SecondaryMap<ValueId, Option<ValueId>>,
}

#[derive(Clone)]
struct Version {
    buffer: BufferId,
    /// Whether the buffer begins with it.
    is_first: bool,
    writer: Option<NodeId>,
    readers: Vec<NodeId>,
}

impl Versions {
    /// A value begins. It goes on in the buffer of the value before it in its group if the node that writes it reads that.
    fn define(
        &mut self,
        region: &mut Region,
        program: &impl Program,
        value: ValueId,
        writer: Option<NodeId>,
    ) {
        let facts = program.value(value);
        let group = program.group(value);
        let before =
            self.last_of_group[group].replace(value).and_then(|before| self.of_value[before].clone());
        let mut goes_on = None;
        if let (Some(before), Some(writer)) = (before, writer) {
            // Readers of the old value come first.
            let earlier = before.writer.iter().chain(&before.readers);
            region.dependencies.extend(earlier.map(|&node| (node, writer)));
            goes_on = (before.readers.last() == Some(&writer)).then_some(before.buffer);
        }
        let is_first = goes_on.is_none();
        let buffer = goes_on.unwrap_or_else(|| {
            let counts = !matches!(facts.origin, Origin::Constant | Origin::Argument { writable: false, .. });
            let bytes = if counts { facts.size } else { Bytes::ZERO };
            let buffer = region.buffers.push(Buffer { bytes, live_in: writer.is_none(), live_out: false });
            region.definitions.extend(writer.map(|writer| (writer, buffer)));
            buffer
        });
        region.touches.extend(writer.map(|writer| (writer, buffer)));
        self.of_value[value] = Some(Version { buffer, is_first, writer, readers: Vec::new() });
    }

    fn read(&mut self, region: &mut Region, value: ValueId, node: NodeId) {
        if let Some(version) = &mut self.of_value[value] {
            region.dependencies.extend(version.writer.map(|writer| (writer, node)));
            region.touches.push((node, version.buffer));
            version.readers.push(node);
        }
    }

    /// Results of an instant that may take over operands of their size. An operand is listed for results of one kind only,
    /// so that it is counted once.
    fn find_reuses(&self, region: &mut Region, program: &impl Program, time: Time, reads: &[ValueId]) {
        let node = NodeId::from_u32(time);
        let buffer = |value: ValueId| self.of_value[value].as_ref().map(|version| version.buffer);
        let mut reuses: Vec<Reuse> = Vec::new();
        for result in program.writes(time) {
            let written = self.of_value[result].as_ref().filter(|version| version.is_first);
            let Some(written) = written.map(|version| version.buffer) else { continue };
            if region.buffers[written].bytes == Bytes::ZERO {
                continue;
            }
            let fits = |&&operand: &&ValueId| {
                program.value(operand).size == program.value(result).size
                    && program.writes(time).all(|written| program.group(written) != program.group(operand))
                    && program.may_overwrite(time, operand, result)
            };
            let mut operands: Vec<BufferId> =
                reads.iter().filter(fits).filter_map(|&operand| buffer(operand)).collect();
            operands.retain(|&operand| region.buffers[operand].bytes == region.buffers[written].bytes);
            operands.sort_unstable();
            operands.dedup();
            if let Some(alike) = reuses.iter_mut().find(|reuse| reuse.operands == operands) {
                alike.n_results += 1;
                continue;
            }
            operands.retain(|operand| reuses.iter().all(|reuse| !reuse.operands.contains(operand)));
            if !operands.is_empty() {
                reuses.push(Reuse { node, result: written, n_results: 1, operands });
            }
        }
        region.reuses.extend(reuses);
    }
}
