//! Whether operations read the elements that the tables of operations list: runs them, and compares.

use std::collections::{BTreeMap, BTreeSet};

use memplan_interp::{Options, evaluate};
use memplan_ir::indexing::{IndexMap, Source, Strided, operands_read};
use memplan_ir::{Access, ArrayLiteral, InstructionId, Literal, Module, Op, Opcode, Shape};

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
        let is_asked = |case: &Case| {
            let root = &case.module.instructions[case.root()];
            root.op.traits().access == access
                && root.called.is_empty()
                && !case.module.shape(case.root()).is_tuple()
        };
        Case::all().into_iter().filter(is_asked).collect()
    }

    /// All cases of one operation on parameters and constants, on one device.
    fn all() -> Vec<Case> {
        cases().iter().filter_map(|text| Case::new(text)).collect()
    }

    fn new(text: &str) -> Option<Case> {
        let module = memplan_hlo::parse(text).expect("cases are valid");
        let entry = module.entry_computation();
        let is_given = |id: &InstructionId| {
            matches!(module.instructions[*id].op, Op::Parameter { .. } | Op::Constant(_))
        };
        let is_static = |shape: &Shape| shape.as_array().is_some_and(|array| !array.is_dynamic());
        let is_plain = |&id: &InstructionId| match module.shape(id) {
            Shape::Tuple(elements) => id == entry.root && elements.iter().all(is_static),
            shape => is_static(shape),
        };
        let is_one = entry.instructions.iter().all(|id| *id == entry.root || is_given(id))
            && !is_given(&entry.root)
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

    fn root(&self) -> InstructionId {
        self.module.entry_computation().root
    }

    fn opcode(&self) -> Opcode {
        self.module.instructions[self.root()].opcode()
    }

    /// The elements of the result on some inputs, as bytes; of the first array of a tuple.
    fn run(&self, inputs: &[ArrayLiteral]) -> Vec<Vec<u8>> {
        elements(&self.run_all(inputs)[0])
    }

    /// All arrays of the result on some inputs.
    fn run_all(&self, inputs: &[ArrayLiteral]) -> Vec<ArrayLiteral> {
        let inputs: Vec<Literal> = inputs.iter().cloned().map(Literal::Array).collect();
        let result = evaluate(&self.module, &inputs, &Options::default()).expect("cases can be run");
        leaves_of(&result)
    }

    /// The inputs with another element at a place of one of them: one of the same array, which the operation takes.
    fn with_another(&self, k: usize, i: usize) -> Vec<ArrayLiteral> {
        let width = self.inputs[k].element_type.byte_width() as usize;
        let n = self.inputs[k].bytes().len() / width;
        let mut bytes = self.inputs[k].bytes().to_vec();
        let other = (i + n / 2) % n;
        bytes.copy_within(other * width..(other + 1) * width, i * width);
        let mut inputs = self.inputs.clone();
        let dimensions = inputs[k].dimensions.iter().copied();
        inputs[k] = ArrayLiteral::new(inputs[k].element_type, dimensions, bytes);
        inputs
    }

    /// Runs the operation with other elements in its operands, and finds an element of a result that changes although its
    /// map does not read the other one; else, how many elements changed.
    fn read_beyond(&self, maps: &[Option<IndexMap>]) -> Result<usize, String> {
        let before = self.run_all(&self.inputs);
        let mut n_changed = 0;
        for (k, &parameter) in self.module.entry_computation().parameters.iter().enumerate() {
            let operands = &self.module.instructions[self.root()].operands;
            let of_parameter = operands.iter().zip(maps).filter(|(operand, _)| **operand == parameter);
            // A parameter that several operands are is read where any of them is.
            let Some(maps) = of_parameter.map(|(_, map)| map.as_ref()).collect::<Option<Vec<_>>>() else {
                continue;
            };
            let Some(map) = maps.first() else { continue };
            let n = map.extents.iter().product::<i64>() as usize;
            for i in (0..n).step_by(1 + n / 12) {
                let after = self.run_all(&self.with_another(k, i));
                for (before, after) in before.iter().zip(&after) {
                    let pairs = elements(before).into_iter().zip(elements(after)).enumerate();
                    for (e, _) in pairs.filter(|(_, (before, after))| before != after) {
                        n_changed += 1;
                        let (result, operand) = (index(e, &before.dimensions), index(i, &map.extents));
                        if !maps.iter().any(|map| map.reads(&result, &operand)) {
                            let name = &self.name;
                            return Err(format!(
                                "{name}: element {operand:?} of {k} changes {result:?}, beside {maps:?}"
                            ));
                        }
                    }
                }
            }
        }
        Ok(n_changed)
    }
}

/// The index of an element by its number.
fn index(mut number: usize, extents: &[i64]) -> Vec<i64> {
    let mut index = vec![0; extents.len()];
    for (at, &extent) in index.iter_mut().zip(extents).rev() {
        *at = number as i64 % extent;
        number /= extent as usize;
    }
    index
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
                let after = case.run(&case.with_another(k, i));
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

#[test]
fn operations_read_where_their_maps_say() {
    let mut changed: BTreeMap<Opcode, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for case in Case::all() {
        match case.read_beyond(&operands_read(&case.module, case.root())) {
            Ok(n_changed) => *changed.entry(case.opcode()).or_default() += n_changed,
            Err(what) => wrong.push(what),
        }
    }
    assert!(wrong.is_empty(), "{} cases are wrong:\n{}", wrong.len(), wrong.join("\n"));
    let n_seen = changed.values().filter(|&&n| n > 0).count();
    assert!(n_seen > 75, "elements of only {n_seen} operations changed");
    for opcode in [
        Opcode::Concatenate,
        Opcode::Convolution,
        Opcode::Dot,
        Opcode::DynamicSlice,
        Opcode::DynamicUpdateSlice,
        Opcode::Gather,
        Opcode::Pad,
        Opcode::Reduce,
        Opcode::ReduceWindow,
        Opcode::Reshape,
        Opcode::Reverse,
        Opcode::Scatter,
        Opcode::SelectAndScatter,
        Opcode::Slice,
        Opcode::Sort,
        Opcode::TriangularSolve,
    ] {
        assert!(changed.get(&opcode).is_some_and(|&n| n > 0), "no element of {opcode} changed");
    }
}

/// A map that is wrong by one in one dimension must not pass.
#[test]
fn maps_that_are_wrong_by_one_are_found() {
    let (mut n_found, mut n_missed) = (0, BTreeSet::new());
    for case in Case::all() {
        let maps = operands_read(&case.module, case.root());
        if !maps.iter().flatten().any(|map| map.extents.iter().any(|&extent| extent > 2)) {
            continue;
        }
        for d in 0..3 {
            let mut broken = maps.clone();
            let n_broken = broken.iter_mut().flatten().filter_map(|map| break_source(map, d)).count();
            match case.read_beyond(&broken) {
                _ if n_broken == 0 => {}
                Ok(_) => _ = n_missed.insert(case.name.clone()),
                Err(_) => n_found += 1,
            }
        }
    }
    // Where all elements are alike, or nothing changes when one of them does, a wrong map cannot show.
    assert!(n_found > 20 * n_missed.len(), "{n_found} found, missed {n_missed:?}");
}

/// Lets a map read the next element in a dimension, if it says where it reads there.
fn break_source(map: &mut IndexMap, d: usize) -> Option<()> {
    let source = map.sources.get_mut(d).filter(|_| map.extents[d] > 2)?;
    let broken = match *source {
        Source::Dim(dim) if dim < map.rank => {
            Source::Strided(Strided { dim, start: 1, stride: 1, dilation: 1 })
        }
        Source::Strided(strided) => Source::Strided(Strided { start: strided.start + 1, ..strided }),
        _ => return None,
    };
    *source = broken;
    Some(())
}
