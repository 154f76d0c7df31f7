//! Reductions: over whole dimensions, or over a window around every element.
//!
//! Lanes are elements of the result, and the reduced positions are visited in row-major order. If the result has fewer
//! elements than there are lanes, each lane reduces one contiguous run of positions, and the runs are combined in
//! order. This needs an associative reducer, as HLO does, but not a commutative one.

use memplan_ir::scopes::Name;
use memplan_ir::{ArrayShape, BinaryOp, InstructionId, Op, Window};
use smallvec::{SmallVec, smallvec};

use crate::Error;
use crate::element::{Class, LANES, Lanes};
use crate::kernels::Kernel;
use crate::kernels::loops::{Store, store_at};
use crate::lambda::Lambda;
use crate::lower::{Ix, Lower};
use crate::math;
use crate::memory::{Memory, Place};
use crate::program::{KernelCode, Level, Machine, Reg, fixed};
use crate::pull::{array_shape, as_binary};

pub(crate) struct ReduceKernel {
    program: KernelCode,
    /// Elements of each result.
    outer: usize,
    /// Positions reduced into each element.
    inner: usize,
    initial: Vec<Reg>,
    elements: Vec<Reg>,
    /// Whether there is an element at this position of the window.
    inside: Option<Reg>,
    reducer: Reducer,
    /// From accumulators to the results.
    stores: Vec<Store>,
}

enum Reducer {
    /// A sum of floats, added up in `f64`: as good as any order of adding.
    Sum,
    Lambda(Box<Lambda>),
}

impl Kernel for ReduceKernel {
    fn scratch_bytes(&self) -> usize {
        match &self.reducer {
            Reducer::Sum => 0,
            Reducer::Lambda(lambda) => lambda.scratch_bytes(),
        }
    }

    fn run(
        &self,
        memory: &mut Memory,
        operands: &[Place],
        results: &[Place],
        scratch: Place,
    ) -> Result<(), Error> {
        let mut machine = Machine::new(&self.program, memory, operands)?;
        let mut fold = Fold::new(self, scratch)?;
        let runs = LANES.min(self.inner);
        if self.outer >= LANES / 4 || runs <= self.outer || self.inside.is_some() {
            for base in (0..self.outer).step_by(LANES) {
                self.batch(base, &mut machine, &mut fold, memory, operands)?;
                self.store(&mut machine, &fold, base, memory, results);
            }
        } else {
            for at in 0..self.outer {
                self.one(at, runs, &mut machine, &mut fold, memory, operands)?;
                self.store(&mut machine, &fold, at, memory, results);
            }
        }
        Ok(())
    }
}

impl ReduceKernel {
    /// Reduces for a batch of elements of the result.
    fn batch(
        &self,
        base: usize,
        machine: &mut Machine,
        fold: &mut Fold<'_>,
        memory: &mut Memory,
        operands: &[Place],
    ) -> Result<(), Error> {
        let n = LANES.min(self.outer - base);
        machine.n = n;
        machine.set(fixed::POSITION, base as i64, 1);
        machine.run(&self.program, Level::Batch, memory, operands)?;
        for (k, &initial) in self.initial.iter().enumerate() {
            fold.set(k, 0, &machine.registers[initial as usize], 0, n);
        }
        for r in 0..self.inner {
            machine.set(fixed::INNER, r as i64, 0);
            machine.run(&self.program, Level::Inner, memory, operands)?;
            fold.add(machine, n, memory)?;
        }
        Ok(())
    }

    /// Reduces for one element of the result, `runs` contiguous runs of positions side by side.
    fn one(
        &self,
        at: usize,
        runs: usize,
        machine: &mut Machine,
        fold: &mut Fold<'_>,
        memory: &mut Memory,
        operands: &[Place],
    ) -> Result<(), Error> {
        machine.n = runs;
        machine.set(fixed::POSITION, at as i64, 0);
        machine.run(&self.program, Level::Batch, memory, operands)?;
        let length = self.inner.div_ceil(runs);
        for r in 0..length {
            // The last runs may be shorter, or empty: runs with positions left always come first.
            let n = (self.inner - r).div_ceil(length);
            machine.n = n;
            machine.set(fixed::INNER, r as i64, length as i64);
            machine.run(&self.program, Level::Inner, memory, operands)?;
            if r == 0 {
                for (k, &element) in self.elements.iter().enumerate() {
                    fold.set(k, 0, &machine.registers[element as usize], 0, n);
                }
            } else {
                fold.add(machine, n, memory)?;
            }
        }
        let partial = fold.accumulators.clone();
        for (k, &initial) in self.initial.iter().enumerate() {
            fold.set(k, 0, &machine.registers[initial as usize], 0, 1);
        }
        for lane in 0..self.inner.div_ceil(length) {
            fold.combine(&partial, lane, memory)?;
        }
        machine.n = 1;
        Ok(())
    }

    fn store(
        &self,
        machine: &mut Machine,
        fold: &Fold<'_>,
        base: usize,
        memory: &mut Memory,
        results: &[Place],
    ) {
        for (k, store) in self.stores.iter().enumerate() {
            fold.result(k, store, &mut machine.registers[store.value as usize], machine.n);
            store.run(machine, base, memory, results);
        }
    }
}

/// The accumulators of a run.
struct Fold<'k> {
    kernel: &'k ReduceKernel,
    lambda: Option<Machine>,
    /// The reducer's scratch.
    scratch: Place,
    accumulators: Vec<Lanes>,
    next: Vec<Lanes>,
}

impl<'k> Fold<'k> {
    fn new(kernel: &'k ReduceKernel, scratch: Place) -> Result<Fold<'k>, Error> {
        let (lambda, accumulators): (_, Vec<Lanes>) = match &kernel.reducer {
            Reducer::Sum => (None, vec![Lanes::new(Class::F64, LANES)]),
            Reducer::Lambda(lambda) => {
                let half = &lambda.types[..lambda.types.len() / 2];
                (Some(lambda.machine()?), half.iter().map(|&t| Lanes::new(Class::of(t), LANES)).collect())
            }
        };
        Ok(Fold { kernel, lambda, scratch, next: accumulators.clone(), accumulators })
    }

    /// Sets `n` lanes of accumulator `k` from lane `at` on.
    fn set(&mut self, k: usize, at: usize, from: &Lanes, lane: usize, n: usize) {
        match (&mut self.accumulators[k], from) {
            (Lanes::F64(a), Lanes::F32(x)) => {
                a[at..at + n].iter_mut().zip(&x[lane..]).for_each(|(a, &x)| *a = x as f64)
            }
            (a, x) => a.copy_from(at, x, lane, n),
        }
    }

    /// Takes the elements that the program has just computed into the first `n` accumulators.
    fn add(&mut self, machine: &Machine, n: usize, memory: &mut Memory) -> Result<(), Error> {
        let kernel = self.kernel;
        let element = |k: usize| &machine.registers[kernel.elements[k] as usize];
        let inside = kernel.inside.map(|register| machine.registers[register as usize].int());
        match (&kernel.reducer, &mut self.lambda) {
            (Reducer::Lambda(lambda), Some(function)) => {
                for k in 0..kernel.elements.len() {
                    lambda.set(function, k, &self.accumulators[k], 0, n);
                    lambda.set(function, k + kernel.elements.len(), element(k), 0, n);
                }
                lambda.run(function, n, memory, self.scratch)?;
                for k in 0..kernel.elements.len() {
                    match kernel.inside {
                        None => self.accumulators[k].copy_from(0, lambda.result(function, k), 0, n),
                        Some(p) => {
                            let p = &machine.registers[p as usize];
                            math::select(
                                p,
                                lambda.result(function, k),
                                &self.accumulators[k],
                                &mut self.next[k],
                                n,
                            );
                            std::mem::swap(&mut self.accumulators[k], &mut self.next[k]);
                        }
                    }
                }
            }
            _ => {
                let Lanes::F64(sum) = &mut self.accumulators[0] else { unreachable!("sums are kept in f64") };
                match (element(0), inside) {
                    (Lanes::F32(x), None) => {
                        sum[..n].iter_mut().zip(x).for_each(|(sum, &x)| *sum += x as f64)
                    }
                    (Lanes::F64(x), None) => sum[..n].iter_mut().zip(x).for_each(|(sum, &x)| *sum += x),
                    (Lanes::F32(x), Some(p)) => (sum[..n].iter_mut().zip(x).zip(p))
                        .for_each(|((sum, &x), &p)| *sum += if p != 0 { x as f64 } else { 0.0 }),
                    (Lanes::F64(x), Some(p)) => (sum[..n].iter_mut().zip(x).zip(p))
                        .for_each(|((sum, &x), &p)| *sum += if p != 0 { x } else { 0.0 }),
                    _ => unreachable!("sums are of floats"),
                }
            }
        }
        Ok(())
    }

    /// Takes one lane of other accumulators into lane 0.
    fn combine(&mut self, partial: &[Lanes], lane: usize, memory: &mut Memory) -> Result<(), Error> {
        match (&self.kernel.reducer, &mut self.lambda) {
            (Reducer::Lambda(lambda), Some(function)) => {
                for k in 0..partial.len() {
                    lambda.set(function, k, &self.accumulators[k], 0, 1);
                    lambda.set(function, k + partial.len(), &partial[k], lane, 1);
                }
                lambda.run(function, 1, memory, self.scratch)?;
                for k in 0..partial.len() {
                    self.accumulators[k].copy_from(0, lambda.result(function, k), 0, 1);
                }
            }
            _ => match (&mut self.accumulators[0], &partial[0]) {
                (Lanes::F64(sum), Lanes::F64(x)) => sum[0] += x[lane],
                _ => unreachable!("sums are kept in f64"),
            },
        }
        Ok(())
    }

    /// Brings an accumulator into the type of its result.
    fn result(&self, k: usize, store: &Store, out: &mut Lanes, n: usize) {
        let accumulator = &self.accumulators[k];
        match self.kernel.reducer {
            Reducer::Sum => {
                math::convert(memplan_ir::ElementType::F64, store.element_type, accumulator, out, n)
            }
            Reducer::Lambda(_) => out.copy_from(0, accumulator, 0, n),
        }
    }
}

/// The kernel of a reduce, its operands pulled from `lower`.
pub(crate) fn reduce(
    mut lower: Lower<'_>,
    name: Name,
    results: &[(usize, &ArrayShape)],
) -> Result<ReduceKernel, Error> {
    let module = lower.module;
    let instruction = &module.instructions[name.instruction];
    let Op::Reduce { dimensions } = &instruction.op else { unreachable!("called for reduces") };
    let n = instruction.operands.len() / 2;
    let from = &array_shape(module, instruction.operands[0])?.dimensions;
    let reduced: SmallVec<[i64; 6]> =
        (0..from.len() as i64).filter(|d| dimensions.contains(d)).map(|d| from[d as usize]).collect();
    let result = &results[0].1.dimensions;
    let outer = lower.linear_domain(result, fixed::POSITION);
    let inner = lower.linear_domain(&reduced, fixed::INNER);
    let (mut outer_rows, mut inner_rows) = (lower.rows(outer).into_iter(), lower.rows(inner).into_iter());
    let rows = (0..from.len() as i64)
        .map(|d| if dimensions.contains(&d) { inner_rows.next() } else { outer_rows.next() })
        .map(|row| row.unwrap_or(Ix::Constant(0)))
        .collect();
    let domain = lower.rows_domain(from, rows);
    let count = reduced.iter().product::<i64>() as usize;
    finish(lower, name, n, domain, None, count, outer, results)
}

/// The kernel of a reduce-window, its operands pulled from `lower`.
pub(crate) fn reduce_window(
    mut lower: Lower<'_>,
    name: Name,
    results: &[(usize, &ArrayShape)],
) -> Result<ReduceKernel, Error> {
    let module = lower.module;
    let instruction = &module.instructions[name.instruction];
    let Op::ReduceWindow(window) = &instruction.op else { unreachable!("called for reduce-windows") };
    let n = instruction.operands.len() / 2;
    let from = array_shape(module, instruction.operands[0])?;
    let sizes: SmallVec<[i64; 6]> = window.dimensions.iter().map(|w| w.size).collect();
    let outer = lower.linear_domain(&results[0].1.dimensions, fixed::POSITION);
    let inner = lower.linear_domain(&sizes, fixed::INNER);
    let (at, within) = (lower.rows(outer), lower.rows(inner));
    let (rows, inside) = window_rows(&mut lower, window, &from.dimensions, &at, &within);
    // Nothing is under any window of an empty array.
    let count = if from.element_count() == Some(0) { 0 } else { sizes.iter().product::<i64>() as usize };
    let domain = lower.rows_domain(&from.dimensions, rows);
    finish(lower, name, n, domain, inside, count, outer, results)
}

/// The indices of the array under position `within` of the window placed for element `at`, and whether there are any.
pub(crate) fn window_rows(
    lower: &mut Lower<'_>,
    window: &Window,
    extents: &[i64],
    at: &[Ix],
    within: &[Ix],
) -> (SmallVec<[Ix; 6]>, Option<Reg>) {
    let mut rows: SmallVec<[Ix; 6]> = smallvec![];
    let mut inside: SmallVec<[Reg; 6]> = smallvec![];
    for (d, w) in window.dimensions.iter().enumerate() {
        let (place, sign) = if w.window_reversal { ((w.size - 1) * w.window_dilation, -1) } else { (0, 1) };
        let terms = [(at[d], w.stride), (within[d], sign * w.window_dilation)];
        let row = lower.weighted(&terms, place - w.padding_low);
        if w.size == 1 && w.padding_low == 0 && w.padding_high <= 0 && w.base_dilation == 1 {
            rows.push(row);
            continue;
        }
        let dilated = (extents[d] - 1) * w.base_dilation + 1;
        inside.push(lower.in_range(row, 0, dilated));
        if w.base_dilation > 1 {
            let register = lower.index(row);
            let op = crate::program::StepOp::IsMultiple { of: w.base_dilation };
            inside.push(lower.step(op, Class::Int, [register]));
        }
        let row = lower.digit(row, w.base_dilation, 0);
        rows.push(lower.clamped(row, extents[d]));
    }
    let inside = lower.conjunction(inside);
    (rows, inside)
}

#[allow(clippy::too_many_arguments, reason = "the common end of the two functions above")]
fn finish(
    mut lower: Lower<'_>,
    name: Name,
    n: usize,
    domain: usize,
    inside: Option<Reg>,
    inner: usize,
    outer: usize,
    results: &[(usize, &ArrayShape)],
) -> Result<ReduceKernel, Error> {
    let module = lower.module;
    let instruction = &module.instructions[name.instruction];
    let operand = |k: usize| Name { scope: name.scope, instruction: instruction.operands[k], leaf: 0 };
    let scalar = lower.scalar_domain();
    let count = lower.extents(outer).iter().product::<i64>() as usize;
    let initial = (n..2 * n).map(|k| lower.value(operand(k), scalar)).collect::<Result<Vec<_>, _>>()?;
    let elements = match inner {
        // Without elements nothing is read.
        0 => initial.clone(),
        _ if count == 0 => initial.clone(),
        _ => (0..n).map(|k| lower.value(operand(k), domain)).collect::<Result<Vec<_>, _>>()?,
    };
    let stores = results
        .iter()
        .map(|&(result, shape)| {
            let value = lower.register(Class::of(shape.element_type), Level::Batch);
            store_at(&mut lower, value, outer, result, shape)
        })
        .collect::<Result<_, Error>>()?;
    let reducer = reducer(lower.module, name.instruction, results[0].1)?;
    Ok(ReduceKernel {
        program: lower.program,
        outer: count,
        inner,
        initial,
        elements,
        inside,
        reducer,
        stores,
    })
}

fn reducer(module: &memplan_ir::Module, id: InstructionId, shape: &ArrayShape) -> Result<Reducer, Error> {
    let computation = module.instructions[id].called[0];
    let is_sum = as_binary(module, &module.computations[computation]) == Some(BinaryOp::Add);
    Ok(if is_sum && shape.element_type.is_floating() {
        Reducer::Sum
    } else {
        Reducer::Lambda(Box::new(Lambda::new(module, computation)?))
    })
}
