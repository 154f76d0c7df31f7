//! Targets as data: which memories a machine has, and how it sizes and aligns what lives in them.

use std::collections::BTreeMap;
use std::str::FromStr;

use memplan_ir::{ArrayShape, ElementType, Layout, Shape};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Alignment, Bytes, FusionRules, TargetError, TileCosts, TileRule};

/// A memory space by the number that layouts use, `S(n)`; 0 is the main memory.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct MemorySpaceId(pub u32);

impl MemorySpaceId {
    /// The device's main memory.
    pub const MAIN: MemorySpaceId = MemorySpaceId(0);
}

impl std::fmt::Display for MemorySpaceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "S({})", self.0)
    }
}

/// What kind of machine a target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
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
    /// Made-up machines, for tests.
    Toy,
}

/// One memory of a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
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
    /// Alignment of values within an arena.
    pub alignment: Alignment,
    /// The smallest piece that is reached or mapped at once; what is transferred is rounded up to it.
    #[serde(default = "one_byte")]
    pub granule: Alignment,
    /// Bytes of the capacity that one kernel may use as scratch while it runs.
    #[serde(default)]
    pub kernel_scratch: Bytes,
    /// Bytes per second between this memory and the cores.
    #[serde(default)]
    pub bandwidth: Option<f64>,
}

impl MemorySpace {
    /// What programs can have: the capacity without what is reserved; `None`: no limit is modeled.
    pub fn usable(&self) -> Option<Bytes> {
        self.capacity.map(|capacity| capacity.saturating_sub(self.reserved))
    }
}

/// A way between two memories that works without the cores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    /// Where bytes are read.
    pub from: MemorySpaceId,
    /// Where they are written.
    pub to: MemorySpaceId,
    /// Bytes per second; `None`: that of the slower memory.
    #[serde(default)]
    pub bandwidth: Option<f64>,
}

/// Main memory that is cut into tiles, each with a core that reaches only its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tiles {
    /// How many there are.
    pub count: u32,
    /// Bytes of each, for code and data together.
    pub bytes: Bytes,
    /// Bytes of one bank: two accesses of one cycle go to different banks.
    pub bank_bytes: Bytes,
    /// Threads that take turns on the core of a tile.
    pub threads: u32,
    /// Bytes per second between all tiles together.
    pub exchange_bandwidth: f64,
    /// Bytes at the start of each tile that code may lie in; the rest is interleaved. 0: all of it.
    #[serde(default)]
    pub code_bytes: Bytes,
    /// The part of a tile that one dot or convolution may take for operands it receives and for partial sums, where
    /// there is a choice; 0: as little as possible.
    #[serde(default = "six_tenths")]
    pub temporary_proportion: f64,
    /// What vertices and code take.
    #[serde(default)]
    pub costs: TileCosts,
}

/// Operations per second of the matrix units by element type; a multiplication with its addition counts two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "BTreeMap<String, f64>", into = "BTreeMap<String, f64>")]
#[schemars(with = "BTreeMap<String, f64>")]
pub struct Rates(BTreeMap<ElementType, f64>);

impl Rates {
    /// The rate for a type; `None` where the target file gives none.
    pub fn get(&self, element_type: ElementType) -> Option<f64> {
        self.0.get(&element_type).copied()
    }
}

impl TryFrom<BTreeMap<String, f64>> for Rates {
    type Error = String;

    fn try_from(rates: BTreeMap<String, f64>) -> Result<Rates, String> {
        let rate = |(name, rate): (String, f64)| match ElementType::from_str(&name) {
            Err(_) => Err(format!("`{name}` is not an element type")),
            Ok(_) if !(rate > 0.0 && rate.is_finite()) => {
                Err(format!("the rate of {name} must be above zero"))
            }
            Ok(element_type) => Ok((element_type, rate)),
        };
        rates.into_iter().map(rate).collect::<Result<_, _>>().map(Rates)
    }
}

impl From<Rates> for BTreeMap<String, f64> {
    fn from(rates: Rates) -> BTreeMap<String, f64> {
        rates.0.into_iter().map(|(element_type, rate)| (element_type.to_string(), rate)).collect()
    }
}

/// The memory near the cores that whole values are kept in while they are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FastMemory {
    /// Which memory it is. It has a capacity, and transfers lead from main memory to it and back.
    pub space: MemorySpaceId,
    /// The memory of the flags that transfers raise when they are done.
    pub flags: MemorySpaceId,
}

/// A machine to plan for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The name on the command line.
    pub name: String,
    /// What kind of machine it is.
    pub family: Family,
    /// One line for people.
    #[serde(default)]
    pub description: String,
    /// Bytes per element of a tuple's index table; 0 where tuples exist only at compile time.
    pub tuple_entry_bytes: u64,
    /// Bytes of run-time size kept for each dimension of a dynamic shape.
    #[serde(default)]
    pub dynamic_dimension_bytes: u64,
    /// Alignment of entry parameters.
    pub argument_alignment: Alignment,
    /// Constants of at most this many bytes are embedded in code and take no memory of their own.
    pub embedded_constant_bytes: Bytes,
    /// Which operations may share a kernel.
    #[serde(default)]
    pub fusion: FusionRules,
    /// The memories; the first is the main one.
    pub spaces: Vec<MemorySpace>,
    /// How fast the matrix units are.
    #[serde(default)]
    pub rates: Rates,
    /// Additions per second of the vector units, all element types alike; `None`: not known.
    #[serde(default)]
    pub vector_rate: Option<f64>,
    /// The memory that values are moved to from main memory; `None`: no value is.
    #[serde(default)]
    pub fast_memory: Option<FastMemory>,
    /// How arrays are tiled; `None`: they are not.
    #[serde(default)]
    pub layout: Option<TileRule>,
    /// What can be copied while the cores compute.
    #[serde(default)]
    pub transfers: Vec<Transfer>,
    /// The tiles that main memory consists of; `None`: every core reaches all of it.
    #[serde(default)]
    pub tiles: Option<Tiles>,
}

impl Target {
    /// Checks what the types alone do not.
    ///
    /// # Errors
    /// [`TargetError::Invalid`] with the field that is wrong.
    pub fn validate(&self) -> Result<(), TargetError> {
        let invalid = |field: String, message: String| {
            Err(TargetError::Invalid { target: self.name.clone(), field, message })
        };
        let above_zero = |rate: f64| rate > 0.0 && rate.is_finite();
        let Some(main) = self.spaces.first() else {
            return invalid("spaces".into(), "it has no memory space".into());
        };
        if main.id != MemorySpaceId::MAIN {
            return invalid("spaces.0.id".into(), format!("its first memory space is {}, not S(0)", main.id));
        }
        for (i, space) in self.spaces.iter().enumerate() {
            let MemorySpace { id, name, .. } = space;
            let field = |field: &str| format!("spaces.{i}.{field}");
            if self.spaces[..i].iter().any(|other| other.id == *id) {
                return invalid(field("id"), format!("memory space {id} is there twice"));
            }
            if name.is_empty() || self.spaces[..i].iter().any(|other| other.name == *name) {
                return invalid(field("name"), "every memory space has a name of its own".into());
            }
            if space.bandwidth.is_some_and(|bandwidth| !above_zero(bandwidth)) {
                return invalid(field("bandwidth"), format!("the bandwidth of `{name}` must be above zero"));
            }
            if space.capacity.is_some_and(|capacity| capacity < space.reserved) {
                return invalid(field("reserved"), format!("`{name}` reserves more than it has"));
            }
            if space.usable().is_some_and(|usable| usable < space.kernel_scratch) {
                let message = format!("the scratch of a kernel is more than `{name}` has");
                return invalid(field("kernel_scratch"), message);
            }
        }
        for (i, transfer) in self.transfers.iter().enumerate() {
            for (end, id) in [("from", transfer.from), ("to", transfer.to)] {
                if self.space(id).is_none() {
                    return invalid(format!("transfers.{i}.{end}"), format!("there is no memory space {id}"));
                }
            }
            if transfer.from == transfer.to {
                let message = format!("a transfer ends in another memory space than {}", transfer.from);
                return invalid(format!("transfers.{i}.to"), message);
            }
            let ends = |transfer: &Transfer| (transfer.from, transfer.to);
            if self.transfers[..i].iter().any(|other| ends(other) == ends(transfer)) {
                let message =
                    format!("the transfer from {} to {} is there twice", transfer.from, transfer.to);
                return invalid(format!("transfers.{i}.to"), message);
            }
            if transfer.bandwidth.is_some_and(|bandwidth| !above_zero(bandwidth)) {
                let message = "the bandwidth of a transfer must be above zero".into();
                return invalid(format!("transfers.{i}.bandwidth"), message);
            }
        }
        if self.vector_rate.is_some_and(|rate| !above_zero(rate)) {
            return invalid("vector_rate".into(), "the rate of the vector units must be above zero".into());
        }
        if let Some(fast) = &self.fast_memory {
            let capacity = self.space(fast.space).and_then(|space| space.capacity);
            let has_way = |from, to| self.transfers.iter().any(|way| way.from == from && way.to == to);
            let message = match fast {
                _ if fast.space == MemorySpaceId::MAIN => "the fast memory is not the main one".into(),
                _ if capacity.is_none() => format!("{} is no memory with a capacity", fast.space),
                _ if !has_way(main.id, fast.space) => format!("no transfer leads to {}", fast.space),
                _ if !has_way(fast.space, main.id) => format!("no transfer leads from {}", fast.space),
                _ => String::new(),
            };
            if !message.is_empty() {
                return invalid("fast_memory.space".into(), message);
            }
            if self.space(fast.flags).is_none() {
                return invalid("fast_memory.flags".into(), format!("there is no memory {}", fast.flags));
            }
        }
        if let Some(tiles) = &self.tiles {
            if tiles.count == 0 || tiles.bytes == Bytes::ZERO {
                return invalid("tiles.count".into(), "tiles have a number and a size above zero".into());
            }
            if !above_zero(tiles.exchange_bandwidth) {
                let message = "the bandwidth of the exchange must be above zero".into();
                return invalid("tiles.exchange_bandwidth".into(), message);
            }
            if tiles.code_bytes > tiles.bytes {
                let message = "code may lie in more than a tile has".into();
                return invalid("tiles.code_bytes".into(), message);
            }
            if !(0.0..=1.0).contains(&tiles.temporary_proportion) {
                let message = "the part of a tile for temporaries is from 0 to 1".into();
                return invalid("tiles.temporary_proportion".into(), message);
            }
            let sum = Bytes(tiles.bytes.0.saturating_mul(tiles.count.into()));
            if main.capacity.is_some_and(|capacity| capacity != sum) {
                let message = format!("`{}` is not as large as its tiles together, {sum:#} bytes", main.name);
                return invalid("spaces.0.capacity".into(), message);
            }
        }
        Ok(())
    }

    /// The memory space with a number, if the target has it.
    pub fn space(&self, id: MemorySpaceId) -> Option<&MemorySpace> {
        self.spaces.iter().find(|space| space.id == id)
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

    /// The layout of an array whose dimensions lie in a given order, the first varying fastest. Types that the machine's
    /// rule does not know are not tiled.
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

fn one_byte() -> Alignment {
    Alignment::ONE
}

fn six_tenths() -> f64 {
    0.6
}
