//! Functions called repeatedly: for every element of a map, for every slice of a scan.

use std::rc::Rc;

use memplan_ir::{ArrayShape, ComputationId, InstructionId, Module, Scan};

use crate::Error;
use crate::element::{At, LANES, load, store};
use crate::frame::Frame;
use crate::kernels::dense::{Dense, Work};
use crate::kernels::{Kernel, Operand};
use crate::lambda::Lambda;
use crate::lower::addressing;
use crate::memory::{Memory, Place};
use crate::pull::array_shape;
use crate::transfer::{self, Elements};
use memplan_memory::Addressing;

/// A map whose function is not one of elements alone. Others are loops.
pub(crate) struct MapKernel {
    operands: Vec<Dense>,
    result: Dense,
    function: Lambda,
}

impl MapKernel {
    pub(crate) fn new(
        module: &Module,
        function: ComputationId,
        operands: &[Operand],
        result: &ArrayShape,
    ) -> Result<MapKernel, Error> {
        Ok(MapKernel {
            operands: operands.iter().map(Dense::operand).collect::<Result<_, _>>()?,
            result: Dense::new(0, result)?,
            function: Lambda::new(module, function)?,
        })
    }
}

impl Kernel for MapKernel {
    /// The operands, for the result may take their place; the result; and what the function needs.
    fn scratch_bytes(&self) -> usize {
        let arrays = self.operands.iter().chain([&self.result]).map(Dense::byte_count);
        Work::bytes(arrays.chain([self.function.scratch_bytes()]))
    }

    fn run(
        &self,
        memory: &mut Memory,
        operands: &[Place],
        results: &[Place],
        scratch: Place,
    ) -> Result<(), Error> {
        let mut work = Work::new(memory, scratch);
        let given: Vec<Place> = self.operands.iter().map(|o| work.take::<u8>(o.byte_count())).collect();
        let made = work.take::<u8>(self.result.byte_count());
        let own = work.rest();
        for (operand, &place) in self.operands.iter().zip(&given) {
            operand.read(memory, operands, operand.shape.element_type, place);
        }
        let mut machine = self.function.machine()?;
        let to = self.result.shape.element_type;
        for base in (0..self.result.count()).step_by(LANES) {
            let n = LANES.min(self.result.count() - base);
            for ((&t, &place), &register) in
                self.function.types.iter().zip(&given).zip(&self.function.parameters)
            {
                let begin = At::Consecutive(base * t.byte_width() as usize);
                load(t, memory.bytes(place), begin, n, &mut machine.registers[register as usize]);
            }
            self.function.run(&mut machine, n, memory, own)?;
            let begin = At::Consecutive(base * to.byte_width() as usize);
            store(to, self.function.result(&machine, 0), n, begin, memory.bytes_mut(made));
        }
        self.result.write(memory, results, to, made);
        Ok(())
    }
}

/// Calls a computation for each slice of its inputs with the carries of the step before; the outputs of all steps,
/// stacked, and the last carries are the result. Outputs come first, and so do inputs.
pub(crate) struct ScanKernel {
    scan: Scan,
    steps: i64,
    inputs: Vec<Stacked>,
    outputs: Vec<Stacked>,
    carries: Vec<Carry>,
    frame: Rc<Frame>,
}

/// An array of slices along one dimension.
struct Stacked {
    number: usize,
    shape: ArrayShape,
    addressing: Addressing,
    /// As the computation sees a slice.
    slice: Addressing,
}

/// An array that each step passes to the next. The computation may give it another layout than the operand and the
/// result of the scan, since arrays inside a kernel have no machine layout.
struct Carry {
    shape: ArrayShape,
    operand: (usize, Addressing),
    result: (usize, Addressing),
    /// As a step finds it.
    before: Addressing,
    /// As a step leaves it.
    after: Addressing,
}

impl ScanKernel {
    pub(crate) fn new(
        module: &Module,
        id: InstructionId,
        scan: Scan,
        operands: &[Operand],
        results: &[(usize, &ArrayShape)],
    ) -> Result<ScanKernel, Error> {
        let callee = &module.computations[module.instructions[id].called[0]];
        let n_carries = scan.num_carries as usize;
        if operands.len() != callee.parameters.len() || results.len() < n_carries {
            return Err(Error::unsupported(module, id, "its carries are not arrays"));
        }
        let (n_inputs, n_outputs) = (operands.len() - n_carries, results.len() - n_carries);
        let stacked = |number: usize, shape: &ArrayShape, slice: &ArrayShape| {
            let (addressing, slice) = (addressing(shape)?, addressing(slice)?);
            Ok(Stacked { number, shape: shape.clone(), addressing, slice })
        };
        let mut inputs = Vec::new();
        for (operand, &parameter) in operands.iter().zip(&callee.parameters).take(n_inputs) {
            inputs.push(stacked(operand.number, &operand.shape, array_shape(module, parameter)?)?);
        }
        let leaves = module.shape(callee.root).leaves();
        let mut outputs = Vec::new();
        for (&(number, shape), (_, slice)) in results.iter().zip(&leaves).take(n_outputs) {
            let slice = slice.as_array();
            let slice = slice.ok_or_else(|| Error::invalid(module, id, "an output is not an array"))?;
            outputs.push(stacked(number, shape, slice)?);
        }
        let mut carries = Vec::new();
        let kept = operands.iter().zip(&callee.parameters).skip(n_inputs);
        let ends = results.iter().zip(&leaves).skip(n_outputs);
        for ((operand, &parameter), (&(number, result), (_, after))) in kept.zip(ends) {
            let after = after.as_array();
            let after = after.ok_or_else(|| Error::invalid(module, id, "a carry is not an array"))?;
            carries.push(Carry {
                shape: operand.shape.clone(),
                operand: (operand.number, addressing(&operand.shape)?),
                result: (number, addressing(result)?),
                before: addressing(array_shape(module, parameter)?)?,
                after: addressing(after)?,
            });
        }
        let steps = operands[0].shape.dimensions[scan.dimension as usize];
        let frame = Frame::new(module, module.instructions[id].called[0])?;
        Ok(ScanKernel { scan, steps, inputs, outputs, carries, frame })
    }
}

impl Kernel for ScanKernel {
    /// A slice of each input and output, the carries before and after a step, and what a step needs.
    fn scratch_bytes(&self) -> usize {
        let slices = self.inputs.iter().chain(&self.outputs).map(|s| s.slice.size);
        let carries = self.carries.iter().flat_map(|carry| [carry.before.size, carry.after.size]);
        Work::bytes(slices.chain(carries).chain([self.frame.scratch_bytes()]))
    }

    fn run(
        &self,
        memory: &mut Memory,
        operands: &[Place],
        results: &[Place],
        scratch: Place,
    ) -> Result<(), Error> {
        let mut work = Work::new(memory, scratch);
        let mut take = |size: usize| work.take::<u8>(size);
        let mut given: Vec<Place> = self.inputs.iter().map(|s| take(s.slice.size)).collect();
        let mut made: Vec<Place> = self.outputs.iter().map(|s| take(s.slice.size)).collect();
        given.extend(self.carries.iter().map(|carry| take(carry.before.size)));
        made.extend(self.carries.iter().map(|carry| take(carry.after.size)));
        let own = work.rest();
        let (n_inputs, n_outputs) = (self.inputs.len(), self.outputs.len());
        for (carry, &before) in self.carries.iter().zip(&given[n_inputs..]) {
            let (operand, addressing) = &carry.operand;
            carry.copy(memory, (operands[*operand], addressing), (before, &carry.before));
        }
        for step in 0..self.steps {
            let at = if self.scan.is_reverse { self.steps - 1 - step } else { step };
            for (input, &slice) in self.inputs.iter().zip(&given) {
                input.copy(memory, self.scan.dimension, at, operands[input.number], slice, true);
            }
            self.frame.run(memory, &given, &made, own)?;
            for (output, &slice) in self.outputs.iter().zip(&made) {
                output.copy(memory, self.scan.dimension, at, results[output.number], slice, false);
            }
            for ((carry, &before), &after) in
                self.carries.iter().zip(&given[n_inputs..]).zip(&made[n_outputs..])
            {
                carry.copy(memory, (after, &carry.after), (before, &carry.before));
            }
        }
        for (carry, &before) in self.carries.iter().zip(&given[n_inputs..]) {
            let (result, addressing) = &carry.result;
            carry.copy(memory, (before, &carry.before), (results[*result], addressing));
        }
        Ok(())
    }
}

impl Carry {
    /// Copies the array from one place and layout to another.
    fn copy(&self, memory: &mut Memory, from: (Place, &Addressing), to: (Place, &Addressing)) {
        if from.1 == to.1 {
            return memory.copy(from.0, to.0);
        }
        let [from, to] = [from, to].map(|(place, addressing)| {
            let offset = |index: &[i64]| addressing.offset(index.iter().copied());
            Elements { place, addressing, offset }
        });
        transfer::copy(self.shape.element_type, &self.shape.dimensions, memory, from, to);
    }
}

impl Stacked {
    /// Copies slice `step` out of the array, or back into it.
    fn copy(&self, memory: &mut Memory, along: i64, step: i64, array: Place, slice: Place, is_out: bool) {
        let mut extents = self.shape.dimensions.clone();
        extents.remove(along as usize);
        let offset_in_array = |index: &[i64]| {
            let (before, after) = index.split_at(along as usize);
            self.addressing.offset(before.iter().copied().chain([step]).chain(after.iter().copied()))
        };
        let offset_in_slice = |index: &[i64]| self.slice.offset(index.iter().copied());
        let array = Elements { place: array, addressing: &self.addressing, offset: offset_in_array };
        let slice = Elements { place: slice, addressing: &self.slice, offset: offset_in_slice };
        match is_out {
            true => transfer::copy(self.shape.element_type, &extents, memory, array, slice),
            false => transfer::copy(self.shape.element_type, &extents, memory, slice, array),
        }
    }
}
