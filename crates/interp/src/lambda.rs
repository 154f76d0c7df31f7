//! The small computations of reductions, scatters, sorts and maps: functions of a few scalars, evaluated for many lanes
//! at once.

use std::rc::Rc;

use memplan_ir::scopes::Name;
use memplan_ir::{ComputationId, ElementType, Module};

use crate::Error;
use crate::compile::SCRATCH_ALIGNMENT;
use crate::element::{At, Class, Lanes, load, store};
use crate::frame::Frame;
use crate::lower::{Leaf, Lower};
use crate::memory::{Memory, Place};
use crate::program::{KernelCode, Level, Machine, Reg};
use crate::pull::array_shape;

/// A computation of scalars, lowered.
pub(crate) struct Lambda {
    program: KernelCode,
    pub(crate) parameters: Vec<Reg>,
    pub(crate) results: Vec<Reg>,
    /// Element type of each parameter.
    pub(crate) types: Vec<ElementType>,
    /// The frame that runs if there is no program.
    frame: Option<FramePerLane>,
}

/// A computation without a rule per element, for it has loops, branches or arrays: it runs once for every lane.
struct FramePerLane {
    frame: Rc<Frame>,
    result_types: Vec<ElementType>,
}

impl Lambda {
    pub(crate) fn new(module: &Module, computation: ComputationId) -> Result<Lambda, Error> {
        match Lambda::lowered(module, computation) {
            Err(Error::Unsupported { .. }) => Lambda::framed(module, computation),
            lambda => lambda,
        }
    }

    fn lowered(module: &Module, computation: ComputationId) -> Result<Lambda, Error> {
        let mut lower = Lower::new(module);
        let callee = &module.computations[computation];
        let types = types(module, computation)?;
        let parameters: Vec<Reg> =
            types.iter().map(|&t| lower.register(Class::of(t), Level::Batch)).collect();
        let scope = lower.scopes.open(parameters.iter().map(|&r| vec![Leaf::Element(r)]).collect());
        let at = lower.scalar_domain();
        let results = (0..module.shape(callee.root).leaf_count())
            .map(|leaf| lower.value(Name { scope, instruction: callee.root, leaf }, at))
            .collect::<Result<_, Error>>()?;
        Ok(Lambda { program: lower.program, parameters, results, types, frame: None })
    }

    fn framed(module: &Module, computation: ComputationId) -> Result<Lambda, Error> {
        let frame = Frame::new(module, computation)?;
        let types = types(module, computation)?;
        let root = module.computations[computation].root;
        let result_types: Vec<ElementType> = (module.shape(root).leaves().iter())
            .map(|(_, shape)| shape.as_array().map(|array| array.element_type))
            .collect::<Option<_>>()
            .ok_or_else(|| Error::invalid(module, root, "numbers are expected here"))?;
        let mut lower = Lower::new(module);
        let mut registers = |types: &[ElementType]| -> Vec<Reg> {
            types.iter().map(|&t| lower.register(Class::of(t), Level::Batch)).collect()
        };
        let (parameters, results) = (registers(&types), registers(&result_types));
        let frame = Some(FramePerLane { frame, result_types });
        Ok(Lambda { program: lower.program, parameters, results, types, frame })
    }

    /// Bytes of working memory that a run needs.
    pub(crate) fn scratch_bytes(&self) -> usize {
        self.frame.as_ref().map_or(0, |f| {
            let scalars = (self.types.len() + f.result_types.len()) * SCRATCH_ALIGNMENT;
            f.frame.scratch_bytes().saturating_add(scalars)
        })
    }

    /// Registers to run in.
    pub(crate) fn machine(&self) -> Result<Machine, Error> {
        Machine::new(&self.program, &Memory::default(), &[])
    }

    /// Runs for the first `n` lanes of the parameters, within `scratch`.
    pub(crate) fn run(
        &self,
        machine: &mut Machine,
        n: usize,
        memory: &mut Memory,
        scratch: Place,
    ) -> Result<(), Error> {
        machine.n = n;
        let Some(per_lane) = &self.frame else {
            return machine.run(&self.program, Level::Batch, &Memory::default(), &[]);
        };
        let mut used = 0;
        let mut scalar = |t: &ElementType| {
            used += SCRATCH_ALIGNMENT;
            scratch.part(used - SCRATCH_ALIGNMENT, t.byte_width() as usize)
        };
        let parameters: Vec<Place> = self.types.iter().map(&mut scalar).collect();
        let results: Vec<Place> = per_lane.result_types.iter().map(&mut scalar).collect();
        let own = scratch.part(used, per_lane.frame.scratch_bytes());
        for lane in 0..n {
            for ((&t, &place), &register) in self.types.iter().zip(&parameters).zip(&self.parameters) {
                let mut one = Lanes::new(Class::of(t), 1);
                one.copy_from(0, &machine.registers[register as usize], lane, 1);
                store(t, &one, 1, At::Consecutive(0), memory.bytes_mut(place));
            }
            per_lane.frame.run(memory, &parameters, &results, own)?;
            for ((&t, &place), &register) in per_lane.result_types.iter().zip(&results).zip(&self.results) {
                let mut one = Lanes::new(Class::of(t), 1);
                load(t, memory.bytes(place), At::Consecutive(0), 1, &mut one);
                machine.registers[register as usize].copy_from(lane, &one, 0, 1);
            }
        }
        Ok(())
    }

    /// Copies `n` lanes into a parameter.
    pub(crate) fn set(&self, machine: &mut Machine, parameter: usize, from: &Lanes, k: usize, n: usize) {
        machine.registers[self.parameters[parameter] as usize].copy_from(0, from, k, n);
    }

    /// The lanes of a result.
    pub(crate) fn result<'a>(&self, machine: &'a Machine, k: usize) -> &'a Lanes {
        &machine.registers[self.results[k] as usize]
    }
}

/// Element type of each parameter.
fn types(module: &Module, computation: ComputationId) -> Result<Vec<ElementType>, Error> {
    let parameters = module.computations[computation].parameters.iter();
    parameters.map(|&parameter| Ok(array_shape(module, parameter)?.element_type)).collect()
}
