//! Pieces of results: the leaves of a tuple, and boxes of an array.

use memplan_ir::{ArrayLiteral, Literal};

/// The arrays of a literal, in order; tokens are left out.
pub fn leaves(literal: &Literal) -> Vec<&ArrayLiteral> {
    match literal {
        Literal::Array(array) => vec![array],
        Literal::Tuple(elements) => elements.iter().flat_map(leaves).collect(),
        Literal::Token => Vec::new(),
    }
}

/// The elements of a box in an array, as an array of those extents.
///
/// # Panics
/// If the box is not within the array.
pub fn part(whole: &ArrayLiteral, starts: &[i64], extents: &[i64]) -> Literal {
    let width = whole.element_type.byte_width() as usize;
    let mut places = vec![0];
    for ((&start, &extent), &all) in starts.iter().zip(extents).zip(&whole.dimensions) {
        assert!(start >= 0 && start + extent <= all, "{start} and {extent} more of {all}");
        places = places.iter().flat_map(|at| (start..start + extent).map(move |i| at * all + i)).collect();
    }
    let all = whole.bytes();
    let bytes: Vec<u8> =
        places.iter().flat_map(|&at| &all[at as usize * width..][..width]).copied().collect();
    Literal::array(whole.element_type, extents.iter().copied(), bytes)
}
