//! Shards of a shape: the number of pieces of each dimension, the shape on one device, and shardings by mesh axes as
//! arrays of devices.

use smallvec::SmallVec;

use crate::{
    ArrayShape, AxisRef, DeviceList, NamedSharding, ShardingKind, ShardingSpec, SubgroupKind, TileAssignment,
};

impl ShardingSpec {
    /// How many pieces each of the first `rank` dimensions is cut into; 1 for everything but tilings.
    pub fn shards(&self, rank: usize) -> SmallVec<[i64; 6]> {
        let count = |dimension| match &self.kind {
            ShardingKind::Tiled(tiles) => tiles.dimensions.get(dimension).copied().unwrap_or(1),
            ShardingKind::Named(named) => named.shards(dimension),
            _ => 1,
        };
        (0..rank).map(|dimension| count(dimension).max(1)).collect()
    }

    /// The shape of the shard on one device: each extent divided by its shards and rounded up. The layout stays, and
    /// pads the shard.
    pub fn local_shape(&self, shape: &ArrayShape) -> ArrayShape {
        let mut local = shape.clone();
        for (extent, shards) in local.dimensions.iter_mut().zip(self.shards(shape.rank())) {
            if *extent != ArrayShape::UNBOUNDED {
                *extent = ceil_div(*extent, shards);
            }
        }
        local
    }

    /// The shape that all pieces together take: each extent rounded up to a multiple of its shards.
    pub fn padded_shape(&self, shape: &ArrayShape) -> ArrayShape {
        let mut padded = self.local_shape(shape);
        for (extent, shards) in padded.dimensions.iter_mut().zip(self.shards(shape.rank())) {
            if *extent != ArrayShape::UNBOUNDED {
                *extent = extent.saturating_mul(shards);
            }
        }
        padded
    }
}

impl NamedSharding {
    /// How many pieces a dimension is cut into.
    pub fn shards(&self, dimension: usize) -> i64 {
        let axes = self.dimensions.get(dimension).map_or(&[][..], |dimension| &dimension.axes);
        axes.iter().map(|axis| self.extent(axis)).fold(1, i64::saturating_mul)
    }

    /// The same sharding as an array of devices, with the manual and the replicated axes as trailing dimensions, in the
    /// form that XLA prints; [`ShardingKind::Replicated`] when no axis cuts anything and none is manual.
    ///
    /// `None` when the axes are no partition of the mesh (one is used twice, or a part does not divide its axis), when
    /// the mesh lists its devices, or for reductions.
    pub fn to_tiled(&self) -> Option<ShardingKind> {
        if self.mesh.devices.is_some() || !self.unreduced_axes.is_empty() {
            return None;
        }
        let parts = self.parts()?;
        let find = |axis: &AxisRef| parts_of(&parts, axis.axis, self.span(axis)?);
        let mut dimensions: SmallVec<[i64; 6]> = SmallVec::new();
        let mut order: Vec<usize> = Vec::new();
        let cut = self.dimensions.iter().map(|dimension| dimension.axes.as_slice());
        for axes in cut {
            let start = order.len();
            for axis in axes {
                order.extend(find(axis)?);
            }
            dimensions.push(devices(&parts, &order[start..]));
        }
        let start = order.len();
        for axis in &self.manual_axes {
            order.extend(find(axis)?);
        }
        let manual = devices(&parts, &order[start..]);
        let mut is_used = vec![false; parts.len()];
        for &part in &order {
            if std::mem::replace(&mut is_used[part], true) {
                return None;
            }
        }
        let is_cut = dimensions.iter().any(|&pieces| pieces > 1);
        let start = order.len();
        order.extend((0..parts.len()).filter(|&part| !is_used[part]));
        let replicated = devices(&parts, &order[start..]);
        if !is_cut && manual == 1 {
            return Some(ShardingKind::Replicated);
        }
        let mut tiles = TileAssignment {
            dimensions,
            devices: iota(&parts.iter().map(|part| part.extent).collect::<Vec<_>>(), &order),
            replicate_on_last_tile_dim: manual == 1 && replicated > 1,
            last_tile_dims: SmallVec::new(),
        };
        if manual > 1 {
            tiles.dimensions.push(manual);
            tiles.last_tile_dims.push(SubgroupKind::Manual);
        }
        if replicated > 1 {
            tiles.dimensions.push(replicated);
            if manual > 1 {
                tiles.last_tile_dims.push(SubgroupKind::Replicated);
            }
        }
        Some(ShardingKind::Tiled(tiles))
    }

    /// The number of devices along an axis, or a part of one.
    fn extent(&self, axis: &AxisRef) -> i64 {
        match axis.sub_axis {
            Some((_, size)) => size.max(1),
            None => self.mesh.axes.get(axis.axis as usize).map_or(1, |(_, extent)| (*extent).max(1)),
        }
    }

    /// The beginning and end of a part of an axis, as products of the extents up to there.
    fn span(&self, axis: &AxisRef) -> Option<(i64, i64)> {
        match axis.sub_axis {
            None => Some((1, self.extent(axis))),
            Some((before, size)) => Some((before, before.checked_mul(size)?)),
        }
    }

    /// The axes of the mesh cut wherever a part begins or ends, in the order of the mesh.
    fn parts(&self) -> Option<Vec<Part>> {
        let used = self.dimensions.iter().flat_map(|dimension| &dimension.axes).chain(&self.manual_axes);
        let used: Vec<&AxisRef> = used.chain(&self.replicated_axes).collect();
        let mut parts = Vec::new();
        for (axis, &(_, extent)) in (0..).zip(&self.mesh.axes) {
            let mut cuts = vec![1, extent];
            for part in used.iter().filter(|part| part.axis == axis) {
                let (start, end) = self.span(part)?;
                cuts.extend([start, end]);
            }
            cuts.sort_unstable();
            cuts.dedup();
            for pair in cuts.windows(2) {
                if pair[0] < 1 || pair[1] % pair[0] != 0 {
                    return None;
                }
                parts.push(Part { axis, start: pair[0], end: pair[1], extent: pair[1] / pair[0] });
            }
            if cuts.last() != Some(&extent) {
                return None;
            }
        }
        Some(parts)
    }
}

/// A piece of a mesh axis that no sharding cuts further.
struct Part {
    axis: u32,
    start: i64,
    end: i64,
    extent: i64,
}

/// The parts of a span of an axis, major to minor.
fn parts_of(parts: &[Part], axis: u32, (start, end): (i64, i64)) -> Option<Vec<usize>> {
    let inside = |part: &Part| part.axis == axis && start <= part.start && part.end <= end;
    let found: Vec<usize> = (0..parts.len()).filter(|&i| inside(&parts[i])).collect();
    let is_whole = devices(parts, &found) == end / start.max(1);
    is_whole.then_some(found)
}

/// The number of devices of some parts together.
fn devices(parts: &[Part], some: &[usize]) -> i64 {
    some.iter().map(|&part| parts[part].extent).fold(1, i64::saturating_mul)
}

/// `<=[extents]T(order)` in its shortest form: without dimensions of one device, and with those merged that stay
/// together.
fn iota(extents: &[i64], order: &[usize]) -> DeviceList {
    let order: Vec<usize> = order.iter().copied().filter(|&i| extents[i] > 1).collect();
    // Groups of dimensions that follow each other before and after; each is one dimension of the result.
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let is_next = |i: usize, j: usize| i < j && extents[i + 1..j].iter().all(|&extent| extent <= 1);
    for i in order {
        match groups.last_mut() {
            Some(group) if group.last().is_some_and(|&last| is_next(last, i)) => group.push(i),
            _ => groups.push(vec![i]),
        }
    }
    let mut sorted: Vec<&Vec<usize>> = groups.iter().collect();
    sorted.sort_unstable();
    let place = |group: &Vec<usize>| sorted.iter().position(|other| *other == group).unwrap_or(0) as i64;
    let product = |group: &&Vec<usize>| group.iter().map(|&i| extents[i]).fold(1, i64::saturating_mul);
    let reshape: SmallVec<[i64; 6]> = sorted.iter().map(product).collect();
    let transpose: SmallVec<[i64; 6]> = groups.iter().map(place).collect();
    match reshape.len() {
        0 => DeviceList::Iota { reshape: [1].into_iter().collect(), transpose: SmallVec::new() },
        1 => DeviceList::Iota { reshape, transpose: SmallVec::new() },
        _ => DeviceList::Iota { reshape, transpose },
    }
}

fn ceil_div(a: i64, b: i64) -> i64 {
    a / b + i64::from(a % b > 0)
}
