//! Random loops that read rows of some arrays and write rows of others: joined or not, they give the same bits.

use std::fmt::Write;

use memplan_ir::verify;
use memplan_memory::Target;
use memplan_passes::{Context, LOOP_STATE_IN_PLACE, LoopStateInPlace};
use memplan_testkit::Random;

use crate::simplify::equivalence;
use crate::simplify::filetests::run_twice;

const N_PROGRAMS: u64 = 300;

/// Rows of all arrays.
const N_ROWS: u64 = 6;

/// Every program gives the same bits, and many are changed.
#[test]
fn random_scans_keep_their_bits() {
    let target = Target::find("cpu").unwrap();
    let context = Context { target: &target };
    let n_programs = std::env::var("N_PROGRAMS").map_or(N_PROGRAMS, |n| n.parse().expect("a number"));
    let mut n_changed = 0;
    for seed in 0..n_programs {
        let source = program(&mut Random::new(seed));
        let before =
            memplan_hlo::parse(&source).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{source}"));
        verify(&before).unwrap_or_else(|errors| panic!("seed {seed}: {errors}\n{source}"));
        let after = run_twice(&before, &[&LOOP_STATE_IN_PLACE], &context);
        n_changed += u64::from(memplan_hlo::print(&after) != memplan_hlo::print(&before));
        let with_barriers = LoopStateInPlace { has_barriers: true, ..LOOP_STATE_IN_PLACE };
        for after in [after, run_twice(&before, &[&with_barriers], &context)] {
            let result = std::panic::catch_unwind(|| equivalence::check_bits(&before, &after));
            assert!(result.is_ok(), "seed {seed}:\n{source}\nbecame\n{}", memplan_hlo::print(&after));
        }
    }
    assert!(n_changed * 3 > n_programs, "only {n_changed} of {n_programs} programs are changed");
}

/// Two loops one after the other, by themselves or within a loop.
fn program(random: &mut Random) -> String {
    let n_arrays = 1 + random.bits() % 3;
    let mut text = String::from("HloModule scans");
    let donated: Vec<String> = (0..n_arrays)
        .filter(|_| random.bits().is_multiple_of(2))
        .map(|k| format!("{{{k}}}: ({k}, {{}}, may-alias)"))
        .collect();
    if !donated.is_empty() {
        write!(text, ", input_output_alias={{ {} }}", donated.join(", ")).unwrap();
    }
    text.push_str("\n\n");
    for name in ["first", "second"] {
        scan(&mut text, random, name, n_arrays);
    }
    let arrays = vec!["f32[6,2]"; n_arrays as usize].join(", ");
    let is_nested = random.bits().is_multiple_of(2);
    if is_nested {
        let state = format!("(s32[], f32[1,2], {arrays})");
        writeln!(text, "around {{\n  s = {state} parameter(0)\n  t = s32[] get-tuple-element(s), index=0")
            .unwrap();
        writeln!(text, "  c = f32[1,2] get-tuple-element(s), index=1").unwrap();
        for k in 0..n_arrays {
            writeln!(text, "  p{k} = f32[6,2] get-tuple-element(s), index={}", k + 2).unwrap();
        }
        let results = both(&mut text, random, n_arrays);
        writeln!(text, "  one = s32[] constant(1)\n  next = s32[] add(t, one)").unwrap();
        writeln!(text, "  ROOT r = {state} tuple(next, second_c, {results})\n}}\n").unwrap();
        writeln!(text, "goes_on {{\n  s = {state} parameter(0)\n  t = s32[] get-tuple-element(s), index=0")
            .unwrap();
        text.push_str("  n = s32[] constant(2)\n  ROOT c = pred[] compare(t, n), direction=LT\n}\n\n");
    }
    text.push_str("ENTRY main {\n");
    for k in 0..n_arrays {
        writeln!(text, "  p{k} = f32[6,2] parameter({k})").unwrap();
    }
    writeln!(text, "  c = f32[1,2] parameter({n_arrays})").unwrap();
    let results = match is_nested {
        false => both(&mut text, random, n_arrays),
        true => {
            let state = format!("(s32[], f32[1,2], {arrays})");
            let given: Vec<String> = (0..n_arrays).map(|k| format!("p{k}")).collect();
            writeln!(text, "  t = s32[] constant(0)\n  init = {state} tuple(t, c, {})", given.join(", "))
                .unwrap();
            writeln!(text, "  all = {state} while(init), condition=goes_on, body=around").unwrap();
            text.push_str("  second_c = f32[1,2] get-tuple-element(all), index=1\n");
            for k in 0..n_arrays {
                writeln!(text, "  r{k} = f32[6,2] get-tuple-element(all), index={}", k + 2).unwrap();
            }
            (0..n_arrays).map(|k| format!("r{k}")).collect::<Vec<_>>().join(", ")
        }
    };
    writeln!(text, "  ROOT result = ({arrays}, f32[1,2]) tuple({results}, second_c)\n}}").unwrap();
    text
}

/// Calls both loops on `p0`, ..., and returns what they make of them, joined by commas.
fn both(text: &mut String, random: &mut Random, n_arrays: u64) -> String {
    text.push_str("  nothing = f32[] constant(0.5)\n  start = f32[6,2] broadcast(nothing), dimensions={}\n");
    let arrays: Vec<String> = (0..n_arrays)
        .map(|k| match random.bits() % 3 {
            0 => {
                writeln!(text, "  made{k} = f32[6,2] negate(p{k})").unwrap();
                format!("made{k}")
            }
            _ => format!("p{k}"),
        })
        .collect();
    let arrays = call(text, random, "first", "c", &arrays);
    let mut arrays = call(text, random, "second", "first_c", &arrays);
    if random.bits().is_multiple_of(4) {
        arrays.rotate_left(1);
    }
    arrays.join(", ")
}

fn call(text: &mut String, random: &mut Random, name: &str, carry: &str, arrays: &[String]) -> Vec<String> {
    let state = state_of(arrays.len() as u64);
    writeln!(text, "  {name}_i = s32[] constant({})", random.bits() % 2).unwrap();
    let new: Vec<&str> = arrays
        .iter()
        .map(|array| match random.bits() % 6 {
            0 => arrays[0].as_str(),
            1 => array.as_str(),
            _ => "start",
        })
        .collect();
    writeln!(
        text,
        "  {name}_init = {state} tuple({name}_i, {carry}, {}, {})",
        arrays.join(", "),
        new.join(", ")
    )
    .unwrap();
    writeln!(text, "  {name} = {state} while({name}_init), condition={name}_goes_on, body={name}_body")
        .unwrap();
    writeln!(text, "  {name}_c = f32[1,2] get-tuple-element({name}), index=1").unwrap();
    let n = arrays.len();
    (0..n)
        .map(|k| {
            writeln!(text, "  {name}_{k} = f32[6,2] get-tuple-element({name}), index={}", 2 + n + k).unwrap();
            match random.bits() % 8 {
                0 => {
                    writeln!(text, "  {name}_with_{k} = f32[6,2] add({name}_{k}, {})", arrays[k]).unwrap();
                    format!("{name}_with_{k}")
                }
                _ => format!("{name}_{k}"),
            }
        })
        .collect()
}

fn state_of(n_arrays: u64) -> String {
    format!("(s32[], f32[1,2], {})", vec!["f32[6,2]"; 2 * n_arrays as usize].join(", "))
}

/// A loop that reads rows of each of the first arrays and writes rows of each of the others.
fn scan(text: &mut String, random: &mut Random, name: &str, n_arrays: u64) {
    let state = state_of(n_arrays);
    let (step, limit) = (1 + random.bits() % 4 / 3, 1 + random.bits() % 6);
    writeln!(text, "{name}_body {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=0")
        .unwrap();
    writeln!(text, "  carry = f32[1,2] get-tuple-element(s), index=1").unwrap();
    text.push_str("  zero = s32[] constant(0)\n  one = s32[] constant(1)\n  last = s32[] constant(5)\n");
    writeln!(text, "  step = s32[] constant({step})\n  next = s32[] add(i, step)").unwrap();
    text.push_str(
        "  back = s32[] subtract(last, i)\n  twice = s32[] add(i, i)\n  ahead = s32[] add(i, one)\n",
    );
    text.push_str("  behind = s32[] subtract(i, one)\n  kept_in = s32[] clamp(zero, i, last)\n");
    text.push_str("  is_negative = pred[] compare(back, zero), direction=LT\n");
    text.push_str("  wrapped = s32[] select(is_negative, ahead, back)\n");
    let mut carry = "carry".to_string();
    let (mut old, mut new) = (Vec::new(), Vec::new());
    let usual = *pick(random, &["i", "i", "back", "twice"]);
    for k in 0..n_arrays {
        let (is_usual, size) = (!random.bits().is_multiple_of(4), if usual == "twice" { 2 } else { 1 });
        let others = ["i", "back", "ahead", "behind", "kept_in", "wrapped", "zero", "twice"];
        let write = if is_usual { usual } else { *pick(random, &others) };
        let read = if !random.bits().is_multiple_of(4) { write } else { *pick(random, &others) };
        writeln!(text, "  old{k} = f32[6,2] get-tuple-element(s), index={}", 2 + k).unwrap();
        writeln!(text, "  new{k} = f32[6,2] get-tuple-element(s), index={}", 2 + n_arrays + k).unwrap();
        writeln!(
            text,
            "  row{k} = f32[{size},2] dynamic-slice(old{k}, {read}, zero), dynamic_slice_sizes={{{size},2}}"
        )
        .unwrap();
        writeln!(text, "  top{k} = f32[1,2] slice(row{k}), slice={{[0:1], [0:2]}}").unwrap();
        writeln!(text, "  b{k} = f32[{size},2] broadcast(x{k}), dimensions={{1}}").unwrap();
        let flat = format!("  x{k} = f32[2] reshape({carry})\n");
        let at = text.rfind("  b").expect("it was just written");
        text.insert_str(at, &flat);
        match random.bits() % 5 {
            0 => writeln!(text, "  y{k} = f32[{size},2] add(row{k}, b{k})"),
            1 => writeln!(text, "  y{k} = f32[{size},2] cosine(b{k})"),
            2 => writeln!(text, "  y{k} = f32[{size},2] reshape(row{k})"),
            3 => writeln!(
                text,
                "  part{k} = f32[{size},1] slice(b{k}), slice={{[0:{size}], [0:1]}}\n  \
                 y{k} = f32[{size},2] dynamic-update-slice(row{k}, part{k}, zero, behind)"
            ),
            _ => writeln!(text, "  y{k} = f32[{size},2] negate(row{k})"),
        }
        .unwrap();
        writeln!(text, "  updated{k} = f32[6,2] dynamic-update-slice(new{k}, y{k}, {write}, zero)").unwrap();
        if random.bits().is_multiple_of(2) {
            let from = if random.bits().is_multiple_of(2) { "top" } else { "topy" };
            writeln!(text, "  topy{k} = f32[1,2] slice(y{k}), slice={{[0:1], [0:2]}}").unwrap();
            writeln!(text, "  carry{k} = f32[1,2] add({carry}, {from}{k})").unwrap();
            carry = format!("carry{k}");
        }
        old.push(format!("old{k}"));
        new.push(format!("updated{k}"));
    }
    writeln!(text, "  ROOT r = {state} tuple(next, {carry}, {}, {})\n}}\n", old.join(", "), new.join(", "))
        .unwrap();
    writeln!(
        text,
        "{name}_goes_on {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=0"
    )
    .unwrap();
    let limit = if random.bits().is_multiple_of(2) { N_ROWS } else { limit };
    writeln!(text, "  n = s32[] constant({limit})\n  ROOT c = pred[] compare(i, n), direction=LT\n}}\n")
        .unwrap();
}

fn pick<'a, T>(random: &mut Random, all: &'a [T]) -> &'a T {
    &all[(random.bits() % all.len() as u64) as usize]
}
