//! The layout rule of TPUs against what libtpu chose.

use memplan_hlo::shape_text;
use memplan_ir::{ArrayShape, ElementType, Shape};
use memplan_memory::{Addressing, Target};
use memplan_testkit::shared;
use proptest::prelude::*;

/// The text and the padded bytes of an array's layout on a target.
fn layout(target: &Target, element_type: ElementType, dimensions: &[i64]) -> (String, u64) {
    let shape = Shape::Array(array(target, element_type, dimensions));
    (shape_text(&shape), target.size_of(&shape).0)
}

fn array(target: &Target, element_type: ElementType, dimensions: &[i64]) -> ArrayShape {
    let rule = target.layout.expect("the target tiles arrays");
    let mut array = ArrayShape::new(element_type, dimensions.iter().copied());
    array.layout = Some(rule.layout(element_type, dimensions).expect("a type that TPUs store"));
    array
}

#[test]
fn known_vectors() {
    let v5e = [
        ("f32[]{:T(128)}", 512),
        ("f32[1025]{0:T(1024)}", 8192),
        ("f32[3,5]{1,0:T(4,128)}", 2048),
        ("f32[64,3]{0,1:T(4,128)}", 2048),
        ("f32[1000,1]{0,1:T(1,128)}", 4096),
        ("f32[129,1024]{1,0:T(8,128)}", 557_056),
        ("f32[1000000,3]{0,1:T(4,128)}", 16_001_024),
        ("f32[2,3,5]{2,0,1:T(2,128)}", 3072),
        ("f32[7,4,4,4]{0,3,2,1:T(4,128)}", 32_768),
        ("f32[128,2,64]{0,2,1:T(8,128)}", 65_536),
        ("bf16[2,16,1,64]{3,1,2,0:T(8,128)(2,1)}", 8192),
        ("bf16[64,64,3,3]{1,0,3,2:T(8,128)(2,1)}", 147_456),
        ("s8[31,128]{1,0:T(8,128)(4,1)}", 4096),
        ("s8[32,128]{1,0:T(32,128)(4,1)}", 4096),
        ("s8[33,128]{1,0:T(8,128)(4,1)}", 5120),
        ("s4[1000,1000]{1,0:T(8,128)(8,1)E(4)}", 512_000),
        // Two planes of words.
        ("f64[1000,3]{0,1:T(4,128)}", 32_768),
        ("s64[]{:T(128)}", 1024),
        // A tie in everything, seen in the measurements.
        ("f32[2,48,300,200]{3,1,2,0:T(8,128)}", 29_491_200),
    ];
    let v3 = [("f32[]{:T(256)}", 1024), ("s4[5]{0:T(1024)(128)(4,1)}", 1024)];
    for (target, vectors) in [("tpu-v5e", &v5e[..]), ("tpu-v3", &v3[..])] {
        let target = Target::find(target).unwrap();
        for &(expected, bytes) in vectors {
            let (element_type, dimensions) = read(expected);
            assert_eq!(layout(&target, element_type, &dimensions), (expected.to_string(), bytes));
        }
    }
}

/// The layouts that libtpu chose: a table that `scripts/make_tpu_layouts.py` writes, and a larger one where it is there.
#[test]
fn measured_layouts() {
    assert_measured(include_str!("../../../tests/tpu_layouts.tsv"));
    if let Some(larger) = shared("tpu_layouts.tsv") {
        assert_measured(&std::fs::read_to_string(larger).unwrap());
    }
}

#[track_caller]
fn assert_measured(table: &str) {
    let mut rows = 0;
    for row in table.lines().skip(1) {
        let [generation, _, _, expected, bytes] = row.split('\t').collect::<Vec<_>>()[..] else {
            panic!("five columns: {row}");
        };
        let generation = generation.trim_start_matches("tpu");
        let target = Target::find(&format!("tpu-v{}", generation.trim_start_matches('v'))).unwrap();
        let (element_type, dimensions) = read(expected);
        let ours = layout(&target, element_type, &dimensions);
        assert_eq!(ours, (expected.to_string(), bytes.parse().unwrap()), "{row}");
        rows += 1;
    }
    assert!(rows > 200, "{rows}");
}

#[test]
fn unusual_arrays() {
    let v5e = Target::find("tpu-v5e").unwrap();
    let rule = v5e.layout.unwrap();
    for unknown in [ElementType::C128, ElementType::F6e3m2fn] {
        assert!(rule.layout(unknown, &[8, 128]).is_err());
    }
    assert_eq!(layout(&v5e, ElementType::F32, &[0, 3]).1, 0);
    assert_eq!(layout(&v5e, ElementType::F32, &[i64::MAX, i64::MAX, 3]).1, u64::MAX);
    assert!(Addressing::new(&array(&v5e, ElementType::F32, &[i64::MAX, 300])).is_none());
}

#[test]
fn rows_of_one_word_lie_side_by_side() {
    let v5e = Target::find("tpu-v5e").unwrap();
    let addressing = Addressing::new(&array(&v5e, ElementType::Bf16, &[16, 300])).unwrap();
    let places = [[0, 0], [1, 0], [0, 1], [2, 0], [0, 128], [8, 0]].map(|element| addressing.offset(element));
    assert_eq!(places, [0, 1, 2, 256, 1024, 3 * 1024].map(|element| element * 2));
}

fn read(text: &str) -> (ElementType, Vec<i64>) {
    let (element_type, rest) = text.split_once('[').unwrap();
    let (dimensions, _) = rest.split_once(']').unwrap();
    let dimensions = dimensions.split(',').filter(|d| !d.is_empty()).map(|d| d.parse().unwrap()).collect();
    (element_type.parse().unwrap(), dimensions)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Every element has a place of its own within the padded size.
    #[test]
    fn places_are_distinct(
        dimensions in prop::collection::vec(1i64..40, 0..4),
        element_type in prop::sample::select(vec!["f32", "bf16", "s8", "s4", "u2", "pred"]),
        old in any::<bool>(),
    ) {
        let target = Target::find(if old { "tpu-v3" } else { "tpu-v6e" }).unwrap();
        let element_type: ElementType = element_type.parse().unwrap();
        let array = array(&target, element_type, &dimensions);
        let addressing = Addressing::new(&array).unwrap();
        prop_assert_eq!(addressing.size as u64, target.size_of(&Shape::Array(array.clone())).0);
        let per_place = addressing.packed_bits.map_or(1, |bits| 8 / bits as usize);
        let mut taken = vec![false; addressing.size * per_place];
        let mut element = vec![0i64; dimensions.len()];
        for _ in 0..dimensions.iter().product::<i64>() {
            let place = addressing.offset(element.iter().copied()) as usize;
            prop_assert!(!std::mem::replace(&mut taken[place], true));
            for (i, &extent) in element.iter_mut().zip(&dimensions).rev() {
                *i += 1;
                if *i < extent {
                    break;
                }
                *i = 0;
            }
        }
    }
}
