//! Plans that are wrong in one place.

use crate::support::{Case, accepts, accepts_on, refutes, refutes_on};

#[test]
fn a_value_overwritten_before_its_last_read() {
    refutes(
        "HloModule m, is_scheduled=true
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  a = f32[4]{0} negate(p)             // temp+0
  b = f32[4]{0} reverse(p), dimensions={0} // temp+12
  ROOT r = f32[4]{0} add(a, b)        // out+0
}",
        "`r` in `main` reads `a` in `main` at alloc1[0..16), but alloc1[12..16) hold `b` in `main`",
    );
}

#[test]
fn operations_that_are_not_elementwise_need_room() {
    for op in [
        "reverse(a), dimensions={0}",
        "sort(a), dimensions={0}, to_apply=less",
        "copy(a)",
        "transpose(a), dimensions={1,0}",
        "add(a, b)",
        "select(s, a, b)",
    ] {
        let text = format!(
            "HloModule m, is_scheduled=true
less {{
  l0 = f32[] parameter(0)
  l1 = f32[] parameter(1)
  ROOT l = pred[] compare(l0, l1), direction=LT
}}
ENTRY main {{
  p = f32[4,4]{{1,0}} parameter(0)      // arg0+0
  s = pred[4,4]{{1,0}} parameter(1)     // arg1+0
  b = f32[4,4]{{0,1}} parameter(2)      // arg2+0
  a = f32[4,4]{{1,0}} negate(p)         // temp+0
  o = f32[4,4]{{0,1}} {op}              // temp+0
  ROOT r = f32[4,4]{{1,0}} copy(o)      // out+0
}}"
        );
        refutes(&text, "`o` in `main` at alloc3[0..64) overwrites operand `a` in `main`");
    }
}

#[test]
fn in_place_is_all_or_nothing() {
    refutes(
        "HloModule m, is_scheduled=true
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  a = f32[4]{0} negate(p)             // temp+4
  b = f32[4]{0} exponential(a)        // temp+0
  ROOT r = f32[4]{0} negate(b)        // out+0
}",
        "`b` in `main` at alloc1[0..16) overwrites operand `a` in `main` at alloc1[4..20)",
    );
}

#[test]
fn arrays_of_dynamic_extents_are_not_computed_in_place() {
    let module = |place: u32| {
        format!(
            "HloModule m, is_scheduled=true
ENTRY main {{
  p = f32[4]{{0}} parameter(0)          // arg0+0
  n = s32[] parameter(1)              // arg1+0
  a = f32[4]{{0}} negate(p)             // temp+0
  d = f32[<=4]{{0}} set-dimension-size(a, n), dimensions={{0}} // temp+16
  e = f32[<=4]{{0}} negate(d)           // temp+{place}
  ROOT r = f32[<=4]{{0}} copy(e)        // out+0
}}"
        )
    };
    accepts(&module(36));
    refutes(&module(16), "overwrites operand");
}

/// What runs asynchronously is given all its operands until it is done, also where the computation reads only some. It
/// may itself write over them.
#[test]
fn operands_of_asynchronous_computations_stay() {
    let module = |meanwhile: u32, in_wrapped: u32| {
        format!(
            "HloModule m, is_scheduled=true
wrapped {{
  wp = f32[4]{{0}} parameter(0)         // temp+0
  wu = f32[4]{{0}} parameter(1)         // temp+16
  wt = f32[4]{{0}} reverse(wp), dimensions={{0}} // temp+{in_wrapped}
  ROOT wr = f32[4]{{0}} reverse(wt), dimensions={{0}} // temp+32
}}, execution_thread=\"other\"
ENTRY main {{
  p = f32[4]{{0}} parameter(0)          // arg0+0
  a = f32[4]{{0}} negate(p)             // temp+0
  u = f32[4]{{0}} exponential(p)        // temp+16
  s = ((f32[4]{{0}}, f32[4]{{0}}), f32[4]{{0}}, u32[]) async-start(a, u), async_execution_thread=\"other\", calls=wrapped // {{0,0}} temp+0 {{0,1}} temp+16 {{1}} temp+32 {{2}} temp+48
  b = f32[4]{{0}} reverse(a), dimensions={{0}} // temp+{meanwhile}
  d = f32[4]{{0}} async-done(s)         // temp+32
  c = f32[4]{{0}} add(b, d)             // temp+32
  ROOT r = f32[4]{{0}} reverse(c), dimensions={{0}} // out+0
}}"
        )
    };
    accepts(&module(52, 68));
    accepts(&module(52, 16));
    refutes(&module(16, 68), "`b` in `main` writes alloc0[16..32) while `s` in `main` is still using it");
}

/// A solver reads its matrix until it is done, also where that is the right-hand side as well.
#[test]
fn matrices_of_triangular_solves_stay() {
    for operands in ["a, p", "a, a"] {
        let text = format!(
            "HloModule m, is_scheduled=true
ENTRY main {{
  p = f32[2,2]{{1,0}} parameter(0)          // arg0+0
  a = f32[2,2]{{1,0}} negate(p)             // temp+0
  x = f32[2,2]{{1,0}} triangular-solve({operands}), left_side=true, lower=true // temp+0
  ROOT r = f32[2,2]{{1,0}} negate(x)        // out+0
}}"
        );
        refutes(&text, "`x` in `main` at alloc1[0..16) overwrites operand `a`");
    }
}

/// Parameter 0 of each fusion reaches the result in some other way than element by element.
#[test]
fn fusions_that_read_elsewhere_need_room() {
    for body in [
        "v = f32[4]{0} reverse(x), dimensions={0}\n  ROOT o = f32[4]{0} add(x, v)",
        "v = f32[2,2]{1,0} bitcast(x)\n w = f32[2,2]{1,0} transpose(v), dimensions={1,0}\n  ROOT o = f32[4]{0} bitcast(w)",
        "v = f32[2]{0} dynamic-slice(x, i), dynamic_slice_sizes={2}\n  ROOT o = f32[4]{0} dynamic-update-slice(x, v, j)",
        "v = f32[2]{0} slice(x), slice={[0:2]}\n  ROOT o = f32[4]{0} dynamic-update-slice(x, v, i)",
    ] {
        let text = format!(
            "HloModule m, is_scheduled=true
fused {{
  x = f32[4]{{0}} parameter(0)
  i = s32[] parameter(1)
  j = s32[] parameter(2)
  {body}
}}
ENTRY main {{
  p = f32[4]{{0}} parameter(0)          // arg0+0
  m = s32[] parameter(1)                // arg1+0
  n = s32[] parameter(2)                // arg2+0
  a = f32[4]{{0}} negate(p)             // temp+0
  f = f32[4]{{0}} fusion(a, m, n), kind=kLoop, calls=fused // temp+0
  ROOT r = f32[4]{{0}} negate(f)        // out+0
}}"
        );
        refutes(&text, "`f` in `main` at alloc3[0..16) overwrites operand `a`");
    }
}

/// Another result still reads what this one overwrites, or this one needs all of the operand first.
#[test]
fn every_result_of_a_fusion_counts() {
    let text = "HloModule m, is_scheduled=true
sum {
  v = f32[] parameter(0)
  w = f32[] parameter(1)
  ROOT s = f32[] add(v, w)
}
fused {
  x = f32[4]{0} parameter(0)
  e = f32[4]{0} exponential(x)
  z = f32[] constant(0)
  d = f32[] reduce(x, z), dimensions={0}, to_apply=sum
  b = f32[4]{0} broadcast(d), dimensions={}
  n = f32[4]{0} divide(e, b)
  o = f32[4]{0} reverse(x), dimensions={0}
  q = f32[1,4]{1,0} bitcast(e)
  ROOT t = TUPLE
}
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  a = f32[4]{0} negate(p)             // temp+0
  f = RESULT fusion(a), kind=kInput, calls=fused // {0} temp+0 {1} temp+16
  g = f32[4]{0} get-tuple-element(f), index=0 // temp+0
  ROOT r = f32[4]{0} negate(g)        // out+0
}";
    let with = |shape: &str, results: &str| {
        let tuple = format!("(f32[4]{{0}}, {shape}) tuple({results})");
        text.replace("TUPLE", &tuple).replace("RESULT", &format!("(f32[4]{{0}}, {shape})"))
    };
    let complaint = "`f`{0} in `main` at alloc1[0..16) overwrites operand `a`";
    refutes(&with("f32[4]{0}", "e, o"), complaint);
    refutes(&with("f32[]", "n, d"), complaint);
    refutes(&with("f32[4]{0}", "n, e"), complaint);
    // Results of other extents are written by another loop.
    refutes(&with("f32[1,4]{1,0}", "e, q"), complaint);
    // A reduction reads each element once, in the same pass.
    accepts(&with("f32[]", "e, d"));
}

#[test]
fn results_of_one_instruction_are_apart() {
    refutes(
        "HloModule m, is_scheduled=true
fused {
  x = f32[4]{0} parameter(0)
  e = f32[4]{0} exponential(x)
  n = f32[4]{0} negate(x)
  ROOT t = (f32[4]{0}, f32[4]{0}) tuple(e, n)
}
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  f = (f32[4]{0}, f32[4]{0}) fusion(p), kind=kLoop, calls=fused // {0} temp+0 {1} temp+8
  g = f32[4]{0} get-tuple-element(f), index=0 // temp+0
  ROOT r = f32[4]{0} negate(g)        // out+0
}",
        "share bytes at",
    );
}

#[test]
fn arguments_and_constants_are_not_memory() {
    let text = "HloModule m, is_scheduled=true
ENTRY main {
  p = f32[6]{0} parameter(0)          // arg0+0
  c = f32[6]{0} constant({1,2,3,4,5,6}) // const0+0
  a = f32[6]{0} add(p, c)             // WHERE+0
  ROOT r = f32[6]{0} negate(a)        // out+0
}";
    refutes(
        &text.replace("WHERE", "arg0"),
        "`a` in `main` is written to alloc0[0..24), which is an argument",
    );
    refutes(
        &text.replace("WHERE", "const0"),
        "`a` in `main` is written to alloc1[0..24), which is constant memory",
    );
}

#[test]
fn different_constants_are_apart() {
    refutes(
        "HloModule m, is_scheduled=true
ENTRY main {
  c = f32[6]{0} constant({1,2,3,4,5,6}) // const0+0
  d = f32[6]{0} constant({1,2,3,4,5,7}) // const0+0
  ROOT r = f32[6]{0} add(c, d)        // out+0
}",
        "constants `d` in `main` and `c` in `main` differ but share bytes",
    );
}

/// The body needs a second iteration to go wrong: it reads its old state after writing the new one.
#[test]
fn the_second_iteration_counts() {
    let text = "HloModule m, is_scheduled=true
body {
  bp = (f32[4]{0}, f32[4]{0}) parameter(0) // {0} temp+0 {1} temp+16
  bx = f32[4]{0} get-tuple-element(bp), index=0 // temp+0
  by = f32[4]{0} get-tuple-element(bp), index=1 // temp+16
  bn = f32[4]{0} reverse(bx), dimensions={0} // OWN+0
  bz = f32[4]{0} copy(by) // temp+16
  ROOT br = (f32[4]{0}, f32[4]{0}) tuple(bn, bz) // {0} OWN+0 {1} temp+16
}
cond {
  cp = (f32[4]{0}, f32[4]{0}) parameter(0) // {0} temp+0 {1} temp+16
  cx = f32[4]{0} get-tuple-element(cp), index=0 // temp+0
  cs = f32[4]{0} negate(cx) // temp+COND
  ROOT lt = pred[] custom-call(cs), custom_call_target=\"any\" // temp+100
}
ENTRY main {
  w = f32[4]{0} parameter(0)          // arg0+0
  i = f32[4]{0} copy(w)               // temp+0
  x = f32[4]{0} copy(w)               // temp+16
  t = (f32[4]{0}, f32[4]{0}) tuple(i, x) // {0} temp+0 {1} temp+16
  l = (f32[4]{0}, f32[4]{0}) while(t), condition=cond, body=body // {0} temp+0 {1} temp+16
  y = f32[4]{0} get-tuple-element(l), index=1 // temp+16
  ROOT r = f32[4]{0} reverse(y), dimensions={0} // out+0
}";
    refutes(
        &text.replace("OWN", "other").replace("COND", "32"),
        "`br`{0} in `body` is the same value as `t`{0} in `main`, which is at alloc0[0..16), but is planned at alloc1[0..16)",
    );
    refutes(&text.replace("OWN", "temp").replace("COND", "16"), "`bn` in `body` at");
    let ok = text.replace("reverse(bx), dimensions={0}", "negate(bx)").replace("OWN", "temp");
    refutes(
        &ok.replace("COND", "16"),
        "`l` in `main` reads `t`{1} in `main` at alloc0[16..32), but alloc0[16..32) were written inside `cond`",
    );
    accepts(&ok.replace("COND", "32"));
}

#[test]
fn values_do_not_survive_calls_that_use_their_place() {
    refutes(
        "HloModule m, is_scheduled=true
inner {
  np = f32[4]{0} parameter(0)         // arg0+0
  ROOT nr = f32[4]{0} reverse(np), dimensions={0} // temp+0
}
outer {
  op = f32[4]{0} parameter(0)         // arg0+0
  oc = f32[4]{0} call(op), to_apply=inner // temp+0
  ROOT or = f32[4]{0} reverse(oc), dimensions={0} // temp+16
}
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  a = f32[4]{0} negate(p)             // temp+8
  b = f32[4]{0} call(p), to_apply=outer // temp+16
  ROOT r = f32[4]{0} add(a, b)        // out+0
}",
        "`r` in `main` reads `a` in `main` at alloc1[8..24), but alloc1[8..16) were written inside `outer`",
    );
}

#[test]
fn operands_are_passed_where_the_callee_expects_them() {
    refutes(
        "HloModule m, is_scheduled=true
inc {
  ip = f32[4]{0} parameter(0)         // temp+0
  ROOT ir = f32[4]{0} negate(ip)      // temp+0
}
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  b = f32[4]{0} call(p), to_apply=inc // temp+0
  ROOT r = f32[4]{0} negate(b)        // out+0
}",
        "`ip` in `inc` is the same value as `p` in `main`, which is at alloc1[0..16), but is planned at alloc0[0..16)",
    );
}

/// Two branches, two immediates: the result needs memory, and somebody has to write it.
#[test]
fn what_differs_between_branches_needs_memory() {
    refutes(
        "HloModule m, is_scheduled=true
yes {
  yp = f32[4]{0} parameter(0)         // arg1+0
  ROOT ys = f32[] constant(1)
}
no {
  np = f32[4]{0} parameter(0)         // arg1+0
  ROOT ns = f32[] constant(2)
}
ENTRY main {
  p = pred[] parameter(0)             // arg0+0
  x = f32[4]{0} parameter(1)          // arg1+0
  c = f32[] conditional(p, x, x), true_computation=yes, false_computation=no
  ROOT r = f32[] negate(c)            // out+0
}",
        "`c` in `main` needs 4 bytes but has no slice",
    );
}

/// Two parts of one parameter are two immediates.
#[test]
fn an_immediate_is_the_same_at_every_call() {
    refutes(
        "HloModule m, is_scheduled=true
inner {
  ip = f32[] parameter(0)
  ROOT ir = f32[4]{0} broadcast(ip), dimensions={} // temp+0
}
outer {
  t = (f32[], f32[]) parameter(0)     // temp+32
  a = f32[] get-tuple-element(t), index=0
  b = f32[] get-tuple-element(t), index=1
  x = f32[4]{0} call(a), to_apply=inner // temp+0
  c = f32[4]{0} negate(x)             // temp+16
  y = f32[4]{0} call(b), to_apply=inner // temp+0
  ROOT s = f32[4]{0} add(c, y)        // temp+16
}
ENTRY main {
  one = f32[] constant(1)
  two = f32[] constant(2)
  u = (f32[], f32[]) tuple(one, two)  // temp+32
  o = f32[4]{0} call(u), to_apply=outer // temp+16
  ROOT r = f32[4]{0} negate(o)        // out+0
}",
        "`ip` in `inner` needs 4 bytes but has no slice",
    );
}

const FLIGHT: &str = "HloModule m, is_scheduled=true
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  a = f32[4]{0} negate(p)             // temp+0
  s = (f32[4]{0}, f32[4]{0}, u32[]) copy-start(a) // {0} temp+16 {1} temp+0 {2} temp+32
  b = f32[4]{0} BETWEEN
  f = f32[4]{0} copy-done(s)          // temp+16
  ROOT r = f32[4]{0} add(b, f)        // out+0
}";

#[test]
fn operations_in_flight_keep_their_memory() {
    refutes(
        &FLIGHT.replace("BETWEEN", "reverse(p), dimensions={0} // temp+0"),
        "`b` in `main` writes alloc1[0..16) while `s` in `main` is still using it",
    );
    refutes(
        &FLIGHT.replace("BETWEEN", "reverse(p), dimensions={0} // temp+20"),
        "`b` in `main` writes alloc1[20..36) while `s` in `main` is still using it",
    );
    refutes(
        &FLIGHT.replace(
            "BETWEEN",
            "get-tuple-element(s), index=0 // temp+16\n e = f32[4]{0} negate(b) // temp+40",
        ),
        "`e` in `main` reads alloc1[16..32) while `s` in `main` is still writing there",
    );
    let undone = FLIGHT.replace("BETWEEN", "negate(p) // temp+40").replace("copy-done(s)", "negate(p)");
    refutes(&undone, "`f` in `main` writes alloc1[16..32) while `s` in `main` is still using it");
    refutes(&undone.replace("(p)          // temp+16", "(p) // temp+60"), "`s` in `main` is never done");
}

#[test]
fn results_are_where_the_caller_looks() {
    let text = "HloModule m, is_scheduled=true, input_output_alias={ {0}: (0, {}, may-alias) }
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  a = f32[4]{0} negate(p)             // A+0
  b = f32[4]{0} negate(p)             // B+0
  ROOT t = (f32[4]{0}, f32[4]{0}) tuple(a, b) // {0} A+0 {1} B+0
}";
    refutes(
        &text.replace("A+", "out0+").replace("B+", "out1+"),
        "output {0} is aliased with parameter 0{} but is at alloc1[0..16)",
    );
    refutes(
        &text.replace("A+", "arg0+").replace("B+", "temp+"),
        "result `t`{1} in `main` is at alloc1[0..16), which is given up",
    );
    refutes(
        &text.replace("A+", "arg0+").replace("B+", "out+"),
        "`b` in `main` reads `p` in `main` at alloc0[0..16), but alloc0[0..16) hold `a`",
    );
    let swapped = text.replace("negate(p)             // B", "negate(a) // B");
    accepts(&swapped.replace("A+", "arg0+").replace("B+", "out+"));
    refutes(
        &swapped.replace("A+", "arg0+").replace("B+", "arg0+"),
        "at the end `t`{0} in `main` should be at alloc0[0..16), but alloc0[0..16) hold `b`",
    );
}

#[test]
fn slices_fit_their_memory() {
    let text = "HloModule m, is_scheduled=true
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  a = f32[4]{0} reverse(p), dimensions={0} // temp+8
  ROOT r = f32[4]{0} negate(a)        // out+0
}";
    refutes_on("cpu", text, "`a` in `main` is at alloc1[8..24), which is not a multiple of 64");
    refutes(&text.replace("temp", "fast"), "`a` in `main` belongs in S(0) but alloc1[8..24) is in S(1)");
    refutes(&text.replace("// temp+8", ""), "`a` in `main` needs 16 bytes but has no slice");
    refutes(&text.replace("arg0", "temp"), "the caller passes `p` in `main` in an allocation of its own");
}

#[test]
fn schedules_are_complete_and_ordered() {
    let case = Case::new(
        "toy",
        "HloModule m, is_scheduled=true
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  a = f32[4]{0} negate(p)             // temp+0
  b = f32[4]{0} negate(p), control-predecessors={a} // temp+16
  ROOT r = f32[4]{0} add(a, b)        // out+0
}",
    );
    let (entry, [p, a, b, r]) = (case.module.entry, ["p", "a", "b", "r"].map(|name| case.find(name)));
    for (sequence, complaint) in [
        (vec![p, b, a, r], "`b` in `main` is scheduled before its dependency `a` in `main`"),
        (vec![p, a, r, b], "`r` in `main` is scheduled before its dependency `b` in `main`"),
        (vec![p, a, r], "the schedule lacks `b` in `main`"),
        (vec![p, a, b, a, r], "the schedule of `main` has `a` in `main` twice"),
        (vec![], "the schedule lacks `p` in `main`"),
    ] {
        let mut case = case.clone();
        case.schedule.set(entry, sequence);
        let complaints = case.complaints();
        assert!(complaints.starts_with(complaint), "{complaints}");
    }
}

#[test]
fn declared_in_place_operands_are_one_place() {
    refutes(
        "HloModule m, is_scheduled=true
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  a = f32[4]{0} negate(p)             // temp+0
  b = f32[4]{0} custom-call(a), custom_call_target=\"f\", output_to_operand_aliasing={{}: (0, {})} // temp+16
  ROOT r = f32[4]{0} negate(b)        // out+0
}",
        "`b` in `main` is declared to update operand `a` in `main` in place, but is at alloc1[16..32), not alloc1[0..16)",
    );
}

/// Bytes that nothing moves are read in the order in which they were written.
#[test]
fn a_value_handed_on_in_another_layout() {
    let handed_on = [
        ("b = f32[2,3]{1,0} call(a), to_apply=callee", "`x` in `callee` is the same value as `a` in `main`"),
        (
            "t = (f32[2,3]{1,0}) tuple(a)\n b = f32[2,3]{1,0} get-tuple-element(t), index=0 // temp+0",
            "`t`{0} in `main` is the same value as `a`",
        ),
        (
            "t = (f32[2,3]{0,1}) tuple(a)\n b = f32[2,3]{1,0} get-tuple-element(t), index=0 // temp+0",
            "`b` in `main` is the same value as `t`{0}",
        ),
        ("b = f32[2,3]{1,0} opt-barrier(a) // temp+0", "`b` in `main` is the same value as `a`"),
    ];
    const CALLEE: &str = "callee {
  x = f32[2,3]{1,0} parameter(0)      // temp+0
  ROOT y = f32[2,3]{1,0} negate(x)    // temp+0
}";
    for (text, complaint) in handed_on {
        let callee = if text.contains("callee") { CALLEE } else { "" };
        let text = format!(
            "HloModule m, is_scheduled=true
{callee}
ENTRY main {{
  p = f32[2,3]{{1,0}} parameter(0)      // arg0+0
  a = f32[2,3]{{0,1}} negate(p)         // temp+0
  {text} // temp+0
  ROOT r = f32[2,3]{{1,0}} negate(b)    // out+0
}}"
        );
        let text = text
            .replace("// temp+0 // temp+0", "// temp+0")
            .replace("}) tuple(a)\n", "}) tuple(a) // {0} temp+0\n");
        refutes(&text, complaint);
        accepts(&text.replace("{0,1}", "{1,0}"));
    }
}

/// What is element by element inside a fusion is not so outside, if the arrays lie otherwise there.
#[test]
fn a_fusion_that_is_laid_out_otherwise_inside_needs_room() {
    let cases = [
        ("{0,1}", "{1,0}", "{1,0}", "{1,0}"),
        ("{1,0}", "{0,1}", "{0,1}", "{1,0}"),
        ("{1,0}", "{0,1}", "{1,0}", "{1,0}"),
        ("{1,0}", "{1,0}", "{1,0}", "{0,1}"),
    ];
    let text = |operand, parameter, root, result| {
        format!(
            "HloModule m, is_scheduled=true
inner {{
  x = f32[2,3]{parameter} parameter(0)
  ROOT y = f32[2,3]{root} negate(x)
}}
nested {{
  x = f32[2,3]{operand} parameter(0)
  ROOT n = f32[2,3]{result} fusion(x), kind=kLoop, calls=inner
}}
tuple {{
  x = f32[2,3]{operand} parameter(0)
  t = (f32[2,3]{parameter}) tuple(x)
  g = f32[2,3]{root} get-tuple-element(t), index=0
  ROOT y = f32[2,3]{result} negate(g)
}}
ENTRY main {{
  p = f32[2,3]{{1,0}} parameter(0)      // arg0+0
  a = f32[2,3]{operand} negate(p)       // temp+0
  f = f32[2,3]{result} fusion(a), kind=kLoop, calls=CALLED // temp+0
  ROOT r = f32[2,3]{{1,0}} negate(f)    // out+0
}}"
        )
    };
    for called in ["inner", "nested", "tuple"] {
        for (operand, parameter, root, result) in cases {
            let text = text(operand, parameter, root, result).replace("CALLED", called);
            refutes(&text, "`f` in `main` at alloc1[0..24) overwrites operand `a`");
        }
        accepts(&text("{0,1}", "{0,1}", "{0,1}", "{0,1}").replace("CALLED", called));
    }
}

/// A tile makes room along its dimensions: eight rows of one element are not one row of eight.
#[test]
fn an_extent_of_one_matters_in_tiles() {
    let text = |order: &str, tile: &str| {
        format!(
            "HloModule m, is_scheduled=true
ENTRY main {{
  p = f32[8,1]{{1,0{tile}}} parameter(0)    // arg0+0
  a = f32[8,1]{{1,0{tile}}} negate(p)       // temp+0
  b = f32[8,1]{{{order}{tile}}} negate(a)   // temp+0
  ROOT r = f32[8,1]{{{order}{tile}}} reverse(b), dimensions={{0}} // out+0
}}"
        )
    };
    refutes_on(
        "tpu-v5e",
        &text("0,1", ":T(8,128)"),
        "`b` in `main` at alloc1[0..4096) overwrites operand `a`",
    );
    accepts_on("tpu-v5e", &text("1,0", ":T(8,128)"));
    accepts_on("tpu-v5e", &text("0,1", ""));
}
