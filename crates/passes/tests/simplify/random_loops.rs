//! Random loops and conditionals: state that is passed on, constant, repeated, dead or saved row by row.

use std::fmt::Write;

use memplan_ir::verify;
use memplan_memory::Target;
use memplan_passes::{Context, SIMPLIFY, TAKE_APART};
use memplan_testkit::Random;

use crate::simplify::equivalence;
use crate::simplify::filetests::run_twice;

const N_PROGRAMS: u64 = 200;

/// Elements of the state beside the counter.
const N_ELEMENTS: usize = 8;

/// Every program means the same after simplification, and simplifying again changes nothing.
#[test]
fn random_loops_keep_their_meaning() {
    let target = Target::find("cpu").unwrap();
    let context = Context { target: &target };
    let n_programs = std::env::var("N_PROGRAMS").map_or(N_PROGRAMS, |n| n.parse().expect("a number"));
    for seed in 0..n_programs {
        let source = program(&mut Random::new(seed));
        let before =
            memplan_hlo::parse(&source).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{source}"));
        verify(&before).unwrap_or_else(|errors| panic!("seed {seed}: {errors}\n{source}"));
        let after = run_twice(&before, &[&TAKE_APART, &SIMPLIFY], &context);
        let result = std::panic::catch_unwind(|| equivalence::check(&before, &after));
        assert!(result.is_ok(), "seed {seed}:\n{source}\nbecame\n{}", memplan_hlo::print(&after));
    }
}

fn program(random: &mut Random) -> String {
    let state = format!("(s32[], {}, f32[4,2])", ["f32[2]"; N_ELEMENTS].join(", "));
    let branch_state = format!("({})", ["f32[2]"; N_ELEMENTS].join(", "));
    let mut text = String::from("HloModule loops\n\n");
    for branch in ["left", "right"] {
        writeln!(text, "{branch} {{\n  s = {branch_state} parameter(0)").unwrap();
        let names = elements(&mut text, 0);
        let names = compute(&mut text, random, names, 3);
        let results: Vec<&str> = (0..3).map(|_| pick(random, &names)).collect();
        writeln!(text, "  ROOT t = (f32[2], f32[2], f32[2]) tuple({})\n}}\n", results.join(", ")).unwrap();
    }

    writeln!(text, "body {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=0").unwrap();
    writeln!(text, "  stack = f32[4,2] get-tuple-element(s), index={}", N_ELEMENTS + 1).unwrap();
    let names = elements(&mut text, 1);
    let own = names.clone();
    let names = compute(&mut text, random, names, 8);
    let row = pick(random, &names).to_string();
    writeln!(text, "  zero = s32[] constant(0)\n  row = f32[1,2] reshape({row})").unwrap();
    writeln!(text, "  saved = f32[4,2] dynamic-update-slice(stack, row, i, zero)").unwrap();
    writeln!(text, "  one = s32[] constant(1)\n  next = s32[] add(i, one)").unwrap();
    // Half of the elements are passed on as they are.
    let results: Vec<&str> = own
        .iter()
        .map(|own| if random.bits().is_multiple_of(2) { own.as_str() } else { pick(random, &names) })
        .collect();
    writeln!(text, "  ROOT t = {state} tuple(next, {}, saved)\n}}\n", results.join(", ")).unwrap();

    let trips = random.bits() % 4;
    writeln!(
        text,
        "condition {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n  \
         n = s32[] constant({trips})\n  ROOT c = pred[] compare(i, n), direction=LT\n}}\n"
    )
    .unwrap();

    text.push_str("ENTRY main {\n  p0 = f32[2] parameter(0)\n  p1 = f32[2] parameter(1)\n  flag = pred[] parameter(2)\n");
    text.push_str("  start = s32[] constant(0)\n  c = f32[] constant(0)\n  rows = f32[4,2] broadcast(c), dimensions={}\n");
    let names = vec!["p0".to_string(), "p1".to_string()];
    let names = compute(&mut text, random, names, 4);
    let init: Vec<&str> = (0..N_ELEMENTS).map(|_| pick(random, &names)).collect();
    writeln!(text, "  init = {state} tuple(start, {}, rows)", init.join(", ")).unwrap();
    writeln!(text, "  loop = {state} while(init), condition=condition, body=body").unwrap();
    let mut taken: Vec<String> = Vec::new();
    for i in 1..=N_ELEMENTS {
        if random.bits().is_multiple_of(2) {
            writeln!(text, "  l{i} = f32[2] get-tuple-element(loop), index={i}").unwrap();
            taken.push(format!("l{i}"));
        }
    }
    taken.push("p1".to_string());
    let operands: Vec<&str> = (0..N_ELEMENTS).map(|_| pick(random, &taken)).collect();
    writeln!(text, "  both = {branch_state} tuple({})", operands.join(", ")).unwrap();
    text.push_str("  choice = (f32[2], f32[2], f32[2]) conditional(flag, both, both), true_computation=left, false_computation=right\n");
    for i in 0..3 {
        if random.bits().is_multiple_of(2) {
            writeln!(text, "  c{i} = f32[2] get-tuple-element(choice), index={i}").unwrap();
            taken.push(format!("c{i}"));
        }
    }
    writeln!(text, "  stacked = f32[4,2] get-tuple-element(loop), index={}", N_ELEMENTS + 1).unwrap();
    let shapes = vec!["f32[2]"; taken.len()].join(", ");
    writeln!(text, "  ROOT r = ({shapes}, f32[4,2]) tuple({}, stacked)\n}}", taken.join(", ")).unwrap();
    text
}

/// Takes the arrays out of the state `s`.
fn elements(text: &mut String, first: usize) -> Vec<String> {
    (0..N_ELEMENTS)
        .map(|i| {
            writeln!(text, "  e{i} = f32[2] get-tuple-element(s), index={}", first + i).unwrap();
            format!("e{i}")
        })
        .collect()
}

/// Adds some operations on what there is, constants among them, and returns all names.
fn compute(text: &mut String, random: &mut Random, mut names: Vec<String>, n: usize) -> Vec<String> {
    for i in 0..n {
        let (a, b) = (pick(random, &names).to_string(), pick(random, &names).to_string());
        match random.bits() % 6 {
            0 => writeln!(
                text,
                "  k{i} = f32[] constant({})\n  v{i} = f32[2] broadcast(k{i}), dimensions={{}}",
                random.bits() % 2
            ),
            1 => writeln!(text, "  v{i} = f32[2] cosine({a})"),
            2 => writeln!(text, "  v{i} = f32[2] negate({a})"),
            3 => writeln!(text, "  v{i} = f32[2] maximum({a}, {b})"),
            4 => writeln!(text, "  v{i} = f32[2] subtract({a}, {b})"),
            _ => writeln!(text, "  v{i} = f32[2] reverse({a}), dimensions={{0}}"),
        }
        .unwrap();
        names.push(format!("v{i}"));
    }
    names
}

fn pick<'a>(random: &mut Random, names: &'a [String]) -> &'a str {
    &names[(random.bits() % names.len() as u64) as usize]
}
