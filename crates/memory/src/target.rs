//! Targets as data: a machine's memories, and the sizes and alignments of values in them.

use std::collections::BTreeMap;

use memplan_ir::{ArrayShape, ElementType, Layout, Shape};
use memplan_units::{Alignment, Bytes, Machine, Memory, MemorySpaceId};
use serde::{Deserialize, Serialize};

use crate::{FusionRules, TileRule, Tiles, by_name};

/// The memory space in the layout of an array; main memory without an array or a layout.
pub fn memory_space_of(shape: &Shape) -> MemorySpaceId {
    let space = shape.as_array().map_or(0, |array| array.memory_space());
    u32::try_from(space).map_or(MemorySpaceId::MAIN, MemorySpaceId)
}

/// The kind of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Host processors.
    Cpu,
    /// Graphics processors.
    Gpu,
    /// Google's tensor processors.
    Tpu,
    /// Graphcore's processors.
    Ipu,
    /// Microcontrollers: a processor beside its memories, which programs reach by their addresses.
    Mcu,
    /// Any other machine.
    Other,
    /// Made-up machines, for tests.
    Toy,
}

/// A library of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Library {
    /// Arm's CMSIS-NN, for the processors called Cortex-M.
    CmsisNn,
}

/// One memory of a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MemorySpace {
    /// The number that layouts use.
    pub id: MemorySpaceId,
    /// The name people use.
    pub name: String,
    /// How much there is; `None`: no limit is modeled.
    #[serde(default)]
    pub capacity: Option<Bytes>,
    /// Bytes of the capacity that programs cannot have.
    #[serde(default)]
    pub reserved: Bytes,
    /// Whether programs can only read it: constants are kept in the first such memory, and arguments that are pinned there.
    #[serde(default)]
    pub read_only: bool,
    /// Whether kernels reach it like main memory, so that values pinned there need no layout that names it. Read-only
    /// memory is always reached like that.
    #[serde(default)]
    pub direct: bool,
    /// Alignment of values within an arena.
    pub alignment: Alignment,
    /// The smallest unit of access or mapping; transfers are rounded up to it.
    #[serde(default = "one_byte")]
    pub granule: Alignment,
    /// Bytes of the capacity that one kernel may use as scratch while it runs.
    #[serde(default)]
    pub kernel_scratch: Bytes,
    /// Bytes of scratch that a kernel uses for each byte of its operands and results, up to `kernel_scratch`; `None`:
    /// every kernel uses all of that.
    #[serde(default)]
    pub kernel_scratch_per_byte: Option<u64>,
    /// Bytes of scratch that a kernel uses beside those for its operands and results.
    #[serde(default)]
    pub kernel_scratch_base: Bytes,
    /// Bytes per second between this memory and the cores.
    #[serde(default)]
    pub bandwidth: Option<f64>,
    /// Share of the bandwidth that kernels reach.
    #[serde(default = "whole")]
    pub kernel_share: f64,
    /// Seconds that a kernel waits for this memory, however few bytes it moves: with `n` bytes it reaches the share
    /// `n / (n + latency * bandwidth)` of the bandwidth.
    #[serde(default)]
    pub latency: f64,
}

impl MemorySpace {
    /// The capacity for programs: the capacity without the reserved part; `None`: no limit is modeled.
    pub fn usable(&self) -> Option<Bytes> {
        self.capacity.map(|capacity| capacity.saturating_sub(self.reserved))
    }
}

/// A way between two memories that works without the cores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// The memory that is read.
    pub from: MemorySpaceId,
    /// The memory that is written.
    pub to: MemorySpaceId,
    /// Bytes per second; `None`: that of the slower memory.
    #[serde(default)]
    pub bandwidth: Option<f64>,
    /// Whether kernels wait while it runs.
    #[serde(default)]
    pub blocks_kernels: bool,
}

/// A link from a device to others of its kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// What it is called.
    pub name: String,
    /// How many devices it joins: those whose numbers are in one block of so many. `None`: all.
    #[serde(default)]
    pub devices: Option<u64>,
    /// Bytes per second that a device sends while it receives as many.
    pub bandwidth: f64,
}

/// Operations per second of the matrix units by element type; a multiplication with its addition counts two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
#[cfg_attr(feature = "schema", schemars(with = "BTreeMap<String, f64>"))]
pub struct Rates(#[serde(with = "by_name")] BTreeMap<ElementType, Rate>);

impl Rates {
    /// The rate for a type; `None` where the target file gives none.
    pub fn get(&self, element_type: ElementType) -> Option<f64> {
        self.0.get(&element_type).map(|rate| rate.0)
    }

    /// The same, but for one type.
    pub(crate) fn with(&self, element_type: ElementType, rate: f64) -> Rates {
        let mut rates = self.clone();
        rates.0.insert(element_type, Rate(rate));
        rates
    }
}

/// A rate, above zero.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64")]
struct Rate(f64);

impl TryFrom<f64> for Rate {
    type Error = &'static str;

    fn try_from(rate: f64) -> Result<Rate, &'static str> {
        match rate > 0.0 && rate.is_finite() {
            true => Ok(Rate(rate)),
            false => Err("a rate must be above zero"),
        }
    }
}

/// Cores that share a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct MatrixCores {
    /// How many there are.
    pub count: u64,
    /// Rows and columns of a tile of the result, which one core computes, or several that share its sums.
    pub tile: u64,
    /// Terms of sums that are worth a core of their own.
    pub depth: u64,
    /// The share of [`Target::rates`] that they reach.
    #[serde(default = "whole")]
    pub share: f64,
    /// The share that they reach in convolutions with a window; `None`: the same.
    #[serde(default)]
    pub convolution_share: Option<f64>,
    /// The share that they reach in convolutions of each feature by itself, which matrix units are of no use for; `None`:
    /// that of other convolutions.
    #[serde(default)]
    pub depthwise_share: Option<f64>,
    /// Seconds that every product takes in addition, large or small.
    #[serde(default)]
    pub product_seconds: f64,
    /// Seconds that a convolution with a window takes in addition: libraries start several kernels for one.
    #[serde(default)]
    pub convolution_seconds: f64,
}

/// The cost of a vector unit in addition to its arithmetic: a kernel is a loop over registers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct VectorUnit {
    /// Elements of a register, each in a word of 32 bits.
    pub register_elements: u64,
    /// Seconds for each register of the largest value that a kernel evaluates.
    pub evaluation_seconds: f64,
    /// Seconds for each register that a kernel reads or writes.
    pub access_seconds: f64,
    /// Like `evaluation_seconds`, in kernels with matrix products, whose results come tile by tile.
    pub epilogue_seconds: f64,
    /// Like `access_seconds`, in kernels with matrix products.
    pub operand_seconds: f64,
    /// Seconds for each register that is read or written by what only moves or fills whole registers.
    pub move_seconds: f64,
}

/// The memory near the cores that whole values are kept in while they are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FastMemory {
    /// Which memory it is. It has a capacity, and transfers lead from main memory to it and back.
    pub space: MemorySpaceId,
    /// The memory of the flags that transfers raise when they are done.
    pub flags: MemorySpaceId,
}

/// A machine to plan for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The name on the command line.
    pub name: String,
    /// The kind of machine.
    pub family: Family,
    /// One line for people.
    #[serde(default)]
    pub description: String,
    /// Libraries whose kernels C for it may call: `cmsis-nn` on a Cortex-M.
    #[serde(default)]
    pub libraries: Vec<Library>,
    /// Bytes per element of a tuple's index table; 0 where tuples exist only at compile time.
    #[serde(default)]
    pub tuple_entry_bytes: u64,
    /// Bytes of run-time size kept for each dimension of a dynamic shape.
    #[serde(default)]
    pub dynamic_dimension_bytes: u64,
    /// Minimum alignment of entry parameters, in addition to the alignment of their memory.
    #[serde(default = "one_byte")]
    pub argument_alignment: Alignment,
    /// Constants of at most this many bytes are embedded in code and take no memory of their own.
    #[serde(default)]
    pub embedded_constant_bytes: Bytes,
    /// Which operations may share a kernel.
    #[serde(default)]
    pub fusion: FusionRules,
    /// The memories; the first is the main one.
    pub spaces: Vec<MemorySpace>,
    /// How fast the matrix units are.
    #[serde(default)]
    pub rates: Rates,
    /// Operations per second of the matrix units on f32 rounded to TF32, which is what XLA does at default precision;
    /// `None`: they multiply f32 as it is.
    #[serde(default)]
    pub tf32_rate: Option<f64>,
    /// Additions per second of the vector units, all element types alike; `None`: not known.
    #[serde(default)]
    pub vector_rate: Option<f64>,
    /// Updates per second of scatters that add to an array in memory, while other cores add to it; a type without a rate: as
    /// fast as any arithmetic.
    #[serde(default)]
    pub scatter_rates: Rates,
    /// Rows and columns of the matrix unit, which works on whole tiles of that size; `None`: no padding is counted.
    #[serde(default)]
    pub matrix_unit: Option<u64>,
    /// The cores that the tiles of a matrix product are spread over, where the last tiles leave some idle; `None`: they
    /// count as one.
    #[serde(default)]
    pub matrix_cores: Option<MatrixCores>,
    /// The vector units' time to process registers; `None`: only their arithmetic counts.
    #[serde(default)]
    pub vector_unit: Option<VectorUnit>,
    /// Seconds from the end of one kernel to the begin of the next: launches, or what the cores take to get going.
    #[serde(default)]
    pub kernel_overhead: f64,
    /// The memory that values are moved to from main memory; `None`: no value is.
    #[serde(default)]
    pub fast_memory: Option<FastMemory>,
    /// How arrays are tiled; `None`: they are not.
    #[serde(default)]
    pub layout: Option<TileRule>,
    /// The copies that can run while the cores compute.
    #[serde(default)]
    pub transfers: Vec<Transfer>,
    /// The links to other devices of its kind, from the nearest to the farthest; none: not known.
    #[serde(default)]
    pub links: Vec<Link>,
    /// The tiles that main memory consists of; `None`: every core reaches all of it.
    #[serde(default)]
    pub tiles: Option<Tiles>,
}

impl Machine for Target {
    fn memory(&self, space: MemorySpaceId) -> Option<Memory<'_>> {
        let it = self.space(space)?;
        Some(Memory {
            name: &it.name,
            capacity: it.capacity,
            usable: it.usable(),
            is_divided: self.tiles.is_some() && space == MemorySpaceId::MAIN,
            is_read_only: it.read_only,
            granule: it.granule,
        })
    }

    fn alignment(&self, space: MemorySpaceId) -> Alignment {
        self.alignment(space)
    }

    fn argument_alignment(&self) -> Alignment {
        self.argument_alignment
    }
}

impl Target {
    /// The memory space with a number, if the target has it.
    pub fn space(&self, id: MemorySpaceId) -> Option<&MemorySpace> {
        self.spaces.iter().find(|space| space.id == id)
    }

    /// The memory that constants are kept in: the first that can only be read; main memory where there is none.
    pub fn constant_space(&self) -> MemorySpaceId {
        self.spaces.iter().find(|space| space.read_only).map_or(MemorySpaceId::MAIN, |space| space.id)
    }

    /// Whether kernels reach a memory as they reach main memory, so that a value may be there though its layout names none.
    pub fn reaches_directly(&self, id: MemorySpaceId) -> bool {
        id == MemorySpaceId::MAIN || self.space(id).is_some_and(|space| space.direct || space.read_only)
    }

    /// The alignment of values in a space; that of main memory for a space the target does not know.
    pub fn alignment(&self, id: MemorySpaceId) -> Alignment {
        self.space(id).unwrap_or(&self.spaces[0]).alignment
    }

    /// Padded bytes of the buffer of one part of a value: an array, a tuple's table, a token (none).
    ///
    /// Sizes beyond `u64` are `u64::MAX`; an unbounded dynamic dimension counts as zero.
    pub fn size_of(&self, shape: &Shape) -> Bytes {
        match shape {
            Shape::Array(array) | Shape::Buffer(array) => self.array_size(array),
            Shape::Tuple(elements) => Bytes(self.tuple_entry_bytes.saturating_mul(elements.len() as u64)),
            Shape::Token => Bytes::ZERO,
            Shape::Opaque => Bytes(8),
        }
    }

    /// Bytes of an array's elements alone, without padding by tiles.
    pub fn unpadded_size_of(&self, shape: &Shape) -> Bytes {
        match shape {
            Shape::Array(array) | Shape::Buffer(array) => {
                let count = array.element_count().unwrap_or(0);
                Bytes(storage_bytes(array, count as u128)).saturating_add(self.dynamic_metadata(array))
            }
            other => self.size_of(other),
        }
    }

    /// The layout an array gets where nobody asks for another: tiled where the machine tiles arrays, otherwise row-major.
    /// Memory space and the packing of small elements stay.
    pub fn default_layout(&self, array: &ArrayShape) -> Layout {
        let tiled = self.layout.and_then(|rule| rule.layout(array.element_type, &array.dimensions).ok());
        in_the_place_of(array, tiled.unwrap_or_else(|| Layout::row_major(array.rank())))
    }

    /// The layout of an array with a given order of dimensions, fastest first. Types unknown to the machine's rule are
    /// not tiled.
    ///
    /// # Panics
    /// When the order is not a permutation of the array's dimensions.
    pub fn layout_with_order(&self, array: &ArrayShape, minor_to_major: &[i64]) -> Layout {
        assert_eq!(minor_to_major.len(), array.rank(), "an order has every dimension once");
        let tiled = self.layout.and_then(|rule| {
            rule.layout_with_order(array.element_type, &array.dimensions, minor_to_major).ok()
        });
        in_the_place_of(array, tiled.unwrap_or_else(|| Layout::with_order(minor_to_major.iter().copied())))
    }

    fn array_size(&self, array: &ArrayShape) -> Bytes {
        Bytes(storage_bytes(array, padded_element_count(array))).saturating_add(self.dynamic_metadata(array))
    }

    fn dynamic_metadata(&self, array: &ArrayShape) -> Bytes {
        match array.is_dynamic() {
            true => Bytes(self.dynamic_dimension_bytes.saturating_mul(array.rank() as u64)),
            false => Bytes::ZERO,
        }
    }
}

/// A layout with what an array's own says besides the order.
fn in_the_place_of(array: &ArrayShape, mut layout: Layout) -> Layout {
    if let Some(old) = &array.layout {
        layout.memory_space = old.memory_space;
        if layout.tiles.is_empty() {
            layout.element_size_in_bits = old.element_size_in_bits;
            layout.rare = old.rare.clone();
        }
    }
    layout
}

/// Elements an array takes room for: tiled dimensions rounded up (XLA counts the first tile only), then the tail.
fn padded_element_count(array: &ArrayShape) -> u128 {
    let extent = |d: i64| u128::try_from(array.dimensions.get(d as usize).copied().unwrap_or(1)).unwrap_or(0);
    let Some(layout) = &array.layout else {
        return array.element_count().unwrap_or(0).into();
    };
    let tile = layout.tiles.first().map(|tile| tile.dimensions.as_slice()).unwrap_or_default();
    let mut count: u128 = 1;
    for i in 0..layout.minor_to_major.len().max(tile.len()) {
        let extent = layout.minor_to_major.get(i).map_or(1, |&d| extent(d));
        // Tiles are written most major first; a combined (`*`) or missing entry rounds to nothing.
        let tile = tile.len().checked_sub(i + 1).map_or(1, |t| u128::try_from(tile[t]).unwrap_or(1).max(1));
        count = count.saturating_mul(extent.div_ceil(tile).saturating_mul(tile));
    }
    let tail = u128::try_from(layout.tail_padding_alignment_in_elements()).unwrap_or(1).max(1);
    count.div_ceil(tail).saturating_mul(tail)
}

fn storage_bytes(array: &ArrayShape, count: u128) -> u64 {
    let bits = match array.layout.as_ref().map_or(0, |layout| layout.element_size_in_bits) {
        0 => u128::from(array.element_type.byte_width()) * 8,
        packed => u128::try_from(packed).unwrap_or(0),
    };
    u64::try_from(count.saturating_mul(bits).div_ceil(8)).unwrap_or(u64::MAX)
}

fn whole() -> f64 {
    1.0
}

fn one_byte() -> Alignment {
    Alignment::ONE
}
