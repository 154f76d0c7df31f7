//! `flat-loop-state`: makes the state of a loop a tuple of arrays, without nested tuples.
//!
//! TensorFlow's lists are pairs of an array and a count, which its loops carry as tuples:
//!
//! ```text
//! s = (s32[], (f32[9,8], s32[])) tuple(0, list)            l = get-tuple-element(list), index=0
//! w = while(s)                                             n = get-tuple-element(list), index=1
//!   list = get-tuple-element(s), index=1            =>     s = (s32[], f32[9,8], s32[]) tuple(0, l, n)
//!   rows = get-tuple-element(list), index=0                w = while(s)
//! ```
//!
//! Passes that inspect loops element by element then see the arrays. Inside and after the loop, the old tuple is made
//! of the elements again, and `tuple-simplifier` removes it.
//!
//! Left alone: loops with control dependencies or shardings, state with tokens, bodies of several loops. *Changed*
//! means that a loop's state was flattened.

use memplan_ir::{ComputationId, Cursor, Insert, InstructionId, Module, Names, Op, Shape, ShapeIndex};
use memplan_rewriter::{Context, PassError, PassFn};
use rustc_hash::{FxHashMap, FxHashSet};

/// Takes tuples in the state of loops apart.
pub const FLAT_LOOP_STATE: PassFn =
    PassFn { name: "flat-loop-state", description: "carry elements of tuples in loop state separately", run };

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let nested = loops_with_tuples(module);
    if module.is_scheduled || nested.is_empty() {
        return Ok(false);
    }
    let mut flattener = Flattener {
        names: Names::new(module),
        module,
        stands_for: FxHashMap::default(),
        taken_from_flat: FxHashSet::default(),
    };
    nested.into_iter().for_each(|id| flattener.flatten(id));
    flattener.finish();
    Ok(true)
}

/// The loops whose state has tuples of arrays in it, and whose body and condition are theirs alone.
fn loops_with_tuples(module: &Module) -> Vec<InstructionId> {
    let listed = || module.computations.values().flat_map(|computation| &computation.instructions).copied();
    let mut calls: FxHashMap<ComputationId, usize> = FxHashMap::default();
    listed().for_each(|id| {
        module.instructions[id].called.iter().for_each(|&called| *calls.entry(called).or_default() += 1);
    });
    let is_nested = |id: &InstructionId| {
        let instruction = &module.instructions[*id];
        let is_tuple_of_tuples =
            || module.shape(*id).as_tuple().is_some_and(|elements| elements.iter().any(Shape::is_tuple));
        let has_arrays_only =
            || module.shape(*id).leaves().iter().all(|(_, leaf)| matches!(leaf, Shape::Array(_)));
        let is_own = || instruction.called.iter().all(|called| calls[called] == 1);
        let is_plain = |id: InstructionId| {
            let instruction = &module.instructions[id];
            let has_sharding = instruction.extras.as_ref().is_some_and(|extras| extras.sharding.is_some());
            instruction.control_predecessors.is_empty() && !has_sharding
        };
        let states = || {
            instruction.called.iter().flat_map(|&called| module.computations[called].parameters[..].iter())
        };
        instruction.op == Op::While
            && is_tuple_of_tuples()
            && has_arrays_only()
            && is_own()
            && is_plain(*id)
            && states().all(|&state| is_plain(state))
    };
    listed().filter(is_nested).collect()
}

struct Flattener<'a> {
    module: &'a mut Module,
    names: Names,
    /// The old tuple, put together again, by the loop or parameter that is flat now.
    stands_for: FxHashMap<InstructionId, InstructionId>,
    /// The instructions that read elements of flat state.
    taken_from_flat: FxHashSet<InstructionId>,
}

impl Flattener<'_> {
    fn flatten(&mut self, id: InstructionId) {
        let nested = self.module.shape(id).clone();
        let flat = Shape::Tuple(nested.leaves().into_iter().map(|(_, leaf)| leaf.clone()).collect());
        let init = self.module.instructions[id].operands[0];
        let flat_init = self.flat_tuple(init, &nested);
        self.module.instructions[id].operands[0] = flat_init;
        let (body, condition) =
            (self.module.instructions[id].called[0], self.module.instructions[id].called[1]);
        for computation in [body, condition] {
            let state = self.module.computations[computation].parameters[0];
            self.put_together(state, &nested, flat.clone());
        }
        let next = self.module.computations[body].root;
        self.module.computations[body].root = self.flat_tuple(next, &nested);
        self.put_together(id, &nested, flat);
    }

    /// A tuple of all arrays in a tuple of tuples.
    fn flat_tuple(&mut self, tuple: InstructionId, nested: &Shape) -> InstructionId {
        let mut at = self.beside(tuple);
        let mut leaf =
            |index: ShapeIndex| index.0.iter().fold(tuple, |part, &i| at.get_tuple_element(part, i));
        let leaves: Vec<InstructionId> = nested.leaves().into_iter().map(|(index, _)| leaf(index)).collect();
        at.tuple(leaves)
    }

    /// Makes a loop or a parameter flat, and replaces the old one by a nested tuple of its elements.
    fn put_together(&mut self, state: InstructionId, nested: &Shape, flat: Shape) {
        self.module.set_shape(state, flat);
        if let Some(extras) = &mut self.module.instructions[state].extras {
            // They speak of the leaves of the old shape, in its tuples.
            extras.origin = None;
            extras.parameter_replication.clear();
        }
        let mut next_leaf = 0;
        let tuple = self.nested_tuple(state, nested, &mut next_leaf);
        self.stands_for.insert(state, tuple);
    }

    fn nested_tuple(&mut self, state: InstructionId, shape: &Shape, next_leaf: &mut u32) -> InstructionId {
        match shape {
            Shape::Tuple(elements) => {
                let elements: Vec<InstructionId> =
                    elements.iter().map(|element| self.nested_tuple(state, element, next_leaf)).collect();
                self.beside(state).tuple(elements)
            }
            _ => {
                let taken = self.beside(state).get_tuple_element(state, *next_leaf);
                *next_leaf += 1;
                self.taken_from_flat.insert(taken);
                taken
            }
        }
    }

    fn beside(&mut self, id: InstructionId) -> Cursor<'_> {
        Cursor::beside(self.module, &mut self.names, id)
    }

    /// Lets everybody see the old tuples, and puts instructions in order.
    fn finish(self) {
        let computations: FxHashSet<ComputationId> =
            self.stands_for.keys().map(|&id| self.module.instructions[id].parent).collect();
        let mut computations: Vec<ComputationId> = computations.into_iter().collect();
        computations.sort_unstable();
        for computation in computations {
            for id in self.module.computations[computation].instructions.clone() {
                if !self.taken_from_flat.contains(&id) {
                    for operand in &mut self.module.instructions[id].operands {
                        *operand = self.stands_for.get(operand).copied().unwrap_or(*operand);
                    }
                }
            }
            let root = self.module.computations[computation].root;
            if let Some(&tuple) = self.stands_for.get(&root) {
                self.module.computations[computation].root = tuple;
            }
            self.module.put_operands_first(computation);
        }
    }
}
