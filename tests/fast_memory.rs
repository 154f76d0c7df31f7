//! Fast memory, assigned on a small machine: case files with what comes out, and random modules. Whatever is assigned is
//! proved, runs in its arenas, fits, and can be taken out again.

use std::fmt::Write as _;

use memplan::analysis::{CallGraph, Costs, InPlace, RunEstimate};
use memplan::check::{Violation, check};
use memplan::fast_memory::{FastMemoryOptions, FastMemoryReport, Objective};
use memplan::hlo;
use memplan::ir::{Literal, Module};
use memplan::memory::{Bytes, FastMemory, MemorySpace, MemorySpaceId, Target, Transfer};
use memplan::passes::{LEGALIZE, strip_fast_memory};
use memplan::{assign_fast_memory, plan};
use memplan_testkit::{Fixture, GenerateOptions, Random, corpus, first_difference, generate, random_inputs};

use crate::support::{evaluate, explain, plan_to_run, run_in_arena, run_passes};

/// A machine with `capacity` bytes that are ten times as fast as the others. Ten bytes of main memory take as long as
/// ten vector operations.
fn machine(capacity: u64) -> Target {
    let mut target = Target::find("toy").expect("it is built in");
    let space = |id: u32, name: &str| MemorySpace {
        id: MemorySpaceId(id),
        name: name.into(),
        ..target.spaces[0].clone()
    };
    let main = MemorySpace { bandwidth: Some(1e9), ..space(0, "main") };
    let fast = MemorySpace { bandwidth: Some(1e10), capacity: Some(Bytes(capacity)), ..space(1, "fast") };
    let flags = space(2, "flags");
    target.spaces = vec![main, fast, flags];
    let way = |from, to| Transfer {
        from: MemorySpaceId(from),
        to: MemorySpaceId(to),
        bandwidth: None,
        blocks_kernels: false,
    };
    target.transfers = vec![way(0, 1), way(1, 0)];
    target.fast_memory = Some(FastMemory { space: MemorySpaceId(1), flags: MemorySpaceId(2) });
    target.vector_rate = Some(1e9);
    target.validate().expect("it is complete");
    target
}

/// The same, but kernels reserve up to a quarter of the fast memory for themselves: a byte for each that they touch.
fn with_scratch(mut target: Target) -> Target {
    let fast = &mut target.spaces[1];
    fast.kernel_scratch = Bytes(fast.capacity.expect("fast memory has a capacity").0 / 4);
    fast.kernel_scratch_per_byte = Some(1);
    fast.kernel_scratch_base = Bytes(8);
    target.validate().expect("it is complete");
    target
}

/// What `assign` makes of a module, checked in every way there is.
fn assigned(
    source: &Module,
    target: &Target,
    objective: Objective,
    residents: usize,
    inputs: &[Vec<Literal>],
) -> Result<(Module, FastMemoryReport), String> {
    let mut scheduled = source.clone();
    if !scheduled.is_scheduled {
        run_passes(&mut scheduled, &[&LEGALIZE], target)?;
        scheduled.is_scheduled = true;
    }
    let mut module = scheduled.clone();
    let options = FastMemoryOptions::for_target(target).expect("it has fast memory");
    let options = FastMemoryOptions { objective, cross_program_prefetches: residents, ..options };
    let report = assign_fast_memory(&mut module, target, &options).map_err(|error| explain(&error))?;
    if report.height.0 > options.capacity {
        return Err(format!("{} bytes of {}", report.height.0, options.capacity));
    }
    if report.residents > residents {
        return Err(format!("{} parameters stay instead of {residents}", report.residents));
    }
    let moved = |module: &Module| estimate(module, target).main_memory_bytes;
    if objective == Objective::Traffic && moved(&module) > moved(&scheduled) {
        return Err(format!("{} bytes move instead of {}", moved(&module), moved(&scheduled)));
    }
    let mut stripped = module.clone();
    strip_fast_memory(&mut stripped, target).map_err(|error| format!("taken out: {}", explain(&error)))?;
    for (mut program, what) in [(module.clone(), "assigned"), (stripped, "taken out")] {
        let planned = plan_to_run(&mut program, target).map_err(|error| format!("{what}: {error}"))?;
        for inputs in inputs {
            let meant = evaluate(source, inputs)?;
            let found = run_in_arena(&program, &planned, inputs).map_err(|e| format!("{what}: {e}"))?;
            if let Some(difference) = first_difference(&found, &meant, 0.0) {
                return Err(format!("{what}: {difference}"));
            }
        }
    }
    Ok((module, report))
}

fn estimate(module: &Module, target: &Target) -> RunEstimate {
    let graph = CallGraph::new(module).expect("it was planned");
    let costs = Costs::new(module, &graph, &InPlace::new(module), target);
    RunEstimate::new(module, &graph, &costs, target)
}

/// `// capacity: N` in the header says how much fast memory there is, `// residents: N` how many parameters may stay there
/// from call to call.
#[test]
fn fast_memory_filetests() {
    insta::glob!("hlo/fast_memory/*.hlo", |path| {
        let fixture = Fixture::read(path).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let capacity = text.lines().find_map(|line| line.strip_prefix("// capacity: ")).unwrap();
        let target = machine(capacity.parse().unwrap());
        let residents = text.lines().find_map(|line| line.strip_prefix("// residents: "));
        let residents = residents.map_or(0, |n| n.parse().unwrap());
        let source = hlo::parse(&fixture.source).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let inputs: Vec<Vec<Literal>> = (0..3).map(|seed| random_inputs(&source, seed)).collect();
        let (module, report) = assigned(&source, &target, Objective::Traffic, residents, &inputs)
            .unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let mut stripped = module.clone();
        strip_fast_memory(&mut stripped, &target).unwrap();
        let (before, after) = (estimate(&stripped, &target), estimate(&module, &target));
        let mut text = hlo::print(&module);
        writeln!(
            text,
            "\n{} of {capacity} bytes of fast memory, {} in, {} out\nmain memory moves {} bytes instead of {}, \
             which takes {:.2} us instead of {:.2}",
            report.height.0,
            report.prefetches,
            report.evictions,
            after.main_memory_bytes,
            before.main_memory_bytes,
            after.seconds * 1e6,
            before.seconds * 1e6,
        )
        .unwrap();
        if residents > 0 {
            let (stay, steady) = (report.residents, after.steady_bytes());
            writeln!(text, "{stay} stay until the next call, which moves {steady} bytes").unwrap();
        }
        insta::with_settings!({
            snapshot_path => "../snapshots",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            input_file => path,
        }, {
            insta::assert_snapshot!("fast_memory", text);
        });
    });
}

/// A donated argument is brought, updated element by element, and copied out to where it was.
#[test]
fn what_is_updated_in_fast_memory_is_updated_in_place_without_it() {
    let text = "HloModule m, is_scheduled=true, input_output_alias={ {}: (0, {}, must-alias) }
        ENTRY main {
          w = f32[8]{0} parameter(0)
          g = f32[8]{0} parameter(1)
          in = (f32[8]{0:S(1)}, f32[8]{0}, u32[]{:S(2)}) copy-start(w)
          brought = f32[8]{0:S(1)} copy-done(in)
          updated = f32[8]{0:S(1)} subtract(brought, g)
          out = (f32[8]{0}, f32[8]{0:S(1)}, u32[]{:S(2)}) copy-start(updated)
          ROOT written = f32[8]{0} copy-done(out)
        }";
    let target = machine(1024);
    let is_copy = |module: &Module| {
        module.instructions_of(module.entry).any(|(_, i)| i.opcode() == memplan::ir::Opcode::Copy)
    };
    let mut stripped = hlo::parse(text).unwrap();
    strip_fast_memory(&mut stripped, &target).unwrap();
    assert!(!is_copy(&stripped), "{}", hlo::print(&stripped));
    plan_to_run(&mut stripped, &target).unwrap();
    // What is reversed is read after others were written.
    let mut moved =
        hlo::parse(&text.replace("subtract(brought, g)", "reverse(brought), dimensions={0}")).unwrap();
    strip_fast_memory(&mut moved, &target).unwrap();
    assert!(is_copy(&moved), "{}", hlo::print(&moved));
    plan_to_run(&mut moved, &target).unwrap();
}

#[test]
fn random_modules_in_fast_memory() {
    let (mut prefetches, mut evictions, mut residents, mut failures) = (0, 0, 0, Vec::new());
    for seed in 0..150u64 {
        let options =
            GenerateOptions { steps: 6 + seed as usize % 20, depth: seed as usize % 3, ..Default::default() };
        let source = generate(seed, &options);
        let target = machine([64, 256, 1024, 4096][seed as usize % 4]);
        let target = if seed / 4 % 2 == 0 { target } else { with_scratch(target) };
        let objective = if seed % 3 == 0 { Objective::Footprint } else { Objective::Traffic };
        match assigned(&source, &target, objective, 2, &[random_inputs(&source, seed)]) {
            Ok((_, report)) => {
                prefetches += report.prefetches;
                evictions += report.evictions;
                residents += report.residents;
            }
            Err(error) => failures.push(format!("seed {seed}: {error}")),
        }
    }
    assert!(failures.is_empty(), "{} modules fail:\n{}", failures.len(), failures.join("\n"));
    assert!(prefetches > 20 && evictions > 5, "{prefetches} copies in, {evictions} out: hardly a test");
    assert!(residents > 20, "{residents} parameters stay: hardly a test");
}

/// What may be there from the call before has its bytes to itself from begin to end; a plan that gives them to others in
/// between is refuted.
#[test]
fn bytes_of_residents_are_reserved() {
    let text = "HloModule kept, is_scheduled=true

ENTRY main {
  x = f32[64]{0} parameter(0)
  w = f32[64]{0} parameter(1)
  early = f32[64]{0:S(1)} exponential(x)
  a = f32[64]{0} negate(early)
  s = (f32[64]{0:S(1)}, f32[64]{0}, u32[]{:S(2)}) copy-start(w), cross_program_prefetch_index=0
  d = f32[64]{0:S(1)} copy-done(s)
  b = f32[64]{0} add(a, d)
  late = f32[64]{0:S(1)} tanh(b)
  ROOT r = f32[64]{0} negate(late)
}
";
    let target = machine(1024);
    let marked = hlo::parse(text).unwrap();
    let plain = hlo::parse(&text.replace(", cross_program_prefetch_index=0", "")).unwrap();
    let planned = |module: &Module| plan::plan(module, &target, &plan::PlanOptions::default()).unwrap();
    let height = |planned: &plan::Planned| {
        let mut spaces = planned.plan.spaces.iter();
        spaces.find(|space| space.space == MemorySpaceId(1)).unwrap().temp
    };
    let (kept, reused) = (planned(&marked), planned(&plain));
    assert_eq!((height(&kept), height(&reused)), (Bytes(512), Bytes(256)));
    check(&marked, &kept.schedule, &target, &kept.plan).unwrap();
    check(&plain, &reused.schedule, &target, &reused.plan).unwrap();
    let violations = check(&marked, &reused.schedule, &target, &reused.plan).unwrap_err();
    assert!(
        matches!(&*violations, [Violation::ResidentLate { .. }, Violation::ResidentLost { .. }]),
        "{violations:?}"
    );
}

/// Programs as libtpu scheduled them: ours moves no more than libtpu's own assignment.
#[test]
fn corpus_programs_move_no_more_than_libtpu_lets_them() {
    // The larger programs take seconds without optimization.
    let quick = ["kmeans", "mlp_train_tiny", "lstm_tiny", "spectral", "unet_infer"];
    let target = Target::find("tpu-v5e").unwrap();
    let options = FastMemoryOptions::for_target(&target).unwrap();
    for program in corpus().into_iter().filter(|program| program.is_ours || quick.contains(&&*program.name)) {
        let name = &program.name;
        let mut module = hlo::parse(&program.text("tpu")).unwrap();
        let theirs = estimate(&module, &target).main_memory_bytes;
        strip_fast_memory(&mut module, &target).unwrap();
        let report = assign_fast_memory(&mut module, &target, &options).unwrap();
        let ours = estimate(&module, &target).main_memory_bytes;
        // A flag or two more or less than libtpu, which packs 4 KiB granules: of a small program, one granule.
        let granule = if program.is_ours { 4096.0 } else { 0.0 };
        assert!(ours <= theirs * 1.005 + granule, "{name}: {ours} bytes, libtpu {theirs}");
        assert!(report.height.0 <= options.capacity, "{name}: {} bytes of fast memory", report.height.0);
        let planned = plan::plan(&module, &target, &plan::PlanOptions::default()).unwrap();
        crate::support::prove(&module, &planned, &target).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Loops that read slices of stacks at all kinds of places, inside of kernels and by themselves, from offsets that are
/// computed in many ways; stacks that change and stacks that do not.
#[test]
fn random_loops_over_stacks() {
    let (mut slices, mut pipelined, mut failures) = (0, 0, Vec::new());
    for seed in 0..200u64 {
        let text = loop_over_stacks(&mut Random::new(seed));
        let source = hlo::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let target = machine([20_000, 40_000, 80_000][seed as usize % 3]);
        let target = if seed / 3 % 2 == 0 { target } else { with_scratch(target) };
        let objective = if seed % 4 == 0 { Objective::Footprint } else { Objective::Traffic };
        match assigned(&source, &target, objective, 1, &[random_inputs(&source, seed)]) {
            Ok((_, report)) => {
                slices += report.slices;
                pipelined += report.pipelined;
            }
            Err(error) => failures.push(format!("seed {seed}: {error}\n{text}")),
        }
    }
    assert!(failures.is_empty(), "{} modules fail:\n{}", failures.len(), failures.join("\n"));
    assert!(slices > 100 && pipelined > 20, "{slices} slices, {pipelined} of them pipelined: hardly a test");
}

/// A loop of eight iterations over two stacks of eight rows, the second of which it may change.
fn loop_over_stacks(rng: &mut Random) -> String {
    let state = "(s32[], f32[8,2048]{1,0}, f32[8,2048]{1,0}, f32[2048]{0}, s32[])";
    let (mut kernels, mut body) = (String::new(), String::new());
    // What there is by now: the row, and the second stack.
    let (mut x, mut b) = ("x".to_owned(), "b".to_owned());
    let constants = "  zero = s32[] constant(0)\n  seven = s32[] constant(7)\n";
    let kernel_parameters = "  stack = f32[8,2048]{1,0} parameter(0)\n  i = s32[] parameter(1)\n  m = s32[] parameter(2)\n  \
                             v = f32[2048]{0} parameter(3)\n";
    for k in 0..3 + rng.below(4) {
        let offset = match rng.below(5) {
            0 => "  j = s32[] add(i, zero)\n",
            1 => "  j = s32[] subtract(seven, i)\n",
            2 => "  t = s32[] add(i, i)\n  j = s32[] remainder(t, seven)\n",
            3 => {
                "  t = s32[] subtract(i, m)\n  n = pred[] compare(t, zero), direction=LT\n  u = s32[] add(t, seven)\n  \
                 j = s32[] select(n, u, t)\n"
            }
            _ => "  j = s32[] multiply(m, seven)\n",
        };
        let stack = if rng.one_in(2) { "a" } else { b.as_str() };
        match rng.below(6) {
            // A slice inside of a kernel.
            0 | 1 => {
                let cut = match rng.one_in(4) {
                    true => "slice(stack), slice={[2:3], [0:2048]}",
                    false => "dynamic-slice(stack, j, zero), dynamic_slice_sizes={1,2048}",
                };
                kernels += &format!(
                    "kernel.{k} {{\n{kernel_parameters}{constants}{offset}  row = f32[1,2048]{{1,0}} {cut}\n  \
                     flat = f32[2048]{{0}} bitcast(row)\n  ROOT r = f32[2048]{{0}} subtract(flat, v)\n}}\n\n"
                );
                body += &format!(
                    "  y.{k} = f32[2048]{{0}} fusion({stack}, i, m, {x}), kind=kLoop, calls=kernel.{k}\n"
                );
            }
            // A slice by itself.
            2 => {
                body += &format!(
                    "  row.{k} = f32[1,2048]{{1,0}} dynamic-slice({stack}, i, m), dynamic_slice_sizes={{1,2048}}\n  \
                     flat.{k} = f32[2048]{{0}} bitcast(row.{k})\n  y.{k} = f32[2048]{{0}} add({x}, flat.{k})\n"
                );
            }
            // An update inside of a kernel, beside another result or alone.
            3 => {
                let (results, root) = match rng.one_in(2) {
                    true => ("(f32[8,2048]{1,0}, f32[2048]{0})", "tuple(new, c)"),
                    false => ("f32[8,2048]{1,0}", "dynamic-update-slice(stack, row, j, zero)"),
                };
                let new = match root.starts_with("tuple") {
                    true => "  new = f32[8,2048]{1,0} dynamic-update-slice(stack, row, j, zero)\n",
                    false => "",
                };
                kernels += &format!(
                    "kernel.{k} {{\n{kernel_parameters}{constants}{offset}  c = f32[2048]{{0}} cosine(v)\n  \
                     row = f32[1,2048]{{1,0}} bitcast(c)\n{new}  ROOT r = {results} {root}\n}}\n\n"
                );
                body +=
                    &format!("  k.{k} = {results} fusion({b}, i, m, {x}), kind=kLoop, calls=kernel.{k}\n");
                match new.is_empty() {
                    true => body += &format!("  y.{k} = f32[2048]{{0}} negate({x})\n"),
                    false => {
                        body += &format!(
                            "  b.{k} = f32[8,2048]{{1,0}} get-tuple-element(k.{k}), index=0\n  \
                             y.{k} = f32[2048]{{0}} get-tuple-element(k.{k}), index=1\n"
                        );
                    }
                }
                b = format!("{}.{k}", if new.is_empty() { "k" } else { "b" });
            }
            // Something that takes long.
            _ => {
                kernels += &format!(
                    "kernel.{k} {{\n  v = f32[2048]{{0}} parameter(0)\n  a = f32[2048]{{0}} sine(v)\n  \
                     b = f32[2048]{{0}} cosine(a)\n  c = f32[2048]{{0}} tanh(b)\n  d = f32[2048]{{0}} sine(c)\n  \
                     ROOT r = f32[2048]{{0}} cosine(d)\n}}\n\n"
                );
                body += &format!("  y.{k} = f32[2048]{{0}} fusion({x}), kind=kLoop, calls=kernel.{k}\n");
            }
        }
        x = format!("y.{k}");
    }
    if rng.one_in(3) {
        body += &format!(
            "  new = f32[1,2048]{{1,0}} bitcast({x})\n  \
             changed = f32[8,2048]{{1,0}} dynamic-update-slice({b}, new, i, zero)\n"
        );
        b = "changed".to_owned();
    }
    let next_m = if rng.one_in(2) { "m" } else { "i" };
    format!(
        "HloModule stacks\n\n{kernels}body {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n  \
         a = f32[8,2048]{{1,0}} get-tuple-element(s), index=1\n  b = f32[8,2048]{{1,0}} get-tuple-element(s), index=2\n  \
         x = f32[2048]{{0}} get-tuple-element(s), index=3\n  m = s32[] get-tuple-element(s), index=4\n  \
         zero = s32[] constant(0)\n  one = s32[] constant(1)\n{body}  next = s32[] add(i, one)\n  \
         ROOT r = {state} tuple(next, a, {b}, {x}, {next_m})\n}}\n\n\
         condition {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n  n = s32[] constant(8)\n  \
         ROOT c = pred[] compare(i, n), direction=LT\n}}\n\n\
         ENTRY main {{\n  a = f32[8,2048]{{1,0}} parameter(0)\n  p = f32[8,2048]{{1,0}} parameter(1)\n  \
         b = f32[8,2048]{{1,0}} negate(p)\n  x = f32[2048]{{0}} parameter(2)\n  zero = s32[] constant(0)\n  \
         init = {state} tuple(zero, a, b, x, zero)\n  loop = {state} while(init), condition=condition, body=body\n  \
         y = f32[2048]{{0}} get-tuple-element(loop), index=3\n  z = f32[8,2048]{{1,0}} get-tuple-element(loop), index=2\n  \
         ROOT out = (f32[2048]{{0}}, f32[8,2048]{{1,0}}) tuple(y, z)\n}}\n"
    )
}
