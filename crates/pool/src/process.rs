//! A planned program in a GPU process: the memory that the process reserves, the program's part of it, the rest, and
//! whether it fits, as one readable paragraph.
//!
//! XLA's clients allocate three quarters of the device's memory when they start, and serve everything from there.
//! [`place`] allocates the parts of a plan in that pool one by one, as the runtime would, by the rules of
//! [`bfc`](crate::bfc).

use std::fmt;
use std::str::FromStr;

use memplan_memory::{Alignment, Allocation, AllocationKind, Bytes, MemoryPlan, MemorySpaceId, Target};

use crate::bfc::{Bfc, Options};
use crate::{Allocator as _, End, GRANULE, Request};

/// Collective memory, as layouts number it.
const COLLECTIVE: MemorySpaceId = MemorySpaceId(1);

/// Memory of the device too, where temporaries are apart from everything else.
const TEMP: MemorySpaceId = MemorySpaceId(2);

/// Pinned host memory.
const HOST: MemorySpaceId = MemorySpaceId(5);

/// The unit of mapped virtual memory, if the driver's interface to it is used.
const PAGE: u64 = 2 << 20;

/// The allocator of a process.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, strum::Display, strum::EnumString, strum::VariantNames,
)]
#[strum(serialize_all = "snake_case")]
pub enum AllocatorKind {
    /// The client's default: [`AllocatorKind::Bfc`].
    #[default]
    Default,
    /// The platform, buffer by buffer.
    Platform,
    /// A pool with best fit and coalescing.
    Bfc,
    /// The pool of CUDA's driver.
    CudaAsync,
    /// Virtual addresses of our own over physical pages.
    Vmm,
}

impl AllocatorKind {
    /// The names of all kinds, as they are parsed.
    pub fn names() -> &'static [&'static str] {
        <AllocatorKind as strum::VariantNames>::VARIANTS
    }
}

/// The share of a device's memory that a pool may have, above 0 and at most 1: the client's `XLA_CLIENT_MEM_FRACTION`,
/// without the shares above 1 that it takes where memory is unified with the host's. The default is 0.75.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryFraction(f64);

/// A text that is no [`MemoryFraction`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a share of a device's memory; expected a number above 0 and at most 1")]
pub struct NotAFraction(pub String);

impl MemoryFraction {
    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }

    /// The share of a number of bytes, rounded down.
    pub fn of(self, bytes: Bytes) -> Bytes {
        Bytes((bytes.0 as f64 * self.0) as u64)
    }
}

impl Default for MemoryFraction {
    fn default() -> MemoryFraction {
        MemoryFraction(0.75)
    }
}

impl fmt::Display for MemoryFraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for MemoryFraction {
    type Err = NotAFraction;

    fn from_str(text: &str) -> Result<MemoryFraction, NotAFraction> {
        let share = text.trim().parse().ok().filter(|&share| share > 0.0 && share <= 1.0);
        share.map(MemoryFraction).ok_or_else(|| NotAFraction(text.to_string()))
    }
}

/// How a process gets its memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// From whom.
    pub allocator: AllocatorKind,
    /// How much of it a pool may have.
    pub fraction: MemoryFraction,
    /// Whether a pool takes that at the start.
    pub preallocate: bool,
    /// The memory reserved for collectives at the start; 0: allocated on demand. The driver maps multiples of 512 MiB,
    /// so other sizes waste some.
    pub collective: Bytes,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            allocator: AllocatorKind::Default,
            fraction: MemoryFraction::default(),
            preallocate: true,
            collective: Bytes::ZERO,
        }
    }
}

/// A program in a process. It displays as a paragraph.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// How the process gets its memory.
    pub settings: Settings,
    /// Bytes of the device.
    pub device: Bytes,
    /// The memory that the process reserves when it starts.
    pub at_start: Bytes,
    /// The maximal size of its pool.
    pub limit: Bytes,
    /// Bytes of the program in device memory.
    pub program: Bytes,
    /// How many allocations those are.
    pub allocations: usize,
    /// Their bytes in the pool, including rounding and splitting.
    pub taken: Bytes,
    /// The bytes of the process with the program in it, including collective memory.
    pub held: Bytes,
    /// The largest free piece then, of the memory that the pool holds or may still allocate.
    pub largest_free: Bytes,
    /// Collective memory of the program, in whole pages.
    pub collective: Bytes,
    /// Pinned host memory of the program.
    pub host: Bytes,
    /// Why it does not fit; `None` when it does.
    pub shortage: Option<Shortage>,
}

/// Why a program does not fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shortage {
    /// The kind of allocation that does not fit.
    pub what: &'static str,
    /// Its size.
    pub bytes: Bytes,
    /// The largest piece there was for it.
    pub largest_free: Bytes,
    /// The least share of the device, in hundredths rounded up, with which a pool takes everything; `None`: the device
    /// is too small.
    pub enough: Option<MemoryFraction>,
}

impl Settings {
    /// The memory of a device for the programs of a process: the pool's share, or all of it without a pool.
    pub fn limit(&self, device: Bytes) -> Bytes {
        match self.allocator {
            AllocatorKind::Default | AllocatorKind::Bfc | AllocatorKind::CudaAsync => {
                self.fraction.of(device)
            }
            AllocatorKind::Platform | AllocatorKind::Vmm => device,
        }
    }
}

/// Puts a plan into a process: `None` for targets without a capacity.
///
/// Arguments come first, then constants, results and the arena, each in the order of the plan. Results in donated
/// arguments take nothing.
pub fn place(target: &Target, plan: &MemoryPlan, settings: &Settings) -> Option<Placement> {
    let device = target.spaces.first()?.capacity?;
    let granule = |space| target.space(space).map_or(Alignment::ONE, |space| space.granule);
    let in_space = |space| plan.allocations.values().filter(move |a| a.space == space);
    let paged = |a: &Allocation| a.size.align_up(granule(a.space));
    let sum = |sizes: &mut dyn Iterator<Item = Bytes>| sizes.fold(Bytes::ZERO, Bytes::saturating_add);
    let collective = sum(&mut in_space(COLLECTIVE).map(paged));
    let main = in_space(MemorySpaceId::MAIN).chain(in_space(TEMP));
    let mut main: Vec<&Allocation> = main.filter(|a| a.size > Bytes::ZERO).collect();
    main.sort_by_key(|allocation| rank(&allocation.kind));

    let is_pool = matches!(settings.allocator, AllocatorKind::Default | AllocatorKind::Bfc);
    let has_share = is_pool || settings.allocator == AllocatorKind::CudaAsync;
    // Collective memory is mapped beside the pool.
    let apart = collective.max(settings.collective);
    let left = device.saturating_sub(apart);
    let limit = settings.limit(device).min(left);
    let options = Options {
        device: left,
        ..if is_pool && settings.preallocate { Options::preallocated(limit) } else { Options::growing(limit) }
    };
    let mut server = Server::new(settings.allocator, options);
    let failed = main.iter().find(|allocation| !server.serve(allocation)).copied();
    let (taken, free) = (server.taken(), server.largest_free());
    let shortage = failed.map(|allocation| Shortage {
        what: name(&allocation.kind),
        bytes: allocation.size,
        largest_free: free,
        enough: if has_share { enough(&main, left, device, settings.allocator) } else { None },
    });
    let at_start = match settings.preallocate && has_share {
        true => limit.saturating_add(settings.collective),
        false => settings.collective,
    };
    Some(Placement {
        settings: *settings,
        device,
        at_start,
        limit,
        program: sum(&mut main.iter().map(|a| a.size)),
        allocations: main.len(),
        taken,
        held: server
            .held()
            .max(if settings.preallocate && has_share { limit } else { Bytes::ZERO })
            .saturating_add(apart),
        largest_free: free,
        collective,
        host: sum(&mut in_space(HOST).map(paged)),
        shortage,
    })
}

/// The order in which a process asks for things.
fn rank(kind: &AllocationKind) -> u8 {
    match kind {
        AllocationKind::Argument { .. } => 0,
        AllocationKind::Constant => 1,
        AllocationKind::Output => 2,
        AllocationKind::Temp => 3,
    }
}

fn name(kind: &AllocationKind) -> &'static str {
    match kind {
        AllocationKind::Argument { .. } => "an argument",
        AllocationKind::Constant => "a constant",
        AllocationKind::Output => "a result",
        AllocationKind::Temp => "the arena",
    }
}

/// The least hundredths of a device with which everything has a place.
fn enough(
    main: &[&Allocation],
    left: Bytes,
    device: Bytes,
    allocator: AllocatorKind,
) -> Option<MemoryFraction> {
    let share = |hundredths: u64| MemoryFraction(hundredths as f64 / 100.0);
    let fits = |&hundredths: &u64| {
        let limit = share(hundredths).of(device);
        let mut server = Server::new(allocator, Options::preallocated(limit));
        limit <= left && main.iter().all(|allocation| server.serve(allocation))
    };
    (1..=100).find(fits).map(share)
}

/// The simulated pool, or a sum of rounded sizes for allocators with unknown rules.
enum Server {
    Pool { pool: Box<Bfc>, limit: Bytes },
    Sum { unit: Alignment, limit: Bytes, taken: Bytes },
}

impl Server {
    fn new(allocator: AllocatorKind, options: Options) -> Server {
        let unit = |bytes| Alignment::new(bytes).expect("pages and granules are powers of two");
        let limit = options.limit;
        match allocator {
            AllocatorKind::Default | AllocatorKind::Bfc => {
                Server::Pool { pool: Box::new(Bfc::new(options)), limit }
            }
            AllocatorKind::Vmm => Server::Sum { unit: unit(PAGE), limit, taken: Bytes::ZERO },
            AllocatorKind::Platform | AllocatorKind::CudaAsync => {
                Server::Sum { unit: unit(GRANULE), limit, taken: Bytes::ZERO }
            }
        }
    }

    fn serve(&mut self, allocation: &Allocation) -> bool {
        match self {
            Server::Pool { pool, .. } => {
                let request = Request::new(allocation.size).aligned(allocation.alignment).at(End::Upper);
                pool.allocate(request).is_some()
            }
            Server::Sum { unit, limit, taken } => {
                let sum = taken.saturating_add(allocation.size.align_up(*unit));
                let fits = sum <= *limit;
                if fits {
                    *taken = sum;
                }
                fits
            }
        }
    }

    fn taken(&self) -> Bytes {
        match self {
            Server::Pool { pool, .. } => pool.sample().in_use,
            Server::Sum { taken, .. } => *taken,
        }
    }

    fn held(&self) -> Bytes {
        match self {
            Server::Pool { pool, .. } => pool.sample().reserved,
            Server::Sum { taken, .. } => *taken,
        }
    }

    fn largest_free(&self) -> Bytes {
        match self {
            Server::Pool { pool, limit } => {
                let sample = pool.sample();
                sample.largest_free.max(limit.saturating_sub(sample.reserved))
            }
            Server::Sum { limit, taken, .. } => limit.saturating_sub(*taken),
        }
    }
}

impl Placement {
    /// Describes the process before the program is in it.
    fn beginning(&self) -> String {
        let Placement { settings, device, limit, .. } = self;
        let aside = match settings.collective {
            Bytes::ZERO => String::new(),
            collective => format!(" {collective} are set aside for collective memory."),
        };
        let whose = match settings.allocator {
            AllocatorKind::Platform | AllocatorKind::Vmm => {
                let ignored = match settings.fraction == MemoryFraction::default() {
                    true => "",
                    false => " XLA_CLIENT_MEM_FRACTION is for pools and changes nothing.",
                };
                return format!(
                    "The process has no pool: every buffer is allocated from the device, which has {device}, and \
                     freed.{ignored}{aside}"
                );
            }
            AllocatorKind::CudaAsync => "the driver's pool",
            AllocatorKind::Default | AllocatorKind::Bfc => "its pool",
        };
        let how = match settings.preallocate {
            true => format!("When the process starts, {whose} takes {limit}"),
            false => {
                format!("The process starts with nothing, and {whose} grows as it is needed, up to {limit}")
            }
        };
        let left = device.saturating_sub(*limit);
        let fraction = settings.fraction;
        format!(
            "{how} of the device's {device} (XLA_CLIENT_MEM_FRACTION is {fraction}), which leaves {left} to everything \
             else.{aside}"
        )
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.beginning())?;
        let count = match self.allocations {
            1 => "one allocation".to_string(),
            n => format!("{n} allocations"),
        };
        write!(f, " The program needs {} in {count}", self.program)?;
        match self.taken.saturating_sub(self.program) {
            Bytes::ZERO => {}
            _ if self.shortage.is_some() => {}
            extra => write!(f, ", {extra} more with rounding")?,
        }
        write!(f, ".")?;
        if self.collective > Bytes::ZERO {
            write!(f, " {} of collective memory are mapped in addition.", self.collective)?;
        }
        if self.host > Bytes::ZERO {
            write!(f, " {} are pinned on the host.", self.host)?;
        }
        match &self.shortage {
            Some(shortage) => write!(f, " It does NOT fit: {shortage}"),
            None => write!(
                f,
                " It fits: the process holds {} then, and the largest piece left free is {}.",
                self.held, self.largest_free
            ),
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shortage { what, bytes, largest_free, enough } = self;
        write!(f, "for {what} of {bytes}, the largest free piece is {largest_free}.")?;
        match enough {
            Some(share) => write!(f, " A share of {share} would suffice."),
            None => write!(f, " The device is too small."),
        }
    }
}
