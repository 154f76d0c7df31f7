//! Kernel scratch: the bytes of a memory near the cores that a running kernel reserves, for blocks of its operands and
//! results and for values that do not fit into registers.
//!
//! A compiler's actual use is known only after it generated the kernel. A target therefore has a sufficient rule: some
//! bytes for each byte that the kernel may touch, up to a limit.
//!
//! This is the target's rule. Analyses of a module decide which instructions are kernels.

use crate::{Bytes, MemorySpace};

impl MemorySpace {
    /// The reservation of a kernel whose operands and results have this many bytes, in any memory. A kernel without
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
