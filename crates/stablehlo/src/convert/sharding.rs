//! Shardings: those of GSPMD, which are HLO's, and those of Shardy, by the axes of a mesh.

use memplan_ir::{
    CustomCall, DeviceList, Insert, InstructionId, Op, Sharding, ShardingKind, ShardingSpec, SubgroupKind,
    TileAssignment,
};
use smallvec::SmallVec;

use super::attributes::Fields;
use super::{Body, Converter};
use crate::Error;
use crate::mlir::{Attribute, LocationId, Operation, Program};
use crate::text;

/// The meshes of a program, by name.
pub(super) struct Meshes<'p> {
    meshes: Vec<Mesh<'p>>,
}

/// A mesh with its text and its axes.
struct Mesh<'p> {
    name: &'p str,
    text: &'p str,
    axes: Vec<(String, i64)>,
}

impl<'p> Meshes<'p> {
    pub(super) fn new(program: &'p Program) -> Result<Meshes<'p>, Error> {
        let mut meshes = Vec::new();
        for operation in program.operations.iter().filter(|operation| &*operation.name == "sdy.mesh") {
            let name = operation.text("sym_name")?;
            let Some(Attribute::Dialect(_, body)) = operation.attribute("mesh") else {
                return Err(operation.missing("mesh"));
            };
            let axes = axes_of(body)
                .ok_or_else(|| operation.error(format!("the mesh `{body}` is not supported")))?;
            meshes.push(Mesh { name, text: body, axes });
        }
        Ok(Meshes { meshes })
    }

    /// The meshes as XLA keeps them beside HLO, equal ones once.
    pub(super) fn text(&self) -> Option<String> {
        let mut seen: Vec<&str> = Vec::new();
        let mut entries = Vec::new();
        for Mesh { name, text, .. } in &self.meshes {
            if !seen.contains(text) {
                seen.push(text);
                entries.push(format!("{name} = #sdy.mesh<{text}>"));
            }
        }
        (!entries.is_empty()).then(|| format!("{{{}}}", entries.join(", ")))
    }

    pub(super) fn axes(&self, name: &str) -> Option<&[(String, i64)]> {
        self.meshes.iter().find(|mesh| mesh.name == name).map(|mesh| &mesh.axes[..])
    }

    /// HLO's sharding of `@mesh, [{"x"}, {}]`.
    pub(super) fn sharding(&self, body: &str, rank: usize, user: &Operation) -> Result<Sharding, Error> {
        self.find(body, rank).ok_or_else(|| user.error(format!("the sharding `{body}` is not supported")))
    }

    fn find(&self, body: &str, rank: usize) -> Option<Sharding> {
        let body = body.trim();
        let (mesh, rest) = body.strip_prefix('@')?.split_once(',')?;
        let axes = self.axes(mesh.trim())?;
        let rest = rest.trim();
        if !rest.starts_with('[') || rest.contains("unreduced") {
            return None;
        }
        let end = rest.find(']')?;
        let list = &rest[1..end];
        let mut extents: SmallVec<[i64; 6]> = SmallVec::new();
        // The parts of axes, most major first, that each dimension is cut by.
        let mut parts: Vec<(usize, i64, i64)> = Vec::new();
        let mut dimension = list;
        while let Some(open) = dimension.find('{') {
            let close = open + dimension[open..].find('}')?;
            let mut product = 1_i64;
            for axis in axis_references(&dimension[open + 1..close])? {
                let (name, part) = axis;
                let number = axes.iter().position(|(found, _)| *found == name)?;
                let (before, size) = part.unwrap_or((1, axes[number].1));
                parts.push((number, before, size));
                product = product.checked_mul(size)?;
            }
            extents.push(product);
            dimension = &dimension[close + 1..];
        }
        if extents.len() != rank {
            return None;
        }
        let single =
            |kind| Some(Sharding::Single(Box::new(ShardingSpec { kind, group: None, metadata: Vec::new() })));
        if parts.is_empty() {
            return single(ShardingKind::Replicated);
        }
        // Devices are counted along axes, cut where parts of axes are named.
        let mut cut: Vec<(usize, i64, i64)> = Vec::new();
        for (number, (_, size)) in axes.iter().enumerate() {
            let mut bounds: Vec<i64> = vec![1, *size];
            for &(_, before, part) in parts.iter().filter(|part| part.0 == number) {
                bounds.extend([before, before.checked_mul(part)?]);
            }
            bounds.sort_unstable();
            bounds.dedup();
            for pair in bounds.windows(2) {
                if pair[0] < 1 || pair[1] % pair[0] != 0 {
                    return None;
                }
                cut.push((number, pair[0], pair[1] / pair[0]));
            }
        }
        let mut order: Vec<usize> = Vec::new();
        for &(number, before, size) in &parts {
            let inner = (0..cut.len())
                .filter(|&i| cut[i].0 == number && cut[i].1 >= before && cut[i].1 < before * size);
            order.extend(inner);
        }
        let rest: Vec<usize> = (0..cut.len()).filter(|i| !order.contains(i)).collect();
        let replicated: i64 = rest.iter().map(|&i| cut[i].2).product();
        order.extend(rest);
        if replicated > 1 {
            extents.push(replicated);
        }
        let sizes: Vec<i64> = cut.iter().map(|part| part.2).collect();
        let devices = devices(&sizes, &order);
        single(ShardingKind::Tiled(TileAssignment {
            dimensions: extents,
            devices,
            replicate_on_last_tile_dim: replicated > 1,
            last_tile_dims: SmallVec::<[SubgroupKind; 2]>::new(),
        }))
    }
}

/// Devices counted along dimensions, in another order of those: without dimensions of extent 1, and with neighbors that
/// stay neighbors as one.
fn devices(sizes: &[i64], order: &[usize]) -> DeviceList {
    let order: Vec<usize> = order.iter().copied().filter(|&i| sizes[i] > 1).collect();
    let mut groups: Vec<(usize, usize)> = Vec::new();
    let next_of = |i: usize| (i + 1..sizes.len()).find(|&j| sizes[j] > 1);
    for &i in &order {
        match groups.last_mut() {
            Some((_, last)) if next_of(*last) == Some(i) => *last = i,
            _ => groups.push((i, i)),
        }
    }
    let mut sorted = groups.clone();
    sorted.sort_unstable();
    let size = |&(first, last): &(usize, usize)| sizes[first..=last].iter().product::<i64>();
    let reshape: SmallVec<[i64; 6]> = sorted.iter().map(size).collect();
    let rank = |group| sorted.iter().position(|other| other == group).unwrap_or(0) as i64;
    let transpose: SmallVec<[i64; 6]> = match groups.len() {
        0 | 1 => SmallVec::new(),
        _ => groups.iter().map(rank).collect(),
    };
    let reshape = if reshape.is_empty() { SmallVec::from_slice(&[1]) } else { reshape };
    DeviceList::Iota { reshape, transpose }
}

/// The axes of `["x"=4, "y"=2]`. Meshes with a list of devices are not read.
fn axes_of(body: &str) -> Option<Vec<(String, i64)>> {
    let list = body.trim().strip_prefix('[')?.strip_suffix(']')?;
    let axes = list.split(',').filter(|axis| !axis.trim().is_empty()).map(|axis| {
        let (name, size) = axis.split_once('=')?;
        let name = name.trim().trim_matches('"');
        Some((name.to_owned(), size.trim().parse().ok().filter(|&size: &i64| size > 0)?))
    });
    axes.collect()
}

/// Names of axes, each with the part of it that is meant: what is before it, and its size.
pub(super) type AxisReferences = Vec<(String, Option<(i64, i64)>)>;

/// `"x", "y":(1)2, ?`.
fn axis_references(body: &str) -> Option<AxisReferences> {
    let mut found = Vec::new();
    for part in body.split(',').map(str::trim).filter(|part| !part.is_empty() && *part != "?") {
        let rest = part.strip_prefix('"')?;
        let (name, rest) = rest.split_once('"')?;
        let part = match rest.trim().strip_prefix(":(") {
            None => None,
            Some(rest) => {
                let (before, size) = rest.split_once(')')?;
                Some((before.parse().ok()?, size.trim().parse().ok()?))
            }
        };
        found.push((name.to_owned(), part));
    }
    Some(found)
}

impl<'p> Converter<'p> {
    /// Notes an attribute of an operation or argument at its instruction.
    pub(super) fn note(
        &mut self,
        id: InstructionId,
        name: &str,
        value: &Attribute,
        is_entry: bool,
        user: &Operation,
    ) -> Result<(), Error> {
        match (name, value) {
            ("mhlo.sharding", Attribute::String(text)) => {
                let sharding = self.parse_sharding(text, user)?;
                self.module.instructions[id].extras_mut().sharding = Some(sharding);
            }
            ("sdy.sharding", Attribute::Dialect(kind, body)) => {
                let rank = self.module.shape(id).as_array().map_or(0, memplan_ir::ArrayShape::rank);
                let single = body.trim().strip_prefix("[<").and_then(|rest| rest.strip_suffix(">]"));
                let body = single.unwrap_or(body);
                if is_entry || &**kind == "sdy.sharding_per_value" {
                    let sharding = self.meshes.sharding(body, rank, user)?;
                    let extras = self.module.instructions[id].extras_mut();
                    extras.sharding = Some(sharding);
                }
                let text = match &**kind {
                    "sdy.sharding_per_value" => format!("#sdy.sharding_per_value<[<{body}>]>"),
                    _ => format!("#sdy.sharding<{body}>"),
                };
                self.frontend(id, "xla.sdy.sharding", &text);
            }
            ("sdy.sharding_rule", Attribute::Dialect(kind, body)) => {
                self.frontend(id, "xla.sdy.sharding_rule", &format!("#{kind}<{body}>"));
            }
            ("mhlo.frontend_attributes", Attribute::Dictionary(entries)) => {
                for (name, value) in entries {
                    if let Attribute::String(text) = value {
                        let extras = self.module.instructions[id].extras_mut();
                        extras.frontend_attributes.insert(name.clone(), text.clone());
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A frontend attribute, in quotes as HLO text has those with quotes in them.
    pub(super) fn frontend(&mut self, id: InstructionId, name: &str, text: &str) {
        let extras = self.module.instructions[id].extras_mut();
        extras.frontend_attributes.insert(name.into(), text.into());
    }

    pub(super) fn parse_sharding(&self, text: &str, user: &Operation) -> Result<Sharding, Error> {
        let wrong = |error| user.error(format!("the sharding `{text}` cannot be read: {error}"));
        memplan_hlo::parse_sharding(text).map_err(wrong)
    }

    /// A custom call with notes for XLA's frontend, of the shape of its operand.
    pub(super) fn custom_call(
        &mut self,
        body: &mut Body,
        location: LocationId,
        target: &str,
        operands: &[InstructionId],
        notes: &[(&str, String)],
    ) -> InstructionId {
        let call = CustomCall { target: target.into(), ..CustomCall::default() };
        let shape = self.module.shape(operands[0]).clone();
        let operands = operands.to_vec();
        let id = self.insert(body, location, "custom-call", |cursor| {
            cursor.insert_shaped(Op::CustomCall(Box::new(call)), operands, shape)
        });
        for (name, text) in notes {
            self.frontend(id, name, text);
        }
        id
    }

    pub(super) fn has_side_effect(&mut self, id: InstructionId) {
        if let Op::CustomCall(call) = &mut self.module.instructions[id].op {
            call.has_side_effect = true;
        }
    }

    /// The groups of `#stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [...]>`: a mesh and some of its axes.
    pub(super) fn mesh_groups(
        &self,
        attribute: &Attribute,
        user: &Operation,
    ) -> Result<memplan_ir::ReplicaGroups, Error> {
        let entries = match attribute {
            Attribute::Dictionary(entries) => Some(entries.clone()),
            Attribute::Dialect(_, body) => text::fields(body),
            _ => None,
        };
        let wrong = || user.error("these replica groups are not supported");
        let entries = entries.ok_or_else(wrong)?;
        let name = match crate::mlir::find(&entries, "mesh") {
            Some(Attribute::Symbol(name) | Attribute::String(name)) => name,
            _ => return Err(wrong()),
        };
        let axes = self.axes_of_mesh(name).ok_or_else(wrong)?;
        let Some(Attribute::Array(references)) = crate::mlir::find(&entries, "axes") else {
            return Err(wrong());
        };
        let mut found = Vec::new();
        for reference in references {
            let fields = match reference {
                Attribute::Dictionary(fields) => fields.clone(),
                Attribute::Dialect(_, body) => text::fields(body).ok_or_else(wrong)?,
                _ => return Err(wrong()),
            };
            let Some(Attribute::String(name)) = crate::mlir::find(&fields, "name") else {
                return Err(wrong());
            };
            let axis = axes.iter().position(|(found, _)| *found == **name).ok_or_else(wrong)?;
            let part = match crate::mlir::find(&fields, "sub_axis_info") {
                None => None,
                Some(Attribute::Dictionary(part)) => {
                    let number = |name| match crate::mlir::find(part, name) {
                        Some(Attribute::Integer(value, _)) => Some(*value),
                        _ => None,
                    };
                    Some(number("pre_size").zip(number("size")).ok_or_else(wrong)?)
                }
                // `<(1)2>`
                Some(Attribute::Dialect(_, body)) => {
                    let numbers = body.trim().strip_prefix('(').and_then(|rest| rest.split_once(')'));
                    let parsed = numbers.and_then(|(a, b)| Some((a.parse().ok()?, b.trim().parse().ok()?)));
                    Some(parsed.ok_or_else(wrong)?)
                }
                Some(_) => return Err(wrong()),
            };
            found.push(memplan_ir::AxisRef { axis: axis as u32, sub_axis: part });
        }
        let axes = axes.iter().map(|(name, size)| (name.as_str().into(), *size)).collect();
        Ok(memplan_ir::ReplicaGroups::Mesh { mesh: memplan_ir::Mesh { axes, devices: None }, axes: found })
    }

    fn axes_of_mesh(&self, name: &str) -> Option<&[(String, i64)]> {
        self.meshes.axes(name)
    }
}
