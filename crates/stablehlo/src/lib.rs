//! StableHLO in: text, portable bytecode and artifacts of `jax.export`.
//!
//! [`parse`] and [`read`] make the HLO that XLA makes of the same program, with the names and source lines of its
//! operations. What is not supported is refused by name.
//!
//! ```
//! let text = r#"
//! module @jit_f {
//!   func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {
//!     %0 = stablehlo.tanh %arg0 : tensor<4xf32>
//!     return %0 : tensor<4xf32>
//!   }
//! }"#;
//! let module = memplan_stablehlo::parse(text)?;
//! assert_eq!(module.entry_computation().instructions.len(), 2);
//! let error = memplan_stablehlo::parse(&text.replace("tanh", "tanhh")).unwrap_err();
//! assert_eq!(error.message, "operation `stablehlo.tanhh` is not supported");
//! # Ok::<(), memplan_stablehlo::Error>(())
//! ```

mod bytecode;
mod convert;
mod elements;
mod error;
mod export;
pub mod fuzzing;
mod mlir;
mod text;

pub use error::Error;
use memplan_ir::Module;

/// Reads a module from text, in the form that MLIR prints it. It is not verified.
///
/// # Errors
/// The first thing that is wrong or not supported, with its place in the text.
pub fn parse(text: &str) -> Result<Module, Error> {
    convert::module(&text::parse(text)?)
}

/// Reads a module from portable bytecode, or from an artifact of `jax.export` that has it. It is not verified.
///
/// # Errors
/// The first thing that is wrong or not supported.
pub fn read(bytes: &[u8]) -> Result<Module, Error> {
    let bytecode = export::bytecode(bytes).unwrap_or(bytes);
    convert::module(&bytecode::read(bytecode)?)
}

/// Whether bytes are what [`read`] reads: bytecode of MLIR, or an artifact of `jax.export`.
pub fn is_binary(bytes: &[u8]) -> bool {
    bytes.starts_with(bytecode::MAGIC) || export::bytecode(bytes).is_some()
}
