//! The small computations that reductions, scatters, sorts and maps call: functions of a few scalars, evaluated for
//! many lanes at once.

use memplan_ir::{ComputationId, ElementType, Module};

use crate::Error;
use crate::element::{Class, Lanes};
use crate::lower::{Leaf, Lower, Name, leaf_count};
use crate::memory::Memory;
use crate::program::{Level, Machine, Program, Reg};
use crate::pull::array_shape;

/// A computation of scalars, lowered.
pub(crate) struct Lambda {
    program: Program,
    pub(crate) parameters: Vec<Reg>,
    pub(crate) results: Vec<Reg>,
    /// Element type of each parameter.
    pub(crate) types: Vec<ElementType>,
}

impl Lambda {
    pub(crate) fn new(module: &Module, computation: ComputationId) -> Result<Lambda, Error> {
        let mut lower = Lower::new(module);
        let callee = &module.computations[computation];
        let mut types = Vec::new();
        let mut parameters = Vec::new();
        for &parameter in &callee.parameters {
            let t = array_shape(module, parameter)?.element_type;
            types.push(t);
            parameters.push(lower.register(Class::of(t), Level::Batch));
        }
        let scope = lower.scope(parameters.iter().map(|&r| vec![Leaf::Reg(r)]).collect());
        let at = lower.scalar_domain();
        let results = (0..leaf_count(module.shape(callee.root)))
            .map(|leaf| lower.value(Name { scope, instruction: callee.root, leaf }, at))
            .collect::<Result<_, Error>>()?;
        Ok(Lambda { program: lower.program, parameters, results, types })
    }

    /// Registers to run in.
    pub(crate) fn machine(&self) -> Result<Machine, Error> {
        Machine::new(&self.program, &Memory::default(), &[])
    }

    /// Runs for the first `n` lanes of the parameters.
    pub(crate) fn run(&self, machine: &mut Machine, n: usize) -> Result<(), Error> {
        machine.n = n;
        machine.run(&self.program, Level::Batch, &Memory::default(), &[])
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
