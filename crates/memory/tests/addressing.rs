//! Where the elements of an array lie.

use memplan_ir::{ArrayShape, ElementType, Layout, Tile};
use memplan_memory::{Addressing, Target, is_view};
use smallvec::SmallVec;

#[test]
fn views() {
    let v5e = Target::find("tpu-v5e").unwrap();
    let plain = |dimensions: &[i64], order: &[i64]| {
        let mut shape = ArrayShape::new(ElementType::F32, dimensions.iter().copied());
        shape.layout = Some(Layout::with_order(order.iter().copied()));
        shape
    };
    let tiled = |dimensions: &[i64], order: &[i64]| {
        let mut shape = ArrayShape::new(ElementType::F32, dimensions.iter().copied());
        let rule = v5e.layout.unwrap();
        shape.layout = Some(rule.layout_with_order(ElementType::F32, dimensions, order).unwrap());
        shape
    };
    for (expected, from, to) in [
        (true, plain(&[6, 4], &[1, 0]), plain(&[2, 3, 4], &[2, 1, 0])),
        (true, plain(&[6, 4], &[0, 1]), plain(&[2, 3, 4], &[1, 0, 2])),
        (false, plain(&[6, 4], &[0, 1]), plain(&[2, 3, 4], &[2, 1, 0])),
        (true, plain(&[1, 7, 1], &[0, 1, 2]), plain(&[7], &[0])),
        (true, tiled(&[6, 16, 256], &[2, 1, 0]), tiled(&[2, 3, 16, 256], &[3, 2, 1, 0])),
        (true, tiled(&[6, 16, 256], &[2, 1, 0]), tiled(&[96, 256], &[1, 0])),
        // Rows of three, padded to four, are not rows of six, padded to eight.
        (false, tiled(&[2, 3, 256], &[2, 1, 0]), tiled(&[6, 256], &[1, 0])),
        (true, tiled(&[5, 100], &[1, 0]), tiled(&[1, 5, 100], &[2, 1, 0])),
        (false, tiled(&[16, 256], &[1, 0]), tiled(&[4096], &[0])),
        // A column is a vector where both fill whole registers.
        (true, tiled(&[2048, 1], &[0, 1]), tiled(&[2048], &[0])),
    ] {
        assert_eq!(is_view(&from, &to), expected, "{from:?} as {to:?}");
        assert_eq!(is_view(&to, &from), expected, "{to:?} as {from:?}");
    }
}

#[track_caller]
fn check(dimensions: &[i64], layout: Layout, index: &[i64], offset: i64, size: usize) {
    let mut shape = ArrayShape::new(ElementType::F32, dimensions.iter().copied());
    shape.layout = Some(layout);
    let addressing = Addressing::new(&shape).unwrap();
    assert_eq!(addressing.offset(index.iter().copied()), offset);
    assert_eq!(addressing.size, size);
}

#[test]
fn strides_follow_the_layout() {
    check(&[3, 5], Layout::row_major(2), &[2, 1], 4 * 11, 60);
    check(&[3, 5], Layout::with_order([0, 1]), &[2, 1], 4 * 5, 60);
}

#[test]
fn tiles_are_stored_one_after_another() {
    let mut layout = Layout::row_major(2);
    layout.tiles.push(Tile { dimensions: SmallVec::from_slice(&[2, 4]) });
    // 3 x 5 is padded to 4 x 8: two rows of two tiles of eight elements.
    check(&[3, 5], layout.clone(), &[2, 1], 4 * (16 + 1), 4 * 32);
    check(&[3, 5], layout.clone(), &[1, 4], 4 * (8 + 4), 4 * 32);
    layout.tiles.push(Tile { dimensions: SmallVec::from_slice(&[2, 1]) });
    // Within a tile, two rows of one column are adjacent.
    check(&[3, 5], layout, &[1, 2], 4 * (4 + 1), 4 * 32);
}
