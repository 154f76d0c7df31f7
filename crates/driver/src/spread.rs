//! The share of one device in a program whose values are sharded over several devices, before the program is partitioned.

use crate::estimate::{EstimateError, Expected, kind_of, passes_of};
use crate::{Known, Price};
use memplan_ir as ir;
use memplan_ir::{Module, ProgramShape};
use memplan_memory as memory;
use memplan_memory::{ByteRange, Bytes, Compiler, Target};
use memplan_passes as passes;
use memplan_passes::{Context, OfOneDevice, PassError, Pipeline};

/// What is known of one device's share in a program.
pub(crate) enum Share {
    /// Its program.
    Partitioned(Box<OfOneDevice>),
    /// How the whole is divided, for a program that is spread over several devices in ways that no program of one is
    /// made of. Arguments are divided by their shardings, and all else as finely as the most finely sharded array.
    Whole(Option<Spread>),
}

impl Share {
    pub(crate) fn of(module: &Module, machine: &Target) -> Result<Share, PassError> {
        let of_one = passes::partition(module, &Context { target: machine })?;
        Ok(match of_one {
            Some(of_one) => Share::Partitioned(Box::new(of_one)),
            None => Share::Whole(Spread::new(module, machine)),
        })
    }
}

/// How a program is spread over devices.
pub(crate) struct Spread {
    /// Bytes of the arguments on one device, if arguments are sharded.
    arguments: Option<Bytes>,
    /// One device computes one part in this many.
    pieces: u64,
}

impl Spread {
    pub(crate) fn new(module: &Module, target: &Target) -> Option<Spread> {
        let pieces = memory::parallel::pieces(module);
        let arguments = memory::parallel::arguments_per_device(module, target);
        (pieces > 1).then_some(Spread { arguments, pieces })
    }

    /// The share of one device in the needs of all.
    fn of_one_device(&self, all: Price, arguments: Bytes) -> Price {
        let rest = all.total.saturating_sub(arguments);
        let pieces = self.pieces as f64;
        Price {
            total: self.arguments.unwrap_or(arguments).saturating_add(Bytes(rest.0.div_ceil(self.pieces))),
            seconds: all.seconds / pieces,
            operations: all.operations / pieces,
        }
    }
}

/// What a compiler needs for a program by an estimate, on one device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimated {
    /// Bytes and time.
    pub price: Price,
    /// The temporaries among the bytes.
    pub temp: Bytes,
    /// Bytes in the host's memory, which are not among the others.
    pub host: Bytes,
    /// Between which bytes the compiler's own figure falls for four programs of five; `None` where nobody measured.
    pub interval: Option<ByteRange>,
}

impl Estimated {
    /// The most bytes that are to be expected.
    pub fn high(&self) -> Bytes {
        self.interval.map_or(self.price.total, |interval| interval.high)
    }

    /// The fewest bytes that are to be expected.
    pub fn low(&self) -> Bytes {
        self.interval.map_or(self.price.total, |interval| interval.low)
    }
}

/// Estimates of one compiler for modules on one machine: each module is estimated once.
pub struct Prices<'a> {
    pub(crate) compiler: &'a Compiler,
    pub(crate) target: &'a Target,
    known: Known<ModuleKey, Estimated>,
}

/// Tells modules apart by everything except notes, and by the memory spaces of arguments and results.
#[derive(PartialEq)]
pub struct ModuleKey {
    fingerprint: u64,
    interface: Option<ProgramShape>,
}

impl ModuleKey {
    /// The key of a module. Linear in it.
    pub fn new(module: &Module) -> ModuleKey {
        let interface = module.config.entry_computation_layout.clone();
        ModuleKey { fingerprint: ir::fingerprint(module), interface }
    }
}

impl<'a> Prices<'a> {
    /// No module is known yet.
    pub fn new(compiler: &'a Compiler, target: &'a Target) -> Prices<'a> {
        Prices { compiler, target, known: Known::default() }
    }

    /// The estimate for a module, on one of the devices that its shardings name.
    ///
    /// # Errors
    /// See [`EstimateError`].
    pub fn of(&self, module: &Module) -> Result<Price, EstimateError> {
        let &Prices { compiler, target, .. } = self;
        let estimated = self.known_or(ModuleKey::new(module), || {
            ir::verify(module).map_err(EstimateError::Invalid)?;
            let machine = compiler.on(target);
            let (module, spread) = match Share::of(module, &machine)? {
                Share::Whole(spread) => (module.clone(), spread),
                Share::Partitioned(of_one) => (of_one.module, None),
            };
            price_on(module, compiler, &passes_of(compiler)?, &machine, spread.as_ref())
        })?;
        Ok(estimated.price)
    }

    /// The estimate for a module, made as given where it is unknown.
    pub(crate) fn known_or(
        &self,
        key: ModuleKey,
        find: impl FnOnce() -> Result<Estimated, EstimateError>,
    ) -> Result<Estimated, EstimateError> {
        self.known.of(key, find)
    }
}

/// The estimate of a compiler for a valid module, on a machine as it sees it. It runs these [passes](passes_of).
pub(crate) fn price_on(
    module: Module,
    compiler: &Compiler,
    of_compiler: &Pipeline,
    machine: &Target,
    spread: Option<&Spread>,
) -> Result<Estimated, EstimateError> {
    let kind = kind_of(&module);
    let found = Expected::new(module, compiler, of_compiler, machine)?;
    let operations = found.run.matrix_operations + found.run.vector_operations;
    let all = Price { total: found.total(), seconds: found.run.seconds, operations };
    let price = spread.map_or(all, |spread| spread.of_one_device(all, found.totals.arguments));
    let temp = found.totals.temp.min(price.total);
    let host = found.host();
    Ok(Estimated { price, temp, host, interval: compiler.interval(kind, price.total, temp) })
}
