//! Floating-point numbers as bits.

use memplan_ir::ElementType;
use strum::IntoEnumIterator;

#[test]
fn every_small_value_survives() {
    let is_small = |t: &ElementType| t.is_floating() && t.bits() <= 16;
    for element_type in ElementType::iter().filter(is_small) {
        for bits in 0..1u64 << element_type.bits() {
            let value = element_type.decode_float(bits);
            if !value.is_nan() {
                assert_eq!(element_type.encode_float(value), bits, "{element_type} {bits:#x} {value}");
            } else {
                assert!(element_type.decode_float(element_type.encode_float(value)).is_nan());
            }
        }
    }
}

#[test]
fn agrees_with_half() {
    for i in 0..20_000 {
        let value = (f64::from(i).powi(3) * 1.37e-9) as f32 * if i % 2 == 0 { 1.0 } else { -1.0 };
        let (f16, bf16) = (half::f16::from_f32(value).to_bits(), half::bf16::from_f32(value).to_bits());
        assert_eq!(ElementType::F16.encode_float(f64::from(value)), u64::from(f16));
        assert_eq!(ElementType::Bf16.encode_float(f64::from(value)), u64::from(bf16));
    }
}

#[test]
fn overflow_goes_where_the_format_says() {
    assert_eq!(ElementType::F8e4m3fn.decode_float(ElementType::F8e4m3fn.encode_float(448.0)), 448.0);
    assert!(ElementType::F8e4m3fn.decode_float(ElementType::F8e4m3fn.encode_float(1e6)).is_nan());
    assert_eq!(ElementType::F8e5m2.decode_float(ElementType::F8e5m2.encode_float(1e6)), f64::INFINITY);
    assert_eq!(ElementType::F4e2m1fn.decode_float(ElementType::F4e2m1fn.encode_float(-1e6)), -6.0);
}
