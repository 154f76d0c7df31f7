//! Groups of devices: each device is in exactly one group. Only a broadcast may leave devices out; they get zeros.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{Collective, Op, ReplicaGroups};

use super::shapes::is_permutation;
use super::{GroupError, Verifier};

impl Verifier<'_> {
    pub(super) fn check_groups(&mut self) {
        let mut constrained = [None, None];
        for (id, instruction) in self.sound_instructions() {
            let Some(collective) = instruction.op.collective() else { continue };
            if matches!(instruction.op, Op::AllReduce(_)) {
                constrained[usize::from(collective.constrain_layout)] = Some(id);
            }
            if let Err(error) = check_ids(collective) {
                self.report(id, error);
            }
            let rule = match instruction.op {
                Op::CollectiveBroadcast(_) => GroupRule { is_even: false, is_complete: false },
                Op::AllReduce(_) | Op::AllReduceStart(_) | Op::AllReduceDone(_) => {
                    GroupRule { is_even: false, is_complete: true }
                }
                _ => GroupRule { is_even: true, is_complete: true },
            };
            if let Err(error) = check_replica_groups(&collective.replica_groups, rule) {
                self.report(id, error);
            }
            if let Err(error) = check_pairs(collective) {
                self.report(id, error);
            }
        }
        if let [Some(_), Some(id)] = constrained {
            self.report(id, GroupError::SomeConstrained);
        }
    }
}

/// The rule for the groups of an operation.
#[derive(Clone, Copy)]
struct GroupRule {
    /// All groups have as many members.
    is_even: bool,
    /// The members of all groups are the numbers from 0 on.
    is_complete: bool,
}

/// Global ids mean something across a channel only, and then every device is named.
fn check_ids(collective: &Collective) -> Result<(), GroupError> {
    let is_empty = matches!(&collective.replica_groups, ReplicaGroups::List(groups) if groups.is_empty());
    match (collective.use_global_device_ids, collective.channel_id) {
        (true, None) => Err(GroupError::NoChannel),
        (true, Some(_)) if is_empty => Err(GroupError::NoGroups),
        _ => Ok(()),
    }
}

fn check_replica_groups(groups: &ReplicaGroups, rule: GroupRule) -> Result<(), GroupError> {
    match groups {
        ReplicaGroups::List(groups) => check_listed(groups, rule),
        ReplicaGroups::Iota { dimensions: [groups, members], reshape, transpose } => {
            let product = |extents: &[i64]| extents.iter().try_fold(1i64, |n, &d| n.checked_mul(d));
            let fills = product(reshape).is_some_and(|n| n > 0 && product(&[*groups, *members]) == Some(n));
            if !fills {
                return Err(GroupError::Iota { iota: reshape.to_vec(), groups: *groups, members: *members });
            }
            if !transpose.is_empty() && !is_permutation(transpose, reshape.len()) {
                return Err(GroupError::Transpose(transpose.to_vec()));
            }
            Ok(())
        }
        ReplicaGroups::Mesh { mesh, axes } => {
            match axes.iter().find(|axis| axis.axis as usize >= mesh.axes.len()) {
                Some(axis) => Err(GroupError::Axis(axis.axis)),
                None => Ok(()),
            }
        }
    }
}

fn check_listed(groups: &[Vec<i64>], rule: GroupRule) -> Result<(), GroupError> {
    let count = groups.iter().map(Vec::len).sum();
    let mut seen = FxHashSet::default();
    for group in groups {
        if group.is_empty() {
            return Err(GroupError::Empty);
        }
        if rule.is_even && group.len() != groups[0].len() {
            return Err(GroupError::Uneven(groups[0].len(), group.len()));
        }
        for &device in group {
            let is_one = |device| !rule.is_complete || device < count;
            if !usize::try_from(device).is_ok_and(is_one) {
                return Err(GroupError::Gap { device, count });
            }
            if !seen.insert(device) {
                return Err(GroupError::Repeated(device));
            }
        }
    }
    Ok(())
}

/// In a permutation each device sends once and receives once; in place, once for each slice.
fn check_pairs(collective: &Collective) -> Result<(), GroupError> {
    let allowed = collective.slice_sizes.len().max(1);
    let mut counts: FxHashMap<(bool, i64), usize> = FxHashMap::default();
    for &(source, target) in &collective.source_target_pairs {
        for key in [(true, source), (false, target)] {
            if key.1 < 0 {
                return Err(GroupError::NegativeDevice(key.1));
            }
            let count = counts.entry(key).or_default();
            *count += 1;
            if *count > allowed {
                return Err(GroupError::Pair(key.1));
            }
        }
    }
    Ok(())
}
