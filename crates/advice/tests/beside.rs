//! Pairs of small modules, both scheduled: what is expected of a compiler, and what it made. Each pair differs in one
//! decision, reduced from what XLA made of a real program.

use memplan_advice::beside::{Beside, CauseKind, NothingMatches, beside};
use memplan_driver::estimate_compiled;
use memplan_hlo::parse;
use memplan_memory::{Bytes, Compiler, Target};

/// Compares the second module with the first. Each is computations and an entry; `@name` after an instruction is its
/// operation in the program.
fn compared(compiler: &str, estimate: &str, made: &str) -> Result<Beside, NothingMatches> {
    let compiler = Compiler::find(compiler).unwrap();
    let target = Target::find(&compiler.target).unwrap();
    let plan = |text: &str| {
        let lines = text.lines().map(|line| match line.rsplit_once(" @") {
            Some((line, name)) => format!("{line}, metadata={{op_name=\"jit(f)/{name}\"}}\n"),
            None => format!("{line}\n"),
        });
        let text = "HloModule f, is_scheduled=true\n".to_string() + &lines.collect::<String>();
        let module = parse(&text).unwrap_or_else(|error| panic!("{error:?}\n{text}"));
        estimate_compiled(&module, &compiler, &target, Bytes::ZERO).unwrap()
    };
    let (estimate, made) = (plan(estimate), plan(made));
    beside(&estimate.module, &estimate, &made, &compiler.on(&target))
}

/// 256 x 256 numbers of four bytes.
const ARRAY: i128 = 256 << 10;

/// Checks the cause that makes a difference, its bytes and the reason of the first decision.
#[track_caller]
fn check(compiler: &str, estimate: &str, made: &str, cause: (CauseKind, i128), why: &str) {
    let found = compared(compiler, estimate, made).unwrap();
    let sum: i128 = found.causes.iter().map(|cause| cause.bytes).sum();
    let total = found.totals.last().unwrap();
    assert_eq!(sum, i128::from(total.after.0) - i128::from(total.before.0), "{found:#?}");
    let large = found.causes.iter().filter(|cause| cause.bytes.unsigned_abs() * 20 >= ARRAY.unsigned_abs());
    let large: Vec<_> = large.map(|cause| (cause.kind, cause.bytes)).collect();
    assert_eq!(large, [cause], "{found:#?}");
    assert_eq!(found.first.as_ref().map(|first| &*first.why), Some(why), "{found:#?}");
}

/// A product of two arrays of 256 x 256 elements.
fn product(left: &str, right: &str) -> String {
    format!("dot({left}, {right}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}} @dot_general")
}

/// Lines of an entry computation with one argument of 256 x 256 numbers.
fn of_array(lines: &str) -> String {
    format!("ENTRY main {{\n  x = f32[256,256] parameter(0) @x\n{lines}\n}}")
}

#[test]
fn layouts() {
    let turned = format!(
        "  t = f32[256,256]{{0,1}} copy(x) @dot_general\n  ROOT d = f32[256,256] {}",
        product("t", "x")
    );
    check(
        "xla-gpu",
        &of_array(&format!("  ROOT d = f32[256,256] {}", product("x", "x"))),
        &of_array(&turned),
        (CauseKind::Layout, ARRAY),
        "XLA stores `x` again with its dimensions in another order, for `dot_general`",
    );
}

#[test]
fn fusions() {
    let fused = format!(
        "k {{\n  p = f32[256,256] parameter(0)\n  c = f32[256,256] cosine(p) @cos\n  ROOT d = f32[256,256] {}\n}}\n{}",
        product("c", "p"),
        of_array("  ROOT f = f32[256,256] fusion(x), kind=kOutput, calls=k @dot_general")
    );
    check(
        "xla-gpu",
        &fused,
        &of_array(&format!(
            "  c = f32[256,256] cosine(x) @cos\n  ROOT d = f32[256,256] {}",
            product("c", "x")
        )),
        (CauseKind::Fusion, ARRAY),
        "the estimate computes it inside `f` and does not store it",
    );
}

#[test]
fn results_over_their_operands() {
    let with = |made: &str| {
        let lines = "  a = f32[256,256] cosine(x) @cos\n  b = f32[256,256] MADE @exp\n  \
                     ROOT r = f32[1,8] slice(b), slice={[0:1], [0:8]} @slice";
        of_array(&lines.replace("MADE", made))
    };
    check(
        "xla-gpu",
        &with("custom-call(a), custom_call_target=\"library\""),
        &with("exponential(a)"),
        (CauseKind::InPlace, -ARRAY),
        "XLA writes `b` over it, the estimate does not",
    );
}

#[test]
fn copies() {
    check(
        "xla-gpu",
        &of_array(&format!("  ROOT d = f32[256,256] {}", product("x", "x"))),
        &of_array(&format!("  c = f32[256,256] copy(x)\n  ROOT d = f32[256,256] {}", product("c", "x"))),
        (CauseKind::Copy, ARRAY),
        "XLA copies `x`: nobody overwrites the copy or the original: whoever scheduled this module left it",
    );
}

#[test]
fn padding() {
    let padded = "  zero = f32[] constant(0)\n  p = f32[512,256] pad(x, zero), padding=0_256x0_0\n  \
                  d = f32[512,256] dot(p, x), lhs_contracting_dims={1}, rhs_contracting_dims={0} @dot_general\n  \
                  ROOT s = f32[256,256] slice(d), slice={[0:256], [0:256]} @dot_general";
    let found = compared(
        "xla-gpu",
        &of_array(&format!("  ROOT d = f32[256,256] {}", product("x", "x"))),
        &of_array(padded),
    );
    let found = found.unwrap();
    let padded = found.only_compiler.iter().find(|it| it.kind == CauseKind::Padding).unwrap();
    assert_eq!(i128::from(padded.bytes.0), 2 * ARRAY);
    assert_eq!(padded.why, "XLA stores it padded for `dot_general`, the estimate does not");

    // Tiles have eight rows, or two as there are.
    let with = |tile: &str| {
        let lines = "ENTRY main {\n  x = f32[32,2,128]{2,1,0:T(8,128)} parameter(0) @x\n  \
                     a = f32[256,2,128]{2,1,0:TILE} broadcast(x), dimensions={0,1,2} @cos\n  \
                     ROOT r = f32[1,2,128]{2,1,0:T(8,128)} slice(a), slice={[0:1], [0:2], [0:128]} @slice\n}";
        lines
            .replace("x), dimensions={0,1,2}", "x)")
            .replace("broadcast", "custom-call")
            .replace("(x) @", "(x), custom_call_target=\"cos\" @")
            .replace("TILE", tile)
    };
    check(
        "xla-tpu",
        &with("T(8,128)"),
        &with("T(2,128)"),
        (CauseKind::Padding, -3 * ARRAY),
        "f32[256,2,128]{2,1,0:T(2,128)} in XLA, f32[256,2,128]{2,1,0:T(8,128)} in the estimate",
    );
}

#[test]
fn memories() {
    let with = |space: &str| {
        let lines = "ENTRY main {\n  x = f32[256,256]{1,0:T(8,128)} parameter(0) @x\n  \
                     a = f32[256,256]{1,0:T(8,128)SPACE} cosine(x) @cos\n  \
                     ROOT r = f32[8,128]{1,0:T(8,128)} slice(a), slice={[0:8], [0:128]} @slice\n}";
        lines.replace("SPACE", space)
    };
    check("xla-tpu", &with(""), &with("S(1)"), (CauseKind::Memory, -ARRAY), "XLA has it in vmem, as `a`");
}

#[test]
fn recomputation() {
    let with = |again: &str, read: &str| {
        let lines = "  a = f32[256,256] cosine(x) @jvp()/cos\n  s = f32[1,8] slice(a), slice={[0:1], [0:8]} @jvp()/slice\n  \
                     b = f32[256,256] PRODUCT\nAGAIN  ROOT r = f32[256,256] custom-call(b, READ), \
                     custom_call_target=\"library\" @transpose(jvp())/mul";
        let lines =
            lines.replace("PRODUCT", &product("x", "x")).replace("AGAIN", again).replace("READ", read);
        of_array(&lines)
    };
    let again = "  c = f32[256,256] cosine(b) @transpose(jvp())/rematted_computation/cos\n";
    let found = compared("xla-cpu", &with("", "a"), &with(again, "c")).unwrap();
    let kept = found.only_estimate.iter().chain(&found.only_compiler).find(|it| it.instruction == "a");
    let (kind, why) = kept.map(|kept| (kept.kind, &*kept.why)).unwrap();
    assert_eq!(kind, CauseKind::Recomputation);
    assert_eq!(why, "XLA computes it again in the backward half, the estimate keeps it");
}

#[test]
fn expansions() {
    let with = |lines: &str| {
        format!(
            "add {{\n  p = f32[] parameter(0)\n  q = f32[] parameter(1)\n  ROOT s = f32[] add(p, q) @reduce_sum\n}}\n\
             ENTRY main {{\n  x = f32[256,65536] parameter(0) @x\n  zero = f32[] constant(0)\n{lines}\n}}"
        )
    };
    let steps = "  b = f32[256,256,256] bitcast(x)\n  \
                 p = f32[256,256] reduce(b, zero), dimensions={2}, to_apply=add @reduce_sum\n  \
                 ROOT r = f32[256] reduce(p, zero), dimensions={1}, to_apply=add @reduce_sum";
    check(
        "xla-gpu",
        &with("  ROOT r = f32[256] reduce(x, zero), dimensions={1}, to_apply=add @reduce_sum"),
        &with(steps),
        (CauseKind::Expansion, ARRAY),
        "XLA computes `reduce_sum` in steps: this reduce has 65536 elements, that of the program 256",
    );
}

#[test]
fn element_types() {
    let with = |lines: &str| format!("ENTRY main {{\n  x = bf16[256,256] parameter(0) @x\n{lines}\n}}");
    check(
        "xla-cpu",
        &with(&format!(
            "  c = f32[256,256] convert(x) @dot_general\n  ROOT d = f32[256,256] {}",
            product("c", "c")
        )),
        &with(&format!("  ROOT d = f32[256,256] {}", product("x", "x"))),
        (CauseKind::ElementType, -ARRAY),
        "the estimate also stores `x` (bf16) as f32",
    );
}

#[test]
fn orders() {
    let with = |order: [usize; 4]| {
        let lines = [
            "  a = f32[256,256] cosine(x) @cos",
            "  r = f32[1,8] slice(a), slice={[0:1], [0:8]} @slice",
            "  b = f32[256,256] sine(x) @sin",
            "  s = f32[1,8] slice(b), slice={[0:1], [0:8]} @slice",
        ];
        of_array(&order.map(|i| lines[i]).join("\n"))
            .replace("\n}", "\n  ROOT t = f32[1,8] add(r, s) @add\n}")
    };
    check(
        "xla-gpu",
        &with([0, 1, 2, 3]),
        &with([0, 2, 1, 3]),
        (CauseKind::Order, ARRAY - 32),
        "the estimate frees it earlier, after `r`",
    );
}

#[test]
fn products() {
    let merged = "  w = f32[256,512] concatenate(x, x), dimensions={1} @w\n  \
                  d = f32[256,512] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0} @dot_general\n  \
                  ROOT r = f32[1,8] slice(d), slice={[0:1], [0:8]} @slice";
    let single = format!(
        "  w = f32[256,512] concatenate(x, x), dimensions={{1}} @w\n  h = f32[256,256] slice(w), slice={{[0:256], \
         [0:256]}} @half\n  d = f32[256,256] {}\n  ROOT r = f32[1,8] slice(d), slice={{[0:1], [0:8]}} @slice",
        product("x", "h")
    );
    let found = compared("xla-gpu", &of_array(&single), &of_array(merged)).unwrap();
    let product = found.only_compiler.iter().find(|it| it.kind == CauseKind::Products).unwrap();
    assert_eq!(
        product.why,
        "one side merges, splits or pads the product: 131072 elements in XLA, 65536 in the estimate"
    );
}

#[test]
fn workspaces() {
    let lines = "  k = (f32[256,256], s8[262144]) custom-call(x), custom_call_target=\"library\" @dot_general\n  \
                 ROOT d = f32[256,256] get-tuple-element(k), index=0 @dot_general";
    check(
        "xla-gpu",
        &of_array("  ROOT d = f32[256,256] custom-call(x), custom_call_target=\"library\" @dot_general"),
        &of_array(lines),
        (CauseKind::Workspace, ARRAY),
        "XLA gives a library scratch memory",
    );
}

#[test]
fn operations_that_one_side_does_without() {
    let with = |right: &str| {
        let lines =
            format!("  a = f32[256,256] cosine(x) @cos\nNEG  ROOT d = f32[256,256] {}", product("a", right));
        of_array(&lines.replace("NEG", if right == "a" { "" } else { "  b = f32[256,256] negate(a) @neg\n" }))
    };
    check("xla-gpu", &with("b"), &with("a"), (CauseKind::Algebra, -ARRAY), "XLA does without this negate");
}

/// As libtpu fuses an asynchronous collective: the fusion returns the buffer that it fills twice.
#[test]
fn collectives_in_flight() {
    let text = "\
fused {
  a = f32[128,256] parameter(0)
  b = f32[256,256] parameter(1)
  c = f32[256,256] parameter(2)
  n = f32[256,256] negate(c)
  g = f32[256,256] all-gather(a), channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true
  ROOT t = (f32[256,256], f32[128,256], f32[256,256], f32[256,256]) tuple(n, a, b, g)
}

ENTRY main {
  x = f32[128,256] parameter(0) @x
  y = f32[256,256] parameter(1) @y
  a = f32[128,256] copy(x) @all_gather
  b = f32[256,256] custom-call(), custom_call_target=\"AllocateBuffer\" @all_gather
  f = (f32[256,256], f32[128,256], f32[256,256], f32[256,256]) fusion(a, b, y), kind=kOutput, calls=fused, \
      output_to_operand_aliasing={{1}: (0, {}), {2}: (1, {}), {3}: (1, {})} @neg
  n = f32[256,256] get-tuple-element(f), index=0 @neg
  g = f32[256,256] get-tuple-element(f), index=2 @all_gather
  h = f32[256,256] get-tuple-element(f), index=3 @all_gather
  d = f32[256,256] custom-call(g, h), custom_call_target=\"AsyncCollectiveDone\", output_to_operand_aliasing={{}: (0, {})} @all_gather
  ROOT r = f32[256,256] add(n, d) @add
}";
    let found = compared("xla-tpu", text, text).unwrap();
    assert!(found.causes.is_empty(), "{found:#?}");
    let temporary = found.totals.iter().find(|total| total.name == "temp").unwrap();
    // The operand's copy, the buffer, and the negation, which writes over nothing.
    assert_eq!(i128::from(temporary.after.0), ARRAY / 2 + ARRAY + ARRAY, "the buffer is there once");
}

#[test]
fn modules_of_different_programs_are_not_compared() {
    let other = "ENTRY main {\n  ROOT y = s32[3,5] parameter(0) @y\n}";
    let x = of_array("  ROOT a = f32[256,256] cosine(x) @cos");
    assert_eq!(compared("xla-gpu", &x, other), Err(NothingMatches));
    assert!(compared("xla-gpu", &x, &x).unwrap().causes.is_empty());
}
