//! One file per case under `tests/hlo/plan/`: planned, proved, run in the arena, and only then compared with what the
//! file says beside its lines and with the snapshot.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use memplan::hlo;
use memplan::ir::{Module, Opcode, Position, ShapeIndex};
use memplan::memory::{AllocationKind, MemoryPlan, Target};
use memplan::passes::{self, Pass};
use memplan::plan::Planned;
use memplan_testkit::{Fixture, random_inputs};

use crate::support::{evaluate, explain, kind, place, plan_and_prove, plan_to_run, run_in_arena, run_passes};

#[test]
fn plan_filetests() {
    let mut failures = Vec::new();
    insta::glob!("hlo/plan/*.hlo", |path| {
        let fixture = Fixture::read(path).unwrap();
        let target = Target::find(fixture.target.as_deref().unwrap_or("toy")).unwrap();
        let planned = planned(&fixture, &target);
        if let Some(expected) = &fixture.error {
            let error = planned.err().unwrap_or_else(|| panic!("{path:?}: expected `{expected}`"));
            assert!(error.contains(expected.as_str()), "{path:?}: expected `{expected}`, found `{error}`");
            return;
        }
        let (source, module, planned) = planned.unwrap_or_else(|error| panic!("{path:?}: {error}"));

        let mut runnable = module.clone();
        let planned_to_run = plan_to_run(&mut runnable, &target).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        for seed in 0..3 {
            let inputs = random_inputs(&source, seed);
            let meant = evaluate(&source, &inputs).unwrap_or_else(|error| panic!("{path:?}: {error}"));
            let found =
                run_in_arena(&runnable, &planned_to_run, &inputs).unwrap_or_else(|e| panic!("{path:?}: {e}"));
            assert_eq!(found, meant, "{path:?}");
        }
        let differences = disagreements(&fixture, &module, &planned.plan, &target);
        let listing = listing(&module, &planned, &target);
        if !differences.is_empty() {
            failures.push(format!("{}:\n{}\n{listing}", path.display(), differences.join("\n")));
            return;
        }

        insta::with_settings!({
            snapshot_path => "../snapshots",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            input_file => path,
        }, {
            insta::assert_snapshot!("plan", listing);
        });
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The module as the file has it, the module as it was planned, and the plan.
fn planned(fixture: &Fixture, target: &Target) -> Result<(Module, Module, Planned), String> {
    let source = hlo::parse(&fixture.source).map_err(|error| explain(&error))?;
    memplan::ir::verify(&source).map_err(|errors| format!("not valid: {errors}"))?;
    let mut module = source.clone();
    let find = |name: &String| passes::find(name).unwrap_or_else(|| panic!("no pass {name}"));
    let list: Vec<&dyn Pass> = fixture.passes.iter().map(find).collect();
    run_passes(&mut module, &list, target)?;
    let planned = plan_and_prove(&mut module, target)?;
    Ok((source, module, planned))
}

/// Where the plan and the file disagree: what the file says must hold, and it must speak of every new value in an
/// arena.
fn disagreements(fixture: &Fixture, module: &Module, plan: &MemoryPlan, target: &Target) -> Vec<String> {
    let mut slices = BTreeMap::new();
    for (position, slice) in &plan.slices {
        slices.insert(name(module, position), (position, slice));
    }
    let mut disagreements = Vec::new();
    let mut is_said = Vec::new();
    for expectation in &fixture.expectations {
        let index = ShapeIndex::from(expectation.index.iter().copied());
        let key = (expectation.computation.clone(), expectation.instruction.clone(), index);
        let expected = format!("{} +{}", expectation.kind, expectation.offset);
        let found = slices.get(&key).map_or("nowhere".into(), |(_, slice)| place(plan, target, slice));
        if found != expected {
            let (line, instruction, index) = (expectation.line, &key.1, &key.2);
            disagreements.push(format!("line {line}: {instruction}{index} is at {found}, not {expected}"));
        }
        is_said.push(key);
    }
    for (key, (position, slice)) in &slices {
        let is_arena = plan.allocations[slice.allocation].kind == AllocationKind::Temp;
        let is_in_file = fixture.instructions.contains(&(key.0.clone(), key.1.clone()));
        if is_arena && is_in_file && defines(module, position) && !is_said.contains(key) {
            let found = format!("{} +{}", kind(plan, target, slice), slice.offset.0);
            disagreements
                .push(format!("{}/{}{} is at {found}, of which the file says nothing", key.0, key.1, key.2));
        }
    }
    disagreements
}

/// Computation, instruction and index.
fn name(module: &Module, position: &Position) -> (String, String, ShapeIndex) {
    let instruction = &module.instructions[position.instruction];
    let computation = &module.computations[instruction.parent].name;
    (computation.to_string(), instruction.name.to_string(), position.index.clone())
}

/// Whether a value begins there, rather than passing through.
fn defines(module: &Module, position: &Position) -> bool {
    !matches!(
        module.instructions[position.instruction].opcode(),
        Opcode::Parameter
            | Opcode::Tuple
            | Opcode::GetTupleElement
            | Opcode::Bitcast
            | Opcode::While
            | Opcode::Conditional
            | Opcode::Call
            | Opcode::CopyDone
            | Opcode::AsyncDone
            | Opcode::OptimizationBarrier
            | Opcode::AddDependency
    )
}

/// The plan for people: every computation in the order of its schedule with the places of its values, and the totals.
pub(crate) fn listing(module: &Module, planned: &Planned, target: &Target) -> String {
    let plan = &planned.plan;
    let mut text = String::new();
    for (id, allocation) in plan.allocations.iter() {
        let what = match &allocation.kind {
            AllocationKind::Argument { parameter, index } => format!("argument {parameter}{index}"),
            AllocationKind::Output => "output".into(),
            AllocationKind::Constant => "constant".into(),
            AllocationKind::Temp => format!("arena of space {}", allocation.space),
        };
        let live_out = if allocation.live_out { ", live out" } else { "" };
        writeln!(text, "{id}: {what}, {} bytes{live_out}", allocation.size.0).unwrap();
    }
    let mut places: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for (position, slice) in &plan.slices {
        let (kind, start, end) = (kind(plan, target, slice), slice.offset.0, slice.end().0);
        let id = slice.allocation;
        let text = format!("{} {kind} {id}[{start}..{end}]", position.index);
        places
            .entry(position.instruction)
            .or_default()
            .push(text.trim_start_matches("{} ").trim().to_string());
    }
    for (id, computation) in module.computations.iter() {
        let is_planned = planned.schedule.sequence(id).iter().any(|i| places.contains_key(i));
        if !is_planned {
            continue;
        }
        writeln!(text, "\n{}:", computation.name).unwrap();
        for instruction in planned.schedule.sequence(id) {
            let (name, opcode) =
                (&module.instructions[*instruction].name, module.instructions[*instruction].opcode());
            let places = places.get(instruction).map_or(String::new(), |places| places.join(", "));
            writeln!(text, "{}", format!("  {name} = {opcode}: {places}").trim_end()).unwrap();
        }
    }
    let t = &plan.totals;
    writeln!(
        text,
        "\narguments {} outputs {} aliased {} constants {} temp {} total {} peak_live {} temp_lower_bound {}",
        t.arguments.0,
        t.outputs.0,
        t.aliased.0,
        t.constants.0,
        t.temp.0,
        t.total.0,
        t.peak_live.0,
        t.temp_lower_bound.0
    )
    .unwrap();
    text
}
