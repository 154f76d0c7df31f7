//! Tracks dimensions through a reshape.

use std::ops::Range;

use memplan_ir::Dimensions;

/// A group of neighboring dimensions that a reshape turns into another group, and that has no smaller such group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) from: Range<usize>,
    pub(super) to: Range<usize>,
}

/// Cuts a reshape into groups: `[4,6,5] -> [24,1,5]` is `{0,1} -> {0,1}`, `{2} -> {2}`. Dimensions of extent one go
/// with the group before them; leading ones with the first. `None` for arrays without elements.
pub(super) fn groups(from: &[i64], to: &[i64]) -> Option<Vec<Group>> {
    if from.contains(&0) || to.contains(&0) {
        return None;
    }
    let mut groups: Vec<Group> = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < from.len() || j < to.len() {
        let (start_i, start_j) = (i, j);
        let (mut n_from, mut n_to) = (1i64, 1i64);
        loop {
            if n_from <= n_to && i < from.len() {
                n_from = n_from.checked_mul(from[i])?;
                i += 1;
            } else if j < to.len() {
                n_to = n_to.checked_mul(to[j])?;
                j += 1;
            } else {
                break;
            }
            if n_from == n_to && n_from > 1 {
                break;
            }
        }
        while i < from.len() && from[i] == 1 {
            i += 1;
        }
        while j < to.len() && to[j] == 1 {
            j += 1;
        }
        groups.push(Group { from: start_i..i, to: start_j..j });
    }
    Some(groups)
}

/// Dimensions that are more than one long, with their extents.
pub(super) fn extended(dimensions: &[i64]) -> impl Iterator<Item = (usize, i64)> + Clone + '_ {
    dimensions.iter().copied().enumerate().filter(|&(_, extent)| extent != 1)
}

/// Whether two lists of extents differ in ones only, so that a reshape between them leaves every dimension whole.
pub(super) fn same_but_for_ones(a: &[i64], b: &[i64]) -> bool {
    extended(a).map(|(_, extent)| extent).eq(extended(b).map(|(_, extent)| extent))
}

/// The extents without the ones.
pub(super) fn without_ones(dimensions: &[i64]) -> Dimensions {
    extended(dimensions).map(|(_, extent)| extent).collect()
}

/// Whether the numbers only go up.
pub(super) fn is_increasing(numbers: &[i64]) -> bool {
    numbers.windows(2).all(|pair| pair[0] < pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(from: &[i64], to: &[i64], expected: &[(Range<usize>, Range<usize>)]) {
        let found: Vec<_> = groups(from, to).unwrap().into_iter().map(|g| (g.from, g.to)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn groups_are_as_small_as_possible() {
        check(&[4, 6, 5], &[24, 1, 5], &[(0..2, 0..2), (2..3, 2..3)]);
        check(&[24, 5], &[4, 6, 5], &[(0..1, 0..2), (1..2, 2..3)]);
        check(&[2, 3], &[3, 2], &[(0..2, 0..2)]);
        check(&[2, 6, 5], &[4, 3, 5], &[(0..2, 0..2), (2..3, 2..3)]);
    }

    #[test]
    fn ones_belong_somewhere() {
        check(&[1, 4], &[4, 1], &[(0..2, 0..2)]);
        check(&[4], &[1, 1, 4, 1], &[(0..1, 0..4)]);
        check(&[1], &[], &[(0..1, 0..0)]);
        check(&[], &[], &[]);
    }
}
