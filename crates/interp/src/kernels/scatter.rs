//! Scatter and select-and-scatter: results start with an initial value and are combined with updates at computed
//! places.

use memplan_ir::scopes::Name;
use memplan_ir::{ArrayShape, ElementType, Op, ScatterDimensions};
use rustc_hash::FxHashSet;
use smallvec::{SmallVec, smallvec};

use crate::Error;
use crate::element::{At, Class, LANES, Lanes, load, store};
use crate::kernels::Kernel;
use crate::kernels::loops::{LoopKernel, filled, initial};
use crate::kernels::reduce::window_rows;
use crate::lambda::Lambda;
use crate::lower::{Ix, Lower, addressing};
use crate::math;
use crate::memory::{Memory, Place};
use crate::program::{KernelCode, Level, Machine, Reg, fixed};
use crate::pull::array_shape;

/// Updates in row-major order of their batch dimensions, then of their windows.
pub(crate) struct ScatterKernel {
    initial: Vec<LoopKernel>,
    program: KernelCode,
    count: usize,
    updates: Vec<Reg>,
    inside: Option<Reg>,
    targets: Targets,
}

/// For every element of the source, the element of the array that its window selects.
pub(crate) struct SelectAndScatterKernel {
    initial: LoopKernel,
    program: KernelCode,
    /// Elements of the source.
    count: usize,
    /// Positions of a window.
    window: usize,
    element: Reg,
    source: Reg,
    inside: Option<Reg>,
    /// The offset in the result of the window's element.
    offset: Reg,
    select: Lambda,
    targets: Targets,
}

/// The arrays that updates go into, and how.
struct Targets {
    arrays: Vec<Target>,
    combine: Lambda,
}

struct Target {
    result: usize,
    element_type: ElementType,
    packed_bits: Option<u32>,
    /// Register with the offset of each lane.
    offsets: Reg,
}

impl Kernel for ScatterKernel {
    fn scratch_bytes(&self) -> usize {
        self.targets.combine.scratch_bytes()
    }

    fn run(
        &self,
        memory: &mut Memory,
        operands: &[Place],
        results: &[Place],
        scratch: Place,
    ) -> Result<(), Error> {
        for initial in &self.initial {
            initial.run(memory, operands, results, scratch)?;
        }
        let mut machine = Machine::new(&self.program, memory, operands)?;
        let mut combination = self.targets.combination(results, scratch)?;
        for base in (0..self.count).step_by(LANES) {
            machine.n = LANES.min(self.count - base);
            machine.set(fixed::POSITION, base as i64, 1);
            machine.run(&self.program, Level::Batch, memory, operands)?;
            let inside = self.inside.map(|register| machine.registers[register as usize].int());
            let lanes: Vec<usize> = (0..machine.n).filter(|&i| inside.is_none_or(|p| p[i] != 0)).collect();
            let offsets = |k: usize| machine.registers[self.targets.arrays[k].offsets as usize].int();
            let update = |k: usize| &machine.registers[self.updates[k] as usize];
            combination.combine(&lanes, &offsets, &update, memory)?;
        }
        Ok(())
    }
}

impl Kernel for SelectAndScatterKernel {
    fn scratch_bytes(&self) -> usize {
        self.select.scratch_bytes().max(self.targets.combine.scratch_bytes())
    }

    fn run(
        &self,
        memory: &mut Memory,
        operands: &[Place],
        results: &[Place],
        scratch: Place,
    ) -> Result<(), Error> {
        self.initial.run(memory, operands, results, scratch)?;
        let mut machine = Machine::new(&self.program, memory, operands)?;
        let mut select = self.select.machine()?;
        let mut combination = self.targets.combination(results, scratch)?;
        let mut best = Lanes::new(Class::of(self.select.types[0]), LANES);
        let mut next = best.clone();
        for base in (0..self.count).step_by(LANES) {
            let n = LANES.min(self.count - base);
            machine.n = n;
            machine.set(fixed::POSITION, base as i64, 1);
            machine.run(&self.program, Level::Batch, memory, operands)?;
            let (mut is_chosen, mut offsets) = (vec![false; n], vec![0i64; LANES]);
            for position in 0..self.window {
                machine.set(fixed::INNER, position as i64, 0);
                machine.run(&self.program, Level::Inner, memory, operands)?;
                let element = &machine.registers[self.element as usize];
                self.select.set(&mut select, 0, &best, 0, n);
                self.select.set(&mut select, 1, element, 0, n);
                self.select.run(&mut select, n, memory, scratch)?;
                let inside = self.inside.map(|register| machine.registers[register as usize].int());
                let keeps = self.select.result(&select, 0).int();
                let mut takes = Lanes::new(Class::Int, LANES);
                for i in 0..n {
                    if inside.is_none_or(|p| p[i] != 0) && !(is_chosen[i] && keeps[i] != 0) {
                        takes.int_mut()[i] = 1;
                        is_chosen[i] = true;
                        offsets[i] = machine.registers[self.offset as usize].int()[i];
                    }
                }
                math::select(&takes, element, &best, &mut next, n);
                std::mem::swap(&mut best, &mut next);
            }
            let lanes: Vec<usize> = (0..n).filter(|&i| is_chosen[i]).collect();
            let source = &machine.registers[self.source as usize];
            combination.combine(&lanes, &|_| &offsets, &|_| source, memory)?;
        }
        Ok(())
    }
}

/// A run's way of combining updates into memory.
struct Combination<'k> {
    targets: &'k Targets,
    machine: Machine,
    results: &'k [Place],
    /// The combiner's scratch.
    scratch: Place,
}

impl Targets {
    fn combination<'k>(&'k self, results: &'k [Place], scratch: Place) -> Result<Combination<'k>, Error> {
        Ok(Combination { targets: self, machine: self.combine.machine()?, results, scratch })
    }
}

impl Combination<'_> {
    /// Combines the updates of some lanes into memory, in the order of the lanes.
    fn combine<'a>(
        &mut self,
        lanes: &[usize],
        offsets: &dyn Fn(usize) -> &'a [i64],
        update: &dyn Fn(usize) -> &'a Lanes,
        memory: &mut Memory,
    ) -> Result<(), Error> {
        let mut rest = lanes;
        let mut seen = FxHashSet::default();
        while !rest.is_empty() {
            // Lanes of one step must not meet: a run ends before the first place it already has.
            seen.clear();
            let run = rest.iter().take_while(|&&lane| seen.insert(offsets(0)[lane])).count();
            let (now, later) = rest.split_at(run);
            self.combine_apart(now, offsets, update, memory)?;
            rest = later;
        }
        Ok(())
    }

    /// As [`Combination::combine`] for lanes whose places differ.
    fn combine_apart<'a>(
        &mut self,
        lanes: &[usize],
        offsets: &dyn Fn(usize) -> &'a [i64],
        update: &dyn Fn(usize) -> &'a Lanes,
        memory: &mut Memory,
    ) -> Result<(), Error> {
        let n = lanes.len();
        let (arrays, function) = (&self.targets.arrays, &self.targets.combine);
        let picked: Vec<Vec<i64>> =
            (0..arrays.len()).map(|k| lanes.iter().map(|&lane| offsets(k)[lane]).collect()).collect();
        let at = |k: usize| match arrays[k].packed_bits {
            None => At::Offsets(&picked[k]),
            Some(bits) => At::Packed(&picked[k], bits),
        };
        for (k, target) in arrays.iter().enumerate() {
            let (current, given) = (function.parameters[k], function.parameters[k + arrays.len()]);
            let bytes = memory.bytes(self.results[target.result]);
            load(target.element_type, bytes, at(k), n, &mut self.machine.registers[current as usize]);
            self.machine.registers[given as usize].pick(update(k), lanes);
        }
        function.run(&mut self.machine, n, memory, self.scratch)?;
        for (k, target) in arrays.iter().enumerate() {
            let bytes = memory.bytes_mut(self.results[target.result]);
            store(target.element_type, function.result(&self.machine, k), n, at(k), bytes);
        }
        Ok(())
    }
}

/// The kernel of a scatter, its operands pulled from programs that `lower` opens.
pub(crate) fn scatter<'m>(
    lower: &dyn Fn() -> Result<Lower<'m>, Error>,
    name: Name,
    results: &[(usize, &ArrayShape)],
) -> Result<ScatterKernel, Error> {
    let mut l = lower()?;
    let module = l.module;
    let instruction = &module.instructions[name.instruction];
    let Op::Scatter(s) = &instruction.op else { unreachable!("called for scatters") };
    let n = instruction.operands.len() / 2;
    let operand = |k: usize| Name { scope: name.scope, instruction: instruction.operands[k], leaf: 0 };
    let indices = array_shape(module, instruction.operands[n])?;
    let updates = array_shape(module, instruction.operands[n + 1])?;
    let (targets_at, updates_at, inside) =
        scatter_rows(&mut l, s, &results[0].1.dimensions, indices, updates, operand(n))?;
    let count = updates.element_count().unwrap_or(0) as usize;
    let domain = l.rows_domain(&updates.dimensions, updates_at);
    let update_registers = match count {
        0 => Vec::new(),
        _ => (0..n).map(|k| l.value(operand(n + 1 + k), domain)).collect::<Result<_, _>>()?,
    };
    let arrays = results
        .iter()
        .map(|&(result, shape)| target(&mut l, &targets_at, result, shape))
        .collect::<Result<_, _>>()?;
    let initial = (results.iter().enumerate())
        .map(|(k, &(result, shape))| initial(lower, operand(k), result, shape))
        .collect::<Result<_, _>>()?;
    let targets = Targets { arrays, combine: Lambda::new(module, instruction.called[0])? };
    Ok(ScatterKernel { initial, program: l.program, count, updates: update_registers, inside, targets })
}

type Rows = SmallVec<[Ix; 6]>;

/// For updates in row-major order of (batch, window): the result indices, the update indices, and whether the whole
/// window is inside the result.
fn scatter_rows(
    l: &mut Lower<'_>,
    s: &ScatterDimensions,
    extents: &[i64],
    indices: &ArrayShape,
    updates: &ArrayShape,
    indices_name: Name,
) -> Result<(Rows, Rows, Option<Reg>), Error> {
    let is_window = |d: &usize| s.update_window_dims.contains(&(*d as i64));
    let (window_dims, batch_dims): (Vec<usize>, Vec<usize>) = (0..updates.rank()).partition(is_window);
    let order: Vec<usize> = batch_dims.iter().chain(&window_dims).copied().collect();
    let ordered: Vec<i64> = order.iter().map(|&d| updates.dimensions[d]).collect();
    let walk = l.linear_domain(&ordered, fixed::POSITION);
    let walked = l.rows(walk);
    let (batch, window) = walked.split_at(batch_dims.len());
    let mut updates_at: Rows = smallvec![Ix::Constant(0); updates.rank()];
    order.iter().zip(&walked).for_each(|(&d, &row)| updates_at[d] = row);
    let mut starts: SmallVec<[Reg; 6]> = smallvec![];
    if updates.element_count() != Some(0) {
        for k in 0..s.scatter_dims_to_operand_dims.len() as i64 {
            let at = l.index_vector_domain(&indices.dimensions, batch, s.index_vector_dim, k);
            starts.push(l.value(indices_name, at)?);
        }
    }
    let mut window = window.iter().zip(window_dims.iter().map(|&d| updates.dimensions[d]));
    let mut inside: SmallVec<[Reg; 6]> = smallvec![];
    let mut rows: Rows = smallvec![];
    for (d, &extent) in (0i64..).zip(extents) {
        let mut terms: SmallVec<[(Ix, i64); 3]> = smallvec![];
        let mut size = 1;
        if !s.inserted_window_dims.contains(&d)
            && !s.input_batching_dims.contains(&d)
            && let Some((&row, extent)) = window.next()
        {
            terms.push((row, 1));
            size = extent;
        }
        let component = s.scatter_dims_to_operand_dims.iter().position(|&m| m == d);
        if let Some(&start) = component.and_then(|k| starts.get(k)) {
            inside.push(l.in_range(Ix::Reg(start), 0, extent - size + 1));
            terms.push((l.clamped(Ix::Reg(start), extent - size + 1), 1));
        }
        if let Some(k) = s.input_batching_dims.iter().position(|&m| m == d) {
            let of = s.scatter_indices_batching_dims[k];
            terms.push((batch[(of - (of > s.index_vector_dim) as i64) as usize], 1));
        }
        rows.push(l.weighted(&terms, 0));
    }
    let inside = l.conjunction(inside);
    Ok((rows, updates_at, inside))
}

fn target(l: &mut Lower<'_>, rows: &Rows, result: usize, shape: &ArrayShape) -> Result<Target, Error> {
    let addressing = addressing(shape)?;
    let element_type = shape.element_type;
    let domain = l.rows_domain(&shape.dimensions, rows.clone());
    let offsets = l.offsets(&addressing, element_type.byte_width() as i64, domain);
    Ok(Target { result, element_type, packed_bits: addressing.packed_bits, offsets: l.index(offsets) })
}

/// The kernel of a select-and-scatter.
pub(crate) fn select_and_scatter<'m>(
    lower: &dyn Fn() -> Result<Lower<'m>, Error>,
    name: Name,
    result: usize,
    shape: &ArrayShape,
) -> Result<SelectAndScatterKernel, Error> {
    let mut l = lower()?;
    let module = l.module;
    let instruction = &module.instructions[name.instruction];
    let Op::SelectAndScatter(window) = &instruction.op else {
        unreachable!("called for select-and-scatters")
    };
    let operand = |k: usize| Name { scope: name.scope, instruction: instruction.operands[k], leaf: 0 };
    let sources = array_shape(module, instruction.operands[1])?;
    let sizes: SmallVec<[i64; 6]> = window.dimensions.iter().map(|w| w.size).collect();
    let outer = l.linear_domain(&sources.dimensions, fixed::POSITION);
    let inner = l.linear_domain(&sizes, fixed::INNER);
    let (at, within) = (l.rows(outer), l.rows(inner));
    let (rows, inside) = window_rows(&mut l, window, &shape.dimensions, &at, &within);
    let is_empty = shape.element_count() == Some(0) || sources.element_count() == Some(0);
    let count = if is_empty { 0 } else { sources.element_count().unwrap_or(0) as usize };
    let domain = l.rows_domain(&shape.dimensions, rows.clone());
    let zero = l.index(Ix::Constant(0));
    let (element, source) =
        if is_empty { (zero, zero) } else { (l.value(operand(0), domain)?, l.value(operand(1), outer)?) };
    let target = target(&mut l, &rows, result, shape)?;
    Ok(SelectAndScatterKernel {
        initial: filled(lower()?, operand(2), result, shape)?,
        program: l.program,
        count,
        window: sizes.iter().product::<i64>() as usize,
        element,
        source,
        inside,
        offset: target.offsets,
        select: Lambda::new(module, instruction.called[0])?,
        targets: Targets { arrays: vec![target], combine: Lambda::new(module, instruction.called[1])? },
    })
}
