//! Single numbers.

use memplan_ir::{ArrayLiteral, ElementType, Scalar};

#[test]
fn extremes_of_each_kind_of_type() {
    assert_eq!(Scalar::lowest(ElementType::S8).unwrap().as_integer(), Some(-128));
    assert_eq!(Scalar::highest(ElementType::S4).unwrap().as_integer(), Some(7));
    assert_eq!(Scalar::highest(ElementType::U8).unwrap().as_integer(), Some(255));
    assert_eq!(Scalar::highest(ElementType::S64).unwrap().as_integer(), Some(i64::MAX));
    assert_eq!(Scalar::lowest(ElementType::Bf16).unwrap().as_float(), Some(f64::NEG_INFINITY));
    assert_eq!(Scalar::lowest(ElementType::F8e4m3fn), None);
    assert_eq!(Scalar::lowest(ElementType::C64), None);
}

#[test]
fn splats_are_bitwise() {
    let literal = |values: [f32; 2]| {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        ArrayLiteral::new(ElementType::F32, [2], bytes)
    };
    assert!(Scalar::splat_of(&literal([1.0, 1.0])).unwrap().is_one());
    assert_eq!(Scalar::splat_of(&literal([0.0, -0.0])), None);
    assert_eq!(Scalar::splat_of(&ArrayLiteral::new(ElementType::F32, [0], [])), None);
}

#[test]
fn complex_one_has_no_imaginary_part() {
    assert!(Scalar::integer(ElementType::C64, 1).is_one());
    let i = ArrayLiteral::new(ElementType::C64, [], [0, 0, 128, 63, 0, 0, 128, 63]);
    assert!(!Scalar::splat_of(&i).unwrap().is_one());
}
