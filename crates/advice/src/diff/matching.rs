//! Which values before and after are the same thing: by name first, and by what they are where names moved.

use std::hash::Hash;

use indexmap::IndexMap;
use memplan_memory::HolderEntry;

use super::Matched;
use super::shape::ShapeText;

/// A holder on each side, or on one.
pub(super) type Pair<'h> = (Option<&'h HolderEntry>, Option<&'h HolderEntry>, Matched);

/// Pairs holders, each with at most one of the other side; the closest likeness goes first.
pub(super) fn pairs<'h>(before: &'h [HolderEntry], after: &'h [HolderEntry]) -> Vec<Pair<'h>> {
    let mut matcher =
        Matcher { before: before.iter().collect(), after: after.iter().collect(), pairs: Vec::new() };
    let named = |holder: &HolderEntry| holder.operation.is_some();
    let name = |h: &'h HolderEntry| (&h.operation, &h.source, &h.class);
    matcher.pair(Matched::Name, named, |h| (name(h), h.shape.as_deref(), h.count));
    matcher.pair(Matched::Name, named, |h| (name(h), h.shape.as_deref()));
    matcher.pair(Matched::Name, named, |h| (name(h), kind(h)));
    matcher.pair(Matched::Name, named, |h| (name(h), rank(h)));
    // The line moved, or what the value is for.
    matcher.pair(Matched::Name, named, |h| (&h.operation, &h.class, h.shape.as_deref()));
    matcher.pair(Matched::Name, named, |h| (&h.operation, &h.class, rank(h)));
    matcher.pair(Matched::Name, named, |h| (&h.operation, kind(h)));
    // The name moved.
    let any = |_: &HolderEntry| true;
    matcher.pair(Matched::Shape, any, |h| (&h.class, h.shape.as_deref(), h.count));
    matcher.pair(Matched::Shape, any, |h| (&h.class, h.shape.as_deref()));
    matcher.pair(Matched::Shape, any, |h| (&h.class, &h.source, kind(h)));
    matcher.pair(Matched::Shape, any, |h| (&h.class, kind(h), h.count));
    matcher.finish()
}

/// Element type and rank.
fn kind(holder: &HolderEntry) -> (&str, usize) {
    ShapeText::new(holder.shape.as_deref().unwrap_or_default()).kind()
}

fn rank(holder: &HolderEntry) -> usize {
    kind(holder).1
}

/// Holders that have no pair yet, and pairs.
struct Matcher<'h> {
    before: Vec<&'h HolderEntry>,
    after: Vec<&'h HolderEntry>,
    pairs: Vec<Pair<'h>>,
}

impl<'h> Matcher<'h> {
    /// Pairs what has the same key. Of several, the largest goes to the largest: what grows by one factor keeps its order.
    fn pair<K: Hash + Eq>(
        &mut self,
        matched: Matched,
        takes_part: impl Fn(&HolderEntry) -> bool,
        key: impl Fn(&'h HolderEntry) -> K,
    ) {
        let mut waiting: IndexMap<K, Vec<usize>> = IndexMap::new();
        for (i, holder) in self.after.iter().enumerate().filter(|(_, holder)| takes_part(holder)) {
            waiting.entry(key(holder)).or_default().push(i);
        }
        // Files list holders by bytes, so taking the last of a reversed list takes the largest.
        waiting.values_mut().for_each(|list| list.reverse());
        let mut is_taken = vec![false; self.after.len()];
        let (after, pairs) = (&self.after, &mut self.pairs);
        self.before.retain(|holder| {
            let partner = takes_part(holder).then(|| waiting.get_mut(&key(holder))?.pop()).flatten();
            if let Some(i) = partner {
                is_taken[i] = true;
                pairs.push((Some(holder), Some(after[i]), matched));
            }
            partner.is_none()
        });
        let mut taken = is_taken.into_iter();
        self.after.retain(|_| !taken.next().expect("one for each"));
    }

    fn finish(self) -> Vec<Pair<'h>> {
        let mut pairs = self.pairs;
        pairs.extend(self.before.into_iter().map(|holder| (Some(holder), None, Matched::Alone)));
        pairs.extend(self.after.into_iter().map(|holder| (None, Some(holder), Matched::Alone)));
        pairs
    }
}
