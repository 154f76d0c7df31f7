//! Placement files: the user's placements.
//!
//! One line for each placement, fields between commas, comments after `#`. Ranges exclude their end:
//!
//! ```text
//! # kind, name, tiles, elements
//! tensor, weights, 0..736              spread evenly over the first half of the chip
//! tensor, bias, 7, 0..64               these elements on tile 7
//! tensor, bias, 8..10, 64..256         and these on the next two, evenly
//! tensor, main/state{1}, 0..8          a part of a tuple, of an instruction of a computation
//! vertices, fusion.3, 0..368           where an instruction computes
//! ```
//!
//! Names are those of the planned program, which is the compiled one. Values that share storage are one tensor and are
//! placed once. A tensor with element ranges must have each element on exactly one tile.

use std::collections::BTreeMap;
use std::ops::Range;

use memplan_analysis::Facts;
use memplan_ir::{InstructionId, Module, ShapeIndex};
use rustc_hash::FxHashMap;

use crate::TileSet;
use crate::mapping::{Grain, LinearMapping, Mapping, Piece, linear_mapping};
use crate::tensors::{TensorId, Tensors};

/// A placement file, read but not yet compared with a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    wishes: Vec<Wish>,
}

/// An error in a placement file, with its position: a range of bytes of its text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct PlacementError {
    /// The position.
    pub span: Range<usize>,
    /// The error.
    pub problem: PlacementProblem,
}

/// The errors of a placement file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementProblem {
    /// Too few or too many fields.
    #[error("expected `tensor, NAME, TILES[, ELEMENTS]` or `vertices, NAME, TILES`")]
    Fields,
    /// Another word at the start of a line.
    #[error("`{0}` cannot be placed; expected `tensor` or `vertices`")]
    Kind(String),
    /// Not a number or a range.
    #[error("`{0}` is not a number or a range such as `0..736`")]
    Range(String),
    /// A range without anything in it.
    #[error("the range is empty")]
    Empty,
    /// A tile that is not there.
    #[error("there is no tile {tile}: the machine has {count}, from 0 to {}", .count - 1)]
    NoTile {
        /// The tile.
        tile: u64,
        /// How many there are.
        count: u32,
    },
    /// A name that is not there.
    #[error("the program has no instruction `{0}`")]
    NoInstruction(String),
    /// A name of nothing that needs memory.
    #[error("`{0}` needs no memory of its own: it is embedded in code, or only passes on other values")]
    NoTensor(String),
    /// An instruction that runs no vertices.
    #[error("`{0}` runs no vertices that iterate over a result")]
    NoVertices(String),
    /// Elements that are not there.
    #[error("`{name}` has {elements} elements")]
    NoElements {
        /// The tensor.
        name: String,
        /// How many it has.
        elements: u64,
    },
    /// Elements that are on no tile.
    #[error("elements {}..{} of `{name}` are on no tile", .missing.start, .missing.end)]
    Missing {
        /// The tensor.
        name: String,
        /// The first of those elements.
        missing: Range<u64>,
    },
    /// Elements that are on two tiles.
    #[error("element {element} of `{name}` is on a tile already")]
    Twice {
        /// The tensor.
        name: String,
        /// The first such element.
        element: u64,
    },
    /// Something is placed twice.
    #[error("`{0}` is placed already, under this name or that of something it shares storage with")]
    PlacedTwice(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Wish {
    is_tensor: bool,
    name: Spanned<String>,
    tiles: Spanned<Range<u64>>,
    elements: Option<Spanned<Range<u64>>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Spanned<T> {
    value: T,
    span: Range<usize>,
}

/// Wishes in terms of a program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resolved {
    pub(crate) tensors: BTreeMap<TensorId, Mapping>,
    pub(crate) vertices: BTreeMap<InstructionId, TileSet>,
}

impl Placement {
    /// Reads a placement file. Linear in the text.
    ///
    /// # Errors
    /// The first line that is no wish.
    pub fn parse(text: &str) -> Result<Placement, PlacementError> {
        let mut wishes = Vec::new();
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            let content = line.split('#').next().unwrap_or_default();
            if !content.trim().is_empty() {
                wishes.push(wish(content, start)?);
            }
            start += line.len();
        }
        Ok(Placement { wishes })
    }

    /// Looks the names up, and turns ranges into mappings.
    pub(crate) fn resolve(
        &self,
        module: &Module,
        facts: &Facts,
        tensors: &Tensors,
        tiles: u32,
    ) -> Result<Resolved, PlacementError> {
        let names = Names::new(module, facts);
        let mut resolved = Resolved::default();
        let mut ranges: BTreeMap<TensorId, Vec<&Wish>> = BTreeMap::new();
        for wish in &self.wishes {
            let set = tile_range(wish, tiles)?;
            let (instruction, index) = names.find(&wish.name)?;
            let fail = |problem: fn(String) -> PlacementProblem| {
                error(&wish.name.span, problem(wish.name.value.clone()))
            };
            if !wish.is_tensor {
                if resolved.vertices.insert(instruction, TileSet::new(std::iter::once(set))).is_some() {
                    return Err(fail(PlacementProblem::PlacedTwice));
                }
                continue;
            }
            let tensor = facts.flow.find(instruction, &index).and_then(|value| tensors.of(value));
            let tensor = tensor.ok_or_else(|| fail(PlacementProblem::NoTensor))?;
            let others = ranges.entry(tensor).or_default();
            let whole = |wish: &Wish| wish.elements.is_none();
            let is_another =
                others.first().is_some_and(|o| whole(o) || whole(wish) || o.name.value != wish.name.value);
            if is_another {
                return Err(fail(PlacementProblem::PlacedTwice));
            }
            others.push(wish);
        }
        for (tensor, wishes) in ranges {
            let (elements, width) = (tensors.all[tensor].elements, tensors.all[tensor].element_bytes);
            resolved.tensors.insert(tensor, mapping(&wishes, elements, Grain::of(width), tiles)?);
        }
        Ok(resolved)
    }

    /// The error for an instruction that was given tiles for vertices it does not have.
    pub(crate) fn no_vertices(&self, name: &str) -> Option<PlacementError> {
        let of = |wish: &&Wish| !wish.is_tensor && wish.name.value.rsplit('/').next() == Some(name);
        let wish = self.wishes.iter().find(of)?;
        Some(error(&wish.name.span, PlacementProblem::NoVertices(wish.name.value.clone())))
    }
}

/// One line; `start` is where it begins in the text.
fn wish(line: &str, start: usize) -> Result<Wish, PlacementError> {
    let fields = fields(line, start);
    let all = start + line.len() - line.trim_start().len()..start + line.trim_end().len();
    let (kind, rest) = fields.split_first().expect("a line that is not blank has a field");
    let is_tensor = match kind.value.as_str() {
        "tensor" => true,
        "vertices" => false,
        other => return Err(error(&kind.span, PlacementProblem::Kind(other.to_string()))),
    };
    match rest {
        [name, tiles] => Ok(Wish { is_tensor, name: name.clone(), tiles: range(tiles)?, elements: None }),
        [name, tiles, elements] if is_tensor => {
            Ok(Wish { is_tensor, name: name.clone(), tiles: range(tiles)?, elements: Some(range(elements)?) })
        }
        _ => Err(error(&all, PlacementProblem::Fields)),
    }
}

/// Fields between commas; those between braces belong to a name.
fn fields(line: &str, start: usize) -> Vec<Spanned<String>> {
    let mut fields = Vec::new();
    let (mut from, mut depth) = (0, 0i32);
    for (at, character) in line.char_indices().chain([(line.len(), ',')]) {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth <= 0 || at == line.len() => {
                let field = &line[from..at];
                let trimmed = field.trim();
                let begin = start + from + (field.len() - field.trim_start().len());
                // If the field is empty, the error points at the following text, up to the end of the line.
                let end = (begin + trimmed.len().max(1)).min(start + line.len());
                fields.push(Spanned { value: trimmed.to_string(), span: begin..end });
                from = at + 1;
            }
            _ => {}
        }
    }
    fields
}

/// `7` or `0..736`.
fn range(field: &Spanned<String>) -> Result<Spanned<Range<u64>>, PlacementError> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let range = match field.value.split_once("..") {
        Some((start, end)) => number(start).zip(number(end)).map(|(start, end)| start..end),
        None => number(&field.value).and_then(|n| Some(n..n.checked_add(1)?)),
    };
    match range {
        None => Err(error(&field.span, PlacementProblem::Range(field.value.clone()))),
        Some(range) if range.is_empty() => Err(error(&field.span, PlacementProblem::Empty)),
        Some(value) => Ok(Spanned { value, span: field.span.clone() }),
    }
}

fn tile_range(wish: &Wish, count: u32) -> Result<Range<u32>, PlacementError> {
    let Range { start, end } = wish.tiles.value;
    match (u32::try_from(start), u32::try_from(end)) {
        (Ok(start), Ok(end)) if end <= count => Ok(start..end),
        _ => Err(error(&wish.tiles.span, PlacementProblem::NoTile { tile: start.max(count.into()), count })),
    }
}

/// The mapping that all wishes for one tensor make.
fn mapping(wishes: &[&Wish], elements: u64, grain: Grain, tiles: u32) -> Result<Mapping, PlacementError> {
    let mut pieces: Vec<(Piece, &Spanned<Range<u64>>)> = Vec::new();
    let name = || wishes[0].name.value.clone();
    for wish in wishes {
        let window = tile_range(wish, tiles)?;
        let Some(range) = &wish.elements else {
            return Ok(Mapping::Linear(LinearMapping::new(elements, grain, window, 0)));
        };
        let Range { start, end } = range.value;
        if end > elements {
            return Err(error(&range.span, PlacementProblem::NoElements { name: name(), elements }));
        }
        let shares = linear_mapping(end - start, grain, window.end - window.start);
        let piece = |(tile, share): (u32, Range<u64>)| Piece {
            tile,
            elements: start + share.start..start + share.end,
        };
        pieces.extend(window.zip(shares).map(|piece_at| (piece(piece_at), range)));
    }
    pieces.sort_by_key(|(piece, _)| (piece.elements.start, piece.elements.end));
    let mut next = 0;
    let last = &wishes[wishes.len() - 1].name.span;
    for (piece, range) in &pieces {
        if piece.elements.start < next {
            let element = piece.elements.start;
            return Err(error(&range.span, PlacementProblem::Twice { name: name(), element }));
        }
        if piece.elements.start > next {
            let missing = next..piece.elements.start;
            return Err(error(last, PlacementProblem::Missing { name: name(), missing }));
        }
        next = piece.elements.end;
    }
    if next < elements {
        return Err(error(last, PlacementProblem::Missing { name: name(), missing: next..elements }));
    }
    Ok(Mapping::Explicit(pieces.into_iter().map(|(piece, _)| piece).collect()))
}

/// Instructions by name, the entry's first.
struct Names<'m> {
    by_name: FxHashMap<&'m str, InstructionId>,
    by_path: FxHashMap<(&'m str, &'m str), InstructionId>,
}

impl<'m> Names<'m> {
    fn new(module: &'m Module, facts: &Facts) -> Names<'m> {
        let mut names = Names { by_name: FxHashMap::default(), by_path: FxHashMap::default() };
        // The entry is the last of the sequential computations; its callees come before it.
        for &computation in facts.graph.sequential().iter().rev() {
            let path = &*module.computations[computation].name;
            for (id, instruction) in module.instructions_of(computation) {
                names.by_name.entry(&instruction.name).or_insert(id);
                names.by_path.insert((path, &instruction.name), id);
            }
        }
        names
    }

    /// `computation/instruction{index}`, of which only the middle is needed.
    fn find(&self, name: &Spanned<String>) -> Result<(InstructionId, ShapeIndex), PlacementError> {
        let text = name.value.as_str();
        let unknown = || error(&name.span, PlacementProblem::NoInstruction(text.to_string()));
        let (path, index) = match text.strip_suffix('}').and_then(|text| text.split_once('{')) {
            Some((path, index)) => {
                let steps = index.split(',').map(|step| step.trim().parse::<u32>().ok());
                (path, steps.collect::<Option<Vec<u32>>>().ok_or_else(unknown)?)
            }
            None => (text, Vec::new()),
        };
        let found = match path.split_once('/') {
            Some((computation, instruction)) => self.by_path.get(&(computation, instruction)),
            None => self.by_name.get(path),
        };
        Ok((*found.ok_or_else(unknown)?, ShapeIndex::from(index)))
    }
}

fn error(span: &Range<usize>, problem: PlacementProblem) -> PlacementError {
    PlacementError { span: span.clone(), problem }
}
