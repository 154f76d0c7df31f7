//! Random loops that read rows of arrays, which are made of parameters by random operations. With or without
//! `rows-within-loops`, they compute the same numbers.

use std::fmt::Write;

use memplan_ir::verify;
use memplan_memory::Target;
use memplan_passes::{Context, ROWS_WITHIN_LOOPS, RowsWithinLoops};
use memplan_testkit::Random;

use crate::simplify::equivalence;
use crate::simplify::filetests::run_twice;

const N_PROGRAMS: u64 = 300;

/// Every program means the same, and many are changed.
#[test]
fn random_rows_keep_their_meaning() {
    let target = Target::find("cpu").unwrap();
    let context = Context { target: &target };
    let n_programs = std::env::var("N_PROGRAMS").map_or(N_PROGRAMS, |n| n.parse().expect("a number"));
    let mut n_changed = 0;
    for seed in 0..n_programs {
        let pass = RowsWithinLoops { products: seed % 2 == 0, min_gain: 0.0, ..ROWS_WITHIN_LOOPS };
        let source = program(&mut Random::new(seed));
        let before =
            memplan_hlo::parse(&source).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{source}"));
        verify(&before).unwrap_or_else(|errors| panic!("seed {seed}: {errors}\n{source}"));
        let after = run_twice(&before, &[&pass], &context);
        n_changed += u64::from(memplan_hlo::print(&after) != memplan_hlo::print(&before));
        let result = std::panic::catch_unwind(|| equivalence::check(&before, &after));
        assert!(result.is_ok(), "seed {seed}:\n{source}\nbecame\n{}", memplan_hlo::print(&after));
    }
    assert!(n_changed * 2 > n_programs, "only {n_changed} of {n_programs} programs are changed");
}

/// A way to read an array: its shape, the shape of a part, and where the part starts.
const READS: [(&str, &str, &str); 6] = [
    ("[12,4]", "[1,4]", "i, zero"),
    ("[12,4]", "[1,4]", "j, zero"),
    ("[12,4]", "[2,4]", "ii, zero"),
    ("[12,4]", "[2,4]", "jj, zero"),
    ("[4,12]", "[4,1]", "zero, i"),
    ("[3,4,4]", "[1,4,4]", "third, zero, zero"),
];

fn program(random: &mut Random) -> String {
    let mut text = String::from(
        "HloModule rows\n\nplus {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  \
         ROOT c = f32[] add(a, b)\n}\n\n",
    );
    let reads: Vec<_> = (0..1 + random.below(3)).map(|_| READS[random.below(READS.len())]).collect();
    let types: Vec<String> = reads.iter().map(|(whole, ..)| format!("f32{whole}")).collect();
    let state = format!("(s32[], f32[], {})", types.join(", "));
    // Three steps where thirds are read, six for pairs.
    let n = if reads.iter().any(|read| read.0 == "[3,4,4]") { 3 } else { 6 };
    writeln!(
        text,
        "more {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n  \
         n = s32[] constant({n})\n  ROOT r = pred[] compare(i, n), direction=LT\n}}\n"
    )
    .unwrap();
    writeln!(
        text,
        "body {{\n  s = {state} parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n  \
         d0 = f32[] get-tuple-element(s), index=1\n  zero = s32[] constant(0)\n  one = s32[] constant(1)\n  \
         two = s32[] constant(2)\n  five = s32[] constant(5)\n  none = f32[] constant(0)\n  \
         next = s32[] add(i, one)\n  j = s32[] subtract(five, i)\n  ii = s32[] multiply(i, two)\n  \
         jj = s32[] multiply(j, two)\n  third = s32[] subtract(two, i)"
    )
    .unwrap();
    for (k, (whole, part, starts)) in reads.iter().enumerate() {
        let sizes = &part[1..part.len() - 1];
        let dimensions = if part.matches(',').count() == 2 { "0,1,2" } else { "0,1" };
        let next = k + 1;
        writeln!(
            text,
            "  a{k} = f32{whole} get-tuple-element(s), index={}\n  \
             p{k} = f32{part} dynamic-slice(a{k}, {starts}), dynamic_slice_sizes={{{sizes}}}\n  \
             sum{k} = f32[] reduce(p{k}, none), dimensions={{{dimensions}}}, to_apply=plus\n  \
             h{k} = f32[] sine(d{k})\n  d{next} = f32[] add(h{k}, sum{k})",
            k + 2
        )
        .unwrap();
    }
    let arrays: Vec<String> = (0..reads.len()).map(|k| format!("a{k}")).collect();
    writeln!(text, "  ROOT r = {state} tuple(next, d{}, {})\n}}\n", reads.len(), arrays.join(", ")).unwrap();
    text.push_str(
        "ENTRY main {\n  x = f32[12,4] parameter(0)\n  w = f32[4,4] parameter(1)\n  v = f32[4] parameter(2)\n  \
         order = s32[12] parameter(3)\n  start = s32[] constant(0)\n  none = f32[] constant(0)\n",
    );
    let mut inits = Vec::new();
    for (k, (whole, ..)) in reads.iter().enumerate() {
        inits.push(array(&mut text, random, k, whole));
    }
    writeln!(text, "  init = {state} tuple(start, none, {})", inits.join(", ")).unwrap();
    writeln!(text, "  u = {state} while(init), condition=more, body=body").unwrap();
    writeln!(text, "  d = f32[] get-tuple-element(u), index=1").unwrap();
    let kept = &inits[random.below(inits.len())];
    match random.below(4) {
        0 => writeln!(text, "  e = f32[] reduce({kept}, none), dimensions={{0,1{}}}, to_apply=plus\n  ROOT r = f32[] add(d, e)\n}}", if text_rank(&text, kept) == 3 { ",2" } else { "" }).unwrap(),
        _ => text.push_str("  ROOT r = f32[] sine(d)\n}\n"),
    }
    text
}

/// The rank of an array of the text.
fn text_rank(text: &str, name: &str) -> usize {
    let line = text.lines().find(|line| line.trim_start().starts_with(&format!("{name} = "))).unwrap();
    1 + line.split(['[', ']']).nth(1).unwrap().matches(',').count()
}

/// An array of a shape, by some operations on parameters.
fn array(text: &mut String, random: &mut Random, k: usize, whole: &str) -> String {
    let mut value = "x".to_string();
    for step in 0..1 + random.below(4) {
        let name = format!("x{k}_{step}");
        match random.below(9) {
            0 => writeln!(text, "  {name} = f32[12,4] negate({value})"),
            1 => writeln!(text, "  {name} = f32[12,4] multiply({value}, x)"),
            2 => writeln!(
                text,
                "  {name}_v = f32[12,4] broadcast(v), dimensions={{1}}\n  {name} = f32[12,4] add({value}, {name}_v)"
            ),
            3 => writeln!(
                text,
                "  {name}_n = s32[12,4] iota(), iota_dimension=0\n  {name}_f = f32[12,4] convert({name}_n)\n  \
                 {name} = f32[12,4] subtract({value}, {name}_f)"
            ),
            4 => writeln!(
                text,
                "  {name} = f32[12,4] dot({value}, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
            ),
            5 => writeln!(
                text,
                "  {name} = f32[12,4] gather({value}, order), offset_dims={{1}}, collapsed_slice_dims={{0}}, \
                 start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,4}}"
            ),
            6 => writeln!(
                text,
                "  {name}_s = f32[12] reduce({value}, none), dimensions={{1}}, to_apply=plus\n  \
                 {name} = f32[12,4] broadcast({name}_s), dimensions={{0}}"
            ),
            7 => writeln!(text, "  {name} = f32[12,4] reverse({value}), dimensions={{{}}}", random.below(2)),
            _ => writeln!(
                text,
                "  {name}_b = bf16[12,4] convert({value})\n  {name} = f32[12,4] convert({name}_b)"
            ),
        }
        .unwrap();
        value = name;
    }
    let name = format!("made{k}");
    match whole {
        "[4,12]" => writeln!(text, "  {name} = f32[4,12] transpose({value}), dimensions={{1,0}}"),
        "[3,4,4]" => writeln!(text, "  {name} = f32[3,4,4] reshape({value})"),
        _ => writeln!(text, "  {name} = f32[12,4] sine({value})"),
    }
    .unwrap();
    name
}
