//! Whether operations read what the table of operations says they read: run them, and see.

use std::collections::BTreeSet;

use memplan_interp::{Options, evaluate};
use memplan_ir::{Access, ArrayLiteral, InstructionId, Literal, Module, Opcode};

use super::{arrays, cases, leaves_of};

/// A module whose result is one operation on its parameters, and numbers for them.
struct Case {
    name: String,
    module: Module,
    inputs: Vec<ArrayLiteral>,
}

impl Case {
    /// The cases of operations with an access, on one device.
    fn with(access: Access) -> Vec<Case> {
        cases().iter().filter_map(|text| Case::new(text, access)).collect()
    }

    fn new(text: &str, access: Access) -> Option<Case> {
        let module = memplan_hlo::parse(text).expect("cases are valid");
        let entry = module.entry_computation();
        let root = &module.instructions[entry.root];
        let is_parameter = |id: &InstructionId| entry.parameters.contains(id);
        let is_plain = |&id: &InstructionId| module.shape(id).as_array().is_some_and(|it| !it.is_dynamic());
        let is_one = root.op.traits().access == access
            && root.called.is_empty()
            && entry.instructions.len() == entry.parameters.len() + 1
            && root.operands.iter().all(is_parameter)
            && entry.instructions.iter().all(is_plain);
        if !is_one {
            return None;
        }
        let shapes = entry.parameters.iter().map(|&id| module.shape(id).as_array().expect("it is plain"));
        let inputs: Vec<Vec<ArrayLiteral>> =
            shapes.enumerate().map(|(k, shape)| arrays(text, &format!("// p{k}:"), shape)).collect();
        if inputs.iter().any(|of_devices| of_devices.len() > 1) {
            return None;
        }
        let inputs = inputs.into_iter().flatten().collect();
        Some(Case { name: module.name.to_string(), module, inputs })
    }

    fn opcode(&self) -> Opcode {
        self.module.instructions[self.module.entry_computation().root].opcode()
    }

    /// The elements of the result on some inputs, as bytes.
    fn run(&self, inputs: &[ArrayLiteral]) -> Vec<Vec<u8>> {
        let inputs: Vec<Literal> = inputs.iter().cloned().map(Literal::Array).collect();
        let result = evaluate(&self.module, &inputs, &Options::default()).expect("cases can be run");
        elements(&leaves_of(&result)[0])
    }
}

fn elements(array: &ArrayLiteral) -> Vec<Vec<u8>> {
    array.bytes().chunks(array.element_type.byte_width() as usize).map(<[u8]>::to_vec).collect()
}

#[test]
fn elementwise_operations_read_the_element_at_their_place() {
    let mut tried = BTreeSet::new();
    for case in Case::with(Access::Elementwise) {
        let before = case.run(&case.inputs);
        for k in 0..case.inputs.len() {
            let width = case.inputs[k].element_type.byte_width() as usize;
            let n = case.inputs[k].bytes().len() / width;
            // A scalar counts for every element.
            if n != before.len() || n < 2 {
                continue;
            }
            for i in [0, n / 3, n - 1] {
                // Another number of the same array is one that the operation takes.
                let mut bytes = case.inputs[k].bytes().to_vec();
                let other = (i + n / 2) % n;
                bytes.copy_within(other * width..(other + 1) * width, i * width);
                let mut inputs = case.inputs.clone();
                let dimensions = inputs[k].dimensions.iter().copied();
                inputs[k] = ArrayLiteral::new(inputs[k].element_type, dimensions, bytes);
                let after = case.run(&inputs);
                let changed = (0..n).filter(|&e| before[e] != after[e]).collect::<Vec<_>>();
                assert!(changed.iter().all(|&e| e == i), "{}: element {i} changes {changed:?}", case.name);
            }
            tried.insert(case.opcode());
        }
    }
    assert!(tried.len() > 50, "only {} operations were tried", tried.len());
}

#[test]
fn reindexing_operations_only_put_elements_elsewhere() {
    let mut tried = BTreeSet::new();
    for case in Case::with(Access::Reindexing) {
        // Bits are grouped anew, and numbers are made of nothing.
        if matches!(case.opcode(), Opcode::BitcastConvert | Opcode::Iota) {
            continue;
        }
        let given: BTreeSet<Vec<u8>> = case.inputs.iter().flat_map(elements).collect();
        let strangers = case.run(&case.inputs).into_iter().filter(|element| !given.contains(element)).count();
        assert_eq!(strangers, 0, "{}: elements that no operand has", case.name);
        tried.insert(case.opcode());
    }
    assert!(tried.len() > 7, "only {tried:?} were tried");
}
