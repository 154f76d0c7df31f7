//! Machines whose main memory is divided into tiles: their number and size, and a program's costs on a tile in addition
//! to its data.
//!
//! Sizes of fields in vertex state are those of PopLibs' vertices. Sizes of code are assumptions, since no library
//! publishes them: they have the order of magnitude of hand-written vertices, and are in target files so that users can
//! replace them by measurements.

use std::collections::BTreeMap;

use memplan_ir::Opcode;
use serde::{Deserialize, Serialize};

use crate::{Bytes, by_name};

/// The most tiles to plan for: plans take memory for each.
const MAX_COUNT: u32 = 1 << 16;

/// Most threads of a tile: each has vertices of its own.
const MAX_THREADS: u32 = 1 << 10;

/// Most bytes of any single piece of code or state, far above what a tile has, so that sums stay within 64 bits.
const MAX_COST: Bytes = Bytes(1 << 32);

/// Main memory that is cut into tiles, each with a core that reaches only its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tiles {
    /// How many there are on a chip, at most 65536.
    pub count: u32,
    /// How many chips can work on one program, a stage of a pipeline on each.
    #[serde(default = "one")]
    pub chips: u32,
    /// Bytes of each tile, for code and data together.
    pub bytes: Bytes,
    /// Bytes of one bank, a power of two: two accesses of one cycle go to different banks.
    pub bank_bytes: Bytes,
    /// Threads that take turns on the core of a tile, at most 1024.
    pub threads: u32,
    /// Bytes per second between all tiles together.
    pub exchange_bandwidth: f64,
    /// Seconds that all tiles take to meet and to call what runs next.
    #[serde(default = "half_a_microsecond")]
    pub synchronization_seconds: f64,
    /// Bytes at the start of each tile that may hold code; the rest is interleaved. 0: all of it.
    #[serde(default)]
    pub code_bytes: Bytes,
    /// The part of a tile that one dot or convolution may take for operands it receives and for partial sums, where
    /// there is a choice; 0: as little as possible.
    #[serde(default = "six_tenths")]
    pub temporary_proportion: f64,
    /// Bytes of a partial sum of a dot or convolution.
    #[serde(default = "four_bytes")]
    pub partial_bytes: Bytes,
    /// The costs of vertices and code.
    #[serde(default)]
    pub costs: TileCosts,
}

/// Bytes of vertices and code on a tile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct TileCosts {
    /// A vector field of a vertex with its length.
    pub span_state: Bytes,
    /// A vector field whose length another field has.
    pub pointer_state: Bytes,
    /// A scalar field.
    pub scalar_state: Bytes,
    /// The state of one worker of a dot or convolution: the beginnings of its parts of input, weights and output.
    pub worklist_state: Bytes,
    /// A codelet that does nothing: entry, division of work among threads, loop, exit.
    pub codelet_code: Bytes,
    /// Codelets of operations that are more than a loop over elements, by opcode; all others are as large as one that
    /// does nothing. A fusion has the code of its largest operation.
    #[serde(with = "by_name")]
    #[cfg_attr(feature = "schema", schemars(with = "BTreeMap<String, Bytes>"))]
    pub code: BTreeMap<Opcode, Bytes>,
    /// Each operation of a codelet that was generated for a fusion.
    pub operation_code: Bytes,
    /// Calling the vertices of one instruction from the program of the tile.
    pub call_code: Bytes,
    /// Receiving one operand through the exchange.
    pub receive_code: Bytes,
}

impl TileCosts {
    /// Bytes of the codelet of an operation on its own.
    pub fn code_of(&self, opcode: Opcode) -> Bytes {
        self.code.get(&opcode).copied().unwrap_or(self.codelet_code)
    }
}

impl Tiles {
    /// An error, with its field; `main` is the capacity of the memory that consists of tiles.
    pub(crate) fn problem(&self, main: Option<Bytes>) -> Option<(String, String)> {
        let above_zero = |number: f64| number > 0.0 && number.is_finite();
        let sum = Bytes(self.bytes.0.saturating_mul(self.count.into()));
        let wrong = |field: &str, message: &str| Some((field.to_string(), message.to_string()));
        match self {
            _ if !(1..=MAX_COUNT).contains(&self.count) => {
                wrong("tiles.count", &format!("a chip has from 1 to {MAX_COUNT} tiles"))
            }
            _ if self.chips == 0 => wrong("tiles.chips", "a machine has a chip at least"),
            _ if self.bytes == Bytes::ZERO => wrong("tiles.bytes", "a tile has a size above zero"),
            _ if !self.bank_bytes.0.is_power_of_two() => {
                wrong("tiles.bank_bytes", &format!("a bank is a power of two, not {}", self.bank_bytes.0))
            }
            _ if self.bank_bytes > self.bytes => {
                wrong("tiles.bank_bytes", "a bank is not larger than its tile")
            }
            _ if !(1..=MAX_THREADS).contains(&self.threads) => {
                wrong("tiles.threads", &format!("a tile has from 1 to {MAX_THREADS} threads"))
            }
            _ if !above_zero(self.exchange_bandwidth) => {
                wrong("tiles.exchange_bandwidth", "the bandwidth of the exchange must be above zero")
            }
            _ if !(self.synchronization_seconds >= 0.0 && self.synchronization_seconds.is_finite()) => {
                wrong("tiles.synchronization_seconds", "a synchronization takes no less than no time")
            }
            _ if self.code_bytes > self.bytes => {
                wrong("tiles.code_bytes", "code may lie in more than a tile has")
            }
            _ if !self.code_bytes.0.is_multiple_of(self.bank_bytes.0) => {
                wrong("tiles.code_bytes", "code may lie in whole banks")
            }
            _ if !(0.0..=1.0).contains(&self.temporary_proportion) => {
                wrong("tiles.temporary_proportion", "the part of a tile for temporaries is from 0 to 1")
            }
            _ if !matches!(self.partial_bytes.0, 2 | 4 | 8) => {
                wrong("tiles.partial_bytes", "a partial sum has 2, 4 or 8 bytes")
            }
            _ if main.is_some_and(|capacity| capacity != sum) => {
                let message = format!("main memory is as large as its tiles together, {sum:#} bytes");
                wrong("spaces.0.capacity", &message)
            }
            _ => self.costs.problem(),
        }
    }
}

impl TileCosts {
    fn problem(&self) -> Option<(String, String)> {
        let fields = [
            ("span_state", self.span_state),
            ("pointer_state", self.pointer_state),
            ("scalar_state", self.scalar_state),
            ("worklist_state", self.worklist_state),
            ("codelet_code", self.codelet_code),
            ("operation_code", self.operation_code),
            ("call_code", self.call_code),
            ("receive_code", self.receive_code),
        ];
        let fields = fields.map(|(field, bytes)| (field.to_string(), bytes)).into_iter();
        let code = self.code.iter().map(|(opcode, &bytes)| (format!("code.{opcode}"), bytes));
        let (field, _) = fields.chain(code).find(|&(_, bytes)| bytes > MAX_COST)?;
        Some((format!("tiles.costs.{field}"), format!("no code or state has more than {MAX_COST:#} bytes")))
    }
}

impl Default for TileCosts {
    fn default() -> TileCosts {
        TileCosts {
            span_state: Bytes(8),
            pointer_state: Bytes(4),
            scalar_state: Bytes(4),
            worklist_state: Bytes(24),
            codelet_code: Bytes(96),
            code: BTreeMap::new(),
            operation_code: Bytes(24),
            call_code: Bytes(16),
            receive_code: Bytes(32),
        }
    }
}

fn one() -> u32 {
    1
}

fn half_a_microsecond() -> f64 {
    5e-7
}

fn six_tenths() -> f64 {
    0.6
}

fn four_bytes() -> Bytes {
    Bytes(4)
}
