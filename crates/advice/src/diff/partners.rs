//! The counterpart of each value of a program in another program, for all values, and not only for those at a peak.

use std::cmp::Reverse;

use indexmap::IndexMap;
use memplan_memory::{Bytes, HolderEntry};

use super::matching::{CHANGED, Rules, pairs};

/// For each value before, which of those after it has become; none where it is gone. Values are given as holders of their
/// own, in the order in which they are made: of one kind, the first has become the first. Takes time linear in them but
/// for sorting kinds.
pub fn partners(before: &[HolderEntry], after: &[HolderEntry]) -> Vec<Option<u32>> {
    partners_by(&CHANGED, before, after)
}

/// The same by other rules.
pub(crate) fn partners_by(rules: &Rules, before: &[HolderEntry], after: &[HolderEntry]) -> Vec<Option<u32>> {
    let (before_kinds, after_kinds) = (Kinds::new(before), Kinds::new(after));
    let mut partners = vec![None; before.len()];
    // How many values of each kind have their partner.
    let mut taken = [vec![0; before_kinds.holders.len()], vec![0; after_kinds.holders.len()]];
    for (a, b, _) in pairs(&before_kinds.holders, &after_kinds.holders, rules) {
        let (Some(a), Some(b)) = (a, b) else { continue };
        let (from, to) = (taken[0][a.at], taken[1][b.at]);
        let (members_a, members_b) = (&before_kinds.members[a.at][from..], &after_kinds.members[b.at][to..]);
        for (&i, &j) in members_a[..a.count].iter().zip(&members_b[..b.count]) {
            partners[i as usize] = Some(j);
        }
        taken[0][a.at] += a.count;
        taken[1][b.at] += b.count;
    }
    partners
}

/// Values of one kind together, the most bytes first, as plan files list them.
struct Kinds {
    holders: Vec<HolderEntry>,
    members: Vec<Vec<u32>>,
}

impl Kinds {
    fn new(values: &[HolderEntry]) -> Kinds {
        let mut members: IndexMap<_, Vec<u32>> = IndexMap::new();
        for (i, value) in values.iter().enumerate() {
            let kind = (&value.operation, &value.source, &value.class, &value.shape);
            members.entry(kind).or_default().push(u32::try_from(i).expect("ids of values have 32 bits"));
        }
        let kind = |members: Vec<u32>| {
            let bytes = members.iter().map(|&i| values[i as usize].bytes);
            let bytes = bytes.fold(Bytes::ZERO, Bytes::saturating_add);
            (HolderEntry { bytes, count: members.len(), ..values[members[0] as usize].clone() }, members)
        };
        let mut kinds: Vec<(HolderEntry, Vec<u32>)> = members.into_values().map(kind).collect();
        kinds.sort_by_key(|(holder, _)| Reverse(holder.bytes));
        let (holders, members) = kinds.into_iter().unzip();
        Kinds { holders, members }
    }
}
