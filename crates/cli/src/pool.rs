//! Flags that say how a GPU process gets its memory, and the paragraph that says what a program takes of it.

use clap::Args;
use memplan::memory::{Bytes, Family, MemoryPlan, Target, did_you_mean};
use memplan::pool::process::{AllocatorKind, MemoryFraction, Placement, Settings, place};

use crate::failure::Failure;
use crate::needless::{given, refuse};
use crate::options::parse_bytes;
use crate::screen::Screen;

#[derive(Args)]
pub(crate) struct PoolOptions {
    /// On GPUs: how the process gets its memory, as XLA_PYTHON_CLIENT_ALLOCATOR: default, platform, bfc, cuda_async or vmm
    #[arg(long, value_name = "KIND", value_parser = parse_allocator)]
    allocator: Option<AllocatorKind>,
    /// On GPUs: share of the memory that the process may have, as XLA_CLIENT_MEM_FRACTION (default 0.75)
    #[arg(long, value_name = "FRACTION", allow_negative_numbers = true)]
    memory_fraction: Option<MemoryFraction>,
    /// On GPUs: take memory as it is needed instead of at the start, as XLA_PYTHON_CLIENT_PREALLOCATE=false
    #[arg(long)]
    no_preallocate: bool,
    /// On GPUs: set this much aside for collective memory at the start
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, allow_negative_numbers = true)]
    collective_memory: Option<Bytes>,
}

impl PoolOptions {
    /// Refuses the flags for machines whose processes have no pool of device memory.
    pub(crate) fn check(&self, target: &Target) -> Result<(), Failure> {
        if matches!(target.family, Family::Gpu | Family::Other) {
            return Ok(());
        }
        let because = format!("processes on {} take no pool of memory, as those on GPUs do", target.name);
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

    /// What a plan takes of a process: on GPUs, or wherever the flags ask for it.
    pub(crate) fn placement(&self, target: &Target, plan: &MemoryPlan) -> Option<Placement> {
        place(target, plan, &self.settings(target)?)
    }

    /// How the process gets its memory: on GPUs, or wherever the flags ask for it.
    pub(crate) fn settings(&self, target: &Target) -> Option<Settings> {
        let is_wanted = target.family == Family::Gpu || self.is_asked();
        is_wanted.then(|| Settings {
            allocator: self.allocator.unwrap_or_default(),
            fraction: self.memory_fraction.unwrap_or_default(),
            preallocate: !self.no_preallocate,
            collective: self.collective_memory.unwrap_or_default(),
        })
    }

    /// The failure of a program that does not fit into the process. Where a limit says what there is, only flags that
    /// describe the process make this a question.
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

/// What the pool of a process makes of a program, as a paragraph.
pub(crate) fn paragraph(placement: &Placement, screen: Screen) -> String {
    screen.wrap(&format!("\n{placement}\n"))
}
