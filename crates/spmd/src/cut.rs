//! Axes of a mesh, and how they cut arrays.
//!
//! ```text
//!   16 devices, seen as mesh[2][4][2]: axis 0 has strides of 8 devices, axis 1 of 2, axis 2 of 1
//!   f32[64,32] with {0,2} on dimension 0 and {1} on dimension 1: each device holds f32[16,8]
//! ```
//!
//! In every notation of shardings (arrays of devices, meshes with names), devices are numbered row-major, and each
//! sharding divides their numbers at some strides. The axes are the coarsest common refinement of these divisions, so
//! every sharding is a list of axes for each dimension, most major first.

use memplan_ir::{
    ArrayShape, AxisRef, DeviceList, Dimensions, ReplicaGroups, ShardingKind, ShardingSpec, TileAssignment,
};
use smallvec::SmallVec;

/// The number of an axis.
pub(crate) type Axis = u8;

/// Axes, most major first.
pub(crate) type Axes = SmallVec<[Axis; 4]>;

/// The axes that cut each dimension of an array; none for values that every device holds in full.
pub(crate) type Cut = SmallVec<[Axes; 4]>;

/// A division of device numbers: `number / below % extent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) below: i64,
    pub(crate) extent: i64,
}

/// Devices as a grid of axes, in row-major order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Devices along each axis, most major first; each at least 2.
    pub(crate) extents: Vec<i64>,
}

impl Grid {
    /// The coarsest grid that has an axis, or several that follow each other, for each span. `None` where spans overlap
    /// in part, or where there are more axes than a number has bits.
    pub(crate) fn of(devices: i64, spans: &[Span]) -> Option<Grid> {
        let mut strides = vec![1, devices];
        strides.extend(spans.iter().flat_map(|span| [span.below, span.below * span.extent]));
        strides.sort_unstable();
        strides.dedup();
        let extents: Option<Vec<i64>> = strides
            .windows(2)
            .rev()
            .map(|pair| (pair[1] % pair[0] == 0).then(|| pair[1] / pair[0]))
            .collect();
        let is_within = strides.first() == Some(&1) && strides.last() == Some(&devices);
        extents.filter(|extents| is_within && extents.len() <= 32).map(|extents| Grid { extents })
    }

    pub(crate) fn devices(&self) -> i64 {
        self.extents.iter().product()
    }

    /// Device numbers from one index of an axis to the next.
    pub(crate) fn stride(&self, axis: Axis) -> i64 {
        self.extents[usize::from(axis) + 1..].iter().product()
    }

    pub(crate) fn extent(&self, axis: Axis) -> i64 {
        self.extents[usize::from(axis)]
    }

    /// How many pieces some axes make.
    pub(crate) fn pieces(&self, axes: &[Axis]) -> i64 {
        axes.iter().map(|&axis| self.extent(axis)).product()
    }

    /// The axes of a span.
    pub(crate) fn axes_of(&self, span: Span) -> Axes {
        let inside = |&axis: &Axis| {
            let stride = self.stride(axis);
            stride >= span.below && stride * self.extent(axis) <= span.below * span.extent
        };
        (0..self.extents.len() as Axis).filter(inside).collect()
    }

    /// The share of one device.
    pub(crate) fn local(&self, array: &ArrayShape, cut: &Cut) -> ArrayShape {
        let mut local = array.clone();
        for (extent, axes) in local.dimensions.iter_mut().zip(cut) {
            *extent /= self.pieces(axes);
        }
        local
    }

    /// The array of which one device has a share.
    pub(crate) fn whole(&self, local: &ArrayShape, cut: &Cut) -> ArrayShape {
        let mut whole = local.clone();
        for (extent, axes) in whole.dimensions.iter_mut().zip(cut) {
            *extent *= self.pieces(axes);
        }
        whole
    }

    /// Where the part of a device begins.
    pub(crate) fn starts(&self, cut: &Cut, device: i64, part: &[i64]) -> Vec<i64> {
        let place = |axes: &Axes| {
            axes.iter().fold(0, |place, &axis| {
                place * self.extent(axis) + device / self.stride(axis) % self.extent(axis)
            })
        };
        cut.iter().zip(part).map(|(axes, extent)| place(axes) * extent).collect()
    }

    /// A cut as an array of devices.
    pub(crate) fn spec(&self, cut: &Cut) -> ShardingSpec {
        let used: Axes = cut.iter().flatten().copied().collect();
        let others = (0..self.extents.len() as Axis).filter(|axis| !used.contains(axis));
        let order: Axes = used.iter().copied().chain(others).collect();
        let mut dimensions: SmallVec<[i64; 6]> = cut.iter().map(|axes| self.pieces(axes)).collect();
        let replicas = self.pieces(&order[used.len()..]);
        if replicas > 1 {
            dimensions.push(replicas);
        }
        let is_in_order = order.iter().zip(0..).all(|(&axis, place)| axis == place);
        let devices = DeviceList::Iota {
            reshape: if is_in_order {
                SmallVec::from_slice(&[self.devices()])
            } else {
                self.extents.iter().copied().collect()
            },
            transpose: if is_in_order {
                SmallVec::new()
            } else {
                order.iter().map(|&axis| i64::from(axis)).collect()
            },
        };
        let tiles = TileAssignment {
            dimensions,
            devices,
            replicate_on_last_tile_dim: replicas > 1,
            last_tile_dims: SmallVec::new(),
        };
        let kind = if used.is_empty() { ShardingKind::Replicated } else { ShardingKind::Tiled(tiles) };
        ShardingSpec { kind, group: None, metadata: Vec::new() }
    }

    /// The grid as a mesh of Shardy's.
    pub(crate) fn mesh(&self) -> String {
        let axes =
            (0..).zip(&self.extents).map(|(axis, extent)| format!("\"{}\"={extent}", Self::name(axis)));
        format!("{{mesh = #sdy.mesh<[{}]>}}", axes.collect::<Vec<_>>().join(", "))
    }

    /// A cut in Shardy's words, for that mesh.
    pub(crate) fn note(&self, cut: &Cut) -> String {
        let dimension = |axes: &Axes| {
            let names: Vec<String> = axes.iter().map(|&axis| format!("\"{}\"", Self::name(axis))).collect();
            format!("{{{}}}", names.join(", "))
        };
        format!("@mesh, [{}]", cut.iter().map(dimension).collect::<Vec<_>>().join(", "))
    }

    /// What an axis is called in that mesh.
    pub(crate) fn name(axis: Axis) -> String {
        format!("x{axis}")
    }

    /// Groups of devices that differ only along some axes, in the order of those axes.
    pub(crate) fn groups(&self, axes: &[Axis]) -> ReplicaGroups {
        let all = 0..self.extents.len() as Axis;
        let others: Axes = all.filter(|axis| !axes.contains(axis)).collect();
        let order: Axes = others.iter().chain(axes).copied().collect();
        let dimensions = [self.pieces(&others), self.pieces(axes)];
        // XLA's parser refuses a transposition that leaves everything where it is.
        if order.iter().zip(0..).all(|(&axis, place)| axis == place) {
            let reshape = Dimensions::from_slice(&[self.devices()]);
            return ReplicaGroups::Iota { dimensions, reshape, transpose: Dimensions::new() };
        }
        let reshape: Dimensions = self.extents.iter().copied().collect();
        let transpose: Dimensions = order.iter().map(|&axis| i64::from(axis)).collect();
        ReplicaGroups::Iota { dimensions, reshape, transpose }
    }

    /// The axes of a part of a named mesh's axis; `None` where the mesh is not this grid.
    pub(crate) fn span_of_axis(mesh: &[(Box<str>, i64)], axis: &AxisRef) -> Option<Span> {
        let number = axis.axis as usize;
        let below: i64 = mesh.get(number + 1..)?.iter().map(|(_, extent)| extent).product();
        let extent = mesh.get(number)?.1;
        Some(match axis.sub_axis {
            None => Span { below, extent },
            Some((before, size)) if before * size > 0 && extent % (before * size) == 0 => {
                Span { below: below * (extent / (before * size)), extent: size }
            }
            Some(_) => return None,
        })
    }
}

/// Whether a list begins with another one.
pub(crate) fn is_prefix(short: &[Axis], long: &[Axis]) -> bool {
    long.starts_with(short)
}
