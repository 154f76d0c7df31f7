//! The document of tiles: reading it gives the plan.

use std::path::Path;

use memplan::ipu::{
    IpuOptions, MappingDocument, Placement, TileDocument, TilePlan, WhatDocument, plan_tiles,
};
use memplan::memory::{Bytes, Target};
use memplan::{CompileOptions, compile, hlo};
use memplan_testkit::Fixture;

use crate::support::{explain, plan_and_prove, snapshot};

#[test]
fn tiles_are_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hlo/ipu");
    let target = Target::read(&folder.join("four_tiles.toml")).unwrap();
    let source = Fixture::read(&folder.join("placed_by_hand.hlo")).unwrap().source;
    let placement = std::fs::read_to_string(folder.join("placed_by_hand.csv")).unwrap();
    let mut module = hlo::parse(&source).unwrap();
    let planned = plan_and_prove(&mut module, &target).unwrap();
    let options = IpuOptions { placement: Placement::parse(&placement).unwrap(), ..IpuOptions::default() };
    let plan = plan_tiles(&module, &planned.facts, &target, &options).unwrap();
    let document = TileDocument::new(&module, &target, std::slice::from_ref(&plan));
    read_back(&document, &plan);
    snapshot("ipu_document", &serde_json::to_string_pretty(&document).unwrap());
}

#[test]
fn tiles_of_examples_are_read_back() {
    let target = Target::find("ipu-gc200").unwrap();
    for example in ["attention", "mlp_training_step"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{example}.hlo.txt"));
        let mut module = hlo::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
        let compiled = compile(&mut module, &target, &CompileOptions::default())
            .unwrap_or_else(|error| panic!("{example}: {}", explain(&error)));
        let plan = plan_tiles(&module, &compiled.planned.facts, &target, &IpuOptions::default()).unwrap();
        read_back(&TileDocument::new(&module, &target, std::slice::from_ref(&plan)), &plan);
    }
}

/// Reads a document as its fields say, and compares it with the plan.
#[track_caller]
fn read_back(document: &TileDocument, plan: &TilePlan) {
    let [chip] = document.chips.as_slice() else { panic!("one chip") };
    for (tensor, (id, planned)) in chip.tensors.iter().zip(plan.tensors.all.iter()) {
        let pieces: Vec<(u32, [u64; 2])> = match &tensor.mapping {
            MappingDocument::Nowhere => Vec::new(),
            MappingDocument::Explicit(pieces) => pieces.iter().map(|p| (p.tile, p.elements)).collect(),
            &MappingDocument::Linear { grain, window, start, parts } => {
                let grains = tensor.elements.div_ceil(grain);
                let boundary =
                    |v: u32| (u64::from(v) * grains / u64::from(parts) * grain).min(tensor.elements);
                let tile = |v: u32| window[0] + (start + v) % (window[1] - window[0]);
                (0..parts).map(|v| (tile(v), [boundary(v), boundary(v + 1)])).collect()
            }
        };
        let expected = plan.mappings[id].as_ref().map_or_else(Vec::new, |mapping| mapping.pieces());
        let expected: Vec<(u32, [u64; 2])> =
            expected.iter().map(|p| (p.tile, [p.elements.start, p.elements.end])).collect();
        assert_eq!(pieces, expected, "{}", tensor.name);
        assert_eq!((tensor.name.as_str(), tensor.elements), (planned.name.as_str(), planned.elements));
    }
    let mut groups = vec![None; plan.machine.count as usize];
    for group in &chip.groups {
        for tile in group.tiles.iter().flat_map(|&[start, end]| start..end) {
            assert!(groups[tile as usize].replace(group).is_none(), "tile {tile} is in one group");
        }
    }
    for (tile, group) in (0..).zip(groups) {
        let group = group.expect("every tile is in a group");
        assert_eq!(group.needed, plan.needed(tile));
        let layout: Vec<_> = plan.layout(tile).into_iter().filter(|p| p.bytes > Bytes::ZERO).collect();
        assert_eq!(group.items.len(), layout.len());
        for (item, placed) in group.items.iter().zip(&layout) {
            assert_eq!(
                (item.offset, item.bytes, item.busy.len()),
                (placed.offset, placed.bytes, placed.busy.len())
            );
            if let WhatDocument::Step(step) = item.what {
                let step = &chip.steps[step];
                let during = 2 * step.instruction..2 * step.instruction + 2;
                assert!(item.busy.iter().all(|&[start, end]| during.start <= start && end <= during.end));
            }
        }
    }
}
