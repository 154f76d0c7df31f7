//! A constructive heuristic for any size: fills the niches of the skyline.
//!
//! ```text
//!        +----+        The skyline is the top of what has been placed. A stretch between
//!   +----+    |        higher neighbors is a niche. The block that goes there is the one of highest
//!   |    |    +---+    rank among those whose live range is inside; where there is none, the niche is
//!   |    |niche|  |    filled up to its lower neighbor, which wastes those bytes.
//!   +----+-----+--+
//! ```
//!
//! This is best-fit strip packing (Burke, Kendall, Whitwell: "A new placement heuristic for the orthogonal
//! stock-cutting problem", Operations Research 2004) with a given position along time. The bottom niche chooses the
//! next block, while first-fit has a global order. Every step places a block or joins two stretches, so there are O(n)
//! steps, each with one query in a tree.

use alloc::vec;
use alloc::vec::Vec;

use crate::instance::Instance;
use crate::options::Clock;

/// Which of the blocks that are inside a niche goes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The one of highest rank.
    Best,
    /// The one of highest rank among the blocks that cover the section with the fewest candidates: such a section soon
    /// has none. If there are many candidates, [`Rule::Best`].
    Scarce,
}

/// What to do if the time is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    /// There is a packing already.
    GiveUp,
    /// Each niche gets whichever block is found first, which takes a fraction of a second for a million blocks.
    Hurry,
}

/// Blocks inside a niche up to which [`Rule::Scarce`] looks at all of them.
const MOST_INSIDE: usize = 4096;

/// Blocks it looks at in all niches together, a fraction of a second; after that up to [`FEW_INSIDE`] each.
const MOST_LOOKS: usize = 1 << 23;
const FEW_INSIDE: usize = 128;

/// Steps between two looks at the clock. A step looks at [`MOST_INSIDE`] blocks at most: some tens of microseconds.
const STEPS_PER_LOOK_AT_CLOCK: u32 = 64;

/// Sections of a niche for each block inside, up to which they are walked one by one.
const SECTIONS_PER_BLOCK: usize = 16;

/// Packs the blocks, and says how many were looked at beyond those placed; `rank` gives each a distinct number, higher
/// ones go first. `None` where the time was up before all had a place and there is no need to hurry.
///
/// A block with gaps or of several sizes is taken for the rectangle around it, and nothing goes below
/// a fixed block. Offsets saturate at 2^64.
pub(crate) fn pack(
    instance: &Instance,
    rank: &[u32],
    rule: Rule,
    clock: &Clock,
    late: Late,
) -> Option<(Vec<u64>, u64)> {
    let mut offsets = vec![0; instance.blocks.len()];
    let mut skyline = Skyline::new(instance, &mut offsets);
    let mut waiting = Waiting::new(instance, rank);
    let (mut n_steps, mut is_late) = (0u32, false);
    while let Some(niche) = skyline.niche() {
        n_steps = n_steps.wrapping_add(1);
        is_late = is_late || (n_steps.is_multiple_of(STEPS_PER_LOOK_AT_CLOCK) && clock.is_over());
        let block = match rule {
            _ if is_late && late == Late::GiveUp => return None,
            _ if is_late => waiting.take_any(niche.lower, niche.upper),
            Rule::Best => waiting.take_best(niche.lower, niche.upper),
            Rule::Scarce => waiting.take_scarce(instance, niche.lower, niche.upper),
        };
        let Some(block) = block else {
            skyline.fill(niche);
            continue;
        };
        let Block { lower, upper, size, alignment } = waiting.block(instance, block);
        let offset = round_up(niche.height, alignment);
        offsets[block as usize] = offset;
        skyline.split(niche, lower, upper, offset.saturating_add(size));
    }
    Some((offsets, waiting.n_looks as u64))
}

/// The next multiple of `alignment`, saturating.
pub(crate) fn round_up(offset: u64, alignment: u64) -> u64 {
    offset.checked_next_multiple_of(alignment).unwrap_or(u64::MAX)
}

struct Block {
    lower: u32,
    upper: u32,
    size: u64,
    alignment: u64,
}

/// A stretch of sections at one height.
#[derive(Clone, Copy)]
struct Stretch {
    lower: u32,
    upper: u32,
    height: u64,
}

/// Before the first stretch.
const NONE: u32 = u32::MAX;

/// Stretches that cover all sections, as a doubly linked list by first section.
struct Skyline {
    /// By first section; meaningful where a stretch starts.
    height: Vec<u64>,
    upper: Vec<u32>,
    /// First section of the stretch before, by first section.
    before: Vec<u32>,
    /// First section of the stretch from which to look for a niche; [`NONE`] when all is done.
    ///
    /// Which niche comes first makes no difference: what happens inside one does not depend on the others.
    at: u32,
    n_sections: u32,
}

impl Skyline {
    fn new(instance: &Instance, offsets: &mut [u64]) -> Skyline {
        let n = instance.n_sections;
        let mut floor = vec![0u64; n];
        for (index, block) in instance.blocks.iter().enumerate() {
            if let Some(offset) = block.fixed {
                offsets[index] = offset;
            }
        }
        crate::profile::raise_to_fixed(instance, &mut floor);
        let mut skyline = Skyline {
            height: floor,
            upper: vec![0; n],
            before: vec![NONE; n],
            at: if n == 0 { NONE } else { 0 },
            n_sections: n as u32,
        };
        let mut lower = 0;
        let mut before = NONE;
        while lower < n {
            let mut upper = lower + 1;
            while upper < n && skyline.height[upper] == skyline.height[lower] {
                upper += 1;
            }
            skyline.insert(
                Stretch { lower: lower as u32, upper: upper as u32, height: skyline.height[lower] },
                before,
            );
            before = lower as u32;
            lower = upper;
        }
        skyline
    }

    /// Walks downhill to a stretch between higher neighbors.
    fn niche(&mut self) -> Option<Stretch> {
        while self.at != NONE {
            let lower = self.at as usize;
            let here =
                self.widen(Stretch { lower: self.at, upper: self.upper[lower], height: self.height[lower] });
            let left = self.before[here.lower as usize];
            if left != NONE && self.height[left as usize] < here.height {
                self.at = left;
            } else if here.upper < self.n_sections && self.height[here.upper as usize] < here.height {
                self.at = here.upper;
            } else {
                return Some(here);
            }
        }
        None
    }

    /// Joins the stretch with neighbors of the same height.
    fn widen(&mut self, stretch: Stretch) -> Stretch {
        let Stretch { mut lower, mut upper, height } = stretch;
        while upper < self.n_sections && self.height[upper as usize] == height {
            upper = self.upper[upper as usize];
        }
        loop {
            let before = self.before[lower as usize];
            if before == NONE || self.height[before as usize] != height {
                break;
            }
            lower = before;
        }
        self.upper[lower as usize] = upper;
        if upper < self.n_sections {
            self.before[upper as usize] = lower;
        }
        Stretch { lower, upper, height }
    }

    /// Raises the niche to its lower neighbor. The last stretch of all is just dropped.
    fn fill(&mut self, niche: Stretch) {
        let left = self.before[niche.lower as usize];
        let left_height = if left == NONE { u64::MAX } else { self.height[left as usize] };
        let right_height =
            if niche.upper == self.n_sections { u64::MAX } else { self.height[niche.upper as usize] };
        if left == NONE && niche.upper == self.n_sections {
            self.at = NONE;
            return;
        }
        let height = left_height.min(right_height);
        let (mut lower, mut upper, mut before) = (niche.lower, niche.upper, left);
        if left_height == height && left != NONE {
            (lower, before) = (left, self.before[left as usize]);
        }
        if right_height == height && niche.upper < self.n_sections {
            upper = self.upper[niche.upper as usize];
        }
        self.insert(Stretch { lower, upper, height }, before);
        self.at = lower;
    }

    /// Puts a block over `lower..upper` of the niche.
    fn split(&mut self, niche: Stretch, lower: u32, upper: u32, top: u64) {
        let mut before = self.before[niche.lower as usize];
        let parts = [
            Stretch { lower: niche.lower, upper: lower, height: niche.height },
            Stretch { lower, upper, height: top },
            Stretch { lower: upper, upper: niche.upper, height: niche.height },
        ];
        for part in parts.into_iter().filter(|part| part.lower < part.upper) {
            self.insert(part, before);
            before = part.lower;
        }
        // The rest of the niche is lower than the block.
        self.at = if lower == niche.lower && upper < niche.upper { upper } else { niche.lower };
    }

    fn insert(&mut self, stretch: Stretch, before: u32) {
        let Stretch { lower, upper, height } = stretch;
        self.height[lower as usize] = height;
        self.upper[lower as usize] = upper;
        self.before[lower as usize] = before;
        if upper < self.n_sections {
            self.before[upper as usize] = lower;
        }
    }
}

/// The blocks that have no place yet, in a tree over their first sections.
///
/// A query for the best block inside a niche descends where a block may be inside (least end) and may be better than
/// the best so far (highest rank).
struct Waiting {
    /// The blocks in order of first section.
    order: Vec<u32>,
    /// Index in `order` of the first block that starts at a section or later.
    starts: Vec<u32>,
    nodes: Vec<Node>,
    n_leaves: usize,
    n_looks: usize,
    /// Scratch space: leaves inside a niche, and where their blocks start and end.
    inside: Vec<u32>,
    ends: Vec<(u32, i32)>,
    /// Scratch space: by how much the number of blocks changes at each section of a niche.
    changes: Vec<i32>,
}

#[derive(Clone, Copy)]
struct Node {
    /// The least end of the blocks below, `u32::MAX` where there is none.
    least_upper: u32,
    /// The highest rank of the blocks below, plus one; 0 where there is none.
    best: u32,
}

type Leaves = core::ops::Range<usize>;

const NOTHING: Node = Node { least_upper: u32::MAX, best: 0 };

impl Waiting {
    fn new(instance: &Instance, rank: &[u32]) -> Waiting {
        let blocks = &instance.blocks;
        let mut starts = vec![0u32; instance.n_sections + 1];
        let movable = (0..blocks.len() as u32).filter(|&block| blocks[block as usize].fixed.is_none());
        let mut order: Vec<u32> = movable.collect();
        order.sort_by_key(|&block| blocks[block as usize].lower);
        for &block in &order {
            starts[blocks[block as usize].lower as usize + 1] += 1;
        }
        for section in 0..instance.n_sections {
            starts[section + 1] += starts[section];
        }
        let n_leaves = order.len().next_power_of_two();
        let mut nodes = vec![NOTHING; 2 * n_leaves];
        for (leaf, &block) in order.iter().enumerate() {
            nodes[n_leaves + leaf] =
                Node { least_upper: blocks[block as usize].upper, best: rank[block as usize] + 1 };
        }
        for node in (1..n_leaves).rev() {
            nodes[node] = join(nodes[2 * node], nodes[2 * node + 1]);
        }
        Waiting {
            order,
            starts,
            nodes,
            n_leaves,
            n_looks: 0,
            inside: Vec::new(),
            ends: Vec::new(),
            changes: Vec::new(),
        }
    }

    fn block(&self, instance: &Instance, block: u32) -> Block {
        let block = &instance.blocks[block as usize];
        Block { lower: block.lower, upper: block.upper, size: block.size, alignment: block.alignment }
    }

    fn take_best(&mut self, lower: u32, upper: u32) -> Option<u32> {
        let range = self.starts[lower as usize] as usize..self.starts[upper as usize] as usize;
        let mut best = (0, usize::MAX);
        if !range.is_empty() {
            self.search(1, 0..self.n_leaves, &range, upper, &mut best);
        }
        let (_, leaf) = best;
        (leaf != usize::MAX).then(|| self.take(leaf))
    }

    /// The first block inside a niche.
    fn take_any(&mut self, lower: u32, upper: u32) -> Option<u32> {
        let range = self.starts[lower as usize] as usize..self.starts[upper as usize] as usize;
        let mut inside = core::mem::take(&mut self.inside);
        inside.clear();
        if !range.is_empty() {
            self.collect(1, 0..self.n_leaves, &range, upper, 0, &mut inside);
        }
        let leaf = inside.first().copied();
        self.inside = inside;
        leaf.map(|leaf| self.take(leaf as usize))
    }

    fn take_scarce(&mut self, instance: &Instance, lower: u32, upper: u32) -> Option<u32> {
        let range = self.starts[lower as usize] as usize..self.starts[upper as usize] as usize;
        let most = if self.n_looks < MOST_LOOKS { MOST_INSIDE } else { FEW_INSIDE };
        let mut inside = core::mem::take(&mut self.inside);
        inside.clear();
        if !range.is_empty() {
            self.collect(1, 0..self.n_leaves, &range, upper, most, &mut inside);
        }
        self.n_looks += inside.len();
        let block = match inside.len() {
            0 => None,
            n if n <= most => {
                let section = self.scarcest(instance, &inside, lower..upper);
                let covers = |leaf: &u32| {
                    let block = &instance.blocks[self.order[*leaf as usize] as usize];
                    block.lower <= section && section < block.upper
                };
                let rank = |leaf: &u32| self.nodes[self.n_leaves + *leaf as usize].best;
                let best = inside.iter().copied().filter(covers).max_by_key(rank);
                best.map(|leaf| self.take(leaf as usize))
            }
            _ => self.take_best(lower, upper),
        };
        self.inside = inside;
        block
    }

    /// The first section of a niche that some of the blocks inside cover, but as few as possible.
    fn scarcest(&mut self, instance: &Instance, inside: &[u32], niche: core::ops::Range<u32>) -> u32 {
        let ends = inside.iter().flat_map(|&leaf| {
            let block = &instance.blocks[self.order[leaf as usize] as usize];
            [(block.lower, 1), (block.upper, -1)]
        });
        let (mut n, mut least) = (0, (i32::MAX, 0));
        let mut pass = |section: u32, change: i32| {
            n += change;
            if 0 < n && n < least.0 {
                least = (n, section);
            }
        };
        // Walking along the sections is faster than sorting, but not where the niche is wide and little is inside.
        if niche.len() <= SECTIONS_PER_BLOCK * inside.len() {
            self.changes.clear();
            self.changes.resize(niche.len() + 1, 0);
            ends.for_each(|(section, change)| self.changes[(section - niche.start) as usize] += change);
            niche.zip(&self.changes).for_each(|(section, &change)| pass(section, change));
        } else {
            self.ends.clear();
            self.ends.extend(ends);
            self.ends.sort_unstable();
            for here in self.ends.chunk_by(|a, b| a.0 == b.0) {
                pass(here[0].0, here.iter().map(|end| end.1).sum());
            }
        }
        least.1
    }

    /// Finds the blocks inside a niche, up to one more than `most`.
    fn collect(
        &self,
        node: usize,
        leaves: Leaves,
        wanted: &Leaves,
        upper: u32,
        most: usize,
        inside: &mut Vec<u32>,
    ) {
        let here = self.nodes[node];
        let outside = leaves.end <= wanted.start || wanted.end <= leaves.start;
        if outside || here.least_upper > upper || inside.len() > most {
            return;
        }
        if node >= self.n_leaves {
            inside.push(leaves.start as u32);
            return;
        }
        let middle = leaves.start + leaves.len() / 2;
        self.collect(2 * node, leaves.start..middle, wanted, upper, most, inside);
        self.collect(2 * node + 1, middle..leaves.end, wanted, upper, most, inside);
    }

    fn take(&mut self, leaf: usize) -> u32 {
        let mut node = self.n_leaves + leaf;
        self.nodes[node] = NOTHING;
        while node > 1 {
            node /= 2;
            self.nodes[node] = join(self.nodes[2 * node], self.nodes[2 * node + 1]);
        }
        self.order[leaf]
    }

    fn search(&self, node: usize, leaves: Leaves, wanted: &Leaves, upper: u32, best: &mut (u32, usize)) {
        let here = self.nodes[node];
        let outside = leaves.end <= wanted.start || wanted.end <= leaves.start;
        if outside || here.best <= best.0 || here.least_upper > upper {
            return;
        }
        if node >= self.n_leaves {
            *best = (here.best, leaves.start);
            return;
        }
        let middle = leaves.start + leaves.len() / 2;
        let halves = [(2 * node, leaves.start..middle), (2 * node + 1, middle..leaves.end)];
        // The half with the higher rank first: it is likelier to end the search in the other.
        let right_first = self.nodes[2 * node + 1].best > self.nodes[2 * node].best;
        let [first, second] = if right_first {
            let [l, r] = halves;
            [r, l]
        } else {
            halves
        };
        self.search(first.0, first.1, wanted, upper, best);
        self.search(second.0, second.1, wanted, upper, best);
    }
}

fn join(a: Node, b: Node) -> Node {
    Node { least_upper: a.least_upper.min(b.least_upper), best: a.best.max(b.best) }
}
