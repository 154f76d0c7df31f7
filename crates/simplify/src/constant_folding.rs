//! `constant-folding`: evaluates instructions that depend only on constants.
//!
//! ```text
//! a = s32[] constant(3)
//! b = s32[] constant(4)            =>      c = s32[] constant(7)
//! c = s32[] add(a, b)
//! ```
//!
//! The reference evaluator computes the values.
//!
//! Leaves alone: broadcasts and iotas, which cost no memory until they are computed; impure instructions; loops and
//! conditionals; constants whose text omits elements; and whatever would enlarge the module or take long: see
//! [`ConstantFolding`]. Requires nothing. *Changed* means that something was folded.

use memplan_interp::{Options, evaluate};
use memplan_ir::{Access, ComputationId, InstructionId, Literal, LiteralData, Module, Op, Operands};
use memplan_rewriter::rows::is_repetition;
use memplan_rewriter::{Context, NEGLIGIBLE_BYTES, Outcome, Pass, PassError, Rewriter};
use rustc_hash::FxHashMap;

/// Computes what depends on constants only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConstantFolding {
    /// Most elements that one fold may read and write together. A table of the default size folds in a few milliseconds;
    /// with more, folding would show in the time to compile.
    pub max_elements: u64,
    /// Most multiplications, comparisons, ... that one fold may take: reductions and products do more than they read.
    pub max_work: u64,
    /// A result of at most this many bytes may be added to the module although its operands stay.
    pub max_added_bytes: u64,
}

/// The pass with the limits that `compile` uses.
pub const CONSTANT_FOLDING: ConstantFolding =
    ConstantFolding { max_elements: 1 << 20, max_work: 1 << 22, max_added_bytes: NEGLIGIBLE_BYTES };

impl Default for ConstantFolding {
    fn default() -> ConstantFolding {
        CONSTANT_FOLDING
    }
}

impl Pass for ConstantFolding {
    fn name(&self) -> &'static str {
        "constant-folding"
    }

    fn description(&self) -> &'static str {
        "evaluate instructions that depend only on constants"
    }

    fn run(&self, module: &mut Module, _: &Context<'_>) -> Result<Outcome, PassError> {
        let mut rewriter = Rewriter::new(module);
        rewriter.sweep(|r, id| {
            if r.is_pinned(id) || !is_pure(r.op(id)) || !self.pays(r, id)? {
                return None;
            }
            let folded = evaluate_alone(r, id)?;
            Some(r.constant(folded))
        });
        Ok(rewriter.finish().into())
    }
}

/// Operations that compute the same whenever and wherever they run, and that constants are worth computing for.
fn is_pure(op: &Op) -> bool {
    match op.traits().access {
        // A copy is wanted as a copy, and the machine decides how random bits round.
        Access::Elementwise => !matches!(op, Op::Copy | Op::StochasticConvert),
        // Views cost nothing, and these make much of little.
        Access::Reindexing => !matches!(op, Op::Bitcast) && !is_repetition(op),
        Access::Reduction => true,
        Access::Contraction => matches!(op, Op::Dot(_)),
        Access::Update => matches!(op, Op::DynamicUpdateSlice),
        Access::Whole => false,
    }
}

impl ConstantFolding {
    /// Whether all operands are known, at least one of them only as data, and the result is no burden.
    fn pays(&self, r: &Rewriter<'_>, id: InstructionId) -> Option<bool> {
        // Functions of elements that call further ones are rare, and could nest without bound.
        let calls_nothing =
            |&callee: &ComputationId| r.module().instructions_of(callee).all(|(_, i)| i.called.is_empty());
        if !r.get(id).called.iter().all(calls_nothing) {
            return None;
        }
        let (mut n_elements, mut freed_bytes, mut has_data) = (0u64, 0u64, false);
        for &operand in r.operands(id) {
            n_elements = n_elements.checked_add(r.array(operand)?.element_count()?)?;
            match r.op(operand) {
                Op::Constant(literal) => {
                    is_written_out(literal).then_some(())?;
                    has_data = true;
                    // A constant that has other users stays.
                    if r.uses(operand) == 1 {
                        freed_bytes += bytes(r, operand)?;
                    }
                }
                Op::Iota { .. } => {}
                Op::Broadcast { .. } => match r.op(r.operand(operand, 0)) {
                    Op::Constant(literal) => is_written_out(literal).then_some(())?,
                    _ => return None,
                },
                _ => return None,
            }
        }
        let result = bytes(r, id)?;
        n_elements = n_elements.checked_add(r.array(id)?.element_count()?)?;
        Some(
            has_data
                && n_elements <= self.max_elements
                && work(r, id)? <= self.max_work
                && (result <= freed_bytes || result <= self.max_added_bytes),
        )
    }
}

fn is_written_out(literal: &Literal) -> bool {
    literal.as_array().is_some_and(|array| matches!(array.data, LiteralData::Bytes(_)))
}

fn bytes(r: &Rewriter<'_>, id: InstructionId) -> Option<u64> {
    r.array(id)?.dense_bytes()
}

/// Steps that a fold takes beyond reading and writing each element once.
fn work(r: &Rewriter<'_>, id: InstructionId) -> Option<u64> {
    let n_results = r.array(id)?.element_count()?;
    let per_result = match r.op(id) {
        Op::Dot(dot) => {
            let lhs = r.array(r.operand(id, 0))?;
            dot.dimensions
                .lhs_contracting
                .iter()
                .try_fold(1u64, |n, &d| n.checked_mul(lhs.dimensions[d as usize] as u64))?
        }
        Op::ReduceWindow(window) => {
            window.dimensions.iter().try_fold(1u64, |n, w| n.checked_mul(u64::try_from(w.size).ok()?))?
        }
        _ => 1,
    };
    n_results.checked_mul(per_result)
}

/// The value of an instruction whose operands are constants, iotas, or broadcasts of constants.
fn evaluate_alone(r: &Rewriter<'_>, id: InstructionId) -> Option<Literal> {
    let module = alone(r.module(), id);
    // Instructions that the evaluator does not support stay.
    let value = evaluate(&module, &[], &Options::default()).ok()?;
    matches!(value, Literal::Array(_)).then_some(value)
}

/// A module with only an instruction and its dependencies.
fn alone(from: &Module, id: InstructionId) -> Module {
    let mut module = Module::new("fold");
    let original = &from.instructions[id];
    let callees = original.called.iter();
    let called = callees.map(|&callee| module.add_copy_of_computation(from, callee, |id| id)).collect();
    let entry = module.add_computation("main");
    module.entry = entry;
    let mut copies: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    let mut copy = |module: &mut Module, id: InstructionId| {
        let operands: Operands =
            from.instructions[id].operands.iter().map(|operand| copies[operand]).collect();
        *copies.entry(id).or_insert_with(|| module.add_copy(from, id, entry, operands))
    };
    for &operand in &original.operands {
        for &inner in from.instructions[operand].operands.iter().chain([&operand]) {
            copy(&mut module, inner);
        }
    }
    let root = copy(&mut module, id);
    module.instructions[root].called = called;
    module.computations[entry].root = root;
    module
}
