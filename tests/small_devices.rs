//! Microcontrollers: constants and pinned weights in flash, what other runtimes read, and what cannot be.

use memplan::codegen::layout::layout;
use memplan::codegen::{c_header, executorch, offline_memory_allocation};
use memplan::driver::Excess;
use memplan::hlo;
use memplan::memory::{AllocationKind, Bytes, MemorySpaceId, Target};
use memplan::plan::{AssignOptions, Pin, PinError, Pinned, PlanError, PlanOptions, ProgramCost, plan};
use memplan::{CompileOptions, Effort, compile};
use memplan_testkit::{first_difference, random_inputs};

use crate::support::{evaluate, explain, plan_to_run, run_in_arena};

const FLASH: MemorySpaceId = MemorySpaceId(1);

/// What a plan has in flash is read at the flash's rate: four bytes in three cycles, of which RAM needs one.
#[test]
fn reads_of_flash_take_the_time_of_flash() {
    let source = "HloModule m\nENTRY e {\n  p = f32[64,64] parameter(0)\n  ROOT r = f32[64,64] copy(p)\n}";
    let target = Target::find("mcu-nrf52840").unwrap();
    let run = |space| {
        let mut module = hlo::parse(source).unwrap();
        let pins = vec![Pin { value: Pinned::Argument(0), space }];
        let assign = AssignOptions { pins, ..AssignOptions::default() };
        let options = PlanOptions { assign, ..PlanOptions::default() };
        let mut planned = plan(&module, &target, &options).unwrap();
        planned.apply(&mut module);
        ProgramCost::new(&module, &planned.facts, &planned.plan, &target).run
    };
    let (bytes, ram, flash) = (16384.0, 2.56e8, 8.5e7);
    let [from_ram, from_flash] = [MemorySpaceId::MAIN, FLASH].map(run);
    assert_eq!([from_ram, from_flash].map(|run| run.main_memory_bytes), [2.0 * bytes, bytes]);
    let seconds = bytes / ram + bytes / flash;
    assert!((from_flash.memory_seconds / seconds - 1.0).abs() < 1e-9, "{from_flash:?}, not {seconds}");
    // In RAM, the copy is bound by the instructions that it takes.
    assert!(from_ram.memory_seconds == 0.0 && from_ram.seconds < from_flash.seconds, "{from_ram:?}");
}

/// Both networks fit, with weights in flash, and compute the same numbers; runtimes read the plan's offsets.
#[test]
fn networks_fit_a_microcontroller() {
    for (name, pins) in [("image_classifier", 1..100), ("keyword_spotting", 0..0)] {
        let source = std::fs::read_to_string(format!("examples/small/{name}.hlo.txt")).unwrap();
        let mut module = hlo::parse(&source).unwrap();
        let target = Target::find("mcu-nrf52840").unwrap();
        let arguments = module.entry_computation().parameters.len() as u32;
        let pins = (0..arguments).filter(|number| pins.contains(number));
        let pins = pins.map(|number| Pin { value: Pinned::Argument(number), space: FLASH }).collect();
        let assign = AssignOptions { pins, ..AssignOptions::default() };
        let options = Effort::Quick.of(CompileOptions { assign, ..CompileOptions::default() });
        let inputs = random_inputs(&module, 1);
        let meant = evaluate(&module, &inputs).unwrap();
        let compiled = compile(&mut module, &target, &options).unwrap_or_else(|e| panic!("{}", explain(&e)));
        let plan = &compiled.planned.plan;
        for allocation in plan.allocations.values() {
            let is_weight = match allocation.kind {
                AllocationKind::Argument { parameter, .. } => parameter > 0,
                AllocationKind::Constant => true,
                AllocationKind::Output | AllocationKind::Temp => false,
            };
            assert_eq!(allocation.space, if is_weight { FLASH } else { MemorySpaceId::MAIN }, "{name}");
        }
        assert!(plan.spaces.iter().all(|space| space.excess.is_zero()), "{name}: {:?}", plan.spaces);
        let layout = layout(&module, &compiled.planned.facts, &target, plan);
        let header = c_header(&layout);
        assert!(header.contains("#define MEMPLAN_SIZE uint32_t\n"), "{name}");
        assert!(header.contains("_SPACE_FLASH_READ_ONLY 1\n"), "{name}");
        let words = offline_memory_allocation(&layout).unwrap();
        let words: Vec<i32> =
            words.chunks_exact(4).map(|word| i32::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words[..3], [1, 0, layout.buffers.len() as i32], "{name}");
        let values = executorch(&layout).values;
        for ((buffer, word), value) in layout.buffers.iter().zip(&words[3..]).zip(&values) {
            let info = value.allocation_info;
            let offset = info.map_or(-1, |info| info.memory_offset_low as i32);
            assert_eq!((offset, info.map_or(1, |info| info.memory_id)), (*word, 1), "{}", buffer.name);
            assert!(*word == -1 || *word as u64 == buffer.address.offset.0, "{}", buffer.name);
        }
        let runnable = plan_to_run(&mut module, &target).unwrap();
        let found = run_in_arena(&module, &runnable, &inputs).unwrap();
        assert_eq!(first_difference(&found, &meant, 0.0), None, "{name}");
    }
}

const PROGRAM: &str = "HloModule m
ENTRY main {
  x = f32[64]{0} parameter(0)
  w = f32[64]{0} parameter(1)
  a = f32[64]{0} multiply(x, w)
  b = f32[64]{0} reverse(a), dimensions={0}
  ROOT c = f32[64]{0} reverse(b), dimensions={0}
}";

const MACHINE: &str = "name = 'mine'
family = 'other'
tuple_entry_bytes = 4
argument_alignment = 4
embedded_constant_bytes = 4
spaces = [
  { id = 0, name = 'sram', capacity = 900, alignment = 4 },
  { id = 1, name = 'flash', capacity = 200, reserved = 8, read_only = true, alignment = 4 },
  { id = 2, name = 'sdram', direct = true, alignment = 4 },
  { id = 3, name = 'far', alignment = 4 },
]";

/// The plan of a program of two vectors, each of 256 bytes, pinned so.
fn pinned(source: &str, pins: &[(Pinned, u32)]) -> Result<(Target, memplan::plan::Planned), PlanError> {
    let target = Target::parse(MACHINE, "mine.toml").unwrap();
    let module = hlo::parse(source).unwrap();
    let pins = pins.iter().map(|(value, id)| Pin { value: value.clone(), space: MemorySpaceId(*id) });
    let assign = AssignOptions { pins: pins.collect(), ..AssignOptions::default() };
    let mut planned = plan(&module, &target, &PlanOptions { assign, ..PlanOptions::default() })?;
    let mut module = module;
    planned.apply(&mut module);
    memplan::check::check(&module, &planned.schedule, &target, &planned.plan).unwrap();
    Ok((target, planned))
}

fn value(name: &str) -> Pinned {
    Pinned::Instruction(name.into())
}

#[test]
fn pins_are_kept_and_every_memory_has_its_figures() {
    let (target, planned) = pinned(PROGRAM, &[(Pinned::Argument(1), 1), (value("b"), 2)]).unwrap();
    let figures = planned.plan.spaces.iter().map(|space| {
        let available = space.available.map(|bytes| bytes.0);
        (&*space.name, space.arguments.0, space.temp.0, space.total.0, available, space.excess.0)
    });
    let expected = [
        // The result is where `a` is before it.
        ("sram", 256, 0, 512, Some(900), 0),
        ("flash", 256, 0, 256, Some(192), 64),
        ("sdram", 0, 256, 256, None, 0),
    ];
    assert_eq!(figures.collect::<Vec<_>>(), expected);
    assert_eq!(memplan::driver::exceeded(&planned.plan, &target, None), None);
    let excess = memplan::driver::exceeded(&planned.plan, &target, Some(Bytes(700)));
    assert_eq!(excess, Some(Excess { needed: Bytes(768), available: Bytes(700) }));
}

#[test]
fn pins_that_cannot_be_are_refused() {
    let refusal = |source: &str, pins: &[(Pinned, u32)]| match pinned(source, pins) {
        Err(PlanError::Pin(error)) => error,
        other => panic!("{other:?}"),
    };
    let written = refusal(PROGRAM, &[(value("b"), 1)]);
    assert!(matches!(written, PinError::Written { .. }), "{written}");
    let donated = PROGRAM.replace("HloModule m", "HloModule m, buffer_donor={ (1, {}) }");
    let given_up = refusal(&donated, &[(Pinned::Argument(1), 1)]);
    assert!(matches!(given_up, PinError::Written { .. }), "{given_up}");
    let in_layout = refusal(&PROGRAM.replace("b = f32[64]{0}", "b = f32[64]{0:S(1)}"), &[]);
    assert!(matches!(in_layout, PinError::Written { .. }), "{in_layout}");
    let unknown = refusal(PROGRAM, &[(value("d"), 2)]);
    assert!(matches!(unknown, PinError::NoValue { .. }), "{unknown}");
    let unknown = refusal(PROGRAM, &[(Pinned::Argument(2), 2)]);
    assert!(matches!(unknown, PinError::NoValue { arguments: 2, .. }), "{unknown}");
    let far = refusal(PROGRAM, &[(value("b"), 3)]);
    assert!(matches!(far, PinError::NotReached { .. }), "{far}");
    let twice = refusal(PROGRAM, &[(value("b"), 2), (value("b"), 0)]);
    assert!(matches!(twice, PinError::Elsewhere { .. }), "{twice}");
}
