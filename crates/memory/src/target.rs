//! Targets as data: which memories a machine has, and how it sizes and aligns what lives in them.

use std::path::Path;

use memplan_ir::{ArrayShape, Shape};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Alignment, Bytes, FusionRules};

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
    /// Bytes per second between this memory and the cores.
    #[serde(default)]
    pub bandwidth: Option<f64>,
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
}

/// What is wrong with a target description.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// No built-in target has this name.
    #[error(
        "there is no target `{name}`; the built-in ones are {known}, and `--target FILE.toml` reads your own"
    )]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The file cannot be read.
    #[error("cannot read target file `{path}`")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not a target.
    #[error("`{path}` does not describe a target: {message}")]
    Parse {
        /// The file.
        path: String,
        /// What is wrong, with line and column.
        message: String,
    },
    /// A number makes no sense.
    #[error("target `{target}`: {message}")]
    Invalid {
        /// The target.
        target: String,
        /// What is wrong.
        message: String,
    },
}

/// The built-in targets, each a TOML file in this crate.
const BUILT_IN: &[&str] = &[
    include_str!("../targets/cpu.toml"),
    include_str!("../targets/gpu-h100.toml"),
    include_str!("../targets/toy.toml"),
];

impl Target {
    /// All built-in targets.
    pub fn built_in() -> Vec<Target> {
        let parse = |text: &&str| toml::from_str(text).expect("built-in target files are valid");
        BUILT_IN.iter().map(parse).collect()
    }

    /// The built-in target with a name, or the one in a file whose name ends in `.toml`.
    pub fn find(name: &str) -> Result<Target, TargetError> {
        if name.ends_with(".toml") {
            return Target::read(Path::new(name));
        }
        let mut all = Target::built_in();
        match all.iter().position(|target| target.name == name) {
            Some(i) => Ok(all.swap_remove(i)),
            None => {
                let known = all.iter().map(|target| target.name.as_str()).collect::<Vec<_>>().join(", ");
                Err(TargetError::Unknown { name: name.to_string(), known })
            }
        }
    }

    /// Reads a target from a TOML file.
    pub fn read(path: &Path) -> Result<Target, TargetError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| TargetError::Read { path: path.display().to_string(), source })?;
        let target: Target = toml::from_str(&text).map_err(|error| TargetError::Parse {
            path: path.display().to_string(),
            message: error.to_string(),
        })?;
        target.validate()?;
        Ok(target)
    }

    /// Checks what the types alone do not.
    pub fn validate(&self) -> Result<(), TargetError> {
        let invalid = |message: String| TargetError::Invalid { target: self.name.clone(), message };
        let Some(main) = self.spaces.first() else {
            return Err(invalid("it has no memory space".into()));
        };
        if main.id != MemorySpaceId::MAIN {
            return Err(invalid(format!("its first memory space is {}, not S(0)", main.id)));
        }
        for (i, space) in self.spaces.iter().enumerate() {
            if self.spaces[..i].iter().any(|other| other.id == space.id) {
                return Err(invalid(format!("memory space {} is there twice", space.id)));
            }
            if space.bandwidth.is_some_and(|bandwidth| !(bandwidth > 0.0 && bandwidth.is_finite())) {
                return Err(invalid(format!("the bandwidth of `{}` must be above zero", space.name)));
            }
            if space.capacity.is_some_and(|capacity| capacity < space.reserved) {
                return Err(invalid(format!("`{}` reserves more than it has", space.name)));
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
