//! Extents as products of factors, and equal factors.

use cranelift_entity::{EntityRef, PrimaryMap, entity_impl};
use petgraph::unionfind::UnionFind;
use smallvec::{SmallVec, smallvec};

/// A factor of extents: all dimensions that have it grow and shrink together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FactorId(u32);
entity_impl!(FactorId, "factor");

/// Some factors, the slowest varying first; none for an extent of 1.
pub type FactorList = SmallVec<[FactorId; 4]>;

/// Extents that do not divide each other, so that their parts are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tangled;

/// All factors. A factor that is found to be a product is split for good, wherever it occurs.
#[derive(Clone, Debug, Default)]
pub(super) struct Factors {
    extents: PrimaryMap<FactorId, i64>,
    /// Of factors that do not represent their class, only the class is used.
    classes: UnionFind<u32>,
    /// The slower and the faster part of a class's own factor that was split.
    parts: Vec<Option<(FactorId, FactorId)>>,
}

impl Factors {
    /// A factor of its own; none for extents of which there are no parts.
    pub(super) fn new_factor(&mut self, extent: i64) -> Option<FactorId> {
        (extent > 1).then(|| {
            let of = self.classes.new_set();
            debug_assert_eq!(of as usize, self.parts.len());
            self.parts.push(None);
            self.extents.push(extent)
        })
    }

    pub(super) fn extent(&self, factor: FactorId) -> i64 {
        self.extents[factor]
    }

    pub(super) fn len(&self) -> usize {
        self.extents.len()
    }

    fn own(&self, factor: FactorId) -> FactorId {
        FactorId::new(self.classes.find(factor.as_u32()) as usize)
    }

    /// The parts of a factor: one of each class, none of them split.
    pub(super) fn whole(&self, factor: FactorId) -> FactorList {
        let (mut list, mut rest): (FactorList, FactorList) = (smallvec![], smallvec![factor]);
        while let Some(next) = rest.pop() {
            let own = self.own(next);
            match self.parts[own.index()] {
                Some((slow, fast)) => rest.extend([fast, slow]),
                None => list.push(own),
            }
        }
        list
    }

    /// Says that two products are the same, element for element in row-major order. Splits factors where that needs to be.
    ///
    /// # Errors
    /// [`Tangled`] if the factors do not divide each other. Earlier unifications remain.
    pub(super) fn unify(&mut self, a: &[FactorId], b: &[FactorId]) -> Result<(), Tangled> {
        // The factors still to compare, the next one last.
        let mut a: FactorList = a.iter().rev().copied().collect();
        let mut b: FactorList = b.iter().rev().copied().collect();
        loop {
            let (x, y) = match (self.next(&mut a), self.next(&mut b)) {
                (Some(x), Some(y)) => (x, y),
                (None, None) => return Ok(()),
                _ => return Err(Tangled),
            };
            if x == y {
                continue;
            }
            let (large, small) = (self.extents[x].max(self.extents[y]), self.extents[x].min(self.extents[y]));
            if large == small {
                self.classes.union(x.as_u32(), y.as_u32());
            } else if large % small != 0 {
                return Err(Tangled);
            } else {
                let split = if self.extents[x] == large { x } else { y };
                self.split(split, small, large / small);
                a.push(x);
                b.push(y);
            }
        }
    }

    /// Takes the next factor that is not split.
    fn next(&self, rest: &mut FactorList) -> Option<FactorId> {
        loop {
            let own = self.own(rest.pop()?);
            match self.parts[own.index()] {
                Some((slow, fast)) => rest.extend([fast, slow]),
                None => return Some(own),
            }
        }
    }

    fn split(&mut self, factor: FactorId, slow: i64, fast: i64) {
        let parts = self.new_factor(slow).zip(self.new_factor(fast));
        self.parts[factor.index()] = Some(parts.expect("both are smaller than the whole"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(factors: &Factors, list: &[FactorId]) -> Vec<i64> {
        list.iter().flat_map(|&f| factors.whole(f)).map(|f| factors.extent(f)).collect()
    }

    #[test]
    fn factors_are_split_as_far_as_they_must_be() {
        let mut factors = Factors::default();
        let [a, b, c, d] = [8, 1024, 8192, 768].map(|n| factors.new_factor(n).unwrap());
        factors.unify(&[a, b, d], &[c, d]).unwrap();
        assert_eq!(extents(&factors, &[c]), [8, 1024]);
        assert_eq!(factors.whole(c)[..], [factors.whole(a)[0], factors.whole(b)[0]]);
        let [e, f] = [16, 512].map(|n| factors.new_factor(n).unwrap());
        factors.unify(&[c], &[e, f]).unwrap();
        assert_eq!(extents(&factors, &[b]), [2, 512]);
        assert_eq!(extents(&factors, &[e]), [8, 2]);
    }

    #[test]
    fn what_does_not_divide_is_tangled() {
        let mut factors = Factors::default();
        let [a, b, c, d] = [6, 4, 8, 3].map(|n| factors.new_factor(n).unwrap());
        assert_eq!(factors.unify(&[a, b], &[c, d]), Err(Tangled));
        assert_eq!(factors.unify(&[a], &[]), Err(Tangled));
        assert_eq!(factors.new_factor(1), None);
    }
}
