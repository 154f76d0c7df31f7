//! The results of a collective from the operands of all participating devices.

use memplan_ir::{ArrayLiteral, InstructionId, Literal, Module, Op};

use crate::Error;
use crate::element::{At, Class, LANES, Lanes, load, store};
use crate::lambda::Lambda;
use crate::memory::Memory;

/// The operands of one device, leaf by leaf.
pub(crate) type Operands = Vec<Literal>;

/// The results on member `own` of a group, from the operands of its members in order. Linear in all operands, save for
/// reductions, which every member computes for itself in the order of the group: so all get the same bits.
pub(crate) fn results(
    module: &Module,
    id: InstructionId,
    group: &[Operands],
    own: usize,
) -> Result<Vec<Literal>, Error> {
    let instruction = &module.instructions[id];
    let arrays: Vec<Vec<&ArrayLiteral>> =
        group.iter().map(|operands| operands.iter().filter_map(Literal::as_array).collect()).collect();
    let of_each = |k: usize| -> Vec<&ArrayLiteral> { arrays.iter().map(|operands| operands[k]).collect() };
    let n = arrays[own].len();
    let dimension = instruction.op.collective().and_then(|c| c.dimension).map(|d| d as usize);
    let along = || dimension.ok_or_else(|| Error::invalid(module, id, "it has no dimension"));
    let reduced = |k: usize| reduce(module, id, &of_each(k));
    let results: Vec<ArrayLiteral> = match &instruction.op {
        Op::AllReduce(_) | Op::AllReduceStart(_) => (0..n).map(reduced).collect::<Result<_, _>>()?,
        Op::AllGather(_) | Op::AllGatherStart(_) => {
            let dimension = along()?;
            (0..n).map(|k| concatenate(&of_each(k), dimension)).collect()
        }
        Op::ReduceScatter(_) => {
            let dimension = along()?;
            let part = |k: usize| Ok(part(&reduced(k)?, dimension, own, group.len()));
            (0..n).map(part).collect::<Result<_, Error>>()?
        }
        Op::AllToAll(_) => match dimension {
            Some(dimension) => {
                let exchanged = |k: usize| {
                    let parts: Vec<ArrayLiteral> =
                        of_each(k).iter().map(|a| part(a, dimension, own, group.len())).collect();
                    concatenate(&parts.iter().collect::<Vec<_>>(), dimension)
                };
                (0..n).map(exchanged).collect()
            }
            // Operand `i` goes to member `i`.
            None => arrays.iter().map(|operands| operands[own].clone()).collect(),
        },
        Op::CollectiveBroadcast(_) => (0..n).map(|k| arrays[0][k].clone()).collect(),
        Op::RaggedAllToAll(_) => vec![ragged_exchange(&arrays, own)],
        _ => return Err(Error::unsupported(module, id, "it does not exchange arrays")),
    };
    Ok(results.into_iter().map(Literal::Array).collect())
}

/// Arrays of zeros like these: what a device receives that no one sends to.
pub(crate) fn zeros(operands: &Operands) -> Operands {
    let zero =
        |a: &ArrayLiteral| ArrayLiteral::new(a.element_type, a.dimensions.clone(), vec![0; byte_count(a)]);
    operands
        .iter()
        .map(|literal| literal.as_array().map_or(Literal::Token, |a| Literal::Array(zero(a))))
        .collect()
}

/// Folds arrays with the computation that an instruction calls.
fn reduce(module: &Module, id: InstructionId, arrays: &[&ArrayLiteral]) -> Result<ArrayLiteral, Error> {
    let lambda = Lambda::new(module, module.instructions[id].called[0])?;
    let t = arrays[0].element_type;
    if lambda.types != [t, t] {
        return Err(Error::unsupported(module, id, "its reducer is for another element type"));
    }
    let width = t.byte_width() as usize;
    let count = arrays[0].element_count();
    let inputs: Vec<_> = arrays.iter().map(|a| a.bytes()).collect();
    let mut out = vec![0u8; count * width];
    let mut machine = lambda.machine()?;
    let mut memory = Memory::new(lambda.scratch_bytes(), 0);
    let scratch = memory.allocate(lambda.scratch_bytes(), false)?;
    let (mut sum, mut next) = (Lanes::new(Class::of(t), LANES), Lanes::new(Class::of(t), LANES));
    for base in (0..count).step_by(LANES) {
        let n = LANES.min(count - base);
        load(t, &inputs[0], At::Consecutive(base * width), n, &mut sum);
        for input in &inputs[1..] {
            load(t, input, At::Consecutive(base * width), n, &mut next);
            lambda.set(&mut machine, 0, &sum, 0, n);
            lambda.set(&mut machine, 1, &next, 0, n);
            lambda.run(&mut machine, n, &mut memory, scratch)?;
            sum.copy_from(0, lambda.result(&machine, 0), 0, n);
        }
        store(t, &sum, n, At::Consecutive(base * width), &mut out);
    }
    Ok(ArrayLiteral::new(t, arrays[0].dimensions.clone(), out))
}

/// Arrays that differ in one extent at most, one after the other along it.
fn concatenate(parts: &[&ArrayLiteral], dimension: usize) -> ArrayLiteral {
    let mut dimensions = parts[0].dimensions.clone();
    dimensions[dimension] = parts.iter().map(|p| p.dimensions[dimension]).sum();
    let outer = dimensions[..dimension].iter().product::<i64>() as usize;
    let bytes: Vec<_> = parts.iter().map(|p| p.bytes()).collect();
    let mut out = Vec::new();
    for row in 0..outer {
        for part in &bytes {
            let run = part.len() / outer;
            out.extend_from_slice(&part[row * run..(row + 1) * run]);
        }
    }
    ArrayLiteral::new(parts[0].element_type, dimensions, out)
}

/// Part `k` of `n` equal ones along a dimension.
fn part(whole: &ArrayLiteral, dimension: usize, k: usize, n: usize) -> ArrayLiteral {
    let mut dimensions = whole.dimensions.clone();
    dimensions[dimension] /= n as i64;
    let outer = dimensions[..dimension].iter().product::<i64>().max(1) as usize;
    let bytes = whole.bytes();
    let (from, run) = (bytes.len() / outer, bytes.len() / outer / n);
    let rows = (0..outer).flat_map(|row| &bytes[row * from + k * run..row * from + (k + 1) * run]);
    ArrayLiteral::new(whole.element_type, dimensions, rows.copied().collect::<Vec<u8>>())
}

/// Operands: input, output, input offsets, send sizes, output offsets, receive sizes. Every member sends rows of its
/// input to rows of the output of others; rows that would lie outside are not sent.
fn ragged_exchange(arrays: &[Vec<&ArrayLiteral>], own: usize) -> ArrayLiteral {
    let output = arrays[own][1];
    let mut out = output.bytes().to_vec();
    let rows = |a: &ArrayLiteral| a.dimensions.first().map_or(0, |&rows| rows.max(0) as usize);
    let (n_rows, width) = (rows(output), byte_count(output) / rows(output).max(1));
    for sender in arrays {
        let (input, n_input) = (sender[0].bytes(), rows(sender[0]));
        let [from, sizes, to] = [2, 3, 4].map(|k| integers(sender[k]));
        let updates = from.len() / arrays.len();
        for k in own * updates..(own + 1) * updates {
            let [from, size, to] = [from[k], sizes[k], to[k]].map(|x| usize::try_from(x).unwrap_or(0));
            let size = size.min(n_input.saturating_sub(from)).min(n_rows.saturating_sub(to));
            out[to * width..][..size * width].copy_from_slice(&input[from * width..][..size * width]);
        }
    }
    ArrayLiteral::new(output.element_type, output.dimensions.clone(), out)
}

fn integers(array: &ArrayLiteral) -> Vec<i64> {
    let mut lanes = Lanes::new(Class::Int, LANES);
    let (bytes, width) = (array.bytes(), array.element_type.byte_width() as usize);
    let mut all = Vec::new();
    for chunk in bytes.chunks(width * LANES) {
        load(array.element_type, chunk, At::Consecutive(0), chunk.len() / width, &mut lanes);
        all.extend_from_slice(&lanes.int()[..chunk.len() / width]);
    }
    all
}

fn byte_count(array: &ArrayLiteral) -> usize {
    array.element_count() * array.element_type.byte_width() as usize
}
