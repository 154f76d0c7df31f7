//! `sums-in-place`: a loop that adds to zeros adds to what its sum is added to.
//!
//! ```text
//! s = while((0, zeros))                            s = while((0, before))
//!   s' = add(s, x)                           =>      s' = add(s, x)
//! total = add(before, get-tuple-element(s))        total = get-tuple-element(s)
//! ```
//!
//! So no array of zeros is written, and both sums are never in memory at a time. JAX makes such sums where it
//! differentiates a scan within a scan, or weights that two scans use: each use has a gradient of its own.
//!
//! Equal up to the order of the sums. Left alone: floating-point numbers narrower than 32 bits, whose small summands
//! would be lost beside a large sum; sums with other readers; sums added to a value that is listed after the loop, and so
//! might be computed from it. Requires inlined calls and flat loop state. *Changed* means that an addition was removed.

use cranelift_entity::SecondaryMap;
use memplan_ir::{BinaryOp, InstructionId, Module, Op, Users};
use memplan_rewriter::loops::{Loop, is_zero, loops};
use memplan_rewriter::{Context, PassError, PassFn};
use rustc_hash::FxHashMap;

use crate::apply::use_instead;

/// The pass.
pub const SUMS_IN_PLACE: PassFn = PassFn {
    name: "sums-in-place",
    description: "let loops that add to zeros add to what their sums are added to",
    run: |module: &mut Module, _: &Context<'_>| -> Result<bool, PassError> { Ok(run(module)) },
};

/// Linear in the module, times the depth of its loops.
fn run(module: &mut Module) -> bool {
    if module.is_scheduled {
        return false;
    }
    let users = Users::new(module);
    let loops = loops(module, &users);
    let search = Search::new(module, &users, &loops);
    let found: Vec<Sum> = loops.iter().flat_map(|of| search.of(of)).collect();
    for sum in &found {
        module.instructions[sum.init].operands[sum.element as usize] = sum.onto;
    }
    let totals: FxHashMap<_, _> = found.iter().map(|sum| (sum.addition, sum.result)).collect();
    use_instead(module, &totals);
    for computation in module.computations.values_mut() {
        computation.instructions.retain(|id| !totals.contains_key(id));
    }
    !found.is_empty()
}

/// A sum that begins at zero.
struct Sum {
    /// What the loop begins with, and the element that sums up.
    init: InstructionId,
    element: u32,
    /// The sum.
    result: InstructionId,
    /// What adds the sum to `onto`.
    addition: InstructionId,
    onto: InstructionId,
}

struct Search<'a> {
    module: &'a Module,
    users: &'a Users,
    by_init: FxHashMap<InstructionId, &'a Loop>,
    /// The place of each instruction in the list of its computation.
    place: SecondaryMap<InstructionId, usize>,
}

impl<'a> Search<'a> {
    fn new(module: &'a Module, users: &'a Users, loops: &'a [Loop]) -> Search<'a> {
        let mut place = SecondaryMap::new();
        for computation in module.computations.values() {
            (0..).zip(&computation.instructions).for_each(|(at, &id)| place[id] = at);
        }
        let by_init = loops.iter().map(|of| (of.init, of)).collect();
        Search { module, users, by_init, place }
    }

    /// The sums of a loop that can start from the value that they are added to after it.
    fn of(&self, of: &'a Loop) -> impl Iterator<Item = Sum> {
        let begins = &self.module.instructions[of.init].operands;
        (0..).zip(begins).filter_map(move |(element, &begin)| {
            let &[result] = of.results.get(&element)?.as_slice() else { return None };
            let (addition, onto) = self.addition_of(result)?;
            let sums_up =
                self.is_before(onto, of.id) && is_zero(self.module, begin) && self.sums_up(of, element);
            sums_up.then_some(Sum { init: of.init, element, result, addition, onto })
        })
    }

    /// Whether a value is listed before another, or can be: elements of tuples stand anywhere behind their tuples.
    fn is_before(&self, value: InstructionId, other: InstructionId) -> bool {
        let instruction = &self.module.instructions[value];
        match instruction.op {
            Op::GetTupleElement { .. } => self.is_before(instruction.operands[0], other),
            Op::Parameter { .. } => true,
            _ => self.place[value] < self.place[other],
        }
    }

    /// Whether all that each step does with an element of its state is to add to it.
    fn sums_up(&self, of: &Loop, element: u32) -> bool {
        let Some(&[mut sum]) = of.taken.get(&element).map(Vec::as_slice) else { return false };
        if of.read_by_condition.contains(&element) {
            return false;
        }
        loop {
            let &[user] = self.users.of(sum) else { return false };
            if user == of.next {
                return of.becomes_only(self.module, sum, element);
            }
            sum = match self.by_init.get(&user) {
                Some(within) => match self.sum_of_loop(within, sum) {
                    Some(result) => result,
                    None => return false,
                },
                None if self.is_addition(user) => user,
                None => return false,
            };
        }
    }

    /// What a loop adds to a value that it begins with.
    fn sum_of_loop(&self, within: &Loop, begin: InstructionId) -> Option<InstructionId> {
        let operands = &self.module.instructions[within.init].operands;
        let mut elements = (0u32..).zip(operands).filter(|(_, operand)| **operand == begin);
        let (element, _) = elements.next()?;
        let &[result] = within.results.get(&element)?.as_slice() else { return None };
        (elements.next().is_none() && self.sums_up(within, element)).then_some(result)
    }

    /// The only reader of a sum, if that adds it to another value.
    fn addition_of(&self, sum: InstructionId) -> Option<(InstructionId, InstructionId)> {
        let &[addition] = self.users.of(sum) else { return None };
        let operands = &self.module.instructions[addition].operands;
        let onto =
            *operands.iter().find(|&&operand| operand != sum).filter(|_| self.is_addition(addition))?;
        let has_its_shape = |id: InstructionId| {
            self.module.instructions[id].shape == self.module.instructions[addition].shape
        };
        (has_its_shape(sum) && has_its_shape(onto)).then_some((addition, onto))
    }

    /// Whether an instruction adds two different arrays, whose numbers are wide enough to be added in any order.
    fn is_addition(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        let is_wide = self
            .module
            .plain_array(id)
            .is_some_and(|array| array.element_type.is_integral() || array.element_type.bits() >= 32);
        let is_of_two = instruction.operands.first() != instruction.operands.last();
        matches!(instruction.op, Op::Binary(BinaryOp::Add))
            && is_wide
            && is_of_two
            && instruction.control_predecessors.is_empty()
    }
}
