//! Flags for the memory pool of a GPU process, and the paragraph about a program in that pool.

use clap::Args;
use memplan::memory::{Bytes, Family, MemoryPlan, Target, did_you_mean};
use memplan::pool::process::{AllocatorKind, MemoryFraction, Placement, Settings, place};

use crate::failure::Failure;
use crate::needless::{given, refuse};
use crate::options::parse_bytes;
use crate::screen::Screen;

#[derive(Args)]
pub(crate) struct PoolOptions {
    /// On GPUs: the allocator of the process, as XLA_PYTHON_CLIENT_ALLOCATOR: default, platform, bfc, cuda_async or vmm
    #[arg(long, value_name = "KIND", value_parser = parse_allocator)]
    allocator: Option<AllocatorKind>,
    /// On GPUs: share of the memory that the process may use, as XLA_CLIENT_MEM_FRACTION (default 0.75)
    #[arg(long, value_name = "FRACTION", allow_negative_numbers = true)]
    memory_fraction: Option<MemoryFraction>,
    /// On GPUs: allocate memory when it is needed instead of at the start, as XLA_PYTHON_CLIENT_PREALLOCATE=false
    #[arg(long)]
    no_preallocate: bool,
    /// On GPUs: reserve this much for collective memory at the start
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, allow_negative_numbers = true)]
    collective_memory: Option<Bytes>,
}

impl PoolOptions {
    /// Rejects the flags for machines whose processes have no pool of device memory.
    pub(crate) fn check(&self, target: &Target) -> Result<(), Failure> {
        if matches!(target.family, Family::Gpu | Family::Other) {
            return Ok(());
        }
        let because = format!("processes on {} have no memory pool, unlike those on GPUs", target.name);
        refuse(&self.given(), &because)
    }

    /// The flags that were given.
    pub(crate) fn given(&self) -> Vec<&'static str> {
        given([
            ("--allocator", self.allocator.is_some()),
            ("--memory-fraction", self.memory_fraction.is_some()),
            ("--no-preallocate", self.no_preallocate),
            ("--collective-memory", self.collective_memory.is_some()),
        ])
    }

    /// The plan inside a process: on GPUs, or if the flags ask for it.
    pub(crate) fn placement(&self, target: &Target, plan: &MemoryPlan) -> Option<Placement> {
        place(target, plan, &self.settings(target)?)
    }

    /// The memory settings of the process: on GPUs, or if the flags ask for it.
    pub(crate) fn settings(&self, target: &Target) -> Option<Settings> {
        let is_wanted = target.family == Family::Gpu || self.is_asked();
        is_wanted.then(|| Settings {
            allocator: self.allocator.unwrap_or_default(),
            fraction: self.memory_fraction.unwrap_or_default(),
            preallocate: !self.no_preallocate,
            collective: self.collective_memory.unwrap_or_default(),
        })
    }

    /// Fails if the program does not fit into the process. With an explicit limit, this is checked only if flags
    /// describe the process.
    pub(crate) fn verdict(&self, placement: Option<&Placement>, limit: Option<Bytes>) -> Result<(), Failure> {
        match placement {
            Some(Placement { shortage: Some(shortage), .. }) if self.is_asked() || limit.is_none() => {
                Err(Failure::DoesNotFit(format!("the program does not fit into the process: {shortage}")))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn is_asked(&self) -> bool {
        !self.given().is_empty()
    }
}

fn parse_allocator(text: &str) -> Result<AllocatorKind, String> {
    let names = AllocatorKind::names();
    text.parse().map_err(|_| {
        let meant = did_you_mean(text, names.iter().copied());
        format!("there is no allocator `{text}`{meant}\n  there are {}", names.join(", "))
    })
}

/// Describes the pool of a process that runs the program, as a paragraph.
pub(crate) fn paragraph(placement: &Placement, screen: Screen) -> String {
    screen.wrap(&format!("\n{placement}\n"))
}
