//! Random loops that stack rows, some of them equal in every step, and users of the stacks: results, sums of many
//! kinds, rows that a second loop reads. With or without `keep-within-loops`, they compute the same numbers.

use std::fmt::Write;

use memplan_ir::verify;
use memplan_memory::Target;
use memplan_passes::{Context, KEEP_WITHIN_LOOPS, KeepWithinLoops};
use memplan_testkit::Random;

use crate::simplify::equivalence;
use crate::simplify::filetests::run_twice;

const N_PROGRAMS: u64 = 300;

/// Every program means the same, and many are changed.
#[test]
fn random_stacks_keep_their_meaning() {
    let target = Target::find("cpu").unwrap();
    let context = Context { target: &target };
    let n_programs = std::env::var("N_PROGRAMS").map_or(N_PROGRAMS, |n| n.parse().expect("a number"));
    let pass = KeepWithinLoops { min_summed_bytes: 0, ..KEEP_WITHIN_LOOPS };
    let mut n_changed = 0;
    for seed in 0..n_programs {
        let source = program(&mut Random::new(seed));
        let before =
            memplan_hlo::parse(&source).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{source}"));
        verify(&before).unwrap_or_else(|errors| panic!("seed {seed}: {errors}\n{source}"));
        let after = run_twice(&before, &[&pass], &context);
        n_changed += u64::from(memplan_hlo::print(&after) != memplan_hlo::print(&before));
        let result = std::panic::catch_unwind(|| equivalence::check(&before, &after));
        assert!(result.is_ok(), "seed {seed}:\n{source}\nbecame\n{}", memplan_hlo::print(&after));
    }
    assert!(n_changed * 3 > n_programs, "only {n_changed} of {n_programs} programs are changed");
}

/// Where the rows of a stack are.
#[derive(Clone, Copy)]
enum Place {
    First,
    Last,
    Pairs,
}

impl Place {
    fn stack(self) -> &'static str {
        match self {
            Place::First => "f32[6,4]",
            Place::Last => "f32[4,6]",
            Place::Pairs => "f32[12,4]",
        }
    }

    fn row(self) -> &'static str {
        match self {
            Place::First => "f32[1,4]",
            Place::Last => "f32[4,1]",
            Place::Pairs => "f32[2,4]",
        }
    }

    fn starts(self, back: bool) -> &'static str {
        match (self, back) {
            (Place::First, false) => "i, zero",
            (Place::First, true) => "j, zero",
            (Place::Last, false) => "zero, i",
            (Place::Last, true) => "zero, j",
            (Place::Pairs, false) => "ii, zero",
            (Place::Pairs, true) => "jj, zero",
        }
    }
}

const INDICES: &str = "  zero = s32[] constant(0)\n  one = s32[] constant(1)\n  two = s32[] constant(2)\n  \
                       five = s32[] constant(5)\n  next = s32[] add(i, one)\n  j = s32[] subtract(five, i)\n  \
                       ii = s32[] multiply(i, two)\n  jj = s32[] multiply(j, two)\n";

fn program(random: &mut Random) -> String {
    let stacks: Vec<Place> = (0..1 + pick(random, 3))
        .map(|_| [Place::First, Place::First, Place::Last, Place::Pairs][pick(random, 4)])
        .collect();
    let types: Vec<&str> = stacks.iter().map(|place| place.stack()).collect();
    let mut text = String::from("HloModule stacks\n\n");
    for (name, op) in [("add", "add"), ("mul", "multiply"), ("max", "maximum"), ("min", "minimum")] {
        writeln!(
            text,
            "{name} {{\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] {op}(a, b)\n}}\n"
        )
        .unwrap();
    }

    // A loop with a value that changes, two that do not, one that may be replaced by another, and the stacks.
    let state = format!("(s32[], f32[4], f32[4], f32[4], f32[4], {})", types.join(", "));
    condition(&mut text, "more", &state);
    writeln!(text, "body {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=0").unwrap();
    for (k, name) in ["x", "u", "v", "w"].iter().enumerate() {
        writeln!(text, "  {name} = f32[4] get-tuple-element(s), index={}", k + 1).unwrap();
    }
    text.push_str(INDICES);
    let mut outs = Vec::new();
    for (k, place) in stacks.iter().enumerate() {
        let (stack, row) = (place.stack(), place.row());
        let value = expression(&mut text, random, &format!("e{k}"));
        let dimension = if matches!(place, Place::Last) { 0 } else { 1 };
        writeln!(text, "  row{k} = {row} broadcast({value}), dimensions={{{dimension}}}").unwrap();
        writeln!(text, "  old{k} = {stack} get-tuple-element(s), index={}", k + 5).unwrap();
        let starts = place.starts(pick(random, 2) == 0);
        writeln!(text, "  new{k} = {stack} dynamic-update-slice(old{k}, row{k}, {starts})").unwrap();
        outs.push(format!("new{k}"));
    }
    let last = ["w", "v", "x"][pick(random, 3)];
    writeln!(
        text,
        "  y = f32[4] sine(x)\n  ROOT r = {state} tuple(next, y, u, v, {last}, {})\n}}\n",
        outs.join(", ")
    )
    .unwrap();

    // A loop that reads rows of some of them.
    let back = format!("(s32[], f32[4], {})", types.join(", "));
    condition(&mut text, "more_back", &back);
    writeln!(text, "back {{\n  s = {back} parameter(0)\n  i = s32[] get-tuple-element(s), index=0").unwrap();
    text.push_str("  d0 = f32[4] get-tuple-element(s), index=1\n");
    text.push_str(INDICES);
    let mut sum = "d0".to_string();
    for (k, place) in stacks.iter().enumerate() {
        writeln!(text, "  in{k} = {} get-tuple-element(s), index={}", place.stack(), k + 2).unwrap();
        if pick(random, 2) == 0 {
            let (row, starts) = (place.row(), place.starts(pick(random, 2) == 0));
            let sizes = &row[4..row.len() - 1];
            writeln!(
                text,
                "  part{k} = {row} dynamic-slice(in{k}, {starts}), dynamic_slice_sizes={{{sizes}}}"
            )
            .unwrap();
            let dimension = if matches!(place, Place::Last) { 1 } else { 0 };
            writeln!(text, "  null{k} = f32[] constant(0)").unwrap();
            writeln!(
                text,
                "  read{k} = f32[4] reduce(part{k}, null{k}), dimensions={{{dimension}}}, to_apply=add"
            )
            .unwrap();
            writeln!(text, "  d{} = f32[4] add({sum}, read{k})", k + 1).unwrap();
            sum = format!("d{}", k + 1);
        }
    }
    let ins: Vec<String> = (0..stacks.len()).map(|k| format!("in{k}")).collect();
    writeln!(text, "  ROOT r = {back} tuple(next, {sum}, {})\n}}\n", ins.join(", ")).unwrap();

    text.push_str("ENTRY main {\n");
    for (k, name) in ["x", "u", "v", "w"].iter().enumerate() {
        writeln!(text, "  {name} = f32[4] parameter({k})").unwrap();
    }
    text.push_str("  start = s32[] constant(0)\n  nothing = f32[] constant(0)\n");
    let mut inits = Vec::new();
    for (k, stack) in types.iter().enumerate() {
        writeln!(text, "  init{k} = {stack} broadcast(nothing), dimensions={{}}").unwrap();
        inits.push(format!("init{k}"));
    }
    let w = ["w", "v"][pick(random, 2)];
    writeln!(text, "  init = {state} tuple(start, x, u, v, {w}, {})", inits.join(", ")).unwrap();
    writeln!(text, "  loop = {state} while(init), condition=more, body=body").unwrap();
    for (k, stack) in types.iter().enumerate() {
        writeln!(text, "  out{k} = {stack} get-tuple-element(loop), index={}", k + 5).unwrap();
    }
    let mut results: Vec<(String, String)> = Vec::new();
    if pick(random, 2) == 0 {
        let outs: Vec<String> = (0..stacks.len()).map(|k| format!("out{k}")).collect();
        writeln!(text, "  init_back = {back} tuple(start, x, {})", outs.join(", ")).unwrap();
        writeln!(text, "  loop_back = {back} while(init_back), condition=more_back, body=back").unwrap();
        writeln!(text, "  d = f32[4] get-tuple-element(loop_back), index=1").unwrap();
        results.push(("d".into(), "f32[4]".into()));
    }
    for (k, place) in stacks.iter().enumerate() {
        match pick(random, 6) {
            0 => results.push((format!("out{k}"), place.stack().into())),
            1 => {}
            _ => results.push(sum_of(&mut text, random, &stacks, k)),
        }
    }
    results.push(("x".into(), "f32[4]".into()));
    let (names, types): (Vec<String>, Vec<String>) = results.into_iter().unzip();
    writeln!(text, "  ROOT r = ({}) tuple({})\n}}", types.join(", "), names.join(", ")).unwrap();
    text
}

fn condition(text: &mut String, name: &str, state: &str) {
    writeln!(
        text,
        "{name} {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n  \
         n = s32[] constant(6)\n  ROOT r = pred[] compare(i, n), direction=LT\n}}\n"
    )
    .unwrap();
}

/// An expression of the values of a step, half of them without the one that changes.
fn expression(text: &mut String, random: &mut Random, name: &str) -> String {
    let values = if pick(random, 2) == 0 { ["u", "v", "w"] } else { ["x", "u", "v"] };
    let mut value = values[pick(random, 3)].to_string();
    for k in 0..pick(random, 3) {
        let new = format!("{name}_{k}");
        match pick(random, 4) {
            0 => writeln!(text, "  {new} = f32[4] tanh({value})").unwrap(),
            1 => writeln!(text, "  {new} = f32[4] reverse({value}), dimensions={{0}}").unwrap(),
            2 => writeln!(text, "  {new} = f32[4] negate({value})").unwrap(),
            _ => writeln!(text, "  {new} = f32[4] multiply({value}, {})", values[pick(random, 3)]).unwrap(),
        }
        value = new;
    }
    value
}

/// Something that is summed up of a stack, after operations on its elements.
fn sum_of(text: &mut String, random: &mut Random, stacks: &[Place], k: usize) -> (String, String) {
    let place = stacks[k];
    let stack = place.stack();
    let mut value = format!("out{k}");
    for n in 0..pick(random, 4) {
        let new = format!("op{k}_{n}");
        match pick(random, 6) {
            0 => writeln!(text, "  {new} = {stack} tanh({value})").unwrap(),
            1 => {
                writeln!(text, "  c{new} = f32[] constant(0.75)").unwrap();
                writeln!(text, "  b{new} = {stack} broadcast(c{new}), dimensions={{}}").unwrap();
                writeln!(text, "  {new} = {stack} subtract({value}, b{new})").unwrap();
            }
            2 => {
                let dimension = if matches!(place, Place::Last) { 0 } else { 1 };
                writeln!(text, "  b{new} = {stack} broadcast(v), dimensions={{{dimension}}}").unwrap();
                writeln!(text, "  {new} = {stack} add({value}, b{new})").unwrap();
            }
            3 => writeln!(text, "  {new} = {stack} multiply({value}, {value})").unwrap(),
            4 => {
                let dimension = if matches!(place, Place::Last) { 1 } else { 0 };
                writeln!(text, "  {new} = {stack} reverse({value}), dimensions={{{}}}", 1 - dimension)
                    .unwrap();
            }
            _ => {
                let alike: Vec<usize> = (0..stacks.len()).filter(|&o| stacks[o].stack() == stack).collect();
                let other = alike[pick(random, alike.len())];
                writeln!(text, "  {new} = {stack} add({value}, out{other})").unwrap();
            }
        }
        value = new;
    }
    let (start, combiner) =
        [("0", "add"), ("2", "add"), ("1", "mul"), ("-inf", "max"), ("1", "min")][pick(random, 5)];
    writeln!(text, "  start{k} = f32[] constant({start})").unwrap();
    let dimension = if matches!(place, Place::Last) { 1 } else { 0 };
    let name = format!("sum{k}");
    match pick(random, 3) {
        0 => {
            writeln!(
                text,
                "  {name} = f32[4] reduce({value}, start{k}), dimensions={{{dimension}}}, to_apply={combiner}"
            )
            .unwrap();
            (name, "f32[4]".into())
        }
        1 => {
            writeln!(
                text,
                "  {name} = f32[] reduce({value}, start{k}), dimensions={{0,1}}, to_apply={combiner}"
            )
            .unwrap();
            (name, "f32[]".into())
        }
        _ => {
            let n = if matches!(place, Place::Pairs) { 12 } else { 6 };
            writeln!(
                text,
                "  rows{k} = f32[{n}] reduce({value}, nothing), dimensions={{{}}}, to_apply=add",
                1 - dimension
            )
            .unwrap();
            writeln!(
                text,
                "  {name} = f32[] reduce(rows{k}, start{k}), dimensions={{0}}, to_apply={combiner}"
            )
            .unwrap();
            (name, "f32[]".into())
        }
    }
}

fn pick(random: &mut Random, n: usize) -> usize {
    (random.bits() % n as u64) as usize
}
