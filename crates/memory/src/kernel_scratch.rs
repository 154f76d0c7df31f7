//! Kernel scratch: the bytes of a memory near the cores that a kernel has to itself while it runs, for blocks of what it
//! reads and writes and for what does not fit into registers.
//!
//! What a compiler will take is known only when it has generated the kernel. A target therefore has a rule that is known
//! to be enough: a limit, and below it so many bytes for each byte that the kernel could touch.
//!
//! This is the target's rule. Which instructions are kernels is for analyses of a module to say.

use crate::{Bytes, MemorySpace};

impl MemorySpace {
    /// What a kernel reserves whose operands and results have so many bytes, wherever they are. One that touches no
    /// arrays works on scalars and reserves nothing.
    pub fn scratch_of_kernel(&self, touched: Bytes) -> Bytes {
        match self.kernel_scratch_per_byte {
            _ if touched == Bytes::ZERO => Bytes::ZERO,
            None => self.kernel_scratch,
            Some(factor) => {
                let blocks = Bytes(touched.0.saturating_mul(factor));
                self.kernel_scratch_base.saturating_add(blocks).min(self.kernel_scratch)
            }
        }
    }
}
