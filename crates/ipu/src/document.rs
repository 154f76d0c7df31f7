//! The contents of every tile, as a document for loaders.
//!
//! Tiles with equal contents form a group. Items refer to tensors and steps by number, so that their data appears once.

use indexmap::IndexMap;
use memplan_analysis::LiveRange;
use memplan_ir::Module;
use memplan_memory::{Bytes, Target};
use rustc_hash::FxBuildHasher;
use serde::Serialize;

use crate::{Mapping, Placed, TensorId, TilePlan, TileSet, What};

/// The contents of the tiles of all chips that run a program. Sizes and offsets are in bytes. Times are phases, two for
/// each instruction in the order of execution: vertices compute in the first, and add partial results of several tiles
/// in the second. Ranges exclude their end.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TileDocument {
    /// `memplan.tiles`.
    pub format: &'static str,
    /// Of the format.
    pub version: u32,
    /// The program.
    pub module: String,
    /// The machine.
    pub target: String,
    /// Bytes of one tile.
    pub tile_bytes: Bytes,
    /// The instructions of the program in the order of execution: instruction `i` runs in phases `2 i` and `2 i + 1`.
    pub instructions: Vec<String>,
    /// The chips, one for each stage of a pipeline.
    pub chips: Vec<ChipDocument>,
}

/// One chip.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChipDocument {
    /// The tensors on the tiles.
    pub tensors: Vec<TensorDocument>,
    /// The steps, by time.
    pub steps: Vec<StepDocument>,
    /// The code of vertices.
    pub codelets: Vec<CodeletDocument>,
    /// Groups of equal tiles, those of the lowest number first.
    pub groups: Vec<GroupDocument>,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TensorDocument {
    /// The instruction that defines it, with the place in a tuple where it has one.
    pub name: String,
    /// How many elements.
    pub elements: u64,
    /// Bytes of one.
    pub element_bytes: u64,
    /// For how many micro-batches it is kept.
    pub copies: u64,
    /// Which tile has which elements.
    pub mapping: MappingDocument,
    /// Whether it lives outside the chip, and is there in parts and at times.
    pub streamed: bool,
}

/// Which tile has which elements.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum MappingDocument {
    /// Nothing of it is on this chip.
    Nowhere,
    /// Even shares: of `G = ceil(elements / grain)` grains, part `v` of `parts` has those from `floor(v G / parts)` to
    /// before `floor((v + 1) G / parts)`, and is on tile `window[0] + (start + v) mod (window[1] - window[0])`.
    Linear {
        /// Elements that are never parted.
        grain: u64,
        /// The tiles to choose from.
        window: [u32; 2],
        /// The place in the window of the tile with the first part.
        start: u32,
        /// How many tiles have a part.
        parts: u32,
    },
    /// Each tile with its elements, as the user wrote it.
    Explicit(Vec<PieceDocument>),
}

/// Some consecutive elements.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PieceDocument {
    /// Their tile.
    pub tile: u32,
    /// Which they are.
    pub elements: [u64; 2],
}

/// The step of an instruction.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StepDocument {
    /// The number of the instruction.
    pub instruction: u32,
    /// In how many parts it works, one after the other.
    pub parts: u64,
    /// Its vertices.
    pub vertices: Vec<VerticesDocument>,
}

/// Vertices of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct VerticesDocument {
    /// Their tiles.
    pub tiles: Vec<[u32; 2]>,
    /// The number of their codelet.
    pub codelet: usize,
    /// How many are on a tile.
    pub count: u32,
    /// Bytes of their state on a tile.
    pub state: Bytes,
    /// Most bytes that a tile receives for them.
    pub received: Bytes,
    /// Most bytes of partial results that a tile has.
    pub partials: Bytes,
}

/// The code of a vertex.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CodeletDocument {
    /// Its computation.
    pub name: String,
    /// Its bytes.
    pub bytes: Bytes,
}

/// Tiles that hold the same at the same places.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GroupDocument {
    /// Which they are.
    pub tiles: Vec<[u32; 2]>,
    /// The memory that each of them needs.
    pub needed: Bytes,
    /// Its items, ascending by offset.
    pub items: Vec<ItemDocument>,
}

/// Something on a tile.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ItemDocument {
    /// Its kind.
    pub what: WhatDocument,
    /// Its offset.
    pub offset: Bytes,
    /// How large it is.
    pub bytes: Bytes,
    /// When its bytes are its own.
    pub busy: Vec<[u32; 2]>,
}

/// The kinds of items on a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum WhatDocument {
    /// Code of all codelets, and of calling them.
    Code,
    /// State of all vertices.
    State,
    /// A part of the tensor with a number.
    Tensor(u32),
    /// The received elements, or partial results, of the step with this number.
    Step(usize),
}

impl TileDocument {
    /// The document of the plans of all chips. Linear in the items on all tiles.
    pub fn new(module: &Module, target: &Target, chips: &[TilePlan]) -> TileDocument {
        let order = chips.first().map_or(&[][..], |plan| &plan.instructions);
        TileDocument {
            format: "memplan.tiles",
            version: 1,
            module: module.name.to_string(),
            target: target.name.clone(),
            tile_bytes: chips.first().map_or(Bytes::ZERO, |plan| plan.machine.bytes),
            instructions: order.iter().map(|&id| module.instructions[id].name.to_string()).collect(),
            chips: chips.iter().map(chip).collect(),
        }
    }
}

fn chip(plan: &TilePlan) -> ChipDocument {
    let codelets = plan.steps.codelets.iter();
    ChipDocument {
        tensors: plan.tensors.all.keys().map(|id| tensor(plan, id)).collect(),
        steps: steps(plan),
        codelets: codelets.map(|(name, &bytes)| CodeletDocument { name: name.clone(), bytes }).collect(),
        groups: groups(plan),
    }
}

fn tensor(plan: &TilePlan, id: TensorId) -> TensorDocument {
    let tensor = &plan.tensors.all[id];
    let piece = |piece: &crate::Piece| PieceDocument {
        tile: piece.tile,
        elements: [piece.elements.start, piece.elements.end],
    };
    TensorDocument {
        name: tensor.name.clone(),
        elements: tensor.elements,
        element_bytes: tensor.element_bytes,
        copies: tensor.copies,
        mapping: match &plan.mappings[id] {
            None => MappingDocument::Nowhere,
            Some(Mapping::Explicit(pieces)) => MappingDocument::Explicit(pieces.iter().map(piece).collect()),
            Some(Mapping::Linear(linear)) => MappingDocument::Linear {
                grain: linear.grain().elements,
                window: [linear.window().start, linear.window().end],
                start: linear.start(),
                parts: linear.parts(),
            },
        },
        streamed: tensor.streamed.is_some(),
    }
}

fn steps(plan: &TilePlan) -> Vec<StepDocument> {
    let phases: IndexMap<_, _, FxBuildHasher> = plan.phases().collect();
    let steps = plan.steps.all.iter().map(|step| StepDocument {
        instruction: step.time,
        parts: phases.get(&step.instruction).copied().unwrap_or(1),
        vertices: step
            .parts
            .iter()
            .map(|part| VerticesDocument {
                tiles: ranges(&part.tiles),
                codelet: part.codelet,
                count: part.vertices,
                state: part.state,
                received: part.received,
                partials: part.partials,
            })
            .collect(),
    });
    steps.collect()
}

fn groups(plan: &TilePlan) -> Vec<GroupDocument> {
    let mut groups: IndexMap<Vec<Placed>, Vec<u32>, FxBuildHasher> = IndexMap::default();
    for tile in 0..plan.machine.count {
        groups.entry(plan.layout(tile)).or_default().push(tile);
    }
    let groups = groups.into_iter().map(|(placed, tiles)| GroupDocument {
        needed: plan.needed(tiles[0]),
        tiles: ranges(&TileSet::new(tiles.into_iter().map(|tile| tile..tile + 1))),
        items: placed.iter().filter(|placed| placed.bytes > Bytes::ZERO).map(item).collect(),
    });
    groups.collect()
}

fn item(placed: &Placed) -> ItemDocument {
    ItemDocument {
        what: match placed.what {
            What::Code => WhatDocument::Code,
            What::State => WhatDocument::State,
            What::Tensor(id) => WhatDocument::Tensor(id.as_u32()),
            What::Step(step) => WhatDocument::Step(step),
        },
        offset: placed.offset,
        bytes: placed.bytes,
        busy: placed.busy.iter().map(|&LiveRange { start, end }| [start, end]).collect(),
    }
}

fn ranges(tiles: &TileSet) -> Vec<[u32; 2]> {
    tiles.ranges().iter().map(|range| [range.start, range.end]).collect()
}
