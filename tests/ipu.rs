//! Plans of tiles: proved by a verifier that shares nothing with the planner but its types, then in snapshots.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use memplan::analysis::{Facts, LiveRange};
use memplan::ipu::{
    IpuError, IpuOptions, Placed, Placement, Policy, TensorId, TilePlan, TileSet, Touch, What, plan_pipeline,
    plan_tiles, stash_depth,
};
use memplan::ir::Module;
use memplan::memory::{Bytes, Target};
use memplan::plan::Planned;
use memplan::{CompileOptions, Objective, compile, hlo};
use memplan_testkit::{Fixture, corpus};

use crate::support::{explain, plan_and_prove, snapshot};

#[test]
fn ipu_filetests() {
    let target = Target::read(&root("tests/hlo/ipu/four_tiles.toml")).unwrap();
    insta::glob!("hlo/ipu/*.hlo", |path| {
        let mut module = hlo::parse(&Fixture::read(path).unwrap().source).unwrap();
        let planned = plan_and_prove(&mut module, &target).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let placement = std::fs::read_to_string(path.with_extension("csv")).unwrap_or_default();
        let options =
            IpuOptions { placement: Placement::parse(&placement).unwrap(), ..IpuOptions::default() };
        let plan = plan_tiles(&module, &planned.facts, &target, &options)
            .unwrap_or_else(|e| panic!("{path:?}: {e}"));
        prove_tiles(&planned.facts, &plan).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        snapshot("ipu", &describe(&module, &plan));
    });
}

/// Real programs on a real machine, with both policies; what they need is in a snapshot.
#[test]
fn ipu_examples() {
    let target = Target::find("ipu-gc200").unwrap();
    insta::glob!("../examples", "*.hlo.txt", |path| {
        let mut text = String::new();
        let (module, planned) = compiled(path, &target);
        for policy in [Policy::Balanced, Policy::Hashed] {
            let options = IpuOptions { policy, ..IpuOptions::default() };
            let plan = plan_tiles(&module, &planned.facts, &target, &options).unwrap();
            prove_tiles(&planned.facts, &plan).unwrap_or_else(|e| panic!("{path:?}, {policy:?}: {e}"));
            let stage = plan.report();
            assert!(plan.overflows(&module).is_empty(), "{path:?} fits");
            writeln!(
                text,
                "{policy:?}: fullest {} on tile {}, mean {}; {:?}",
                stage.maximum.0, stage.fullest, stage.mean.0, stage.at_fullest
            )
            .unwrap();
        }
        snapshot("ipu_example", &text);
    });
}

/// The verifier notices what is wrong.
#[test]
fn broken_tiles_are_refuted() {
    let target = Target::find("ipu-gc200").unwrap();
    let (_, planned) = compiled(&root("examples/kmeans.hlo.txt"), &target);
    let (module, _) = compiled(&root("examples/kmeans.hlo.txt"), &target);
    let plan = plan_tiles(&module, &planned.facts, &target, &IpuOptions::default()).unwrap();
    let layout = plan.layout(plan.report().fullest);
    assert_eq!(overlap(&layout), None);
    let mut shifts = 0;
    for i in 1..layout.len() {
        let mut broken = layout.clone();
        broken[i].offset = Bytes(broken[i].offset.0.saturating_sub(8));
        shifts += u32::from(overlap(&broken).is_some());
    }
    assert!(shifts > 3, "most things cannot be moved down: {shifts} of {}", layout.len());

    let largest = plan.tensors.all.keys().max_by_key(|&id| plan.tensors.all[id].elements).unwrap();
    let mut broken = plan.clone();
    broken.mappings[largest] = broken.mappings.values().flatten().find(|m| m.tile_set().len() == 1).cloned();
    assert!(covers(&broken, largest).is_err(), "most elements are on no tile");
}

/// With streaming memory a chip holds what is touched; what a run moves is what it loads and stores: activations that
/// are read twice, layers one by one, arrays larger than the chip part by part.
#[test]
fn streaming_moves_what_waits() {
    let text = std::fs::read_to_string(root("tests/hlo/ipu/four_tiles.toml")).unwrap();
    let outside = "[[spaces]]\nid = 5\nname = \"streaming\"\ncapacity = 100000\nalignment = 64\n\n\
                   [[transfers]]\nfrom = 0\nto = 5\n\n[tiles]";
    let target =
        Target::parse(&text.replace("[tiles]\n", &format!("{outside}\n")), "streaming.toml").unwrap();
    let mut text = String::new();
    for case in ["streams", "streams_layers", "streams_parts"] {
        let source = Fixture::read(&root(&format!("tests/hlo/ipu/{case}.hlo"))).unwrap().source;
        let mut module = hlo::parse(&source).unwrap();
        let planned = plan_and_prove(&mut module, &target).unwrap();
        let plan = |streaming| {
            let options = IpuOptions { streaming, ..IpuOptions::default() };
            plan_tiles(&module, &planned.facts, &target, &options).unwrap()
        };
        assert!(!plan(false).overflows(&module).is_empty(), "{case} is too large for the chip");
        let streamed = plan(true);
        assert!(streamed.overflows(&module).is_empty(), "{case}: {:?}", streamed.overflows(&module));
        prove_touches(&streamed, |_| true).unwrap_or_else(|e| panic!("{case}: {e}"));
        writeln!(text, "{case}").unwrap();
        for tensor in streamed.tensors.all.values() {
            let Some(streaming) = &tensor.streamed else { continue };
            let most = streaming.visits.iter().map(|visit| visit.bytes.0).max().unwrap();
            let (name, bytes, moved) = (&tensor.name, tensor.bytes().0, streaming.moved.0);
            writeln!(text, "  {name}: {bytes} bytes, at most {most} at once, {moved} moved").unwrap();
        }
        for (id, phases) in streamed.phases() {
            writeln!(text, "  {} works in {phases} parts", module.instructions[id].name).unwrap();
        }
    }
    snapshot("ipu_streaming", &text);
}

/// Each instruction runs on one chip, which has everything that the instruction touches while it runs.
#[test]
fn pipelines_have_what_they_touch() {
    assert_eq!([0, 1, 2].map(|chip| stash_depth(chip, 3)), [5, 3, 1]);
    let target = Target::find("ipu-gc200").unwrap();
    let (module, planned) = compiled(&root("examples/mlp_training_step.hlo.txt"), &target);
    let options = IpuOptions::default();
    let whole = plan_tiles(&module, &planned.facts, &target, &options).unwrap();
    for recompute in [false, true] {
        let chips = plan_pipeline(&module, &planned.facts, &target, 3, recompute, &options).unwrap();
        let mut seen = BTreeMap::new();
        for (chip, plan) in (0..).zip(&chips) {
            for step in &plan.steps.all {
                assert_eq!(seen.insert(step.time, chip), None, "an instruction runs on one chip");
            }
            let stashed: Vec<u64> = plan.tensors.all.values().map(|t| t.copies).filter(|&n| n > 1).collect();
            assert!(stashed.iter().all(|&copies| copies == stash_depth(chip, 3)), "chip {chip}: {stashed:?}");
        }
        assert_eq!(seen.len(), whole.steps.all.len(), "every instruction runs");
        for (chip, plan) in (0..).zip(&chips) {
            prove_touches(plan, |time| seen.get(&time) == Some(&chip))
                .unwrap_or_else(|e| panic!("chip {chip}: {e}"));
        }
    }
}

/// What a placement file places in a pipeline is on the chip that has it, and nowhere else.
#[test]
fn pipelines_are_placed_too() {
    let target = Target::find("ipu-gc200").unwrap();
    let (module, planned) = compiled(&root("examples/mlp_training_step.hlo.txt"), &target);
    let plan = |placement: &str| {
        let options = IpuOptions { placement: Placement::parse(placement).unwrap(), ..IpuOptions::default() };
        plan_pipeline(&module, &planned.facts, &target, 3, false, &options).unwrap()
    };
    let free = plan("");
    for (chip, free) in free.iter().enumerate() {
        let (id, tensor) = free
            .tensors
            .all
            .iter()
            .filter(|(id, tensor)| tensor.is_always_live() && free.mappings[*id].is_some())
            .max_by_key(|(id, tensor)| (tensor.elements, std::cmp::Reverse(*id)))
            .unwrap();
        let part = &free.steps.all.iter().find(|step| step.parts[0].tiles.len() > 1).unwrap();
        let name = &module.instructions[part.instruction].name;
        let placed = plan(&format!("tensor, {}, 1000\nvertices, {name}, 1001", tensor.name));
        for (other, placed) in placed.iter().enumerate() {
            let is_placed = placed.mappings[id]
                .as_ref()
                .is_some_and(|mapping| mapping.tile_set() == TileSet::new(std::iter::once(1000..1001)));
            let is_there = plan("")[other].mappings[id].is_some();
            assert_eq!(is_placed, is_there, "{} on chip {other}, where chip {chip} is its own", tensor.name);
            let runs = placed.steps.all.iter().find(|step| step.instruction == part.instruction);
            assert_eq!(runs.is_some(), other == chip, "{name} runs on one chip");
            assert!(
                runs.is_none_or(|step| step.parts[0].tiles.iter().eq([1001])),
                "{name} runs where it is told"
            );
            prove_touches(placed, |time| placed.steps.all.iter().any(|step| step.time == time)).unwrap();
        }
    }
}

/// Chips that nothing is left for are not counted: what is stashed waits for those that there are.
#[test]
fn pipelines_have_no_empty_stage() {
    let target = Target::find("ipu-gc200").unwrap();
    let (module, planned) = compiled(&root("examples/mlp_training_step.hlo.txt"), &target);
    let options = IpuOptions::default();
    let chips = plan_pipeline(&module, &planned.facts, &target, 64, false, &options).unwrap();
    assert!(chips.len() < 64 && chips.iter().all(|plan| !plan.steps.all.is_empty()), "{}", chips.len());
    let last = &chips[chips.len() - 1].tensors;
    assert!(last.all.values().all(|tensor| tensor.copies == 1), "the last chip stashes nothing");
    let too_many = plan_pipeline(&module, &planned.facts, &target, 65, false, &options);
    assert!(matches!(too_many, Err(IpuError::Chips { available: 64, .. })), "{too_many:?}");
}

/// A placement file that does not go with the program says where and why.
#[test]
fn placement_errors_say_where() {
    let target = Target::read(&root("tests/hlo/ipu/four_tiles.toml")).unwrap();
    let mut module =
        hlo::parse(&std::fs::read_to_string(root("tests/hlo/ipu/placed_by_hand.hlo")).unwrap()).unwrap();
    let planned = plan_and_prove(&mut module, &target).unwrap();
    let error = |text: &str| {
        let error = match Placement::parse(text) {
            Err(error) => error,
            Ok(placement) => {
                let options = IpuOptions { placement, ..IpuOptions::default() };
                match plan_tiles(&module, &planned.facts, &target, &options) {
                    Err(IpuError::Placement(error)) => error,
                    other => panic!("{text:?} is accepted: {:?}", other.map(|plan| plan.report())),
                }
            }
        };
        hlo::render_message(&error.to_string(), error.span.clone(), "mine.csv", text)
    };
    let cases = [
        "tensor, a",
        "tile, a, 0",
        "tensor, a, zero",
        "tensor, a, 2..2",
        "tensor, a, 2..5",
        "# first line\ntensor, a, 99999999999",
        "tensor, unknown, 0",
        "tensor, main/unknown{0}, 0",
        "tensor, a, 0, 0..65",
        "tensor, a, 0, 0..32",
        "tensor, a, 0, 0..32\ntensor, a, 1, 16..64",
        "tensor, a, 0, 0..32\ntensor, a, 1",
        "tensor, a, 0\ntensor, main/a, 1",
        "vertices, a, 0",
        "vertices, product, 0, 0..4",
        "tensor, {{{, 0",
        ",,,",
    ];
    let mut text = String::new();
    for case in cases {
        writeln!(text, "{}\n", error(case)).unwrap();
    }
    snapshot("ipu_placement_errors", &text);
}

/// Writes docs/ipu.md: what each program of the corpus needs.
#[test]
#[ignore = "writes docs/ipu.md: cargo test --test main -- --ignored ipu_table"]
fn ipu_table() {
    let target = Target::find("ipu-gc200").unwrap();
    let mut text = String::from(
        "# Programs on an IPU\n\n`compile --target ipu-gc200` on every program of the corpus: bytes on the fullest of 1472 \
         tiles, of 638,976 each. Hashed: small tensors begin where a hash of their shape says; balanced, which the command \
         does: where memory is free. Streaming: bytes outside the chip and bytes moved by one run where that makes it \
         fit, where loops that cannot be counted run ten times. Made by `cargo test --test main -- --ignored ipu_table`.\n\n\
         | program | instructions | hashed | balanced | of a tile | mean | balance | code | exchange | verdict |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|---|\n",
    );
    for program in corpus().into_iter().filter(|program| !program.is_ours) {
        let (module, planned) = compiled(&program.text_path("before"), &target);
        let plan = |policy, streaming| {
            let options = IpuOptions { policy, streaming, ..IpuOptions::default() };
            plan_tiles(&module, &planned.facts, &target, &options).unwrap()
        };
        let (hashed, balanced) = (plan(Policy::Hashed, false).report(), plan(Policy::Balanced, false));
        let stage = balanced.report();
        let verdict = if balanced.overflows(&module).is_empty() {
            "fits".to_string()
        } else {
            let streamed = plan(Policy::Balanced, true);
            let (outside, moved) = streamed.off_chip();
            match streamed.overflows(&module).first() {
                None => format!("fits with streaming: {outside} outside, {moved} moved"),
                Some(overflow) => format!("does not fit: with streaming {overflow}"),
            }
        };
        writeln!(
            text,
            "| {} | {} | {:#} | {:#} | {:.1} % | {:#} | {:.3} | {:#} | {:#} | {verdict} |",
            program.name,
            planned.facts.line.end(),
            hashed.maximum,
            stage.maximum,
            100.0 * stage.maximum.0 as f64 / balanced.machine.bytes.0 as f64,
            stage.mean,
            stage.balance(),
            stage.at_fullest.code,
            stage.at_fullest.exchange,
        )
        .unwrap();
    }
    std::fs::write(root("docs/ipu.md"), text).unwrap();
}

fn compiled(path: &Path, target: &Target) -> (Module, Planned) {
    let mut module = hlo::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    let options = CompileOptions { objective: Objective::Memory, ..CompileOptions::default() };
    let compiled = compile(&mut module, target, &options)
        .unwrap_or_else(|error| panic!("{path:?}: {}", explain(&error)));
    (module, compiled.planned)
}

/// Proves a plan: each element of each tensor is on exactly one tile, which has bytes for it whenever a value in it is
/// live; no two things of a tile overlap in bytes and time; code lies first.
fn prove_tiles(facts: &Facts, plan: &TilePlan) -> Result<(), String> {
    for id in plan.tensors.all.keys() {
        covers(plan, id)?;
    }
    let mut required: BTreeMap<u32, Vec<(TensorId, Bytes)>> = BTreeMap::new();
    for (id, tensor) in plan.tensors.all.iter() {
        let pieces = plan.mappings[id].as_ref().map_or_else(Vec::new, |mapping| mapping.pieces());
        let mut by_tile: BTreeMap<u32, u64> = BTreeMap::new();
        for piece in pieces {
            *by_tile.entry(piece.tile).or_default() += piece.elements.end - piece.elements.start;
        }
        for (tile, elements) in by_tile {
            required.entry(tile).or_default().push((id, Bytes(elements * tensor.element_bytes)));
        }
    }
    let mut live: BTreeMap<TensorId, Vec<LiveRange>> = BTreeMap::new();
    for value in facts.flow.values.keys() {
        if let Some(tensor) = plan.tensors.of(value) {
            live.entry(tensor).or_default().push(facts.live.of(value));
        }
    }
    for tile in 0..plan.machine.count {
        let layout = plan.layout(tile);
        if let Some((a, b)) = overlap(&layout) {
            return Err(format!("tile {tile}: {a:?} and {b:?} overlap"));
        }
        let end = layout.iter().map(|placed| placed.offset.0 + placed.bytes.0).max();
        if end > Some(plan.needed(tile).0) {
            return Err(format!("tile {tile} is said to need {} and ends at {end:?}", plan.needed(tile).0));
        }
        if layout
            .iter()
            .any(|p| p.what != What::Code && p.bytes.0 > 0 && p.offset < plan.categories(tile).code)
        {
            return Err(format!("tile {tile}: code does not lie first"));
        }
        let held: BTreeMap<u32, &Placed> = layout
            .iter()
            .filter_map(|placed| match placed.what {
                What::Tensor(id) => Some((id.as_u32(), placed)),
                _ => None,
            })
            .collect();
        for (id, bytes) in required.remove(&tile).unwrap_or_default() {
            let placed = held.get(&id.as_u32()).filter(|placed| placed.bytes >= bytes);
            let placed = placed.ok_or_else(|| format!("tile {tile} has too little for {id}"))?;
            let has = |range: &LiveRange| {
                placed.busy.iter().any(|busy| busy.start <= 2 * range.start && 2 * range.end <= busy.end)
            };
            if !live[&id].iter().all(has) {
                return Err(format!("tile {tile} gives up {id} while it is needed"));
            }
        }
    }
    Ok(())
}

/// Proves that no two things overlap, and that whatever an instruction of the chip touches is there at that time.
fn prove_touches(plan: &TilePlan, runs_here: impl Fn(u32) -> bool) -> Result<(), String> {
    for tile in 0..plan.machine.count {
        let layout = plan.layout(tile);
        if let Some((a, b)) = overlap(&layout) {
            return Err(format!("tile {tile}: {a:?} and {b:?} overlap"));
        }
        let mut held: BTreeMap<u32, Vec<&Placed>> = BTreeMap::new();
        for placed in &layout {
            if let What::Tensor(id) = placed.what {
                held.entry(id.as_u32()).or_default().push(placed);
            }
        }
        for (id, tensor) in plan.tensors.all.iter() {
            let is_here = plan.mappings[id].as_ref().is_some_and(|mapping| mapping.tile_set().contains(tile));
            let mut touches = tensor.touches.iter().filter(|touch| runs_here(touch.time)).peekable();
            if touches.peek().is_some() && plan.mappings[id].is_none() {
                return Err(format!("{} is nowhere", tensor.name));
            }
            // Of what lives outside the chip, all tiles together have room for the part that is touched at once.
            let tiles = plan.mappings[id].as_ref().map_or(1, |mapping| u64::from(mapping.tile_set().len()));
            let there = |touch: &Touch| {
                let part = tensor.bytes().0.div_ceil(touch.phases).min(touch.bytes.0);
                let is_at = |r: &LiveRange| r.start <= 2 * touch.time && 2 * touch.time + 2 <= r.end;
                let mut placed = held.get(&id.as_u32()).into_iter().flatten();
                match &tensor.streamed {
                    Some(_) => placed.any(|p| p.bytes.0 * tiles >= part && p.busy.iter().any(is_at)),
                    None => placed.any(|p| p.busy.iter().any(is_at)),
                }
            };
            if let Some(touch) = touches.find(|touch| is_here && !there(touch)) {
                return Err(format!("{} is not on tile {tile} at {}", tensor.name, touch.time));
            }
        }
    }
    Ok(())
}

/// Whether each element is on exactly one tile.
fn covers(plan: &TilePlan, id: TensorId) -> Result<(), String> {
    let tensor = &plan.tensors.all[id];
    let mapping = plan.mappings[id].as_ref().ok_or_else(|| format!("{id} is nowhere"))?;
    let mut next = 0;
    for piece in mapping.pieces() {
        if piece.elements.start != next || piece.tile >= plan.machine.count {
            return Err(format!("{id}: {piece:?} does not go on at {next}"));
        }
        next = piece.elements.end;
    }
    if next == tensor.elements {
        Ok(())
    } else {
        Err(format!("{id}: {next} of {} elements", tensor.elements))
    }
}

/// Two things that have a byte at the same time.
fn overlap(layout: &[Placed]) -> Option<(What, What)> {
    let mut events: Vec<(u32, bool, usize)> = Vec::new();
    for (i, placed) in layout.iter().enumerate().filter(|(_, placed)| placed.bytes.0 > 0) {
        for range in &placed.busy {
            events.push((range.start, true, i));
            events.push((range.end, false, i));
        }
    }
    // At one time, what ends goes before what starts.
    events.sort_unstable();
    let mut there: BTreeMap<u64, usize> = BTreeMap::new();
    for (_, starts, i) in events {
        let placed = &layout[i];
        if !starts {
            there.remove(&placed.offset.0);
            continue;
        }
        let end = placed.offset.0 + placed.bytes.0;
        let below = there.range(..end).next_back();
        if let Some((&offset, &other)) = below
            && offset + layout[other].bytes.0 > placed.offset.0
        {
            return Some((layout[other].what, placed.what));
        }
        there.insert(placed.offset.0, i);
    }
    None
}

/// A plan as text.
fn describe(module: &Module, plan: &TilePlan) -> String {
    let mut text = String::from("tensors\n");
    for (id, tensor) in plan.tensors.all.iter() {
        let tiles =
            plan.mappings[id].as_ref().map_or_else(String::new, |mapping| ranges(&mapping.tile_set()));
        let (shape, share) = (tensor.shape_text(), plan.share(id).0);
        let class = if tensor.is_always_live() { "always" } else { "at times" };
        writeln!(text, "  {:12} {shape:20} {class:8} on {tiles}, {share} bytes each", tensor.name).unwrap();
    }
    text.push_str("steps\n");
    for step in &plan.steps.all {
        let name = &module.instructions[step.instruction].name;
        for part in &step.parts {
            let (tiles, vertices, state) = (ranges(&part.tiles), part.vertices, part.state.0);
            let (received, partials) = (part.received.0, part.partials.0);
            writeln!(
                text,
                "  {name:12} on {tiles}, {vertices} vertices of {state} bytes, receives {received}, partials {partials}"
            )
            .unwrap();
        }
    }
    text.push_str("tiles\n");
    for tile in 0..plan.machine.count {
        writeln!(text, "  {tile}: {} bytes", plan.needed(tile).0).unwrap();
        for placed in plan.layout(tile).iter().filter(|placed| placed.bytes.0 > 0) {
            let times: Vec<String> =
                placed.busy.iter().map(|r| format!("[{}, {})", r.start, r.end)).collect();
            let (offset, end) = (placed.offset.0, placed.offset.0 + placed.bytes.0);
            writeln!(
                text,
                "    {offset:5}..{end:5}  {:12} {}",
                plan.name(module, placed.what),
                times.join(" ")
            )
            .unwrap();
        }
    }
    for overflow in plan.overflows(module) {
        writeln!(text, "does not fit: {overflow}").unwrap();
    }
    text
}

fn ranges(tiles: &TileSet) -> String {
    tiles.ranges().iter().map(|range| format!("{}..{}", range.start, range.end)).collect::<Vec<_>>().join(" ")
}

fn root(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}
