//! The program on which every verb works: if the program is sharded over several devices, the program of one of them.

use memplan_analysis::operation_or_name;
use memplan_ir::{ArrayShape, Module, Shape};
use memplan_memory::{Bytes, Target, parallel};
use memplan_passes::{Context, OfOneDevice, PassError, partition};

/// The program of one device.
#[derive(Clone, Debug)]
pub struct OneDevice {
    /// The program, with its collectives.
    pub module: Module,
    /// The devices that run it.
    pub devices: Devices,
}

/// The devices that run a program, and what each of them has.
#[derive(Clone, Debug, Default)]
pub struct Devices {
    /// How many run the program, if it is more than one.
    pub count: Option<u64>,
    /// Bytes of the arguments on one device, if the module is still the program of all devices: its shardings are not
    /// understood.
    pub of_whole: Option<Bytes>,
    /// How often each dimension of each parameter is cut, by leaves of the parameters; empty if nothing is.
    pub shards: Vec<Vec<i64>>,
    /// Arguments that could be cut further, the largest first.
    pub replicated: Vec<Replicated>,
}

/// An argument of which several devices hold equal parts.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Replicated {
    /// Its name.
    pub argument: String,
    /// Its shape on one device, without its layout.
    pub shape: String,
    /// Its bytes, on every device.
    pub bytes: Bytes,
    /// How many devices hold the same part.
    pub pieces: u64,
    /// The largest dimension that could be cut as often: its number and its extent on one device.
    pub divides: Option<(usize, i64)>,
}

impl Replicated {
    /// The bytes that it would take on each device, if it were cut.
    pub fn cut(&self) -> Bytes {
        Bytes(self.bytes.0.div_ceil(self.pieces))
    }
}

impl OneDevice {
    /// The program of one device, of a program that no compiler has partitioned yet; any other one as it is. Close to
    /// linear.
    ///
    /// # Errors
    /// Calls could not be inlined.
    pub fn of(module: Module, target: &Target) -> Result<OneDevice, PassError> {
        if module.is_scheduled {
            let devices = Devices { count: count(&module), ..Devices::default() };
            return Ok(OneDevice { module, devices });
        }
        if let Some(of_one) = partition(&module, &Context { target })? {
            let devices = Devices::of_partitioned(&of_one, target);
            return Ok(OneDevice { module: of_one.module, devices });
        }
        let of_whole = parallel::arguments_per_device(&module, target);
        // Shardings that are not understood may be about parts of the program only.
        let is_whole = of_whole.is_some() || parallel::pieces(&module) > 1;
        let count = count(&module).filter(|_| !is_whole);
        Ok(OneDevice { module, devices: Devices { count, of_whole, ..Devices::default() } })
    }
}

impl Devices {
    fn of_partitioned(of_one: &OfOneDevice, target: &Target) -> Devices {
        let module = &of_one.module;
        let entry = module.entry_computation();
        let leaves = entry.parameters.iter().flat_map(|&parameter| {
            module.shape(parameter).leaves().into_iter().map(move |(_, leaf)| (parameter, leaf.clone()))
        });
        let (mut shards, mut replicated) = (Vec::new(), Vec::new());
        for ((parameter, leaf), spec) in leaves.zip(&of_one.parameters) {
            let Some(array) = leaf.as_array() else { continue };
            let cut = spec.shards(array.rank());
            let pieces = of_one.devices / cut.iter().product::<i64>().max(1).unsigned_abs();
            shards.push(cut.to_vec());
            if pieces <= 1 || array.rank() == 0 {
                continue;
            }
            let can_be_cut =
                |(_, extent): &(usize, i64)| u64::try_from(*extent).is_ok_and(|extent| extent % pieces == 0);
            let dimensions = array.dimensions.iter().copied().enumerate();
            let bare = ArrayShape { layout: None, ..array.clone() };
            replicated.push(Replicated {
                argument: operation_or_name(module, parameter).to_string(),
                shape: memplan_hlo::shape_text(&Shape::Array(bare)),
                bytes: target.size_of(&leaf),
                pieces,
                divides: dimensions
                    .filter(can_be_cut)
                    .max_by_key(|&(d, extent)| (extent, std::cmp::Reverse(d))),
            });
        }
        replicated.sort_by_key(|argument| std::cmp::Reverse(argument.bytes));
        Devices { count: Some(of_one.devices), of_whole: None, shards, replicated }
    }

    /// The arguments that several devices hold alike and that matter in a program of these bytes.
    pub fn worth_cutting(&self, total: Bytes) -> impl Iterator<Item = &Replicated> {
        /// Arguments of one byte in this many are named.
        const NOTEWORTHY: u64 = 100;
        self.replicated.iter().filter(move |argument| argument.bytes.0 > total.0 / NOTEWORTHY)
    }
}

/// How many devices run a module that is the program of one.
fn count(module: &Module) -> Option<u64> {
    let [replicas, partitions] = module.config.replicas_and_partitions();
    let devices = replicas.saturating_mul(partitions).unsigned_abs();
    (devices > 1).then_some(devices)
}
