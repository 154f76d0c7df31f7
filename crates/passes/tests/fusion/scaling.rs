//! Modules of 100,000 instructions, shaped to be the worst case of anything that recurses along a chain, stops early in a
//! large module, or is not close to linear. Seconds are printed (`--nocapture`), and no test judges them, since a busy machine
//! takes any time: whoever changes a pass compares them.

use std::fmt::Write;
use std::time::Instant;

use memplan_memory::Target;
use memplan_passes::{Context, FUSION_OF_UPDATES, LOOP_RESIDUALS, Pass, REMAT, RunOptions, run};

/// One long chain with a reduction after every seven steps.
fn chain(n: usize) -> String {
    let mut text = String::from(HEADER);
    text.push_str("ENTRY main {\n x_0 = f32[64,8] parameter(0)\n zero = f32[] constant(0)\n");
    for i in 0..n / 10 {
        let _ = write!(text, " a_{i} = f32[64,8] negate(x_{i})\n b_{i} = f32[64,8] tanh(a_{i})\n");
        let _ =
            write!(text, " c_{i} = f32[64,8] multiply(a_{i}, b_{i})\n d_{i} = f32[64,8] add(c_{i}, x_0)\n");
        let _ = write!(text, " e_{i} = f32[64,8] abs(d_{i})\n f_{i} = f32[64,8] add(e_{i}, b_{i})\n");
        let _ = writeln!(text, " r_{i} = f32[64] reduce(f_{i}, zero), dimensions={{1}}, to_apply=add");
        let _ = writeln!(text, " s_{i} = f32[64,8] broadcast(r_{i}), dimensions={{0}}");
        let _ = write!(
            text,
            " t_{i} = f32[64,8] subtract(f_{i}, s_{i})\n x_{} = f32[64,8] cosine(t_{i})\n",
            i + 1
        );
    }
    let _ = write!(text, " ROOT end = f32[64,8] negate(x_{})\n}}", n / 10);
    text
}

/// One long chain of operations on elements, behind a transpose and before a reduction.
fn unbroken(n: usize) -> String {
    let mut text = String::from(HEADER);
    text.push_str("ENTRY main {\n x = f32[8,64] parameter(0)\n zero = f32[] constant(0)\n");
    text.push_str(" x_0 = f32[64,8] transpose(x), dimensions={1,0}\n");
    for i in 0..n {
        let _ = writeln!(text, " x_{} = f32[64,8] cosine(x_{i})", i + 1);
    }
    let _ = write!(text, " ROOT end = f32[64] reduce(x_{n}, zero), dimensions={{1}}, to_apply=add\n}}");
    text
}

/// One value and many that are made from it, all needed at the end.
fn wide(n: usize) -> String {
    let mut text = String::from(HEADER);
    text.push_str(
        "ENTRY main {\n x = f32[64,8] parameter(0)\n m = f32[64,8] tanh(x)\n zero = f32[] constant(0)\n",
    );
    for i in 0..n / 4 {
        let _ = write!(text, " a_{i} = f32[64,8] multiply(m, x)\n b_{i} = f32[64,8] add(a_{i}, m)\n");
        let _ = write!(
            text,
            " c_{i} = f32[64,8] tanh(b_{i})\n r_{i} = f32[64] reduce(c_{i}, zero), dimensions={{1}}, to_apply=add\n"
        );
    }
    let results = |kind: &str| (0..n / 4).map(|i| format!("{kind}_{i}")).collect::<Vec<_>>().join(", ");
    let _ = write!(text, " ROOT end = tuple({})\n}}", results("r"));
    text
}

/// Many loops in a row, each of which keeps rows for the next.
fn loops(n: usize) -> String {
    const STATE: &str = "(s32[], f32[8], f32[3,8], f32[3,8])";
    let mut text = String::from(HEADER);
    let _ = write!(
        text,
        "more {{ s = {STATE} parameter(0)\n i = s32[] get-tuple-element(s), index=0\n n = s32[] constant(3)\n \
         ROOT c = pred[] compare(i, n), direction=LT }}\n"
    );
    for i in 0..n / 20 {
        let _ = write!(
            text,
            "body_{i} {{ s = {STATE} parameter(0)\n i = s32[] get-tuple-element(s), index=0\n \
             one = s32[] constant(1)\n zero = s32[] constant(0)\n j = s32[] add(i, one)\n \
             h = f32[8] get-tuple-element(s), index=1\n given = f32[3,8] get-tuple-element(s), index=2\n \
             kept = f32[3,8] get-tuple-element(s), index=3\n \
             row = f32[1,8] dynamic-slice(given, i, zero), dynamic_slice_sizes={{1,8}}\n r = f32[8] reshape(row)\n \
             t = f32[8] add(h, r)\n u = f32[8] tanh(t)\n v = f32[1,8] reshape(u)\n \
             w = f32[3,8] dynamic-update-slice(kept, v, i, zero)\n ROOT e = tuple(j, t, given, w) }}\n"
        );
    }
    text.push_str("ENTRY main {\n h = f32[8] parameter(0)\n k_0 = f32[3,8] parameter(1)\n zero = s32[] constant(0)\n f = f32[] constant(0)\n rows = f32[3,8] broadcast(f), dimensions={}\n");
    for i in 0..n / 20 {
        let _ = write!(
            text,
            " s_{i} = tuple(zero, h, k_{i}, rows)\n l_{i} = {STATE} while(s_{i}), body=body_{i}, condition=more\n \
             k_{} = f32[3,8] get-tuple-element(l_{i}), index=3\n",
            i + 1
        );
    }
    let _ = write!(text, " ROOT end = f32[3,8] negate(k_{})\n}}", n / 20);
    text
}

const HEADER: &str = "HloModule generated\nadd { x = f32[] parameter(0)\n y = f32[] parameter(1)\n ROOT s = f32[] add(x, y) }\n";

/// How many instructions are left of a module.
fn instructions_after(text: &str) -> usize {
    let mut target = Target::find("gpu-h100").unwrap();
    // As for XLA's compiler: it is to be known what reads across.
    target.fusion.reduce_transposes = false;
    let mut module = memplan_hlo::parse(text).unwrap();
    let before = module.instruction_count();
    let passes: [&dyn Pass; 3] = [&LOOP_RESIDUALS, &REMAT, &FUSION_OF_UPDATES];
    let start = Instant::now();
    run(&mut module, &passes, &Context { target: &target }, RunOptions::default()).unwrap();
    let after = module.instruction_count();
    eprintln!("{before} -> {after} instructions in {:?}", start.elapsed());
    after
}

/// Ten times as large a module ends in ten times as many instructions: nothing gives up on the way.
#[track_caller]
fn check(generate: fn(usize) -> String) {
    let (small, large) = (instructions_after(&generate(10_000)), instructions_after(&generate(100_000)));
    assert!(large.abs_diff(10 * small) <= small / 2, "{small} of 10,000, {large} of 100,000");
}

#[test]
fn chains_grow_in_proportion() {
    check(chain);
}

#[test]
fn unbroken_chains_grow_in_proportion() {
    check(unbroken);
}

#[test]
fn many_loops_grow_in_proportion() {
    check(loops);
}

#[test]
fn wide_graphs_grow_in_proportion() {
    check(wide);
}
