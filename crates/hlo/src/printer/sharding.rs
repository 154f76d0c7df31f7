//! Shardings, meshes and replica groups.

use std::fmt;

use memplan_ir::{
    AxisRef, DeviceList, Mesh, Metadata, NamedSharding, ReplicaGroups, ShardGroup, Sharding, ShardingKind,
    ShardingSpec, TileAssignment,
};

use super::{integers, notes, separated};

pub(crate) fn sharding<W: fmt::Write>(sharding: &Sharding, out: &mut W) -> fmt::Result {
    match sharding {
        Sharding::Single(spec) => sharding_spec(spec, out),
        Sharding::Tuple(leaves) => {
            out.write_char('{')?;
            for (i, leaf) in leaves.iter().enumerate() {
                super::shape::index_comment(out, i)?;
                sharding_spec(leaf, out)?;
            }
            out.write_char('}')
        }
    }
}

fn sharding_spec<W: fmt::Write>(spec: &ShardingSpec, out: &mut W) -> fmt::Result {
    out.write_char('{')?;
    match &spec.kind {
        ShardingKind::Replicated => out.write_str("replicated")?,
        ShardingKind::Manual => out.write_str("manual")?,
        ShardingKind::Unknown => out.write_str("unknown")?,
        ShardingKind::Unreduced => out.write_str("unreduced")?,
        ShardingKind::Maximal { device } => write!(out, "maximal device={device}")?,
        ShardingKind::Tiled(tiles) => tile_assignment(tiles, out)?,
        ShardingKind::Named(named) => named_sharding(named, out)?,
    }
    match spec.group {
        Some(ShardGroup::As(id)) => write!(out, " shard_as {id}")?,
        Some(ShardGroup::Like(id)) => write!(out, " shard_like {id}")?,
        None => {}
    }
    if !spec.metadata.is_empty() {
        let comma = if matches!(spec.kind, ShardingKind::Named(_)) { ", " } else { " " };
        write!(out, "{comma}metadata=")?;
        metadata(&spec.metadata, out)?;
    }
    out.write_char('}')
}

fn metadata<W: fmt::Write>(all: &[Metadata], out: &mut W) -> fmt::Result {
    let one = |out: &mut W, metadata: &Metadata| {
        out.write_char('{')?;
        notes::metadata(metadata, out)?;
        out.write_char('}')
    };
    match all {
        [metadata] => one(out, metadata),
        _ => {
            out.write_char('{')?;
            separated(out, ", ", all, one)?;
            out.write_char('}')
        }
    }
}

fn tile_assignment<W: fmt::Write>(tiles: &TileAssignment, out: &mut W) -> fmt::Result {
    out.write_str("devices=[")?;
    integers(out, &tiles.dimensions)?;
    out.write_char(']')?;
    match &tiles.devices {
        DeviceList::Explicit(devices) => integers(out, devices)?,
        DeviceList::Iota { .. } => {
            out.write_str("<=")?;
            devices(&tiles.devices, out)?;
        }
    }
    if tiles.replicate_on_last_tile_dim {
        out.write_str(" last_tile_dim_replicate")?;
    }
    if !tiles.last_tile_dims.is_empty() {
        out.write_str(" last_tile_dims={")?;
        separated(out, ", ", &tiles.last_tile_dims, |out, kind| write!(out, "{kind}"))?;
        out.write_char('}')?;
    }
    Ok(())
}

/// `0,1,2` or `[4,2]T(1,0)`
fn devices<W: fmt::Write>(devices: &DeviceList, out: &mut W) -> fmt::Result {
    match devices {
        DeviceList::Explicit(devices) => integers(out, devices),
        DeviceList::Iota { reshape, transpose } => iota(reshape, transpose, out),
    }
}

fn iota<W: fmt::Write>(reshape: &[i64], transpose: &[i64], out: &mut W) -> fmt::Result {
    out.write_char('[')?;
    integers(out, reshape)?;
    out.write_char(']')?;
    if !transpose.is_empty() {
        out.write_str("T(")?;
        integers(out, transpose)?;
        out.write_char(')')?;
    }
    Ok(())
}

fn named_sharding<W: fmt::Write>(named: &NamedSharding, out: &mut W) -> fmt::Result {
    mesh(&named.mesh, out)?;
    if named.mesh.is_maximal() {
        return Ok(());
    }
    let n_axes = named.mesh.axes.len();
    let axis_lists = [&named.replicated_axes, &named.unreduced_axes, &named.manual_axes];
    if named.dimensions.is_empty() {
        // Words for what holds of all axes alike.
        match axis_lists.map(|axes| (!axes.is_empty(), is_every_axis(axes, n_axes))) {
            [(false, _), (false, _), (false, _)] => return out.write_str(", replicated"),
            [(false, _), (false, _), (_, true)] => return out.write_str(", manual"),
            [(false, _), (_, true), (false, _)] => {
                out.write_str(", unreduced")?;
                return match named.reduction {
                    Some(reduction) => write!(out, "=[{reduction}]"),
                    None => Ok(()),
                };
            }
            _ => {}
        }
    }
    out.write_str(", [")?;
    separated(out, ", ", &named.dimensions, |out, dimension| {
        out.write_char('{')?;
        axes(&named.mesh, &dimension.axes, out)?;
        if !dimension.is_closed {
            out.write_str(if dimension.axes.is_empty() { "?" } else { ", ?" })?;
        }
        out.write_char('}')
    })?;
    out.write_char(']')?;
    if !named.replicated_axes.is_empty() {
        out.write_str(", replicated={")?;
        axes(&named.mesh, &named.replicated_axes, out)?;
        out.write_char('}')?;
    }
    if !named.unreduced_axes.is_empty() {
        out.write_str(", unreduced=")?;
        if let Some(reduction) = named.reduction {
            write!(out, "[{reduction}]")?;
        }
        out.write_char('{')?;
        axes(&named.mesh, &named.unreduced_axes, out)?;
        out.write_char('}')?;
    }
    if !named.manual_axes.is_empty() {
        out.write_str(", manual={")?;
        axes(&named.mesh, &named.manual_axes, out)?;
        out.write_char('}')?;
    }
    Ok(())
}

/// Whether these are all axes of a mesh of so many, each whole, in order.
fn is_every_axis(axes: &[AxisRef], n_axes: usize) -> bool {
    axes.len() == n_axes
        && axes.iter().enumerate().all(|(i, axis)| axis.axis as usize == i && axis.sub_axis.is_none())
}

fn mesh<W: fmt::Write>(mesh: &Mesh, out: &mut W) -> fmt::Result {
    if let (true, Some(DeviceList::Explicit(ids))) = (mesh.is_maximal(), &mesh.devices) {
        return write!(out, "maximal_mesh[device_id={}]", ids[0]);
    }
    out.write_str("mesh[")?;
    separated(out, ",", &mesh.axes, |out, (name, extent)| write!(out, "'{name}'={extent}"))?;
    out.write_char(']')?;
    if let Some(ids) = &mesh.devices {
        out.write_str(", device_ids=(")?;
        devices(ids, out)?;
        out.write_char(')')?;
    }
    Ok(())
}

fn axes<W: fmt::Write>(mesh: &Mesh, axes: &[AxisRef], out: &mut W) -> fmt::Result {
    separated(out, ", ", axes, |out, axis| {
        let name = mesh.axes.get(axis.axis as usize).map_or("?", |(name, _)| name);
        write!(out, "'{name}'")?;
        match axis.sub_axis {
            Some((pre_size, size)) => write!(out, ":({pre_size}){size}"),
            None => Ok(()),
        }
    })
}

pub(crate) fn replica_groups<W: fmt::Write>(groups: &ReplicaGroups, out: &mut W) -> fmt::Result {
    match groups {
        ReplicaGroups::List(groups) => {
            out.write_char('{')?;
            separated(out, ",", groups, |out, group| {
                out.write_char('{')?;
                integers(out, group)?;
                out.write_char('}')
            })?;
            out.write_char('}')
        }
        ReplicaGroups::Iota { dimensions, reshape, transpose } => {
            write!(out, "[{},{}]<=", dimensions[0], dimensions[1])?;
            iota(reshape, transpose, out)
        }
        ReplicaGroups::Mesh { mesh: m, axes: a } => {
            mesh(m, out)?;
            out.write_char('{')?;
            axes(m, a, out)?;
            out.write_char('}')
        }
    }
}
