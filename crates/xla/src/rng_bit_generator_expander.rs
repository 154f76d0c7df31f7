//! `rng-bit-generator-expander`: stores the words of random blocks in memory before they are interleaved.
//!
//! ```text
//!   b = (u64[2], u32[4096]) rng-bit-generator(s)    =>    t = (u64[2], u32[4096], u8[16384]) fusion(s), calls={b, and zeros}
//!                                                         b = (u64[2], u32[4096]) tuple(t#0, t#1)
//! ```
//!
//! XLA's GPU compiler expands each algorithm into operations. One kernel computes the first, second, ... word of every
//! block, each in a separate array, and a second kernel interleaves these arrays (seen on jaxlib 0.12.0.1); together
//! they are as large as the bits. Here they are a result without readers. Left alone: generators inside fusions.
//! *Changed* means that there was a generator outside of fusions.

use memplan_ir::{InstructionId, Module, Op};
use memplan_memory::Bytes;
use memplan_rewriter::PassFn;

use super::workspace;

/// The pass.
pub const RNG_BIT_GENERATOR_EXPANDER: PassFn = PassFn {
    name: "rng-bit-generator-expander",
    description: "store the words of random blocks before they are interleaved, as XLA's GPU compiler does",
    run: |module, _| workspace::give(module, (RNG_BIT_GENERATOR_EXPANDER.name, "rng"), bytes_of_bits),
};

/// The bytes of random bits that an instruction makes.
fn bytes_of_bits(module: &Module, id: InstructionId) -> Option<Bytes> {
    if !matches!(module.instructions[id].op, Op::RngBitGenerator { .. }) {
        return None;
    }
    let bits = module.shape(id).as_tuple()?.last()?.as_array()?;
    bits.dense_bytes().map(Bytes)
}
