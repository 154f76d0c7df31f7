//! Shardings: how a value is spread over devices.

use smallvec::SmallVec;

use crate::Metadata;

/// The sharding of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Sharding {
    /// One sharding for an array, or for every leaf.
    Single(Box<ShardingSpec>),
    /// One sharding per leaf of a tuple, in order.
    Tuple(Vec<ShardingSpec>),
}

/// The sharding of one array.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardingSpec {
    /// The kind of sharding.
    pub kind: ShardingKind,
    /// `shard_as` or `shard_like` with a group number.
    pub group: Option<ShardGroup>,
    /// Its source.
    pub metadata: Vec<Metadata>,
}

/// The kinds of sharding.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "XLA's names")]
pub enum ShardingKind {
    Replicated,
    Manual,
    Unknown,
    Unreduced,
    Maximal {
        device: i64,
    },
    Tiled(TileAssignment),
    /// A sharding by the axes of a named mesh.
    Named(Box<NamedSharding>),
}

/// An array of devices; trailing dimensions may be subgroups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TileAssignment {
    /// Extents of the device array.
    pub dimensions: SmallVec<[i64; 6]>,
    /// Which device is where.
    pub devices: DeviceList,
    /// Whether the last dimension is replication (`last_tile_dim_replicate`).
    pub replicate_on_last_tile_dim: bool,
    /// The kinds of the trailing dimensions (`last_tile_dims={...}`).
    pub last_tile_dims: SmallVec<[SubgroupKind; 2]>,
}

/// The devices of a tile assignment, in row-major order of its dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DeviceList {
    /// Listed.
    Explicit(Vec<i64>),
    /// `<=[reshape]T(transpose)`; an empty transpose is the identity.
    #[allow(missing_docs, reason = "named in the text form above")]
    Iota { reshape: SmallVec<[i64; 6]>, transpose: SmallVec<[i64; 6]> },
}

/// Meaning of a trailing tile dimension.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "lowercase")]
#[allow(missing_docs, reason = "XLA's names")]
pub enum SubgroupKind {
    Maximal,
    Replicated,
    Manual,
    Unreduced,
}

/// Membership in a group of values that are sharded alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "XLA's names")]
pub enum ShardGroup {
    As(i64),
    Like(i64),
}

/// A mesh of devices with named axes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mesh {
    /// Name and extent, most major first.
    pub axes: Vec<(Box<str>, i64)>,
    /// Device order, row-major when `None`. A mesh without axes and one device here is maximal.
    pub devices: Option<DeviceList>,
}

impl Mesh {
    /// Whether it is one device that does all of the work.
    pub fn is_maximal(&self) -> bool {
        self.axes.is_empty() && matches!(&self.devices, Some(DeviceList::Explicit(ids)) if ids.len() == 1)
    }
}

/// An axis of a mesh, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AxisRef {
    /// Which axis of the mesh.
    pub axis: u32,
    /// `(pre)size`: the part of extent `size` that follows parts of extent `pre`.
    pub sub_axis: Option<(i64, i64)>,
}

/// A sharding by mesh axes.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct NamedSharding {
    pub mesh: Mesh,
    pub dimensions: Vec<DimensionSharding>,
    pub replicated_axes: Vec<AxisRef>,
    pub unreduced_axes: Vec<AxisRef>,
    pub reduction: Option<MeshReduction>,
    pub manual_axes: Vec<AxisRef>,
}

/// The axes that cut one dimension.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DimensionSharding {
    /// Major to minor.
    pub axes: Vec<AxisRef>,
    /// Whether propagation may not add axes.
    pub is_closed: bool,
}

/// Reduction that an unreduced sharding still owes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, strum::Display, strum::EnumString, strum::IntoStaticStr,
)]
#[strum(serialize_all = "lowercase")]
#[allow(missing_docs, reason = "XLA's names")]
pub enum MeshReduction {
    Sum,
    Max,
    Min,
}
