//! A dump of a pool, as the allocator logs it when a request fails.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use memplan_memory::Bytes;

use super::{BINS, Bfc, bin};
use crate::{Allocator, GRANULE};

/// Characters of a [`Bfc::strip`].
const CELLS: u64 = 100;

/// The chunks of one bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BinUsage {
    /// How many there are, free or in use.
    pub chunks: u64,
    /// How many are in use.
    pub chunks_in_use: u64,
    /// Bytes of all.
    pub bytes: Bytes,
    /// Bytes of those in use.
    pub in_use: Bytes,
    /// The requested bytes of chunks in use.
    pub requested: Bytes,
}

impl Bfc {
    /// How the chunks spread over the bins; chunks in use count in the bin of their size.
    pub fn bin_usage(&self) -> [BinUsage; BINS] {
        let mut bins = [BinUsage::default(); BINS];
        for chunk in self.chunks.values() {
            let usage = &mut bins[bin(chunk.size)];
            usage.chunks += 1;
            usage.bytes += Bytes(chunk.size);
            if let Some(requested) = chunk.requested {
                usage.chunks_in_use += 1;
                usage.in_use += Bytes(chunk.size);
                usage.requested += Bytes(requested);
            }
        }
        bins
    }

    /// The pool from its start to its end: a strip of 100 characters, `_` free, `*` requested and in use, `x` in use
    /// only because of rounding. A cell shows the last thing in it, with requested bytes of a chunk first. Empty if the
    /// pool has no region.
    pub fn strip(&self) -> String {
        let mut cells = vec![b'_'; if self.reserved > 0 { CELLS as usize } else { 0 }];
        let cell = |at: u64| (u128::from(at) * u128::from(CELLS) / u128::from(self.reserved)) as usize;
        let mut position = 0;
        for chunk in self.chunks.values() {
            let end = position + chunk.size;
            if let Some(requested) = chunk.requested {
                let used = position + requested.min(chunk.size);
                if used < end {
                    cells[cell(used)..=cell(end - 1)].fill(b'x');
                }
                cells[cell(position)..=cell(used - 1)].fill(b'*');
            }
            position = end;
        }
        String::from_utf8(cells).expect("the strip is ASCII")
    }

    /// The whole pool as text: the bins, the chunks, how many are in use of each size, the sums, the strip. `wanted` is
    /// the request that did not fit, if any.
    pub fn dump(&self, wanted: Option<Bytes>) -> String {
        let mut text = String::new();
        let mut line = |arguments: std::fmt::Arguments<'_>| {
            text.write_fmt(arguments).expect("text takes what is written");
            text.push('\n');
        };
        for (i, usage) in self.bin_usage().iter().enumerate() {
            line(format_args!(
                "bin {i} (from {}): {} chunks, {} in use; {}, {} in use, {} asked for",
                Bytes(GRANULE << i),
                usage.chunks,
                usage.chunks_in_use,
                usage.bytes,
                usage.in_use,
                usage.requested,
            ));
        }
        if let Some(wanted) = wanted {
            let bin = bin(wanted.0);
            line(format_args!("free in bin {bin}, that of the {wanted} asked for:"));
            for (size, address) in self.bin(bin) {
                line(format_args!("  {address:#x} of size {size}"));
            }
        }
        let mut in_use_by_size: BTreeMap<u64, u64> = BTreeMap::new();
        for (&region, &bytes) in &self.regions {
            line(format_args!("region at {region:#x} of size {bytes}"));
            for (address, chunk) in self.chunks.range(region..region + bytes) {
                let state = if chunk.requested.is_some() { "in use" } else { "free  " };
                line(format_args!("  {state} at {address:#x} of size {}", chunk.size));
                if chunk.requested.is_some() {
                    *in_use_by_size.entry(chunk.size).or_default() += 1;
                }
            }
        }
        for (size, count) in in_use_by_size {
            line(format_args!("{count} in use of size {size}, together {}", Bytes(count * size)));
        }
        let sample = self.sample();
        line(format_args!(
            "{} in the pool of at most {}; {} in use, {} asked for; {} free, {} in one piece",
            sample.reserved,
            self.options.limit,
            sample.in_use,
            sample.requested,
            sample.free(),
            sample.largest_free,
        ));
        line(format_args!("[{}]", self.strip()));
        text
    }
}
