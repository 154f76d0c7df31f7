//! Shardings, meshes and replica groups.

use memplan_ir::{
    AxisRef, DeviceList, DimensionSharding, Mesh, MeshReduction, Metadata, NamedSharding, ReplicaGroups,
    ShardGroup, Sharding, ShardingKind, ShardingSpec, SubgroupKind, TileAssignment,
};
use smallvec::SmallVec;

use super::cursor::{Cursor, Parsed};
use crate::{error::ParseErrorKind, lexer::Token};

impl Cursor<'_> {
    /// `{replicated}`, `{devices=[2,2]<=[4]}`, `{{manual}, {replicated}}`, `{mesh['x'=2], [{'x'}]}`
    pub(crate) fn sharding(&mut self) -> Parsed<Sharding> {
        let rest = self.source[self.span.end..].trim_ascii_start();
        if !self.at(Token::LeftBrace) || !(rest.starts_with('{') || rest.starts_with('}')) {
            return Ok(Sharding::Single(Box::new(self.sharding_spec()?)));
        }
        let mut leaves = Vec::new();
        self.braces(|c| {
            leaves.push(c.sharding_spec()?);
            Ok(())
        })?;
        Ok(Sharding::Tuple(leaves))
    }

    fn sharding_spec(&mut self) -> Parsed<ShardingSpec> {
        let start = self.span.start;
        self.expect(Token::LeftBrace, "`{`")?;
        let spec = if self.at_word("mesh") || self.at_word("maximal_mesh") {
            self.named_sharding()?
        } else {
            self.tiled_sharding(start)?
        };
        self.expect(Token::RightBrace, "`}`")?;
        Ok(spec)
    }

    fn tiled_sharding(&mut self, start: usize) -> Parsed<ShardingSpec> {
        let mut word = None;
        let mut device = None;
        let mut tiles: Option<TileAssignment> = None;
        let mut replicate_on_last_tile_dim = false;
        let mut last_tile_dims = SmallVec::new();
        let mut group = None;
        let mut metadata = Vec::new();
        while !self.at(Token::RightBrace) {
            match self.token {
                Token::Identifier => {
                    let text = self.text();
                    self.advance();
                    match text {
                        "replicated" | "manual" | "unknown" | "unreduced" | "maximal" => word = Some(text),
                        "last_tile_dim_replicate" => replicate_on_last_tile_dim = true,
                        "shard_as" => group = Some(ShardGroup::As(self.integer()?)),
                        "shard_like" => group = Some(ShardGroup::Like(self.integer()?)),
                        // `device` with a space before its `=`.
                        "device" if self.eat(Token::Equals) => device = Some(self.integer()?),
                        _ => return Err(self.bad_sharding(start, "unknown word")),
                    }
                }
                Token::Attribute => {
                    let text = self.text();
                    self.advance();
                    match text {
                        "device=" => device = Some(self.integer()?),
                        "devices=" => tiles = Some(self.tile_assignment()?),
                        "last_tile_dims=" => {
                            self.braces(|c| {
                                last_tile_dims.push(c.word::<SubgroupKind>("a kind of subgroup")?);
                                Ok(())
                            })?;
                        }
                        "metadata=" => metadata = self.sharding_metadata()?,
                        _ => return Err(self.bad_sharding(start, "unknown attribute")),
                    }
                }
                _ => return Err(self.unexpected("an item of a sharding or `}`")),
            }
            self.eat(Token::Comma);
        }
        let kind = match (word, tiles) {
            (Some("maximal"), None) | (None, None) if device.is_some() => {
                ShardingKind::Maximal { device: device.unwrap_or_default() }
            }
            (Some("maximal"), Some(tiles)) => match &tiles.devices {
                DeviceList::Explicit(devices) if devices.len() == 1 => {
                    ShardingKind::Maximal { device: devices[0] }
                }
                _ => return Err(self.bad_sharding(start, "maximal shardings should have exactly one device")),
            },
            (Some("maximal"), None) => {
                return Err(self.bad_sharding(start, "maximal shardings should have exactly one device"));
            }
            (Some(_), _) if device.is_some() => {
                return Err(self.bad_sharding(start, "a sharding of this kind has no devices"));
            }
            (Some("replicated"), None) => ShardingKind::Replicated,
            (Some("manual"), None) => ShardingKind::Manual,
            (Some("unknown"), None) => ShardingKind::Unknown,
            (Some("unreduced"), None) => ShardingKind::Unreduced,
            (Some(_), Some(_)) => {
                return Err(self.bad_sharding(start, "a sharding of this kind has no devices"));
            }
            (_, Some(mut tiles)) => {
                tiles.replicate_on_last_tile_dim = replicate_on_last_tile_dim;
                tiles.last_tile_dims = last_tile_dims;
                self.check_tiles(start, &tiles)?;
                ShardingKind::Tiled(tiles)
            }
            (_, None) => return Err(self.bad_sharding(start, "it says nothing")),
        };
        Ok(ShardingSpec { kind, group, metadata })
    }

    fn check_tiles(&self, start: usize, tiles: &TileAssignment) -> Parsed<()> {
        let product = |extents: &[i64]| {
            extents.iter().try_fold(1i64, |n, &d| n.checked_mul(d).filter(|_| d > 0)).unwrap_or(-1)
        };
        let wanted = product(&tiles.dimensions);
        let found = match &tiles.devices {
            DeviceList::Explicit(devices) => devices.len() as i64,
            DeviceList::Iota { reshape, .. } => product(reshape),
        };
        match wanted == found && wanted > 0 {
            true => Ok(()),
            false => {
                Err(self.bad_sharding(start, "the number of devices is not the product of the dimensions"))
            }
        }
    }

    /// `[2,2]0,1,2,3` or `[2,2]<=[4]` or `[2,2]<=[2,2]T(1,0)`
    fn tile_assignment(&mut self) -> Parsed<TileAssignment> {
        let dimensions = self.bracketed_integers()?;
        let devices = if self.eat(Token::LessEqual) {
            self.iota_devices()?
        } else {
            let mut devices = vec![self.integer()?];
            while self.at(Token::Comma) {
                // The comma may also end this item.
                let rest = self.source[self.span.end..].trim_ascii_start();
                if !rest.starts_with(|c: char| c.is_ascii_digit() || c == '-') {
                    break;
                }
                self.advance();
                devices.push(self.integer()?);
            }
            DeviceList::Explicit(devices)
        };
        let (replicate_on_last_tile_dim, last_tile_dims) = (false, SmallVec::new());
        Ok(TileAssignment { dimensions, devices, replicate_on_last_tile_dim, last_tile_dims })
    }

    /// `[4,2]` or `[4,2]T(1,0)`
    fn iota_devices(&mut self) -> Parsed<DeviceList> {
        let start = self.span.start;
        let reshape = self.bracketed_integers()?;
        let mut transpose = SmallVec::new();
        if self.eat_word("T") {
            transpose = self.parenthesized_integers()?;
            if transpose.len() != reshape.len() || !super::shape::is_permutation(&transpose) {
                return Err(self.bad_sharding(start, "the transpose is not a permutation of the dimensions"));
            }
        }
        Ok(DeviceList::Iota { reshape, transpose })
    }

    fn sharding_metadata(&mut self) -> Parsed<Vec<Metadata>> {
        let rest = self.source[self.span.end..].trim_ascii_start();
        if !rest.starts_with('{') {
            return Ok(vec![self.metadata()?]);
        }
        let mut all = Vec::new();
        self.braces(|c| {
            all.push(c.metadata()?);
            Ok(())
        })?;
        Ok(all)
    }

    fn named_sharding(&mut self) -> Parsed<ShardingSpec> {
        let start = self.span.start;
        let mesh = self.mesh()?;
        let mut named = NamedSharding { mesh, ..NamedSharding::default() };
        let mut metadata = Vec::new();
        let (mut kind, mut has_list) = (None, false);
        while self.eat(Token::Comma) || !self.at(Token::RightBrace) {
            match self.token {
                Token::LeftBracket => {
                    let mesh = std::mem::take(&mut named.mesh);
                    let mut dimensions = Vec::new();
                    self.brackets(|c| {
                        dimensions.push(c.dimension_sharding(&mesh)?);
                        Ok(())
                    })?;
                    (named.mesh, named.dimensions, has_list) = (mesh, dimensions, true);
                }
                Token::Identifier if matches!(self.text(), "replicated" | "manual" | "unreduced") => {
                    kind = Some(match self.text() {
                        "replicated" => ShardingKind::Replicated,
                        "manual" => ShardingKind::Manual,
                        _ => ShardingKind::Unreduced,
                    });
                    self.advance();
                }
                Token::Attribute => {
                    let text = self.text();
                    self.advance();
                    match text {
                        "replicated=" => named.replicated_axes = self.axes(&named.mesh)?,
                        "manual=" => named.manual_axes = self.axes(&named.mesh)?,
                        "unreduced=" => {
                            let in_brackets = self.eat(Token::LeftBracket);
                            if self.token == Token::Identifier {
                                named.reduction = Some(self.word::<MeshReduction>("`sum`, `max` or `min`")?);
                            }
                            if in_brackets {
                                self.expect(Token::RightBracket, "`]`")?;
                            }
                            if self.at(Token::LeftBrace) {
                                named.unreduced_axes = self.axes(&named.mesh)?;
                            } else {
                                named.unreduced_axes = all_axes(&named.mesh);
                            }
                        }
                        "metadata=" => metadata = self.sharding_metadata()?,
                        _ => return Err(self.bad_sharding(start, "unknown attribute")),
                    }
                }
                _ => return Err(self.unexpected("an item of a sharding or `}`")),
            }
        }
        if kind.is_none() && named.dimensions.is_empty() && !has_list && !named.mesh.is_maximal() {
            return Err(self.unexpected("what is sharded, as `[{'x'}]` or `replicated`"));
        }
        match kind {
            // No axis is mentioned.
            Some(ShardingKind::Replicated) | None => {}
            Some(ShardingKind::Manual) => named.manual_axes = all_axes(&named.mesh),
            Some(_) => named.unreduced_axes = all_axes(&named.mesh),
        }
        Ok(ShardingSpec { kind: ShardingKind::Named(Box::new(named)), group: None, metadata })
    }

    /// `mesh['x'=2,'y'=4], device_ids=(...)` or `maximal_mesh[device_id=3]`
    fn mesh(&mut self) -> Parsed<Mesh> {
        if self.eat_word("maximal_mesh") {
            self.expect(Token::LeftBracket, "`[`")?;
            self.expect_attribute("device_id")?;
            let device = self.integer()?;
            self.expect(Token::RightBracket, "`]`")?;
            return Ok(Mesh { axes: Vec::new(), devices: Some(DeviceList::Explicit(vec![device])) });
        }
        self.expect_word("mesh")?;
        let mut mesh = Mesh::default();
        self.brackets(|c| {
            let name = c.string()?;
            c.expect(Token::Equals, "`=`")?;
            mesh.axes.push((name, c.integer()?));
            Ok(())
        })?;
        let rest = self.source[self.span.end..].trim_ascii_start();
        if self.at(Token::Comma) && rest.starts_with("device_ids") {
            self.advance();
            self.expect_attribute("device_ids")?;
            self.expect(Token::LeftParen, "`(`")?;
            mesh.devices = Some(if self.at(Token::LeftBracket) {
                self.iota_devices()?
            } else {
                let mut devices = Vec::new();
                while self.token == Token::Integer {
                    devices.push(self.integer()?);
                    if !self.eat(Token::Comma) {
                        break;
                    }
                }
                DeviceList::Explicit(devices)
            });
            self.expect(Token::RightParen, "`)`")?;
        }
        Ok(mesh)
    }

    /// `{'x', 'y':(1)2, ?}`
    fn dimension_sharding(&mut self, mesh: &Mesh) -> Parsed<DimensionSharding> {
        let mut sharding = DimensionSharding { axes: Vec::new(), is_closed: true };
        self.braces(|c| {
            if c.eat(Token::Question) {
                sharding.is_closed = false;
            } else {
                sharding.axes.push(c.axis(mesh)?);
                if c.eat(Token::Question) {
                    sharding.is_closed = false;
                }
            }
            Ok(())
        })?;
        Ok(sharding)
    }

    fn axes(&mut self, mesh: &Mesh) -> Parsed<Vec<AxisRef>> {
        let mut axes = Vec::new();
        self.braces(|c| {
            axes.push(c.axis(mesh)?);
            Ok(())
        })?;
        Ok(axes)
    }

    /// `'x'` or `'x':(2)4`
    fn axis(&mut self, mesh: &Mesh) -> Parsed<AxisRef> {
        let start = self.span.start;
        let name = self.string()?;
        let axis = mesh
            .axes
            .iter()
            .position(|(axis, _)| *axis == name)
            .ok_or_else(|| self.bad_sharding(start, "the mesh has no such axis"))? as u32;
        let mut sub_axis = None;
        if self.eat(Token::Colon) {
            self.expect(Token::LeftParen, "`(`")?;
            let pre_size = self.integer()?;
            self.expect(Token::RightParen, "`)`")?;
            sub_axis = Some((pre_size, self.integer()?));
        }
        Ok(AxisRef { axis, sub_axis })
    }

    /// `{{0,1},{2,3}}`, `[2,4]<=[8]`, `[2,4]<=[4,2]T(1,0)` or `mesh['x'=2,'y'=4]{'x'}`
    pub(crate) fn replica_groups(&mut self) -> Parsed<ReplicaGroups> {
        let start = self.span.start;
        match self.token {
            Token::LeftBracket => {
                let dimensions = self.bracketed_integers()?;
                self.expect(Token::LessEqual, "`<=`")?;
                let &[groups, members] = dimensions.as_slice() else {
                    return Err(self.error_at(
                        start..self.previous_end,
                        ParseErrorKind::Count { expected: 2, found: dimensions.len() },
                    ));
                };
                match self.iota_devices()? {
                    DeviceList::Iota { reshape, transpose } => {
                        Ok(ReplicaGroups::Iota { dimensions: [groups, members], reshape, transpose })
                    }
                    DeviceList::Explicit(_) => Err(self.unexpected("an iota")),
                }
            }
            Token::Identifier => {
                let mesh = self.mesh()?;
                self.eat(Token::Comma);
                let axes = self.axes(&mesh)?;
                Ok(ReplicaGroups::Mesh { mesh, axes })
            }
            _ => {
                let mut groups = Vec::new();
                self.braces(|c| {
                    groups.push(c.integers::<[i64; 8]>()?.into_vec());
                    Ok(())
                })?;
                Ok(ReplicaGroups::List(groups))
            }
        }
    }

    fn bad_sharding(&self, start: usize, reason: &'static str) -> Box<crate::ParseError> {
        self.error_at(start..self.previous_end.max(start + 1), ParseErrorKind::Sharding { reason })
    }
}

fn all_axes(mesh: &Mesh) -> Vec<AxisRef> {
    (0..mesh.axes.len() as u32).map(|axis| AxisRef { axis, sub_axis: None }).collect()
}
