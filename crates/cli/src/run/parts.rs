//! Inputs and results of programs that shardings spread over several devices: whole arrays, and the parts of each device.

use memplan::ir::{ArrayLiteral, Literal, Module};
use memplan::passes::OfOneDevice;

/// The inputs of each device.
pub(super) fn of_inputs(of_one: &OfOneDevice, local: &Module, inputs: &[Literal]) -> Vec<Vec<Literal>> {
    let mut given = vec![Vec::with_capacity(inputs.len()); of_one.devices as usize];
    let mut leaf = 0;
    for (input, &parameter) in inputs.iter().zip(&local.entry_computation().parameters) {
        let leaves: Vec<_> =
            local.shape(parameter).leaves().into_iter().map(|(_, leaf)| leaf.clone()).collect();
        for (device, of_device) in (0..).zip(&mut given) {
            let mut at = leaf;
            of_device.push(with_leaves(input, &mut |whole| {
                let part = leaves.get(at - leaf).and_then(|leaf| leaf.as_array());
                let extents = part.map_or(&whole.dimensions[..], |part| &part.dimensions);
                let starts = of_one.parameter_starts(at, device, extents);
                at += 1;
                cut(whole, &starts, extents)
            }));
        }
        leaf += leaves.len();
    }
    given
}

/// The whole of a result, from the parts of all devices.
pub(super) fn put_together(of_one: &OfOneDevice, whole: &Module, parts: &[Literal]) -> Literal {
    let root = whole.entry_computation().root;
    let shapes: Vec<_> = whole.shape(root).leaves().into_iter().map(|(_, leaf)| leaf.clone()).collect();
    let mut arrays: Vec<(ArrayLiteral, Vec<u8>)> = Vec::new();
    for (device, part) in (0..).zip(parts) {
        let mut leaf = 0;
        with_leaves(part, &mut |part| {
            if device == 0 {
                let dimensions =
                    shapes.get(leaf).and_then(|shape| shape.as_array()).map(|array| array.dimensions.clone());
                let mut of_all = part.clone();
                of_all.dimensions = dimensions.unwrap_or_else(|| part.dimensions.clone());
                let bytes = of_all.element_count() * part.element_type.byte_width() as usize;
                arrays.push((of_all, vec![0; bytes]));
            }
            let (of_all, bytes) = &mut arrays[leaf];
            let starts = of_one.result_starts(leaf, device, &part.dimensions);
            let width = part.element_type.byte_width() as usize;
            for (element, at) in
                part.bytes().chunks(width).zip(places(&of_all.dimensions, &starts, &part.dimensions))
            {
                bytes[at * width..][..width].copy_from_slice(element);
            }
            leaf += 1;
            Literal::Array(part.clone())
        });
    }
    let mut whole = arrays.into_iter();
    with_leaves(&parts[0], &mut |part| match whole.next() {
        Some((array, bytes)) => Literal::array(array.element_type, array.dimensions, bytes),
        None => Literal::Array(part.clone()),
    })
}

/// A literal with other arrays, which are visited in order.
fn with_leaves(literal: &Literal, of: &mut dyn FnMut(&ArrayLiteral) -> Literal) -> Literal {
    match literal {
        Literal::Array(array) => of(array),
        Literal::Tuple(elements) => {
            Literal::Tuple(elements.iter().map(|element| with_leaves(element, of)).collect())
        }
        other => other.clone(),
    }
}

fn cut(whole: &ArrayLiteral, starts: &[i64], extents: &[i64]) -> Literal {
    let width = whole.element_type.byte_width() as usize;
    let all = whole.bytes();
    let places = places(&whole.dimensions, starts, extents).into_iter();
    let bytes: Vec<u8> = places.flat_map(|at| all[at * width..][..width].iter().copied()).collect();
    Literal::array(whole.element_type, extents.iter().copied(), bytes)
}

/// Numbers of the elements of a box in a row-major array.
fn places(whole: &[i64], starts: &[i64], extents: &[i64]) -> Vec<usize> {
    let mut places = vec![0];
    for ((&start, &extent), &all) in starts.iter().zip(extents).zip(whole) {
        let row = |at: usize| (start..start + extent).map(move |i| at * all as usize + i as usize);
        places = places.into_iter().flat_map(row).collect();
    }
    places
}
