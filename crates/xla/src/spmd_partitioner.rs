//! The program of one device, for a program whose parameters are sharded.
//!
//! ```text
//!   w = f32[4096,4096] parameter(0), sharding={devices=[8,1]<=[8]}     w = f32[512,4096] parameter(0)
//!   x = f32[1024,4096] parameter(1), sharding={devices=[8,1]<=[8]}     x = f32[128,4096] parameter(1)
//!   y = f32[1024,4096] dot(x, w)                                 =>    a = f32[4096,4096] all-gather(w), dimensions={0}
//!                                                                      y = f32[128,4096] dot(x, a)
//! ```
//!
//! As in XLA's partitioner (seen on jaxlib 0.10.2), results of sharded operands are sharded: for products, by rows of
//! the left operand rather than columns of the right one. Operands needed whole are gathered. If the contracted
//! dimension is sharded, every device sums its shard, and an all-reduce adds the sums.
//!
//! Supports programs without loops or conditionals in which each parameter is whole or sharded along one dimension by
//! all devices; returns no program for others.

use memplan_ir::{
    BinaryOp, Collective, ComputationId, Cursor, DotOperand, ElementType, Insert, Instruction, InstructionId,
    Module, Op, Operands,
};
use memplan_memory::parallel::pieces;
use memplan_rewriter::{CALL_INLINER, Context, PassError};
use smallvec::SmallVec;

use crate::fully_shard::{Sharding, fit_interface};

/// The program of one of the devices over which shardings of parameters spread a program, and how many devices there are. `None`
/// where nothing is cut, or in ways that are not known here. Close to linear.
///
/// # Errors
/// Calls could not be inlined.
pub fn partition(module: &Module, context: &Context<'_>) -> Result<Option<(Module, u64)>, PassError> {
    let devices = pieces(module);
    if module.is_scheduled || devices <= 1 {
        return Ok(None);
    }
    let Some(cuts) = cuts_of_parameters(module, devices as i64) else { return Ok(None) };
    let mut partitioned = module.clone();
    (CALL_INLINER.run)(&mut partitioned, context)?;
    if partitioned.instructions_of(partitioned.entry).any(|(_, it)| it.op.runs_callees()) {
        return Ok(None);
    }
    let mut partitioner =
        Partitioner { sharding: Sharding::new(&partitioned, devices as i64), adders: Vec::new() };
    for (number, dimension) in cuts {
        let parameter = partitioned.entry_computation().parameters[number];
        // Its shape is that of a part already.
        partitioned.instructions[parameter].extras_mut().sharding = None;
        partitioner.sharding.cut(&mut partitioned, parameter, dimension);
    }
    let entry = partitioned.entry;
    partitioned.edit_in_order(entry, |module, id| partitioner.visit(module, id));
    fit_interface(&mut partitioned);
    partitioned.compact();
    Ok(Some((partitioned, devices)))
}

/// Parameters that are cut, by number, and along which dimension. `None` where that is not all that their shardings say, or
/// where nothing is cut.
fn cuts_of_parameters(module: &Module, devices: i64) -> Option<Vec<(usize, usize)>> {
    let mut cuts = Vec::new();
    for (number, &parameter) in module.entry_computation().parameters.iter().enumerate() {
        let array = module.shape(parameter).as_array()?;
        let sharding =
            module.instructions[parameter].extras.as_ref().and_then(|extras| extras.sharding.as_ref());
        let Some(sharding) = sharding else { continue };
        let memplan_ir::Sharding::Single(spec) = sharding else { return None };
        let shards = spec.shards(array.rank());
        let mut cut = shards.iter().enumerate().filter(|&(_, &shards)| shards > 1);
        let Some((dimension, &shards)) = cut.next() else { continue };
        if cut.next().is_some() || shards != devices || array.dimensions[dimension] % devices != 0 {
            return None;
        }
        cuts.push((number, dimension));
    }
    (!cuts.is_empty()).then_some(cuts)
}

struct Partitioner {
    sharding: Sharding,
    /// Computations that add numbers, by element type.
    adders: Vec<(ElementType, ComputationId)>,
}

/// The role of an operand's dimension in a product, and its number in that role.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Batch(usize),
    Contracted(usize),
    Free(usize),
}

impl Partitioner {
    fn visit(&mut self, module: &mut Module, id: InstructionId) {
        let operands = module.instructions[id].operands.clone();
        let cuts: SmallVec<[Option<usize>; 4]> =
            operands.iter().map(|operand| self.sharding.cut.get(operand).copied()).collect();
        let is_root = id == module.entry_computation().root;
        let is_result = is_root && module.instructions[id].op == Op::Tuple;
        if let Some(dimension) = cuts.iter().find_map(|&cut| cut).filter(|_| !is_result) {
            self.take_parts(module, id, &operands, &cuts, dimension);
        }
        module.list(id);
    }

    /// Applies an instruction to shards, or gathers the operands that it needs whole.
    fn take_parts(
        &mut self,
        module: &mut Module,
        id: InstructionId,
        operands: &Operands,
        cuts: &[Option<usize>],
        dimension: usize,
    ) {
        let d = dimension as i64;
        match &module.instructions[id].op {
            Op::Dot(_) => return self.multiply(module, id, operands, [cuts[0], cuts[1]]),
            Op::Transpose { dimensions } => {
                let to =
                    dimensions.iter().position(|&from| from == d).expect("a permutation has every dimension");
                return self.sharding.cut(module, id, to);
            }
            Op::Broadcast { dimensions } => {
                let to = dimensions[dimension] as usize;
                return self.sharding.cut(module, id, to);
            }
            Op::Reduce { dimensions } if operands.len() == 2 => {
                if dimensions.contains(&d) {
                    let reducer = module.instructions[id].called[0];
                    return self.add_up(module, id, reducer);
                }
                let to = dimension - dimensions.iter().filter(|&&reduced| reduced < d).count();
                return self.sharding.cut(module, id, to);
            }
            Op::Reshape { .. } if keeps_outer(module, operands[0], id, dimension, self.sharding.devices) => {
                return self.sharding.cut(module, id, dimension);
            }
            _ if Sharding::is_by_elements(module, id) => {
                for &operand in operands {
                    self.sharding.read_part(module, id, operand, dimension);
                }
                return self.sharding.cut(module, id, dimension);
            }
            _ => {}
        }
        self.gather_all(module, id, operands, cuts);
    }

    fn gather_all(
        &mut self,
        module: &mut Module,
        id: InstructionId,
        operands: &Operands,
        cuts: &[Option<usize>],
    ) {
        for (&operand, &cut) in operands.iter().zip(cuts) {
            if let Some(dimension) = cut {
                let whole = self.sharding.gather(module, id, operand, dimension);
                module.replace_operand(id, operand, whole);
            }
        }
    }

    fn multiply(
        &mut self,
        module: &mut Module,
        id: InstructionId,
        operands: &Operands,
        cuts: [Option<usize>; 2],
    ) {
        let Op::Dot(dot) = &module.instructions[id].op else { return };
        let numbers = &dot.dimensions;
        let n_batch = numbers.lhs_batch.len();
        let rank = |k: usize| module.shape(operands[k]).as_array().map_or(0, |array| array.rank());
        let free = [numbers.free(DotOperand::Lhs, rank(0)), numbers.free(DotOperand::Rhs, rank(1))];
        let n_rows = free[0].len();
        let left = cuts[0].map(|d| part_of(d, &numbers.lhs_batch, &numbers.lhs_contracting, &free[0]));
        let right = cuts[1].map(|d| part_of(d, &numbers.rhs_batch, &numbers.rhs_contracting, &free[1]));
        match (left, right) {
            (Some(Part::Batch(l)), Some(Part::Batch(r))) if l == r => self.sharding.cut(module, id, l),
            (Some(Part::Contracted(l)), Some(Part::Contracted(r))) if l == r => {
                let adder = self.adder(module, id);
                self.add_up(module, id, adder);
            }
            (Some(Part::Free(row)), _) => {
                self.gather_all(module, id, operands, &[None, cuts[1]]);
                self.sharding.cut(module, id, n_batch + row);
            }
            (_, Some(Part::Free(column))) => {
                self.gather_all(module, id, operands, &[cuts[0], None]);
                self.sharding.cut(module, id, n_batch + n_rows + column);
            }
            _ => self.gather_all(module, id, operands, &cuts),
        }
    }

    /// Lets another instruction sum up the part of a device, and makes this one the sum over all devices.
    fn add_up(&mut self, module: &mut Module, id: InstructionId, adder: ComputationId) {
        let Instruction { op, operands, called, .. } = module.instructions[id].clone();
        let shape = module.shape(id).clone();
        let mut at = Cursor::beside(module, &mut self.sharding.names, id);
        let part = at.insert_instruction(op, operands, called, Some(shape));
        let collective = Collective {
            replica_groups: self.sharding.all_devices(),
            channel_id: Some(1),
            use_global_device_ids: true,
            ..Collective::default()
        };
        let sum = &mut module.instructions[id];
        sum.op = Op::AllReduce(Box::new(collective));
        sum.operands = Operands::from_iter([part]);
        sum.called = SmallVec::from_iter([adder]);
    }

    /// A computation that adds two numbers of the type of a product.
    fn adder(&mut self, module: &mut Module, of: InstructionId) -> ComputationId {
        let element_type = module.shape(of).as_array().expect("products are arrays").element_type;
        if let Some((_, adder)) = self.adders.iter().find(|(of, _)| *of == element_type) {
            return *adder;
        }
        let parent = module.instructions[of].parent;
        let mut at = Cursor::end(module, &mut self.sharding.names, parent);
        let adder = at.combiner("sum", BinaryOp::Add, element_type);
        self.adders.push((element_type, adder));
        adder
    }
}

fn part_of(dimension: usize, batch: &[i64], contracting: &[i64], free: &[i64]) -> Part {
    let at = |of: &[i64]| of.iter().position(|&other| other == dimension as i64);
    match (at(batch), at(contracting)) {
        (Some(i), _) => Part::Batch(i),
        (_, Some(i)) => Part::Contracted(i),
        _ => Part::Free(at(free).expect("a dimension is one or the other")),
    }
}

/// Whether a reshape leaves the dimensions up to one as they are; of `from`, a part is known.
fn keeps_outer(
    module: &Module,
    from: InstructionId,
    to: InstructionId,
    dimension: usize,
    devices: i64,
) -> bool {
    let Some((from, to)) = module.shape(from).as_array().zip(module.shape(to).as_array()) else {
        return false;
    };
    let whole = |d: usize| from.dimensions[d] * if d == dimension { devices } else { 1 };
    (0..=dimension).all(|d| to.dimensions.get(d) == Some(&whole(d)))
}
