//! Loops: results that are computed element by element, as a whole or in regions.
//!
//! All elements of a batch are read before any is written, so a result may share its place with an operand that is
//! read at the same indices.

use memplan_ir::scopes::Name;
use memplan_ir::{ArrayShape, ElementType, Op};
use smallvec::SmallVec;

use crate::Error;
use crate::element::{At, LANES, store};
use crate::kernels::Kernel;
use crate::lower::{Form, Ix, Leaf, Lower, addressing};
use crate::memory::{Memory, Place};
use crate::program::{KernelCode, Level, Machine, Reg, Source, StepOp, fixed};
use crate::pull::array_shape;
use memplan_memory::Addressing;

/// Regions, one after the other.
pub(crate) struct LoopKernel {
    regions: Vec<Region>,
}

/// Some elements of some results, computed together.
struct Region {
    program: KernelCode,
    count: usize,
    stores: Vec<Store>,
    /// Nothing needs to be done when this operand and this result are the same place.
    unless_same: Option<(usize, usize)>,
    /// This operand and this result may not share a place: the region reads elements that it may have overwritten.
    apart: Option<(usize, usize)>,
}

/// The destination of a register's lanes.
pub(crate) struct Store {
    pub(crate) value: Reg,
    /// `None`: to consecutive elements from the batch's position on.
    pub(crate) offsets: Option<Reg>,
    pub(crate) result: usize,
    pub(crate) element_type: ElementType,
    pub(crate) packed_bits: Option<u32>,
}

impl Kernel for LoopKernel {
    fn run(&self, memory: &mut Memory, operands: &[Place], results: &[Place], _: Place) -> Result<(), Error> {
        for region in &self.regions {
            if region.unless_same.is_some_and(|(operand, result)| operands[operand] == results[result]) {
                continue;
            }
            if region.apart.is_some_and(|(operand, result)| operands[operand] == results[result]) {
                let reason = "an update in place reads the array it updates at other indices than it writes";
                return Err(Error::BrokenPlan(reason.to_string()));
            }
            let mut machine = Machine::new(&region.program, memory, operands)?;
            for base in (0..region.count).step_by(LANES) {
                machine.n = LANES.min(region.count - base);
                machine.set(fixed::POSITION, base as i64, 1);
                machine.run(&region.program, Level::Batch, memory, operands)?;
                for s in &region.stores {
                    s.run(&machine, base, memory, results);
                }
            }
        }
        Ok(())
    }
}

impl Store {
    /// Writes the lanes of a machine in use.
    pub(crate) fn run(&self, machine: &Machine, base: usize, memory: &mut Memory, results: &[Place]) {
        let at = match (self.offsets, self.packed_bits) {
            (None, _) => At::Consecutive(base * self.element_type.byte_width() as usize),
            (Some(offsets), None) => At::Offsets(machine.registers[offsets as usize].int()),
            (Some(offsets), Some(bits)) => {
                At::Packed(&machine.registers[offsets as usize].int()[..machine.n], bits)
            }
        };
        let bytes = memory.bytes_mut(results[self.result]);
        store(self.element_type, &machine.registers[self.value as usize], machine.n, at, bytes);
    }
}

/// A loop for results of equal extents, each given with its number and shape. Every value is pulled from a fresh
/// program that `lower` opens, in which operands are declared.
///
/// A single result is cut into regions where that saves work: an update in place, the parts of a concatenation, the
/// inside of a padded array.
pub(crate) fn loop_kernel<'m>(
    lower: &dyn Fn() -> Result<Lower<'m>, Error>,
    results: &[(Name, usize, &ArrayShape)],
) -> Result<LoopKernel, Error> {
    let mut regions = Vec::new();
    match results {
        [(name, result, shape)] => push_regions(lower, *name, *result, shape, &mut regions)?,
        _ => regions.push(whole(lower()?, results)?),
    }
    Ok(LoopKernel { regions })
}

fn push_regions<'m>(
    lower: &dyn Fn() -> Result<Lower<'m>, Error>,
    name: Name,
    result: usize,
    shape: &ArrayShape,
    regions: &mut Vec<Region>,
) -> Result<(), Error> {
    let mut outermost = lower()?;
    let Leaf::Value(at) = outermost.resolve(name)? else {
        regions.push(whole(outermost, &[(name, result, shape)])?);
        return Ok(());
    };
    let module = outermost.module;
    // Values inside an inlined call have names there, which each program learns by following the same path.
    let following = |names: &[Name]| -> Result<Lower<'m>, Error> {
        let mut lower = lower()?;
        for &name in names {
            lower.resolve(name)?;
        }
        Ok(lower)
    };
    let lower = || following(&[name]);
    let operands = &module.instructions[at.instruction].operands;
    let operand = |k: usize| Name { scope: at.scope, instruction: operands[k], leaf: 0 };
    match &module.instructions[at.instruction].op {
        Op::DynamicUpdateSlice => {
            // The base of the update first, which is nothing to do when it is updated in place; bases may be updates
            // themselves, so the chain is collected before it is emitted from the inside out.
            let (mut chain, mut way) = (vec![at], vec![name]);
            let base = loop {
                let last = chain[chain.len() - 1];
                let base = Name { instruction: module.instructions[last.instruction].operands[0], ..last };
                way.push(base);
                match outermost.resolve(base)? {
                    Leaf::Value(inner)
                        if module.instructions[inner.instruction].op == Op::DynamicUpdateSlice =>
                    {
                        chain.push(inner);
                    }
                    Leaf::Value(inner) => break inner,
                    _ => break base,
                }
            };
            let same = as_operand(&mut outermost, base, shape)?;
            let mut region = whole(following(&way)?, &[(base, result, shape)])?;
            region.unless_same = same.map(|number| (number, result));
            regions.push(region);
            for (k, update) in chain.into_iter().rev().enumerate() {
                let mut region = update_region(following(&way)?, update, result, shape)?;
                // A later update of a chain would see what an earlier one wrote, even at its own indices.
                region.apart =
                    same.filter(|&base| region.reads_elsewhere(base, k > 0)).map(|base| (base, result));
                regions.push(region);
            }
        }
        Op::Concatenate { dimension } => {
            let mut begin = 0;
            for k in 0..operands.len() {
                let part = array_shape(module, operands[k])?;
                let mut lower = lower()?;
                let extents = &part.dimensions;
                let domain = lower.linear_domain(extents, fixed::POSITION);
                let mut rows = lower.rows(domain);
                let d = *dimension as usize;
                rows[d] = lower.weighted(&[(rows[d], 1)], begin);
                begin += extents[d];
                regions.push(Region::new(lower, operand(k), domain, rows, result, shape)?);
            }
        }
        Op::Pad { dimensions } => {
            regions.push(whole_of_scalar(lower()?, operand(1), result, shape)?);
            let from = array_shape(module, operands[0])?;
            let mut lower = lower()?;
            // The operand's indices that land inside the result, per dimension.
            let kept: SmallVec<[(i64, i64); 6]> =
                (dimensions.iter().zip(&from.dimensions).zip(&shape.dimensions))
                    .map(|((p, &extent), &to)| {
                        let step = p.interior + 1;
                        let first = if p.low < 0 { (-p.low + step - 1) / step } else { 0 };
                        let last =
                            if to - 1 < p.low { -1 } else { ((to - 1 - p.low) / step).min(extent - 1) };
                        (first, (last - first + 1).max(0))
                    })
                    .collect();
            let extents: SmallVec<[i64; 6]> = kept.iter().map(|k| k.1).collect();
            let inside = lower.linear_domain(&extents, fixed::POSITION);
            let rows = lower.rows(inside);
            let inner = rows.iter().zip(&kept).map(|(&row, k)| lower.weighted(&[(row, 1)], k.0)).collect();
            let inner: SmallVec<[Ix; 6]> = inner;
            let outer =
                inner.iter().zip(dimensions).map(|(&row, p)| lower.weighted(&[(row, p.interior + 1)], p.low));
            let outer: SmallVec<[Ix; 6]> = outer.collect();
            let is_whole = extents == from.dimensions;
            let domain = if is_whole { inside } else { lower.rows_domain(&from.dimensions, inner) };
            let mut region = Region::new(lower, operand(0), domain, outer, result, shape)?;
            region.count = extents.iter().product::<i64>() as usize;
            regions.push(region);
        }
        _ => regions.push(whole(outermost, &[(name, result, shape)])?),
    }
    Ok(())
}

impl Region {
    /// The elements of a value at a domain, stored at other indices of a result.
    fn new(
        mut lower: Lower<'_>,
        name: Name,
        domain: usize,
        rows: SmallVec<[Ix; 6]>,
        result: usize,
        shape: &ArrayShape,
    ) -> Result<Region, Error> {
        let count = lower.extents(domain).iter().product::<i64>() as usize;
        let mut stores = Vec::new();
        if count > 0 {
            let value = lower.value(name, domain)?;
            let target = lower.rows_domain(&shape.dimensions, rows);
            stores.push(store_at(&mut lower, value, target, result, shape)?);
        }
        Ok(Region { program: lower.program, count, stores, unless_same: None, apart: None })
    }

    /// Whether an operand is read per element at other offsets than those stored to, or at all when `is_any`.
    fn reads_elsewhere(&self, operand: usize, is_any: bool) -> bool {
        let is_operand = |source: u32| matches!(self.program.sources[source as usize], Source::Operand { number, .. } if number == operand);
        // Values that are equal for all elements are read before the region writes any.
        let levels = &self.program.steps[usize::from(!is_any)..];
        levels.iter().flatten().any(|step| match step.op {
            StepOp::Load { source, .. } if is_operand(source) => {
                is_any || self.stores.iter().any(|store| store.offsets != Some(step.inputs[0]))
            }
            StepOp::LoadConsecutive { source, .. } if is_operand(source) => {
                is_any || self.stores.iter().any(|store| store.offsets.is_some())
            }
            _ => false,
        })
    }
}

/// Makes a result equal to a value, before another kernel changes parts of it; nothing when they are one place.
pub(crate) fn initial<'m>(
    lower: &dyn Fn() -> Result<Lower<'m>, Error>,
    name: Name,
    result: usize,
    shape: &ArrayShape,
) -> Result<LoopKernel, Error> {
    let mut regions = Vec::new();
    match as_operand(&mut lower()?, name, shape)? {
        Some(number) => {
            let mut region = whole(lower()?, &[(name, result, shape)])?;
            region.unless_same = Some((number, result));
            regions.push(region);
        }
        None => push_regions(lower, name, result, shape, &mut regions)?,
    }
    Ok(LoopKernel { regions })
}

/// A result whose elements are all one scalar.
pub(crate) fn filled<'m>(
    lower: Lower<'m>,
    scalar: Name,
    result: usize,
    shape: &ArrayShape,
) -> Result<LoopKernel, Error> {
    Ok(LoopKernel { regions: vec![whole_of_scalar(lower, scalar, result, shape)?] })
}

/// All elements of results of equal extents.
fn whole(mut lower: Lower<'_>, results: &[(Name, usize, &ArrayShape)]) -> Result<Region, Error> {
    let extents = &results[0].2.dimensions;
    let count = extents.iter().product::<i64>() as usize;
    let mut stores = Vec::new();
    if count > 0 {
        for &(name, result, shape) in results {
            let domain = lower.linear_domain(extents, fixed::POSITION);
            let value = lower.value(name, domain)?;
            stores.push(store_at(&mut lower, value, domain, result, shape)?);
        }
    }
    Ok(Region { program: lower.program, count, stores, unless_same: None, apart: None })
}

/// A result whose elements are all one scalar.
fn whole_of_scalar(
    mut lower: Lower<'_>,
    scalar: Name,
    result: usize,
    shape: &ArrayShape,
) -> Result<Region, Error> {
    let count = shape.dimensions.iter().product::<i64>() as usize;
    let at = lower.scalar_domain();
    let value = lower.value(scalar, at)?;
    let domain = lower.linear_domain(&shape.dimensions, fixed::POSITION);
    let stores = vec![store_at(&mut lower, value, domain, result, shape)?];
    Ok(Region { program: lower.program, count, stores, unless_same: None, apart: None })
}

/// The elements of an update, stored where it goes.
fn update_region(
    mut lower: Lower<'_>,
    update: Name,
    result: usize,
    shape: &ArrayShape,
) -> Result<Region, Error> {
    let module = lower.module;
    let id = module.instructions[update.instruction].operands[1];
    let extents = &array_shape(module, id)?.dimensions;
    let domain = lower.linear_domain(extents, fixed::POSITION);
    let starts = lower.complete(|lower| lower.starts(update, 2, &shape.dimensions, extents))?;
    let rows = lower.rows(domain);
    let rows =
        rows.iter().zip(starts).map(|(&row, start)| lower.weighted(&[(row, 1), (start, 1)], 0)).collect();
    Region::new(lower, Name { instruction: id, ..update }, domain, rows, result, shape)
}

/// The operand that a value is, as it is in memory.
fn as_operand(lower: &mut Lower<'_>, name: Name, shape: &ArrayShape) -> Result<Option<usize>, Error> {
    let Leaf::Array(array) = lower.resolve(name)? else { return Ok(None) };
    Ok(lower
        .operand_number(array)
        .filter(|_| Addressing::new(shape).as_ref() == Some(&lower.arrays[array].addressing)))
}

/// How a register is stored in a result at a domain of its indices.
pub(crate) fn store_at(
    lower: &mut Lower<'_>,
    value: Reg,
    domain: usize,
    result: usize,
    shape: &ArrayShape,
) -> Result<Store, Error> {
    let addressing = addressing(shape)?;
    let element_type = shape.element_type;
    let is_consecutive =
        addressing.is_row_major && lower.form(domain) == &Form::Linear(Ix::Reg(fixed::POSITION));
    let offsets = if is_consecutive {
        None
    } else {
        let offsets = lower.offsets(&addressing, element_type.byte_width() as i64, domain);
        Some(lower.index(offsets))
    };
    Ok(Store { value, offsets, result, element_type, packed_bits: addressing.packed_bits })
}
