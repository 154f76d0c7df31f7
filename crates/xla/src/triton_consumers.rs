//! `triton-consumers`: kernels that read the beginning of a softmax compute it themselves, row by row.
//!
//! ```text
//!   m = f32[8] fusion(x), calls={ ROOT r = reduce(x), maximum }
//!   e = f32[8,16] fusion(x, m, y), kind=kLoop           =>      e = f32[8,16] fusion(x, y), kind=kCustom
//! ```
//!
//! XLA's priority fusion duplicates a softmax kernel into all of its readers, if that saves time, and what takes in a
//! kernel of Triton becomes one. It holds whole rows, so it writes over no operand: the backward half of attention
//! needs room for one array more than elementwise kernels would.
//!
//! [`softmax-rewriter-triton`](crate::SOFTMAX_REWRITER_TRITON) marks the beginnings that are computed again, and this
//! pass removes the marks. Seen in 0.12, on attention without a mask. *Changed* means that a mark was removed.

use memplan_ir::{
    ComputationId, Cursor, Fusion, FusionKind, Insert, InstructionId, Module, Names, Op, Operands,
};
use memplan_rewriter::{Context, DCE, PassError, PassFn};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The pass.
pub const TRITON_CONSUMERS: PassFn = PassFn {
    name: "triton-consumers",
    description: "compute the beginning of a softmax in each kernel that reads it, as XLA's GPU compiler does",
    run,
};

/// The frontend attribute of an operation that ends the beginning of a softmax.
const MARK: &str = "memplan.softmax";

/// Marks the end of a softmax's beginning.
pub(super) fn mark(module: &mut Module, id: InstructionId) {
    module.instructions[id].extras_mut().frontend_attributes.insert(MARK.into(), "begins".into());
}

fn run(module: &mut Module, context: &Context<'_>) -> Result<bool, PassError> {
    let is_marked = |&id: &InstructionId| module.instructions[id].frontend_attribute(MARK).is_some();
    let marked: Vec<InstructionId> = module.instructions.keys().filter(is_marked).collect();
    if marked.is_empty() {
        return Ok(false);
    }
    let consumers = consumers(module, &marked);
    for id in marked {
        module.instructions[id].extras_mut().frontend_attributes.shift_remove(MARK);
    }
    let mut names = Names::new(module);
    for consumer in consumers {
        take_in(module, &mut names, consumer);
    }
    if !(DCE.run)(module, context)? {
        module.compact();
    }
    Ok(true)
}

/// A kernel, and the operand that is a reduction of rows, computed by another kernel.
#[derive(Clone, Copy)]
struct Consumer {
    fusion: InstructionId,
    reduced: usize,
}

fn consumers(module: &Module, marked: &[InstructionId]) -> Vec<Consumer> {
    let parent = |&id: &InstructionId| (module.instructions[id].parent, id);
    let marked: FxHashMap<_, InstructionId> = marked.iter().map(parent).collect();
    let listed = module.computations.values().flat_map(|computation| &computation.instructions);
    let find = |&fusion: &InstructionId| {
        let Op::Fusion(_) = module.instructions[fusion].op else { return None };
        let &mark = marked.get(&module.instructions[fusion].called[0])?;
        let reduced = repeated_parameter(module, mark)?;
        let operand = module.instructions[fusion].operands[reduced];
        is_reduction(module, operand).then_some(Consumer { fusion, reduced })
    };
    listed.filter_map(find).collect()
}

/// The parameter of a fused computation that an operation reads repeated along rows.
fn repeated_parameter(module: &Module, id: InstructionId) -> Option<usize> {
    module.instructions[id].operands.iter().find_map(|&operand| {
        let broadcast = &module.instructions[operand];
        let Op::Broadcast { .. } = broadcast.op else { return None };
        match module.instructions[broadcast.operands[0]].op {
            Op::Parameter { number } => Some(number as usize),
            _ => None,
        }
    })
}

/// Whether an instruction is a kernel whose result is a reduction.
fn is_reduction(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    matches!(instruction.op, Op::Fusion(_)) && {
        let root = module.computations[instruction.called[0]].root;
        matches!(module.instructions[root].op, Op::Reduce { .. })
    }
}

/// Makes a consumer compute the reduction itself, in a new computation of a custom fusion.
fn take_in(module: &mut Module, names: &mut Names, consumer: Consumer) {
    let fusion = &module.instructions[consumer.fusion];
    let (called, operands) = (fusion.called[0], fusion.operands.clone());
    let reduction = &module.instructions[operands[consumer.reduced]];
    let (inner, inner_operands) = (reduction.called[0], reduction.operands.clone());
    let fused = module.add_computation(names.fresh(&module.computations[called].name.clone()));
    module.computations[fused].execution_thread = module.computations[called].execution_thread.clone();
    let at = Cursor::end(module, names, fused);
    let mut merged = Merged { at, operands: Operands::new(), copies: FxHashMap::default() };
    let reduced = merged.copy(inner, &inner_operands);
    merged.copies.insert(operands[consumer.reduced], reduced);
    let root = merged.copy(called, &operands);
    let operands = merged.operands;
    module.computations[fused].root = root;
    let fusion = &mut module.instructions[consumer.fusion];
    fusion.op =
        Op::Fusion(Box::new(Fusion { kind: FusionKind::Custom, output_operand_aliasing: Vec::new() }));
    fusion.operands = operands;
    fusion.called = SmallVec::from_iter([fused]);
}

/// A fused computation that is put together of others.
struct Merged<'a> {
    at: Cursor<'a>,
    /// What the fusion reads.
    operands: Operands,
    /// What stands for an instruction, inside: for operands their parameters.
    copies: FxHashMap<InstructionId, InstructionId>,
}

impl Merged<'_> {
    /// Copies a computation, with these operands. Returns its result.
    fn copy(&mut self, computation: ComputationId, operands: &[InstructionId]) -> InstructionId {
        let listed = self.at.module().computations[computation].instructions.clone();
        for id in listed {
            let copy = match self.at.module().instructions[id].op {
                Op::Parameter { number } => self.operand(operands[number as usize]),
                _ => {
                    let copies = &self.copies;
                    self.at.copy_edited(id, |copy| {
                        copy.operands.iter_mut().for_each(|operand| *operand = copies[operand]);
                    })
                }
            };
            self.copies.insert(id, copy);
        }
        self.copies[&self.at.module().computations[computation].root]
    }

    /// What stands for an operand.
    fn operand(&mut self, operand: InstructionId) -> InstructionId {
        if let Some(&copy) = self.copies.get(&operand) {
            return copy;
        }
        let name = format!("param_{}", self.operands.len());
        let shape = self.at.module().shape(operand).clone();
        let parameter = self.at.named_exactly(name).parameter(shape);
        self.operands.push(operand);
        self.copies.insert(operand, parameter);
        parameter
    }
}
