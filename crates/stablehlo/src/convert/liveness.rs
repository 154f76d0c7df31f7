//! Which operations a program needs, and which values are others under another name.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::mlir::{Attribute, Operation, Program, Region, ValueId};

/// Facts about the values of a program.
pub(super) struct Liveness<'p> {
    is_used: Vec<bool>,
    /// State of loops that no step changes is the value before the loop; a choice between a value and itself is the value.
    same: FxHashMap<ValueId, ValueId>,
    constants: FxHashMap<ValueId, &'p Operation>,
}

impl<'p> Liveness<'p> {
    /// Takes time linear in the program.
    pub(super) fn new(program: &'p Program) -> Liveness<'p> {
        let is_used = vec![false; program.types.len()];
        let mut found = Liveness { is_used, same: FxHashMap::default(), constants: FxHashMap::default() };
        for function in &program.operations {
            function.regions.iter().for_each(|region| found.find_names(region));
        }
        for function in &program.operations {
            function.regions.iter().for_each(|region| found.mark(region));
        }
        found
    }

    /// Whether an operation is needed.
    pub(super) fn is_live(&self, operation: &Operation) -> bool {
        operation.results.iter().any(|&result| self.is_used(result)) || has_effect(operation)
    }

    /// Whether anything needs a value.
    pub(super) fn is_used(&self, value: ValueId) -> bool {
        self.is_used.get(value as usize).copied().unwrap_or(false)
    }

    /// The value that a value is.
    pub(super) fn resolve(&self, mut value: ValueId) -> ValueId {
        while let Some(&other) = self.same.get(&value) {
            value = other;
        }
        value
    }

    /// The constant that a value is.
    pub(super) fn constant(&self, value: ValueId) -> Option<&'p Operation> {
        self.constants.get(&self.resolve(value)).copied()
    }

    fn find_names(&mut self, region: &'p Region) {
        for operation in &region.operations {
            operation.regions.iter().for_each(|region| self.find_names(region));
            if let ("stablehlo.constant" | "chlo.constant", &[result]) =
                (&*operation.name, &operation.results[..])
            {
                self.constants.insert(result, operation);
            }
            match (&*operation.name, &operation.operands[..], &operation.results[..]) {
                ("stablehlo.while", ..) => self.find_unchanged(operation),
                ("stablehlo.select", &[_, x, y], &[result]) => {
                    let x = self.resolve(x);
                    if x == self.resolve(y) && x != result {
                        self.same.insert(result, x);
                    }
                }
                _ => {}
            }
        }
    }

    /// A loop returns some of its arguments as they are.
    fn find_unchanged(&mut self, operation: &Operation) {
        let [condition, body] = &operation.regions[..] else { return };
        let Some(returns) = body.operations.last() else { return };
        for (i, argument) in body.arguments.iter().enumerate() {
            let returned = returns.operands.get(i).map(|&value| self.resolve(value));
            let outer = [operation.operands.get(i), operation.results.get(i)];
            let (Some(returned), [Some(&before), Some(&after)]) = (returned, outer) else { continue };
            let Some(tested) = condition.arguments.get(i) else { continue };
            let before = self.resolve(before);
            if returned == argument.value || returned == before && self.constants.contains_key(&before) {
                for inner in [argument.value, tested.value, after] {
                    if self.resolve(inner) == inner && inner != before {
                        self.same.insert(inner, before);
                    }
                }
            }
        }
    }

    /// Users come after what they use.
    fn mark(&mut self, region: &Region) {
        for operation in region.operations.iter().rev() {
            if !self.is_live(operation) && !operation.name.ends_with(".return") {
                continue;
            }
            for &operand in &operation.operands {
                for value in [operand, self.resolve(operand)] {
                    if let Some(is_used) = self.is_used.get_mut(value as usize) {
                        *is_used = true;
                    }
                }
            }
            operation.regions.iter().for_each(|region| self.mark(region));
        }
    }
}

/// Whether an operation must run even if nobody needs its result, itself or in a region.
fn has_effect(operation: &Operation) -> bool {
    let itself = match &*operation.name {
        // Functions of CHLO compute a value and nothing else.
        "stablehlo.composite" => {
            !matches!(operation.attribute("name"), Some(Attribute::String(name)) if name.starts_with("chlo."))
        }
        "stablehlo.custom_call" => {
            matches!(operation.attribute("has_side_effect"), Some(Attribute::Bool(true) | Attribute::Unit))
        }
        "func.call" | "stablehlo.outfeed" | "stablehlo.infeed" | "stablehlo.send" | "stablehlo.recv" => true,
        "stablehlo.all_reduce"
        | "stablehlo.all_gather"
        | "stablehlo.reduce_scatter"
        | "stablehlo.all_to_all"
        | "stablehlo.collective_permute"
        | "stablehlo.collective_broadcast"
        | "stablehlo.rng"
        | "stablehlo.rng_bit_generator"
        | "sdy.manual_computation" => true,
        _ => false,
    };
    let within = |region: &Region| region.operations.iter().any(has_effect);
    itself || operation.regions.iter().any(within)
}

/// The values that a region uses from around it, in the order of first use. Values that `is_constant` are left out.
pub(super) fn captured(liveness: &Liveness<'_>, regions: &[&Region]) -> Vec<ValueId> {
    let mut own = FxHashSet::default();
    let mut found = indexed::Set::default();
    for region in regions {
        visit(liveness, region, &mut own, &mut found);
    }
    found.order.into_iter().filter(|value| !own.contains(value)).collect()
}

fn visit(liveness: &Liveness<'_>, region: &Region, own: &mut FxHashSet<ValueId>, found: &mut indexed::Set) {
    own.extend(region.arguments.iter().map(|argument| argument.value));
    for operation in &region.operations {
        own.extend(&operation.results);
        if !operation.name.ends_with(".return") && !liveness.is_live(operation) {
            continue;
        }
        operation.regions.iter().for_each(|region| visit(liveness, region, own, found));
        for &operand in &operation.operands {
            let value = liveness.resolve(operand);
            if liveness.constant(value).is_none() {
                found.insert(value);
            }
        }
    }
}

/// A set that keeps its order.
mod indexed {
    use super::ValueId;

    #[derive(Default)]
    pub(super) struct Set {
        known: rustc_hash::FxHashSet<ValueId>,
        pub(super) order: Vec<ValueId>,
    }

    impl Set {
        pub(super) fn insert(&mut self, value: ValueId) {
            if self.known.insert(value) {
                self.order.push(value);
            }
        }
    }
}
