//! Layouts: every address is the plan's, no two buffers share bytes at a launch unless the plan joins them, the
//! document agrees with the schema, and C compilers accept the header.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use memplan::codegen::layout::{
    Address, Argument, Buffer, Computation, LaunchKind, ProgramLayout, Transfer, layout,
};
use memplan::codegen::{c_header, write_constants};
use memplan::hlo;
use memplan::ir::{Module, ShapeIndex};
use memplan::memory::{KindName, PlanFile, Target};
use memplan::passes::LEGALIZE;
use memplan::plan::{PlanOptions, Planned, plan};
use memplan::{CompileOptions, compile};
use memplan_testkit::{Fixture, GenerateOptions, corpus, generate, shared};

use crate::support::{explain, plan_and_prove, run_passes};

#[test]
fn layout_filetests() {
    insta::glob!("hlo/layout/*.hlo", |path| {
        let fixture = Fixture::read(path).unwrap();
        let target = Target::find(fixture.target.as_deref().unwrap_or("toy")).unwrap();
        let mut module = hlo::parse(&fixture.source).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let planned = plan_and_prove(&mut module, &target).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let layout = checked(&module, &planned, &target);
        insta::with_settings!({
            snapshot_path => "../snapshots",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            input_file => path,
        }, {
            insta::assert_snapshot!("layout", layout);
            insta::assert_snapshot!("c_header", c_header(&layout));
        });
    });
}

#[test]
fn layouts_of_examples() {
    insta::glob!("../examples", "*.hlo.txt", |path| {
        let source = hlo::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
        let mut text = String::new();
        for name in ["cpu", "gpu-h100", "tpu-v5e"] {
            let target = Target::find(name).unwrap();
            let mut module = source.clone();
            let compiled = compile(&mut module, &target, &CompileOptions::default())
                .unwrap_or_else(|error| panic!("{path:?}: {}", explain(&error)));
            checked(&module, &compiled.planned, &target);

            // As it stands and in the order of its text, so that a better compiler changes nothing here.
            let mut module = source.clone();
            run_passes(&mut module, &[&LEGALIZE], &target).unwrap();
            module.is_scheduled = true;
            let planned = plan_and_prove(&mut module, &target).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            let layout = checked(&module, &planned, &target);
            // The beginning, up to the picture: the rest is what the plan says, which has its own tests.
            let whole = layout.to_string();
            text.push_str(whole.split("\nallocation ").next().unwrap_or(&whole).trim_end());
            text.push_str(&format!(
                "\n\n{} buffers, {} transfers\n\n",
                layout.buffers.len(),
                layout.transfers.len()
            ));
        }
        insta::with_settings!({
            snapshot_path => "../snapshots",
            prepend_module_to_snapshot => false,
            omit_expression => true,
        }, {
            insta::assert_snapshot!("layout_of_example", text);
        });
    });
}

/// Programs of all kinds of control flow.
#[test]
fn layouts_say_what_plans_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hlo/plan");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        let fixture = Fixture::read(&path).unwrap();
        let target = Target::find(fixture.target.as_deref().unwrap_or("toy")).unwrap();
        let mut module = hlo::parse(&fixture.source).unwrap();
        if let Ok(planned) = plan_and_prove(&mut module, &target) {
            checked(&module, &planned, &target);
        }
    }
}

/// Programs with loops, aliases and asynchronous operations that nobody thought of.
#[test]
fn layouts_of_random_modules() {
    for seed in 0..100 {
        let options =
            GenerateOptions { steps: 4 + seed as usize % 16, depth: seed as usize % 3, ..Default::default() };
        let mut module = generate(seed, &options);
        let target = Target::find(["toy", "gpu-h100"][seed as usize % 2]).unwrap();
        let planned = plan_and_prove(&mut module, &target).unwrap_or_else(|e| panic!("{seed}: {e}"));
        checked(&module, &planned, &target);
    }
}

/// What XLA's compilers made of real programs: prefetches, tiles and four memory spaces on TPUs.
#[test]
fn layouts_of_what_xla_compiled() {
    let mut prefetches = 0;
    for program in corpus() {
        for (form, target) in [("tpu", "tpu-v5e"), ("cpu", "cpu"), ("gpu", "gpu-h100")] {
            let path = program.text_path(form);
            let target = Target::find(target).unwrap();
            let mut module = hlo::parse(&program.text(form)).unwrap();
            let planned = plan_and_prove(&mut module, &target).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            let layout = checked(&module, &planned, &target);
            assert!(layout.transfers.iter().all(|transfer| transfer.done.is_some()), "{path:?}");
            let is_prefetch = |t: &&Transfer| t.start < t.done.unwrap_or(0) && t.from != t.to;
            prefetches += layout.transfers.iter().filter(is_prefetch).count();
        }
    }
    let enough = if shared("corpus").is_some() { 1000 } else { 40 };
    assert!(prefetches > enough, "XLA's programs have many prefetches, not {prefetches}");
}

/// The layout of a plan, after everything in it has been found again in the plan file.
#[track_caller]
fn checked(module: &Module, planned: &Planned, target: &Target) -> ProgramLayout {
    let layout = layout(module, &planned.facts, target, &planned.plan);
    let file = PlanFile::new(module, &planned.schedule, &planned.plan);
    addresses_are_those_of(&file, module, &layout);
    launches_are_numbered(&layout);
    buffers_are_apart(&layout);
    transfers_are_whole(&layout);
    let text = serde_json::to_string(&layout).unwrap();
    let again: ProgramLayout = serde_json::from_str(&text).unwrap();
    assert!(again == layout, "{}: read back, it is another layout", module.name);
    layout
}

/// Where the plan file has each (computation, instruction, shape index).
type Places<'a> = HashMap<(&'a str, &'a str, &'a [u32]), Address>;

fn addresses_are_those_of(file: &PlanFile, module: &Module, layout: &ProgramLayout) {
    let places: Places<'_> = file
        .values
        .iter()
        .map(|v| {
            let address = Address { allocation: v.allocation, offset: v.offset, size: v.size };
            ((v.computation.as_str(), v.instruction.as_str(), v.index.as_slice()), address)
        })
        .collect();
    for buffer in &layout.buffers {
        let key = (buffer.computation.as_str(), buffer.name.as_str(), buffer.shape_index.as_slice());
        assert_eq!(places.get(&key), Some(&buffer.address), "{}: {}", layout.module, buffer.full_name());
    }
    for port in &layout.parameters {
        let entry = &*module.entry_computation().name;
        let key = (entry, port.name.as_str(), port.index.as_slice());
        assert_eq!(places.get(&key).copied(), port.address, "{}: {}", layout.module, port.name);
    }
    let computations: HashMap<&str, _> = module.computations.iter().map(|(id, c)| (&*c.name, id)).collect();
    for computation in &layout.computations {
        let instructions: HashMap<&str, _> = module
            .instructions_of(computations[computation.name.as_str()])
            .map(|(_, i)| (&*i.name, i))
            .collect();
        for launch in &computation.launches {
            let instruction = instructions[launch.name.as_str()];
            let find = |name: &str, argument: &Argument| {
                places.get(&(computation.name.as_str(), name, argument.index.as_slice())).copied()
            };
            for operand in &launch.operands {
                let name = &module.instructions[instruction.operands[operand.number as usize]].name;
                let what = format!("{}: operand {} of {}", layout.module, operand.number, launch.name);
                assert_eq!(operand.address, find(name, operand), "{what}");
                let is_known = operand.address.is_some() || operand.immediate.is_some();
                assert!(is_known || operand.shape.contains("[0") || operand.shape.contains(",0"), "{what}");
                in_its_buffer(layout, operand);
            }
            for result in &launch.results {
                assert_eq!(result.address, find(&launch.name, result), "{}: {}", layout.module, launch.name);
                in_its_buffer(layout, result);
            }
            let scratch = file
                .scratch
                .iter()
                .filter(|s| s.computation == computation.name && s.instruction == launch.name)
                .map(|s| Address { allocation: s.allocation, offset: s.offset, size: s.size });
            assert_eq!(launch.scratch, scratch.collect::<Vec<_>>());
        }
    }
}

/// What a launch touches begins where the buffer does, and the buffer is alive then.
fn in_its_buffer(layout: &ProgramLayout, argument: &Argument) {
    if let (Some(address), Some(buffer)) = (argument.address, argument.buffer) {
        let buffer = &layout.buffers[buffer as usize];
        assert_eq!((address.allocation, address.offset), (buffer.address.allocation, buffer.address.offset));
        let allocation = &layout.allocations[address.allocation as usize];
        assert!(address.end() <= allocation.size && allocation.space == buffer.space);
    }
}

fn launches_are_numbered(layout: &ProgramLayout) {
    let launches = layout.launches_in_order();
    assert!(launches.iter().enumerate().all(|(i, (_, launch))| launch.index as usize == i));
    assert_eq!(launches.len(), layout.launches as usize);
    let by_name: BTreeMap<&str, &Computation> =
        layout.computations.iter().map(|computation| (computation.name.as_str(), computation)).collect();
    assert_eq!(by_name.len(), layout.computations.len(), "each computation is there once");
    for (computation, launch) in launches {
        for call in &launch.calls {
            let callee = by_name[call.computation.as_str()];
            assert_eq!(callee.called_by, Some(launch.index));
            assert_eq!(callee.depth, computation.depth + 1);
            // Callees stand before their caller.
            assert!(callee.launches.iter().all(|inner| inner.index < launch.index));
        }
        let live_at = |argument: &Argument| {
            let live = argument.buffer.map(|buffer| layout.buffers[buffer as usize].live);
            // What goes into a loop or a branch is read where that begins.
            launch.kind != LaunchKind::Kernel || live.is_none_or(|l| (l.from..l.to).contains(&launch.index))
        };
        assert!(
            launch.operands.iter().chain(&launch.results).all(live_at),
            "{}: {}",
            layout.module,
            launch.name
        );
    }
}

/// Sweeps over launches with the buffers that are alive, by address.
fn buffers_are_apart(layout: &ProgramLayout) {
    // Ends before beginnings.
    let mut events: Vec<(u32, bool, &Buffer)> = Vec::new();
    for buffer in layout.buffers.iter().filter(|buffer| buffer.live.from < buffer.live.to) {
        events.push((buffer.live.from, true, buffer));
        events.push((buffer.live.to, false, buffer));
    }
    events.sort_by_key(|(launch, begins, buffer)| (*launch, *begins, buffer.index));
    // What is alive at each (allocation, offset): buffers joined by the plan, by number.
    let mut alive: BTreeMap<(u32, u64), Vec<&Buffer>> = BTreeMap::new();
    let end_of = |buffers: &[&Buffer]| buffers.iter().map(|b| b.address.end().0).max().unwrap_or(0);
    for (launch, begins, buffer) in events {
        let place = (buffer.address.allocation, buffer.address.offset.0);
        if !begins {
            let there = alive.get_mut(&place).unwrap();
            there.retain(|other| other.index != buffer.index);
            if there.is_empty() {
                alive.remove(&place);
            }
            continue;
        }
        let below = alive.range(..place).next_back().filter(|(other, _)| other.0 == place.0);
        let above = alive.range((place.0, place.1 + 1)..).next().filter(|(other, _)| other.0 == place.0);
        let what = || format!("{}: {} at launch {launch}", layout.module, buffer.full_name());
        assert!(below.is_none_or(|(_, buffers)| end_of(buffers) <= place.1), "{}", what());
        assert!(above.is_none_or(|(other, _)| buffer.address.end().0 <= other.1), "{}", what());
        alive.entry(place).or_default().push(buffer);
    }
}

fn transfers_are_whole(layout: &ProgramLayout) {
    let launches = layout.launches_in_order();
    for transfer in &layout.transfers {
        let (_, start) = launches[transfer.start as usize];
        assert_eq!(start.name, transfer.name);
        let Some(done) = transfer.done else { continue };
        assert!(transfer.start <= done);
        // Nobody else is where it writes, and nobody writes what it reads, until it is done.
        let moving = |address: &Address| (address.allocation, address.offset, address.size);
        let destinations: Vec<_> = transfer.destinations.iter().map(moving).collect();
        for (_, launch) in
            &launches[transfer.start as usize + 1..(done as usize).max(transfer.start as usize + 1)]
        {
            let mut touched = launch.operands.iter().chain(&launch.results).filter_map(|a| a.address);
            assert!(
                !touched.any(|a| destinations.contains(&moving(&a))) || launch.kind != LaunchKind::Kernel,
                "{}: {} touches what {} brings",
                layout.module,
                launch.name,
                transfer.name
            );
        }
    }
}

/// The file of constants, read back as the header and the layout say.
#[test]
fn constants_are_laid_out() {
    let text = "
HloModule constants, is_scheduled=true
ENTRY main {
  a = f32[3,5]{1,0:T(4,128)} constant({{1,2,3,4,5},{6,7,8,9,10},{11,12,13,14,15}})
  b = s4[3,2]{0,1:E(4)} constant({{1,2},{3,4},{-1,-2}})
  c = c64[6]{0:T(128)} constant({(1,2),(3,4),(5,6),(7,8),(9,10),(11,12)})
  d = u8[20]{0} constant({0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19})
  e = f32[3,5]{1,0:T(4,128)} negate(a)
  f = s4[3,2]{0,1:E(4)} negate(b)
  g = c64[6]{0:T(128)} negate(c)
  h = u8[20]{0} negate(d)
  ROOT out = (f32[3,5]{1,0:T(4,128)}, s4[3,2]{0,1:E(4)}, c64[6]{0:T(128)}, u8[20]{0}) tuple(e, f, g, h)
}";
    // The four-bit constant is not too small to be data.
    let toy = include_str!("../crates/memory/targets/toy.toml")
        .replace("embedded_constant_bytes = 16", "embedded_constant_bytes = 2")
        .replace("\nalignment = 1", "\nalignment = 64");
    let target = Target::parse(&toy, "toy.toml").unwrap();
    let mut module = hlo::parse(text).unwrap();
    let planned = plan_and_prove(&mut module, &target).unwrap();
    let layout = checked(&module, &planned, &target);
    let mut bytes = Vec::new();
    write_constants(&module, &planned.plan, &mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, layout.constants_file.0);
    let constants: Vec<&[u8]> = layout
        .allocations
        .iter()
        .filter(|allocation| allocation.kind == KindName::Constant)
        .map(|allocation| {
            let start = allocation.file_offset.unwrap().0 as usize;
            assert_eq!(start % 64, 0, "aligned");
            &bytes[start..start + allocation.size.0 as usize]
        })
        .collect();
    let [a, b, c, d] = constants[..] else { panic!("four constants, not {}", constants.len()) };
    let f32_at = |bytes: &[u8], place: usize| f32::from_le_bytes(bytes[place * 4..][..4].try_into().unwrap());
    assert_eq!(a.len(), 4 * 128 * 4);
    for (row, column) in [(0, 0), (1, 3), (2, 4)] {
        assert_eq!(f32_at(a, row * 128 + column), (row * 5 + column + 1) as f32);
    }
    assert_eq!((f32_at(a, 5), f32_at(a, 3 * 128)), (0.0, 0.0), "padding");
    // Column by column, from the lowest bits up: 1 3 -1 2 4 -2.
    assert_eq!(b, [0x31, 0x2f, 0xe4]);
    assert_eq!((f32_at(c, 1), f32_at(c, 128 + 1), f32_at(c, 128 + 5)), (3.0, 4.0, 12.0));
    assert_eq!(d, (0..20).collect::<Vec<u8>>());

    let elided =
        text.replace("constant({0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19})", "constant({...})");
    let mut module = hlo::parse(&elided).unwrap();
    let planned = plan_and_prove(&mut module, &target).unwrap();
    let error = write_constants(&module, &planned.plan, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("constant `d` is not in the program"), "{error}");

    // What is not there takes no memory either.
    let huge = "HloModule huge, is_scheduled=true\nENTRY main {\n  c = f32[1000000000000]{0} constant({...})\n  ROOT r = f32[1000000000000]{0} negate(c)\n}\n";
    let module = hlo::parse(huge).unwrap();
    let planned = plan(&module, &Target::find("cpu").unwrap(), &PlanOptions::default()).unwrap();
    assert!(write_constants(&module, &planned.plan, &mut Vec::new()).is_err());
}

/// A path as layouts write it.
#[test]
fn buffers_have_full_names() {
    let target = Target::find("toy").unwrap();
    let text = "HloModule m\nENTRY e {\n  p = (f32[4], (f32[2], f32[3])) parameter(0)\n  q = (f32[2], f32[3]) get-tuple-element(p), index=1\n  ROOT r = f32[2] get-tuple-element(q), index=0\n}";
    let mut module = hlo::parse(text).unwrap();
    let planned = plan_and_prove(&mut module, &target).unwrap();
    let layout = checked(&module, &planned, &target);
    let names: Vec<String> = layout.buffers.iter().map(Buffer::full_name).collect();
    assert!(names.contains(&format!("p{}", ShapeIndex::from([1, 0]))), "{names:?}");
}

/// What would lose less to padding, with the sizes that the target gives it.
#[test]
fn padding_has_remedies() {
    let target = Target::find("tpu-v5e").unwrap();
    let text = "
HloModule padded, is_scheduled=true
ENTRY main {
  narrow = f32[1000,3]{1,0:T(8,128)} parameter(0)
  rows = f32[129,1024]{1,0:T(8,128)} parameter(1)
  whole = f32[16,128]{1,0:T(8,128)} parameter(2)
  ROOT far = f32[16,128]{1,0:T(8,128)S(1)} copy(whole)
}";
    let mut module = hlo::parse(text).unwrap();
    let planned = plan_and_prove(&mut module, &target).unwrap();
    let layout = checked(&module, &planned, &target);
    let mut found = String::new();
    for padding in &layout.padding {
        found.push_str(&format!("{} loses {} of {}\n", padding.shape, padding.lost.0, padding.size.0));
        for remedy in &padding.remedies {
            let (kind, size, lost) = (remedy.kind, remedy.size.0, remedy.lost.0);
            found.push_str(&format!("  {kind:?} {}: {size}, loses {lost}\n", remedy.shape));
        }
    }
    // The whole one loses nothing, and is not there.
    let expected = "\
f32[1000,3]{1,0:T(8,128)} loses 500000 of 512000
  Flatten f32[3000]{0:T(1024)}: 12288, loses 288
  Order f32[1000,3]{0,1:T(4,128)}: 16384, loses 4384
  RoundUp f32[1000,128]{1,0:T(8,128)}: 512000, loses 0
f32[129,1024]{1,0:T(8,128)} loses 28672 of 557056
  RoundDown f32[128,1024]{1,0:T(8,128)}: 524288, loses 0
  Flatten f32[132096]{0:T(1024)}: 528384, loses 0
  RoundUp f32[136,1024]{1,0:T(8,128)}: 557056, loses 0
";
    assert_eq!(found, expected);
}

/// The sweep over addresses finds two buffers that share bytes.
#[test]
#[should_panic(expected = "at launch")]
fn overlaps_are_found() {
    let target = Target::find("tpu-v5e").unwrap();
    let mut module = hlo::parse(include_str!("hlo/layout/prefetch_in_loop.hlo")).unwrap();
    let planned = plan_and_prove(&mut module, &target).unwrap();
    let mut layout = checked(&module, &planned, &target);
    let product = layout.buffers.iter_mut().find(|buffer| buffer.name == "product").unwrap();
    product.address.offset.0 -= 512;
    buffers_are_apart(&layout);
}
