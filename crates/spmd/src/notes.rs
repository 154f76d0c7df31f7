//! Reads the shardings in a program: on parameters, results and annotated values.

use memplan_ir::{
    DeviceList, InstructionId, Module, Op, Sharding, ShardingKind, ShardingSpec, TileAssignment,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::cut::{Axes, Cut, Grid, Span};
use crate::shardy::{Meshes, Named};

/// The sharding of one array, as written.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    /// The axes of each dimension.
    pub(crate) cut: Cut,
    /// Dimensions that may be cut further.
    pub(crate) is_open: SmallVec<[bool; 4]>,
}

/// The shardings that the custom calls at the borders of a manual computation name.
#[derive(Clone, Debug)]
pub(crate) struct Border {
    /// The whole arrays.
    pub(crate) notes: Vec<Note>,
    /// The axes over which the computation's body is written for one device.
    pub(crate) manual: Axes,
}

/// Every sharding in a program.
#[derive(Debug)]
pub(crate) struct Notes {
    pub(crate) grid: Grid,
    /// By instruction, one for each leaf of its shape; `None` where nothing is said.
    pub(crate) of: FxHashMap<InstructionId, Vec<Option<Note>>>,
    /// At `xla.sdy.GlobalToLocalShape` and `xla.sdy.LocalToGlobalShape`, and at those of GSPMD.
    pub(crate) borders: FxHashMap<InstructionId, Border>,
}

/// A sharding before axes have numbers.
#[derive(Clone, Debug)]
struct Written {
    dimensions: Vec<(Vec<Span>, bool)>,
}

/// The kinds of custom calls that are about shardings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Its operand, sharded as it says.
    Constraint,
    /// From whole arrays to those of one device.
    Enter,
    /// From those of one device to whole arrays.
    Leave,
}

impl Call {
    pub(crate) fn of(op: &Op) -> Option<Call> {
        let Op::CustomCall(call) = op else { return None };
        match &*call.target {
            "Sharding" | "xla.sdy.FuncResultSharding" => Some(Call::Constraint),
            "xla.sdy.GlobalToLocalShape" | "SPMDFullToShardShape" => Some(Call::Enter),
            "xla.sdy.LocalToGlobalShape" | "SPMDShardToFullShape" => Some(Call::Leave),
            _ => None,
        }
    }
}

const SHARDINGS: &str = "xla.sdy.sharding";

impl Notes {
    /// `None` where nothing is sharded, or in a way that is not understood.
    pub(crate) fn read(module: &Module) -> Option<Notes> {
        let meshes = match module.config.frontend_attributes.get("xla.sdy.meshes") {
            Some(note) => Meshes::parse(note)?,
            None => Meshes::default(),
        };
        let mut reader = Reader { meshes, devices: 1, spans: Vec::new() };
        let mut written: Vec<(InstructionId, Vec<Option<Written>>)> = Vec::new();
        let mut borders: Vec<(InstructionId, Vec<Written>, Vec<Span>)> = Vec::new();
        for (id, instruction) in &module.instructions {
            match Call::of(&instruction.op) {
                Some(call @ (Call::Enter | Call::Leave)) => {
                    let (notes, manual) = reader.border(module, id, call)?;
                    borders.push((id, notes, manual));
                }
                _ => {
                    if let Some(notes) = reader.notes(module, id)? {
                        written.push((id, notes));
                    }
                }
            }
        }
        if reader.devices <= 1 {
            return None;
        }
        let grid = Grid::of(reader.devices, &reader.spans)?;
        let of = written.into_iter().map(|(id, notes)| {
            let leaves = notes.into_iter().map(|note| note.map(|note| note.on(&grid)));
            (id, leaves.collect())
        });
        let of = of.collect();
        let borders = borders.into_iter().map(|(id, notes, manual)| {
            let notes = notes.into_iter().map(|note| note.on(&grid)).collect();
            let manual = manual.into_iter().flat_map(|span| grid.axes_of(span)).collect();
            (id, Border { notes, manual })
        });
        let borders = borders.collect();
        Some(Notes { grid, of, borders })
    }
}

impl Written {
    fn on(self, grid: &Grid) -> Note {
        let cut =
            |(spans, _): &(Vec<Span>, bool)| spans.iter().flat_map(|&span| grid.axes_of(span)).collect();
        Note {
            cut: self.dimensions.iter().map(cut).collect(),
            is_open: self.dimensions.iter().map(|&(_, is_open)| is_open).collect(),
        }
    }
}

struct Reader {
    meshes: Meshes,
    devices: i64,
    spans: Vec<Span>,
}

impl Reader {
    /// What is said of each leaf of an instruction; `Some(None)` where nothing is, `None` where it is not understood.
    #[allow(clippy::option_option, reason = "nothing said and not understood differ")]
    fn notes(&mut self, module: &Module, id: InstructionId) -> Option<Option<Vec<Option<Written>>>> {
        let instruction = &module.instructions[id];
        let leaves = module.shape(id).leaves();
        let ranks: Vec<usize> =
            leaves.iter().map(|(_, leaf)| leaf.as_array().map_or(0, |a| a.rank())).collect();
        if let Some(note) = instruction.frontend_attribute(SHARDINGS) {
            let named = self.meshes.shardings(note)?;
            let all = named.iter().zip(&ranks).map(|(named, &rank)| self.named(named, rank).map(Some));
            return Some(Some(all.collect::<Option<_>>()?));
        }
        let Some(sharding) = instruction.extras.as_ref().and_then(|extras| extras.sharding.as_ref()) else {
            return Some(None);
        };
        let mut all = Vec::new();
        for (leaf, &rank) in ranks.iter().enumerate() {
            let spec = match sharding {
                Sharding::Single(spec) => spec,
                Sharding::Tuple(specs) => specs.get(leaf)?,
            };
            all.push(self.spec(spec, rank)?);
        }
        Some(Some(all))
    }

    #[allow(clippy::option_option, reason = "nothing said and not understood differ")]
    fn spec(&mut self, spec: &ShardingSpec, rank: usize) -> Option<Option<Written>> {
        let whole = || Written { dimensions: vec![(Vec::new(), false); rank] };
        Some(match &spec.kind {
            ShardingKind::Replicated => Some(whole()),
            ShardingKind::Manual | ShardingKind::Unknown => None,
            ShardingKind::Unreduced | ShardingKind::Maximal { .. } => return None,
            ShardingKind::Tiled(tiles) => Some(self.tiled(tiles, rank)?),
            ShardingKind::Named(named) => match named.to_tiled()? {
                ShardingKind::Tiled(tiles) => Some(self.tiled(&tiles, rank)?),
                _ => Some(whole()),
            },
        })
    }

    fn tiled(&mut self, tiles: &TileAssignment, rank: usize) -> Option<Written> {
        let DeviceList::Iota { reshape, transpose } = iota(&tiles.devices)? else { return None };
        let devices: i64 = reshape.iter().product();
        self.of_devices(devices)?;
        let span = |i: usize| Span { below: reshape[i + 1..].iter().product(), extent: reshape[i] };
        let order: Vec<usize> = match transpose.is_empty() {
            true => (0..reshape.len()).collect(),
            false => transpose.iter().map(|&i| i as usize).collect(),
        };
        let mut spans = order.into_iter().map(span).filter(|span| span.extent > 1);
        let mut rest: Option<Span> = None;
        let mut dimensions = Vec::new();
        for &pieces in &tiles.dimensions {
            let (mut needed, mut own) = (pieces, Vec::new());
            while needed > 1 {
                let span = rest.take().or_else(|| spans.next())?;
                if needed % span.extent == 0 {
                    needed /= span.extent;
                    own.push(span);
                } else if span.extent % needed == 0 {
                    let minor = span.extent / needed;
                    own.push(Span { below: span.below * minor, extent: needed });
                    rest = Some(Span { below: span.below, extent: minor });
                    needed = 1;
                } else {
                    return None;
                }
            }
            self.spans.extend(&own);
            dimensions.push((own, false));
        }
        dimensions.resize(rank, (Vec::new(), false));
        Some(Written { dimensions })
    }

    fn named(&mut self, named: &Named, rank: usize) -> Option<Written> {
        self.of_devices(named.mesh.axes.iter().map(|(_, extent)| extent).product())?;
        let mut dimensions = Vec::new();
        for dimension in &named.dimensions {
            let spans = dimension.axes.iter().map(|axis| Grid::span_of_axis(&named.mesh.axes, axis));
            let spans: Vec<Span> =
                spans.collect::<Option<Vec<_>>>()?.into_iter().filter(|it| it.extent > 1).collect();
            self.spans.extend(&spans);
            dimensions.push((spans, dimension.is_open));
        }
        dimensions.resize(rank, (Vec::new(), false));
        Some(Written { dimensions })
    }

    fn border(
        &mut self,
        module: &Module,
        id: InstructionId,
        call: Call,
    ) -> Option<(Vec<Written>, Vec<Span>)> {
        let instruction = &module.instructions[id];
        let key = if call == Call::Enter { "xla.sdy.in_shardings" } else { "xla.sdy.out_shardings" };
        let ranks = |module: &Module, id: InstructionId| -> Vec<usize> {
            module
                .shape(id)
                .leaves()
                .iter()
                .map(|(_, leaf)| leaf.as_array().map_or(0, |a| a.rank()))
                .collect()
        };
        let wholes: Vec<usize> = match call {
            Call::Enter => instruction.operands.iter().flat_map(|&operand| ranks(module, operand)).collect(),
            _ => ranks(module, id),
        };
        if let Some(note) = instruction.frontend_attribute(key) {
            let named = self.meshes.shardings(note)?;
            if named.len() != wholes.len() {
                return None;
            }
            let notes = named.iter().zip(wholes).map(|(named, rank)| self.named(named, rank));
            let notes = notes.collect::<Option<Vec<_>>>()?;
            let mut manual = Vec::new();
            if let Some(first) = named.first() {
                let note = instruction.frontend_attribute("xla.sdy.manual_axes")?;
                for axis in Meshes::manual_axes(&first.mesh, note)? {
                    manual.push(Grid::span_of_axis(&first.mesh.axes, &axis)?);
                }
            }
            manual.retain(|span| span.extent > 1);
            self.spans.extend(&manual);
            return Some((notes, manual));
        }
        // GSPMD's form: the sharding is that of the operand on the way in, that of the result on the way out, and all axes
        // are manual that cut anything.
        let whole = if call == Call::Enter { *instruction.operands.first()? } else { id };
        let notes: Vec<Written> = self.notes(module, whole)??.into_iter().collect::<Option<_>>()?;
        let all = Span { below: 1, extent: self.devices };
        Some((notes, vec![all]))
    }

    /// All shardings are of the same devices.
    fn of_devices(&mut self, devices: i64) -> Option<()> {
        if devices <= 1 {
            return Some(());
        }
        let is_known = self.devices == 1 || self.devices == devices;
        self.devices = devices;
        is_known.then_some(())
    }
}

/// Devices listed in order are an iota.
fn iota(devices: &DeviceList) -> Option<DeviceList> {
    match devices {
        DeviceList::Iota { .. } => Some(devices.clone()),
        DeviceList::Explicit(listed) => {
            let in_order = (0..).zip(listed).all(|(i, &device)| i == device);
            let reshape = SmallVec::from_slice(&[listed.len() as i64]);
            in_order.then(|| DeviceList::Iota { reshape, transpose: SmallVec::new() })
        }
    }
}
