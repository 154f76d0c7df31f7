//! Collectives: how long links between devices carry their bytes.
//!
//! Devices are numbered such that those with near numbers are near each other: a machine's links are blocks of numbers
//! within larger blocks ([`Link`]). Gathers, and sums that are scattered, go around rings: each device sends all bytes but
//! its own part of them, and a link between blocks carries the parts of all members of a block, each over a link of its
//! own. A sum that every device gets goes around twice. Nothing is said of how many hops there are.

use memplan_ir::{CollectiveGroupMode, InstructionId, Module, Op, ReplicaGroups};
use memplan_memory::{Link, Target};

/// Seconds that links carry the bytes of a collective; zero for all else, and where no link is known.
pub(super) fn seconds(module: &Module, id: InstructionId, target: &Target) -> f64 {
    let instruction = &module.instructions[id];
    let op = &instruction.op;
    let Some(collective) = op.collective().filter(|_| !target.links.is_empty()) else { return 0.0 };
    let bytes = |id: InstructionId| -> f64 {
        let leaves = module.shape(id).leaves();
        leaves.iter().map(|(_, leaf)| target.size_of(leaf).0 as f64).sum()
    };
    let given: f64 = instruction.operands.iter().map(|&operand| bytes(operand)).sum();
    if let Op::CollectivePermute(_) | Op::CollectivePermuteStart(_) = op {
        let between = collective.source_target_pairs.iter().filter(|(from, to)| from != to);
        let rates = between.map(|&(from, to)| rate(&[from, to], &target.links));
        let slowest = rates.fold(f64::INFINITY, f64::min);
        return given / slowest;
    }
    let group = first_group(module, &collective.replica_groups, collective.group_mode(op.opcode()));
    let n = group.len() as f64;
    if group.len() < 2 {
        return 0.0;
    }
    let to_others = (n - 1.0) / n;
    match op {
        Op::AllGather(_) | Op::AllGatherStart(_) => given * (n - 1.0) / rate(&group, &target.links),
        Op::ReduceScatter(_) => given * to_others / rate(&group, &target.links),
        Op::AllReduce(_) | Op::AllReduceStart(_) => 2.0 * given * to_others / rate(&group, &target.links),
        Op::CollectiveBroadcast(_) => given / rate(&group, &target.links),
        // Every device sends each other one something else.
        Op::AllToAll(_) | Op::RaggedAllToAll(_) => {
            let levels = levels(&group, &target.links);
            let sent = levels.map(|(link, members)| given * (n - members) / n / link.bandwidth);
            sent.fold(0.0, f64::max)
        }
        _ => 0.0,
    }
}

/// Bytes per second that each device of a group sends around a ring of all.
fn rate(group: &[i64], links: &[Link]) -> f64 {
    levels(group, links).map(|(link, members)| link.bandwidth * members).fold(f64::INFINITY, f64::min)
}

/// The links that a group uses, each with the number of its members in a block of nearer devices.
fn levels<'l>(group: &[i64], links: &'l [Link]) -> impl Iterator<Item = (&'l Link, f64)> {
    let within = |block: i64| group.iter().filter(|&&id| id / block == group[0] / block).count();
    let mut used = Vec::new();
    let mut nearer = 1;
    for link in links {
        let members = within(nearer);
        if members == group.len() {
            break;
        }
        used.push((link, members as f64));
        // All devices that there are.
        nearer = link.devices.map_or(i64::MAX, |devices| devices.max(1) as i64);
    }
    used.into_iter()
}

/// The devices of the group of device 0; the numbers of all, where no groups are listed.
fn first_group(module: &Module, groups: &ReplicaGroups, mode: CollectiveGroupMode) -> Vec<i64> {
    let [replicas, partitions] = module.config.replicas_and_partitions();
    let members: Vec<i64> = match groups {
        ReplicaGroups::List(groups) => match groups.first() {
            Some(first) => first.clone(),
            None => (0..replicas.saturating_mul(partitions).min(MOST)).collect(),
        },
        ReplicaGroups::Iota { dimensions: [_, members], reshape, transpose } => {
            let order: Vec<usize> = match transpose.is_empty() {
                true => (0..reshape.len()).collect(),
                false => transpose.iter().map(|&d| d as usize).collect(),
            };
            let dimension = |&d: &usize| (reshape[d], reshape[d + 1..].iter().product());
            numbers(&order.iter().map(dimension).collect::<Vec<_>>(), *members)
        }
        ReplicaGroups::Mesh { mesh, axes } => {
            let dimension = |axis: &memplan_ir::AxisRef| {
                let at = axis.axis as usize;
                let (whole, minor) =
                    (mesh.axes[at].1, mesh.axes[at + 1..].iter().map(|(_, n)| n).product::<i64>());
                let (before, extent) = axis.sub_axis.unwrap_or((1, whole));
                (extent, minor * (whole / (before * extent).max(1)))
            };
            let dimensions: Vec<(i64, i64)> = axes.iter().map(dimension).collect();
            let members = dimensions.iter().map(|(extent, _)| extent).product();
            numbers(&dimensions, members)
        }
    };
    match mode {
        // A replica is as many devices as there are partitions.
        CollectiveGroupMode::CrossReplica => {
            members.into_iter().map(|id| id.saturating_mul(partitions)).collect()
        }
        _ => members,
    }
}

/// The first numbers of a grid of devices, with the extent and the stride of each dimension.
fn numbers(dimensions: &[(i64, i64)], n: i64) -> Vec<i64> {
    let number = |place: i64| {
        let (mut rest, mut id) = (place, 0);
        for &(extent, stride) in dimensions.iter().rev() {
            id += rest % extent.max(1) * stride;
            rest /= extent.max(1);
        }
        id
    };
    (0..n.clamp(0, MOST)).map(number).collect()
}

/// More devices than any slice has: hostile programs list none.
const MOST: i64 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Four devices in a block, eight blocks.
    fn links() -> Vec<Link> {
        let link = |name: &str, devices, bandwidth| Link { name: name.into(), devices, bandwidth };
        vec![link("near", Some(4), 100.0), link("far", None, 10.0)]
    }

    #[track_caller]
    fn check(group: &[i64], expected: f64) {
        assert_eq!(rate(group, &links()), expected, "{group:?}");
    }

    #[test]
    fn the_slowest_link_decides() {
        check(&[0, 1], 100.0);
        check(&[0, 1, 2, 3], 100.0);
        // One device of each block: each has a link of its own.
        check(&[0, 4, 8, 12], 10.0);
        check(&[3, 4], 10.0);
        // Four of each block share what goes to the next.
        check(&[0, 1, 2, 3, 4, 5, 6, 7], 40.0);
    }

    #[test]
    fn groups_are_read_in_every_form() {
        let module = Module::new("m".to_string());
        let first = |groups: &ReplicaGroups| first_group(&module, groups, CollectiveGroupMode::FlattenedId);
        let reshape = [2, 4].into_iter().collect();
        let transpose = [1, 0].into_iter().collect();
        assert_eq!(first(&ReplicaGroups::Iota { dimensions: [4, 2], reshape, transpose }), [0, 4]);
        assert_eq!(first(&ReplicaGroups::List(vec![vec![5, 7], vec![4, 6]])), [5, 7]);
    }
}
