//! Index maps of single operations and of chains, inverted and composed, against what their pairs say.

use std::ops::Range;

use proptest::prelude::*;

use memplan_ir::indexing::*;
use memplan_ir::{
    ComputationBuilder, ElementType::F32, Insert, Instruction, InstructionId, Module, ModuleBuilder, Op,
    PaddingDimension, Shape, SliceDimension,
};

/// A chain of operations that only put elements elsewhere, each of the one before.
fn chain(extents: &[i64], choices: &[(u8, u8, u8)]) -> (Module, Vec<InstructionId>) {
    let mut module = ModuleBuilder::new("chain");
    let mut main = module.computation("main");
    let x = main.parameter("x", Shape::array(F32, extents.iter().copied()));
    let mut ids = vec![x];
    let mut extents = extents.to_vec();
    for &(kind, a, b) in choices {
        let last = *ids.last().expect("there is one");
        ids.push(step(&mut main, last, &mut extents, (kind, i64::from(a), i64::from(b))));
    }
    let main = main.finish(*ids.last().expect("there is one")).expect("it is a chain");
    (module.finish(main).expect("it is valid"), ids)
}

/// One operation on an array, whose extents become those of its result.
fn step(
    main: &mut ComputationBuilder<'_>,
    x: InstructionId,
    extents: &mut Vec<i64>,
    (kind, a, b): (u8, i64, i64),
) -> InstructionId {
    let d = a as usize % extents.len();
    let slice = |extent: i64| SliceDimension { start: b % extent, limit: extent, stride: 1 + a % 2 };
    let whole = |&extent: &i64| SliceDimension { start: 0, limit: extent, stride: 1 };
    let added = match kind % 6 {
        0 => {
            let mut order: Vec<i64> = (0..extents.len() as i64).collect();
            order.rotate_left(d);
            let was = extents.clone();
            order.iter().zip(extents.iter_mut()).for_each(|(&from, extent)| *extent = was[from as usize]);
            main.transpose(x, order)
        }
        1 => {
            let mut slices: Vec<SliceDimension> = extents.iter().map(whole).collect();
            slices[d] = slice(extents[d]);
            extents[d] = (slices[d].limit - slices[d].start + slices[d].stride - 1) / slices[d].stride;
            main.insert(Op::Slice { dimensions: slices.into_iter().collect() }, [x])
        }
        2 => {
            let zero = main.constant(memplan_ir::Literal::f32(0.0));
            let mut padding = vec![PaddingDimension::default(); extents.len()];
            padding[d] = PaddingDimension { low: b % 3 - 1, high: 1, interior: a % 2 };
            extents[d] = padding[d].padded(extents[d]).expect("it is small");
            main.insert(Op::Pad { dimensions: padding.into_iter().collect() }, [x, zero])
        }
        3 => main.insert(Op::Reverse { dimensions: [d as i64].into_iter().collect() }, [x]),
        // Two dimensions become one, or one becomes two.
        4 if extents.len() > 1 => {
            let d = d.min(extents.len() - 2);
            let second = extents.remove(d + 1);
            extents[d] *= second;
            main.reshape(x, extents.iter().copied())
        }
        _ => {
            let part = (2..=extents[d]).find(|part| extents[d] % part == 0).unwrap_or(1);
            extents[d] /= part;
            extents.insert(d + 1, part);
            main.reshape(x, extents.iter().copied())
        }
    };
    added.expect("the operation is valid")
}

fn map_of(module: &Module, id: InstructionId) -> IndexMap {
    operands_read(module, id)[0].clone().expect("it reads elements")
}

/// All indices of an array.
fn indices(extents: &[i64]) -> Vec<Vec<i64>> {
    extents.iter().fold(vec![vec![]], |all, &extent| {
        all.iter().flat_map(|at| (0..extent).map(move |i| [&at[..], &[i]].concat())).collect()
    })
}

/// All pairs of a map.
fn pairs(map: &IndexMap) -> Vec<(Vec<i64>, Vec<i64>)> {
    let of_operand = indices(&map.extents);
    let of_result = indices(&map.result_extents());
    let read = |i: Vec<i64>| {
        of_operand.iter().filter(|o| map.reads(&i, o)).map(|o| (i.clone(), o.clone())).collect()
    };
    of_result.into_iter().flat_map(|i| -> Vec<_> { read(i) }).collect()
}

proptest! {
    #[test]
    fn maps_turn_around(choice in any::<(u8, u8, u8)>(), extents in prop::collection::vec(1i64..5, 1..4)) {
        let (module, ids) = chain(&extents, &[choice]);
        let map = map_of(&module, ids[1]);
        let back = map.inverse();
        let mut found = pairs(&back).into_iter().map(|(o, i)| (i, o)).collect::<Vec<_>>();
        found.sort();
        prop_assert!(map.is_exact && back.is_exact);
        prop_assert_eq!(found, pairs(&map));
    }

    #[test]
    fn maps_follow_each_other(
        choices in prop::collection::vec(any::<(u8, u8, u8)>(), 2..5),
        extents in prop::collection::vec(1i64..5, 1..3),
    ) {
        let (module, ids) = chain(&extents, &choices);
        let all = ids[1..].iter().rev().map(|&id| map_of(&module, id));
        let whole = all.clone().reduce(|a, b| a.then(&b)).expect("there are two");
        // The same pair by pair.
        let between = all.map(|map| pairs(&map)).reduce(|a, b| {
            let mut both: Vec<_> = a.iter().flat_map(|(i, x)| {
                b.iter().filter(move |(y, _)| x == y).map(|(_, o)| (i.clone(), o.clone()))
            }).collect();
            both.sort();
            both.dedup();
            both
        }).expect("there are two");
        let found = pairs(&whole);
        prop_assert!(between.iter().all(|pair| found.contains(pair)), "{:?} leaves pairs out", whole);
        prop_assert!(!whole.is_exact || found == between, "{:?} is not exact", whole);
    }

    #[test]
    fn boxes_hold_all_that_is_read(
        choice in any::<(u8, u8, u8)>(),
        extents in prop::collection::vec(1i64..5, 1..4),
        cut in any::<(u8, u8)>(),
    ) {
        let (module, ids) = chain(&extents, &[choice]);
        let map = map_of(&module, ids[1]);
        let cut = |&extent: &i64| {
            let first = i64::from(cut.0) % extent.max(1);
            first..(first + 1 + i64::from(cut.1)).min(extent)
        };
        let of_result: IndexBox = map.result_extents().iter().map(cut).collect();
        let read = map.box_read(&of_result);
        let is_in = |at: &[i64], of: &[Range<i64>]| at.iter().zip(of).all(|(i, range)| range.contains(i));
        for (i, o) in pairs(&map) {
            prop_assert!(!is_in(&i, &of_result) || is_in(&o, &read), "{:?} reads {:?}, not in {:?}", i, o, read);
        }
    }
}

#[test]
fn what_is_padded_and_cut_again_is_the_identity() {
    let (module, ids) = chain(&[6], &[(2, 0, 2), (1, 0, 1)]);
    let map = map_of(&module, ids[2]).then(&map_of(&module, ids[1]));
    assert_eq!(map.sources[..], [Source::Strided(Strided { dim: 0, start: 0, stride: 1, dilation: 1 })]);
    // Padding at the end is not covered.
    assert_eq!(map.loops[..], [7]);
    let all = IndexBox::from_elem(0..7, 1);
    assert_eq!(map.box_read(&all), IndexBox::from_elem(0..6, 1));
}

#[test]
fn an_operation_without_operands_reads_nothing() {
    let mut module = ModuleBuilder::new("m");
    let mut main = module.computation("main");
    let x = main.parameter("x", Shape::array(F32, [2]));
    let main = main.finish(x).expect("it is a parameter");
    let module = module.finish(main).expect("it is valid");
    let Instruction { op, .. } = &module.instructions[x];
    assert_eq!(*op, Op::Parameter { number: 0 });
    assert!(operands_read(&module, x).is_empty());
}
