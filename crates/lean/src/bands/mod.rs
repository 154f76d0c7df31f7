//! `bands`: computes the first layers of a network on images in bands of rows, one after the other.
//!
//! Before: the arrays between layers exist as wholes, and the first ones are the largest. After: a loop computes a few rows
//! of all layers at a time. Only the last array of such layers is whole, which is much smaller where windows are strided:
//!
//! ```text
//!   a = s8[1,72,72,48] convolution(x, v)            for i in 0..18:
//!   b = s8[1,36,36,48] convolution(a, w)     =>       a = s8[1,4,72,48] convolution(x[i], v)
//!   c = s8[1,18,18,96] convolution(b, u)              b = s8[1,2,36,48] convolution(kept + a, w)
//!                                                     c[i] = convolution(kept + b, u)
//! ```
//!
//! Windows need rows of the previous band. The loop keeps these rows in its state, which costs no operation (streaming,
//! as in StreamNet), or computes them again, which needs no state (patches, as in MCUNetV2), or keeps narrow rows and
//! computes wide ones from them again. Separate bands before and after the loop compute the first and the last rows, so
//! the program computes no elements outside of the arrays, and every number is the same.
//!
//! - [`reach`] says which rows of its operands a band of each operation reads.
//! - [`segment`] finds the parts of the program that can run in bands.
//! - [`ranges`] says which rows each band computes, and which it keeps.
//! - [`choose`] divides the program into parts in bands and parts as they are.
//! - [`build`] writes the bands.
//!
//! Left alone: scheduled modules, modules for several partitions, computations other than the entry, and operations that
//! mix rows other than by windows. Requires inlined calls.

mod build;
mod choose;
mod ranges;
mod reach;
mod segment;

use memplan_ir::{Module, Names};
use memplan_memory::Bytes;
use memplan_rewriter::{Context, DCE, Outcome, Pass, PassError, Report};

pub use ranges::Halo;

/// The pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bands {
    /// The share of the bytes of the program as it is that it may still need: of the ways to get there, the one is taken that
    /// takes the least time. If there is none, the one of fewest bytes.
    pub share: f64,
    /// The most kernels in the text of the bands of one part, with those of the loop's body: each is code.
    pub max_written: usize,
    /// The most instructions in one part.
    pub max_members: usize,
}

/// The pass that needs the fewest bytes.
pub const BANDS: Bands = Bands { share: 0.0, max_written: 128, max_members: 1024 };

impl Default for Bands {
    fn default() -> Bands {
        BANDS
    }
}

/// What runs in bands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BandsReport {
    /// The parts, in the order of the program.
    pub parts: Vec<BandedPart>,
    /// An estimate of the bytes before.
    pub before: Bytes,
    /// An estimate of the bytes after.
    pub after: Bytes,
}

/// Layers that run in bands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BandedPart {
    /// The array that they begin with; `None`: the arguments of the program.
    pub from: Option<Box<str>>,
    /// The array that they end with.
    pub to: Box<str>,
    /// Rows of that in each band.
    pub rows: i64,
    /// The number of bands.
    pub bands: i64,
    /// How many of them are steps of a loop; the others are written out.
    pub in_loop: i64,
    /// What is done about rows that two bands need.
    pub halo: Halo,
}

impl Pass for Bands {
    fn name(&self) -> &'static str {
        "bands"
    }

    fn description(&self) -> &'static str {
        "Compute the layers of a network on images in bands of rows, so that large arrays never exist as wholes"
    }

    fn run(&self, module: &mut Module, context: &Context<'_>) -> Result<Outcome, PassError> {
        let is_spread = module.config.num_partitions.is_some_and(|n| n > 1);
        if is_spread || module.is_scheduled || has_bands(module) {
            return Ok(Outcome::default());
        }
        let program = segment::Program::new(module);
        let endings = program.endings(self.max_members);
        let Some((choices, [before, after])) = choose::choose(&program, context.target, &endings, self)
        else {
            return Ok(Outcome::default());
        };
        let name = |id| module.instructions[id].name.clone();
        let parts = choices.iter().map(|choice| BandedPart {
            from: choice.from.map(name),
            to: name(choice.to),
            rows: choice.rows,
            bands: choice.ranges.bands.end - choice.ranges.bands.start,
            in_loop: choice.ranges.in_loop.end - choice.ranges.in_loop.start,
            halo: choice.halo,
        });
        let report = BandsReport { parts: parts.collect(), before, after };
        let mut names = Names::new(module);
        build::build(module, &choices, &mut names);
        module.compact();
        DCE.run(module, context)?;
        Ok(Outcome { changed: true, report: Some(Report::new(report)) })
    }
}

/// Whether the entry has bands.
fn has_bands(module: &Module) -> bool {
    let entry = module.entry_computation();
    entry
        .instructions
        .iter()
        .any(|&id| module.instructions[id].frontend_attribute(build::ATTRIBUTE).is_some())
}
