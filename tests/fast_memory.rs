//! Fast memory, assigned on a small machine: case files with what comes out, and random modules. Whatever is assigned is
//! proved, runs in its arenas, fits, and can be taken out again.

use std::fmt::Write as _;

use memplan::analysis::{CallGraph, Costs, InPlace, RunEstimate};
use memplan::check::{Violation, check};
use memplan::hlo;
use memplan::ir::{Literal, Module};
use memplan::memory::{Bytes, FastMemory, MemorySpace, MemorySpaceId, Target, Transfer};
use memplan::plan::fast_memory::{self, FastMemoryOptions, FastMemoryReport, Objective};
use memplan::{LEGALIZE, plan};
use memplan_testkit::{Fixture, GenerateOptions, first_difference, generate, random_inputs, shared};

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
    let way = |from, to| Transfer { from: MemorySpaceId(from), to: MemorySpaceId(to), bandwidth: None };
    target.transfers = vec![way(0, 1), way(1, 0)];
    target.fast_memory = Some(FastMemory { space: MemorySpaceId(1), flags: MemorySpaceId(2) });
    target.vector_rate = Some(1e9);
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
        run_passes(&mut scheduled, &LEGALIZE, target)?;
        scheduled.is_scheduled = true;
    }
    let mut module = scheduled.clone();
    let options = FastMemoryOptions::for_target(target).expect("it has fast memory");
    let options = FastMemoryOptions { objective, cross_program_prefetches: residents, ..options };
    let report = fast_memory::assign(&mut module, target, &options).map_err(|error| explain(&error))?;
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
    let mut naked = module.clone();
    fast_memory::naked(&mut naked, target).map_err(|error| format!("taken out: {}", explain(&error)))?;
    for (mut program, what) in [(module.clone(), "assigned"), (naked, "taken out")] {
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
        let mut naked = module.clone();
        fast_memory::naked(&mut naked, &target).unwrap();
        let (before, after) = (estimate(&naked, &target), estimate(&module, &target));
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

#[test]
fn random_modules_in_fast_memory() {
    let (mut prefetches, mut evictions, mut residents, mut failures) = (0, 0, 0, Vec::new());
    for seed in 0..150u64 {
        let options =
            GenerateOptions { steps: 6 + seed as usize % 20, depth: seed as usize % 3, ..Default::default() };
        let source = generate(seed, &options);
        let target = machine([64, 256, 1024, 4096][seed as usize % 4]);
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
        matches!(violations.as_slice(), [Violation::ResidentLate { .. }, Violation::ResidentLost { .. }]),
        "{violations:?}"
    );
}

/// Programs as libtpu scheduled them: ours moves no more than libtpu's own assignment.
#[test]
fn corpus_programs_move_no_more_than_libtpu_lets_them() {
    let Some(corpus) = shared("corpus") else { return };
    let target = Target::find("tpu-v5e").unwrap();
    let options = FastMemoryOptions::for_target(&target).unwrap();
    for name in ["kmeans", "mlp_train_tiny", "lstm_tiny", "spectral", "unet_infer"] {
        let text = std::fs::read_to_string(corpus.join(name).join("tpu.hlo.txt")).unwrap();
        let mut module = hlo::parse(&text).unwrap();
        let theirs = estimate(&module, &target).main_memory_bytes;
        fast_memory::naked(&mut module, &target).unwrap();
        let report = fast_memory::assign(&mut module, &target, &options).unwrap();
        let ours = estimate(&module, &target).main_memory_bytes;
        // A flag or two more or less than libtpu, which packs 4 KiB granules.
        assert!(ours <= theirs * 1.005, "{name}: {ours} bytes, libtpu {theirs}");
        assert!(report.height.0 <= options.capacity, "{name}: {} bytes of fast memory", report.height.0);
        let planned = plan::plan(&module, &target, &plan::PlanOptions::default()).unwrap();
        crate::support::prove(&module, &planned, &target).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}
