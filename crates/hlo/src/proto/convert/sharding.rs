//! Shardings, meshes and groups of devices.

use memplan_ir::{
    AxisRef, DeviceList, DimensionSharding, Mesh, MeshReduction, NamedSharding, ReplicaGroups, ShardGroup,
    Sharding, ShardingKind, ShardingSpec, SubgroupKind, TileAssignment,
};

use super::{Field, FieldError, metadata_proto, number};
use crate::proto::messages as pb;

const REPLICATED: i32 = 0;
const MAXIMAL: i32 = 1;
const TUPLE: i32 = 2;
const OTHER: i32 = 3;
const MANUAL: i32 = 4;
const UNKNOWN: i32 = 5;
const UNREDUCED: i32 = 6;

pub(in crate::proto) fn sharding(proto: pb::OpSharding) -> Result<Sharding, FieldError> {
    if proto.r#type == TUPLE {
        return Ok(Sharding::Tuple(proto.tuple_shardings.into_iter().map(spec).collect::<Result<_, _>>()?));
    }
    Ok(Sharding::Single(Box::new(spec(proto)?)))
}

fn spec(proto: pb::OpSharding) -> Result<ShardingSpec, FieldError> {
    let group = proto.is_shard_group.then_some(match proto.shard_group_type {
        0 => ShardGroup::As(proto.shard_group_id),
        _ => ShardGroup::Like(proto.shard_group_id),
    });
    let mut metadata: Vec<_> = proto.metadata.into_iter().map(super::metadata).collect();
    let kind = match (proto.named_sharding, proto.r#type) {
        (Some(named), _) => {
            metadata.extend(named.metadata.iter().cloned().map(super::metadata));
            ShardingKind::Named(Box::new(named_sharding(*named)?))
        }
        (None, REPLICATED) => ShardingKind::Replicated,
        (None, MANUAL) => ShardingKind::Manual,
        (None, UNKNOWN) => ShardingKind::Unknown,
        (None, UNREDUCED) => ShardingKind::Unreduced,
        (None, MAXIMAL) => match proto.tile_assignment_devices[..] {
            [device] => ShardingKind::Maximal { device },
            _ => return Err(FieldError::Missing("device of a maximal sharding")),
        },
        (None, OTHER) => ShardingKind::Tiled(TileAssignment {
            dimensions: proto.tile_assignment_dimensions.as_slice().into(),
            devices: device_list(
                proto.tile_assignment_devices,
                &proto.iota_reshape_dims,
                &proto.iota_transpose_perm.iter().map(|&d| i64::from(d)).collect::<Vec<_>>(),
            ),
            replicate_on_last_tile_dim: proto.replicate_on_last_tile_dim,
            last_tile_dims: proto
                .last_tile_dims
                .iter()
                .map(|&k| SubgroupKind::get(&mut { k }, "last_tile_dims"))
                .collect::<Result<_, _>>()?,
        }),
        (None, other) => return Err(FieldError::value("sharding type", other)),
    };
    Ok(ShardingSpec { kind, group, metadata })
}

/// An iota when it has a shape, else the list.
fn device_list(listed: Vec<i64>, reshape: &[i64], transpose: &[i64]) -> DeviceList {
    if reshape.is_empty() {
        return DeviceList::Explicit(listed);
    }
    let transpose = if is_identity(transpose) { &[][..] } else { transpose };
    DeviceList::Iota { reshape: reshape.into(), transpose: transpose.into() }
}

fn is_identity(permutation: &[i64]) -> bool {
    permutation.iter().zip(0..).all(|(&a, b)| a == b)
}

/// A permutation, written out where it was left out.
fn permutation(transpose: &[i64], rank: usize) -> Vec<i64> {
    if transpose.is_empty() { (0..rank as i64).collect() } else { transpose.to_vec() }
}

fn named_sharding(proto: pb::NamedShardingProto) -> Result<NamedSharding, FieldError> {
    let dimension = |d: &pb::DimensionShardingProto| {
        Ok(DimensionSharding { axes: axes(&d.axes)?, is_closed: d.is_closed })
    };
    Ok(NamedSharding {
        mesh: proto.mesh.map_or_else(Mesh::default, |mesh_proto| mesh(*mesh_proto)),
        dimensions: proto.dim_shardings.iter().map(dimension).collect::<Result<_, _>>()?,
        replicated_axes: axes(&proto.replicated_axes)?,
        unreduced_axes: axes(&proto.unreduced_axes)?,
        reduction: proto
            .reduction_op
            .map(|mut it| MeshReduction::get(&mut it, "reduction_op"))
            .transpose()?,
        manual_axes: axes(&proto.manual_axes)?,
    })
}

fn axes(protos: &[pb::AxisRefProto]) -> Result<Vec<AxisRef>, FieldError> {
    let axis = |proto: &pb::AxisRefProto| {
        Ok(AxisRef {
            axis: number("mesh_axis_index", proto.mesh_axis_index)?,
            sub_axis: proto.sub_axis_info.as_ref().map(|sub| (sub.pre_size, sub.size)),
        })
    };
    protos.iter().map(axis).collect()
}

fn mesh(proto: pb::MeshProto) -> Mesh {
    let devices = match &proto.iota_transform {
        Some(iota) => Some(device_list(Vec::new(), &iota.reshape_dims, &iota.transpose_perm)),
        None => (!proto.device_ids.is_empty()).then_some(DeviceList::Explicit(proto.device_ids)),
    };
    Mesh { axes: proto.axes.into_iter().map(|axis| (axis.name.into(), axis.size)).collect(), devices }
}

pub(in crate::proto) fn sharding_proto(sharding: &Sharding) -> pb::OpSharding {
    match sharding {
        Sharding::Single(spec) => spec_proto(spec),
        Sharding::Tuple(specs) => pb::OpSharding {
            r#type: TUPLE,
            tuple_shardings: specs.iter().map(spec_proto).collect(),
            ..Default::default()
        },
    }
}

fn spec_proto(spec: &ShardingSpec) -> pb::OpSharding {
    let mut proto =
        pb::OpSharding { metadata: spec.metadata.iter().map(metadata_proto).collect(), ..Default::default() };
    if let Some(group) = spec.group {
        proto.is_shard_group = true;
        (proto.shard_group_type, proto.shard_group_id) = match group {
            ShardGroup::As(id) => (0, id),
            ShardGroup::Like(id) => (1, id),
        };
    }
    match &spec.kind {
        ShardingKind::Replicated => proto.r#type = REPLICATED,
        ShardingKind::Manual => proto.r#type = MANUAL,
        ShardingKind::Unknown => proto.r#type = UNKNOWN,
        ShardingKind::Unreduced => proto.r#type = UNREDUCED,
        ShardingKind::Maximal { device } => {
            proto.r#type = MAXIMAL;
            proto.tile_assignment_dimensions = vec![1];
            proto.tile_assignment_devices = vec![*device];
        }
        ShardingKind::Tiled(tiles) => {
            proto.r#type = OTHER;
            proto.tile_assignment_dimensions = tiles.dimensions.to_vec();
            proto.replicate_on_last_tile_dim = tiles.replicate_on_last_tile_dim;
            proto.last_tile_dims = tiles.last_tile_dims.iter().map(Field::set).collect();
            match &tiles.devices {
                DeviceList::Explicit(devices) => proto.tile_assignment_devices = devices.clone(),
                DeviceList::Iota { reshape, transpose } => {
                    proto.iota_reshape_dims = reshape.to_vec();
                    let order = permutation(transpose, reshape.len());
                    proto.iota_transpose_perm = order.into_iter().map(|d| d as i32).collect();
                }
            }
        }
        ShardingKind::Named(named) => {
            proto.r#type = OTHER;
            let mut named = named_proto(named);
            named.metadata = std::mem::take(&mut proto.metadata);
            proto.named_sharding = Some(Box::new(named));
        }
    }
    proto
}

fn named_proto(named: &NamedSharding) -> pb::NamedShardingProto {
    let dimension = |d: &DimensionSharding| pb::DimensionShardingProto {
        axes: axes_proto(&d.axes),
        is_closed: d.is_closed,
    };
    pb::NamedShardingProto {
        mesh: Some(Box::new(mesh_proto(&named.mesh))),
        dim_shardings: named.dimensions.iter().map(dimension).collect(),
        replicated_axes: axes_proto(&named.replicated_axes),
        unreduced_axes: axes_proto(&named.unreduced_axes),
        metadata: Vec::new(),
        manual_axes: axes_proto(&named.manual_axes),
        reduction_op: named.reduction.map(|it| it.set()),
    }
}

fn axes_proto(axes: &[AxisRef]) -> Vec<pb::AxisRefProto> {
    let axis = |axis: &AxisRef| pb::AxisRefProto {
        mesh_axis_index: axis.axis.into(),
        sub_axis_info: axis.sub_axis.map(|(pre_size, size)| pb::SubAxis { pre_size, size }),
    };
    axes.iter().map(axis).collect()
}

fn mesh_proto(mesh: &Mesh) -> pb::MeshProto {
    let axes =
        mesh.axes.iter().map(|(name, size)| pb::MeshAxis { name: name.to_string(), size: *size }).collect();
    let mut proto = pb::MeshProto { axes, ..Default::default() };
    match &mesh.devices {
        None => (),
        Some(DeviceList::Explicit(devices)) => proto.device_ids = devices.clone(),
        Some(DeviceList::Iota { reshape, transpose }) => {
            let transpose_perm = permutation(transpose, reshape.len());
            proto.iota_transform = Some(pb::IotaTransform { reshape_dims: reshape.to_vec(), transpose_perm });
        }
    }
    proto
}

/// Groups are in one of four fields, one for each way to write them and an older one for lists.
pub(in crate::proto) fn replica_groups(
    proto: &mut pb::HloInstructionProto,
) -> Result<ReplicaGroups, FieldError> {
    if let Some(list) = proto.mesh_axes_replica_group_list.take() {
        let mesh = list.mesh.map_or_else(Mesh::default, |mesh_proto| mesh(*mesh_proto));
        return Ok(ReplicaGroups::Mesh { mesh, axes: axes(&list.axes)? });
    }
    if let Some(list) = proto.iota_collective_device_list.take() {
        let order: Vec<i64> = list.iota_transpose_perm.iter().map(|&d| i64::from(d)).collect();
        return Ok(ReplicaGroups::Iota {
            dimensions: [list.num_replica_groups, list.num_devices_per_group],
            reshape: list.iota_reshape_dims.as_slice().into(),
            transpose: if is_identity(&order) { Default::default() } else { order.as_slice().into() },
        });
    }
    let groups = match proto.collective_device_list.take() {
        Some(list) if !list.replica_groups.is_empty() => list.replica_groups,
        _ => std::mem::take(&mut proto.replica_groups),
    };
    Ok(ReplicaGroups::List(groups.into_iter().map(|group| group.replica_ids).collect()))
}

pub(in crate::proto) fn set_replica_groups(proto: &mut pb::HloInstructionProto, groups: &ReplicaGroups) {
    match groups {
        ReplicaGroups::List(groups) if groups.is_empty() => (),
        ReplicaGroups::List(groups) => {
            let replica_groups =
                groups.iter().map(|group| pb::ReplicaGroup { replica_ids: group.clone() }).collect();
            proto.collective_device_list = Some(pb::CollectiveDeviceList { replica_groups });
        }
        ReplicaGroups::Iota { dimensions: [groups, devices], reshape, transpose } => {
            let order = permutation(transpose, reshape.len());
            proto.iota_collective_device_list = Some(Box::new(pb::IotaReplicaGroupList {
                num_replica_groups: *groups,
                num_devices_per_group: *devices,
                iota_reshape_dims: reshape.to_vec(),
                iota_transpose_perm: order.into_iter().map(|d| d as i32).collect(),
            }));
        }
        ReplicaGroups::Mesh { mesh, axes } => {
            proto.mesh_axes_replica_group_list = Some(Box::new(pb::MeshAxesReplicaGroupList {
                mesh: Some(Box::new(mesh_proto(mesh))),
                axes: axes_proto(axes),
            }));
        }
    }
}
