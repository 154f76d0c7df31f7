//! The bound of the total against every plan there is: tiny modules, of which all plans that the checker accepts are tried.

use memplan_analysis::{ValueId, ValueKind};
use memplan_check::{Violation, check};
use memplan_ir::{Module, Op};
use memplan_memory::{
    Alignment, Allocation, AllocationId, AllocationKind, Bytes, MemoryPlan, MemorySpaceId, Target,
};
use memplan_plan_hlo::{Planned, plan};

/// Modules with more plans are left out.
const MOST_PLANS: u64 = 3_000;

/// Bytes of an element: everything is a multiple of it.
const ELEMENT: u64 = 4;

/// A module of straight code, of which some arguments are given up.
fn random_module(seed: u64) -> String {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut roll = |sides: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % sides
    };
    let mut sizes: Vec<u64> = (0..1 + roll(2)).map(|_| 1 + roll(2)).collect();
    let n_arguments = sizes.len();
    let mut lines: Vec<String> =
        sizes.iter().enumerate().map(|(i, n)| format!("v{i} = f32[{n}]{{0}} parameter({i})")).collect();
    for id in n_arguments..n_arguments + 2 + roll(3) as usize {
        let a = roll(id as u64) as usize;
        let n = sizes[a];
        let alike = (0..id).filter(|&b| sizes[b] == n).nth(roll(2) as usize).unwrap_or(a);
        let (n, what) = match roll(6) {
            0 | 1 => (n, format!("exponential(v{a})")),
            2 => (n, format!("reverse(v{a}), dimensions={{0}}")),
            3 | 4 => (n, format!("add(v{a}, v{alike})")),
            _ if n > 1 => (1, format!("slice(v{a}), slice={{[0:1]}}")),
            _ => (2, format!("concatenate(v{a}, v{alike}), dimensions={{0}}")),
        };
        sizes.push(n);
        lines.push(format!("v{id} = f32[{n}]{{0}} {what}"));
    }
    let root = lines.pop().expect("there are operations");
    let mut config = match sizes[0] == *sizes.last().expect("there are values") && roll(4) > 0 {
        true => ", input_output_alias={ {}: (0, {}, may-alias) }".to_string(),
        false if roll(2) == 0 => ", buffer_donor={ (0, {}) }".to_string(),
        false => String::new(),
    };
    if n_arguments == 2 && roll(2) == 0 && !config.contains("donor") {
        config.push_str(", buffer_donor={ (1, {}) }");
    }
    format!("HloModule m{config}\nENTRY main {{\n  {}\n  ROOT {root}\n}}\n", lines.join("\n  "))
}

fn planned(text: &str, target: &Target) -> (Module, Planned) {
    let mut module = memplan_hlo::parse(text).expect("the module parses");
    if !module.is_scheduled {
        memplan_passes::legalize(&mut module, target).expect("the passes leave valid modules");
    }
    let planned = plan(&module, target, &Default::default()).expect("there is a plan");
    check(&module, &planned.schedule, target, &planned.plan).expect("the plan is right");
    (module, planned)
}

/// Looks for a plan that takes so many bytes, and says how many there are to look at, if that is too many.
fn find_plan(
    module: &Module,
    planned: &Planned,
    target: &Target,
    total: Bytes,
) -> Result<Option<MemoryPlan>, u64> {
    let mut plan = planned.plan.clone();
    let is_arena = |it: &Allocation| it.kind == AllocationKind::Temp && it.space == MemorySpaceId::MAIN;
    let others: Bytes = plan.allocations.values().filter(|it| !is_arena(it)).map(|it| it.size).sum();
    let Some(arena) = total.0.checked_sub(others.0) else { return Ok(None) };
    match plan.allocations.values_mut().find(|it| is_arena(it)) {
        Some(it) => it.size = Bytes(arena),
        None => {
            plan.allocations.push(Allocation {
                kind: AllocationKind::Temp,
                space: MemorySpaceId::MAIN,
                size: Bytes(arena),
                alignment: Alignment::ONE,
                live_out: false,
            });
        }
    }
    let flow = &planned.facts.flow;
    let is_free = |&value: &ValueId| {
        let definition = flow.values[value];
        let op = &module.instructions[flow.positions.instruction(definition.definition)].op;
        definition.kind != ValueKind::Parameter
            && !matches!(op, Op::Constant(_))
            && plan.slices.contains_key(&flow.positions.position(definition.definition))
    };
    let free: Vec<ValueId> = flow.values.keys().filter(is_free).collect();
    let places: Vec<Vec<(AllocationId, Bytes)>> = free
        .iter()
        .map(|&value| {
            let size = plan.slices[&flow.positions.position(flow.values[value].definition)].size;
            let offsets =
                |it: &Allocation| (0..(it.size.0 + 1).saturating_sub(size.0)).step_by(ELEMENT as usize);
            let all = plan.allocations.iter().filter(|(_, it)| it.kind != AllocationKind::Constant);
            all.flat_map(|(id, it)| offsets(it).map(move |offset| (id, Bytes(offset)))).collect()
        })
        .collect();
    let n_plans = places.iter().fold(1u64, |n, places| n.saturating_mul(places.len() as u64));
    if n_plans > MOST_PLANS {
        return Err(n_plans);
    }
    for number in 0..n_plans {
        let mut rest = number;
        for (&value, places) in free.iter().zip(&places) {
            let (allocation, offset) = places[(rest % places.len() as u64) as usize];
            rest /= places.len() as u64;
            for &position in flow.positions_of(value) {
                if let Some(slice) = plan.slices.get_mut(&flow.positions.position(position)) {
                    (slice.allocation, slice.offset) = (allocation, offset);
                }
            }
        }
        mark_results(module, planned, &mut plan);
        if is_accepted(module, planned, target, &plan) {
            return Ok(Some(plan));
        }
    }
    Ok(None)
}

fn mark_results(module: &Module, planned: &Planned, plan: &mut MemoryPlan) {
    plan.allocations.values_mut().for_each(|it| it.live_out = false);
    let positions = &planned.facts.flow.positions;
    for position in positions.of(module.entry_computation().root) {
        if let Some(slice) = plan.slices.get(&positions.position(position)) {
            plan.allocations[slice.allocation].live_out = true;
        }
    }
}

/// Whether nothing is wrong but sums.
fn is_accepted(module: &Module, planned: &Planned, target: &Target, plan: &MemoryPlan) -> bool {
    match check(module, &planned.schedule, target, plan) {
        Ok(_) => true,
        Err(violations) => violations
            .iter()
            .all(|it| matches!(it, Violation::WrongTotal { .. } | Violation::SpaceListed { .. })),
    }
}

/// Fails where a plan takes less than the bound; returns whether the planner's takes as little, if all plans were tried.
#[track_caller]
fn try_all(text: &str, target: &Target) -> Option<bool> {
    let (module, planned) = planned(text, target);
    let totals = planned.plan.totals;
    assert!(totals.total_lower_bound <= totals.total, "{text}");
    let is_exact = totals.total == totals.total_lower_bound;
    let least = Bytes(totals.total_lower_bound.0.checked_sub(ELEMENT)?);
    match find_plan(&module, &planned, target, least) {
        Ok(None) => Some(is_exact),
        Ok(Some(lower)) => panic!("less than {}: {:?}\n{text}", totals.total_lower_bound, lower.slices),
        Err(_) => None,
    }
}

#[test]
fn no_plan_takes_less_than_the_bound() {
    let target = Target::find("toy").expect("built in");
    let results: Vec<bool> = (0..300).filter_map(|seed| try_all(&random_module(seed), &target)).collect();
    let n_exact = results.iter().filter(|&&is_exact| is_exact).count();
    // Most small modules are planned as well as can be, and that is known.
    assert!(
        results.len() > 100 && n_exact * 4 > results.len() * 3,
        "{n_exact} of {} are exact",
        results.len()
    );
}

/// Loops, calls and branches: what they hand over and return is where it was, and nothing less does.
#[test]
fn nor_one_with_loops_calls_and_branches() {
    let target = Target::find("toy").expect("built in");
    let condition = "condition {\n  c = (s32[], f32[2]{0}) parameter(0)\n  i = s32[] get-tuple-element(c), index=0\n  \
                     n = s32[] constant(3)\n  ROOT l = pred[] compare(i, n), direction=LT\n}\n";
    let body = |step: &str| {
        format!(
            "body {{\n  b = (s32[], f32[2]{{0}}) parameter(0)\n  i = s32[] get-tuple-element(b), index=0\n  \
             v = f32[2]{{0}} get-tuple-element(b), index=1\n  one = s32[] constant(1)\n  j = s32[] add(i, one)\n  {step}\n  \
             ROOT t = (s32[], f32[2]{{0}}) tuple(j, w)\n}}\n"
        )
    };
    let main = |before: &str, after: &str| {
        format!(
            "ENTRY main {{\n  x = f32[2]{{0}} parameter(0)\n  i0 = s32[] constant(0)\n  {before}\n  \
             s = (s32[], f32[2]{{0}}) tuple(i0, e)\n  o = (s32[], f32[2]{{0}}) while(s), condition=condition, body=body\n  \
             u = f32[2]{{0}} get-tuple-element(o), index=1\n  {after}\n}}\n"
        )
    };
    let mut n_tried = 0;
    for config in ["", ", input_output_alias={ {}: (0, {}, may-alias) }", ", buffer_donor={ (0, {}) }"] {
        for step in ["w = f32[2]{0} exponential(v)", "w = f32[2]{0} reverse(v), dimensions={0}"] {
            for before in ["e = f32[2]{0} exponential(x)", "e = f32[2]{0} reverse(x), dimensions={0}"] {
                for after in ["ROOT r = f32[2]{0} negate(u)", "ROOT r = f32[2]{0} add(u, e)"] {
                    let text =
                        format!("HloModule m{config}\n{condition}{}{}", body(step), main(before, after));
                    n_tried += usize::from(try_all(&text, &target).is_some());
                }
            }
        }
    }
    for op in ["call(x), to_apply=f", "call(e), to_apply=f"] {
        let text = format!(
            "HloModule m, input_output_alias={{ {{}}: (0, {{}}, may-alias) }}\nf {{\n  p = f32[2]{{0}} parameter(0)\n  \
             q = f32[2]{{0}} reverse(p), dimensions={{0}}\n  ROOT n = f32[2]{{0}} negate(q)\n}}\nENTRY main {{\n  \
             x = f32[2]{{0}} parameter(0)\n  e = f32[2]{{0}} exponential(x)\n  a = f32[2]{{0}} {op}\n  \
             ROOT r = f32[2]{{0}} multiply(a, e)\n}}\n"
        );
        n_tried += usize::from(try_all(&text, &target).is_some());
    }
    assert!(n_tried > 5, "{n_tried} modules were small enough");
}
