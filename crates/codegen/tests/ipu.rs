//! The linear mapping: vectors of DEVICES.md section 5, and what holds for every tensor.

use memplan_codegen::ipu::{Grain, check_tiles, imbalance, linear_mapping};
use memplan_memory::{Bytes, Target};
use proptest::prelude::*;

#[test]
fn vectors_of_the_fact_sheet() {
    let f32 = Grain { elements: 2, minimum: 32 };
    assert_eq!(Grain::of(4), f32);
    assert_eq!(Grain::of(2), Grain { elements: 4, minimum: 64 });
    let cases = [
        (16, f32, 1, 16, 16),
        (1000, f32, 30, 32, 34),
        (1_000_000, f32, 1471, 678, 680),
        (50_000, Grain::of(2), 736, 64, 68),
    ];
    let tiles = Target::find("ipu-gc200").unwrap().tiles.unwrap().count;
    for (elements, grain, parts, least, most) in cases {
        let sizes: Vec<u64> =
            linear_mapping(elements, grain, tiles).iter().map(|r| r.end - r.start).collect();
        let found = (sizes.len(), *sizes.iter().min().unwrap(), *sizes.iter().max().unwrap());
        assert_eq!(found, (parts, least, most), "{elements}");
    }
}

#[test]
fn imbalance_is_what_the_fullest_tile_has_above_an_even_share() {
    assert_eq!(imbalance(&linear_mapping(1_000_000, Grain::of(4), 1472), Grain::of(4), 1472), 0);
    assert_eq!(imbalance(&[0..900, 900..1000], Grain::of(4), 2), 400);
    assert_eq!(imbalance(std::slice::from_ref(&(0..100)), Grain::of(4), 1472), 68, "32 is the least share");
}

#[test]
fn the_fullest_tile_decides() {
    let tile = Target::find("ipu-gc200").unwrap().tiles.unwrap().bytes;
    assert!(check_tiles(&[Bytes(1), tile], tile).is_ok());
    let error = check_tiles(&[Bytes(876_476), Bytes(3), Bytes(876_476)], tile).unwrap_err();
    assert_eq!(error.to_string(), "out of memory on tile 0: 876,476 bytes needed, but a tile has 638,976");
}

proptest! {
    #[test]
    fn covers_every_element_once(elements in 0u64..3_000_000, bytes in 1u64..=8, tiles in 1u32..2000) {
        let grain = Grain::of(bytes);
        let mapping = linear_mapping(elements, grain, tiles);
        prop_assert!(mapping.len() <= tiles as usize);
        let mut end = 0;
        for part in &mapping {
            prop_assert!(part.start == end && part.start < part.end && part.start % grain.elements == 0);
            end = part.end;
        }
        prop_assert_eq!(end, elements);
        // Apart from the last grain, which may be cut short, nobody has less than the minimum.
        if mapping.len() > 1 {
            let least = mapping.iter().map(|part| part.end - part.start).min().unwrap();
            prop_assert!(least + grain.elements > grain.minimum, "{least}");
        }
    }
}
