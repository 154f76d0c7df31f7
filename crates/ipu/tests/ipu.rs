//! The linear mapping: vectors worked out by the rule of PopLibs (`mapTensorLinearly`), and what holds for every tensor.

use memplan_ipu::{Grain, LinearMapping, Mapping, Overflow, imbalance, linear_mapping, start_tile};
use memplan_memory::{Bytes, Target};
use proptest::prelude::*;

#[test]
fn known_vectors() {
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
fn overflows_say_which_tile() {
    let available = Target::find("ipu-gc200").unwrap().tiles.unwrap().bytes;
    let overflow = Overflow::Tile { tile: 0, needed: Bytes(876_476), available };
    assert_eq!(overflow.to_string(), "tile 0 needs 876,476 of 638,976 bytes");
}

#[test]
fn small_tensors_start_where_their_shape_says() {
    assert_eq!(start_tile(&[768], 1472), start_tile(&[768], 1472));
    let starts: std::collections::BTreeSet<u32> = (1..200).map(|n| start_tile(&[n], 1472)).collect();
    assert!(starts.len() > 150, "shapes are spread over the chip: {} of 199", starts.len());
    assert_ne!(start_tile(&[3, 5], 1472), start_tile(&[5, 3], 1472));
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

    #[test]
    fn mappings_keep_their_promises(
        elements in 0u64..300_000,
        bytes in 1u64..=8,
        window in (0u32..100, 1u32..200),
        start in 0u32..500,
    ) {
        let window = window.0..window.0 + window.1;
        let mapping = Mapping::Linear(LinearMapping::new(elements, Grain::of(bytes), window.clone(), start));
        let pieces = mapping.pieces();
        let mut end = 0;
        for piece in &pieces {
            prop_assert!(piece.elements.start == end && window.contains(&piece.tile));
            end = piece.elements.end;
        }
        prop_assert_eq!(end, elements);
        let mut tiles: Vec<u32> = pieces.iter().map(|piece| piece.tile).collect();
        tiles.sort_unstable();
        prop_assert_eq!(mapping.tile_set().iter().collect::<Vec<_>>(), tiles, "a tile has one piece");
        let largest = pieces.iter().map(|piece| piece.elements.end - piece.elements.start).max().unwrap_or(0);
        // The last grain may be cut short, and then the largest may be too.
        prop_assert!(largest <= mapping.largest_share());
        prop_assert!(mapping.largest_share() < largest + Grain::of(bytes).elements);
        prop_assert_eq!(Mapping::Explicit(pieces.into()).largest_share(), largest);
    }
}
