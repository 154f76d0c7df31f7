//! Plans that are right, each with a reason why somebody might think otherwise.

use crate::support::{Case, accepts, accepts_on};

#[test]
fn elementwise_chains_work_in_one_place() {
    accepts(
        "HloModule m, is_scheduled=true
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  a = f32[4]{0} negate(p)             // temp+0
  b = f32[4]{0} exponential(a)        // temp+0
  c = f32[4]{0} add(b, b)             // temp+0
  i = s32[4]{0} bitcast-convert(c)    // temp+0
  ROOT r = s32[4]{0} not(i)           // out+0
}",
    );
}

#[test]
fn solutions_replace_the_right_hand_side() {
    accepts(
        "HloModule m, is_scheduled=true
ENTRY main {
  p = f32[2,2]{1,0} parameter(0)          // arg0+0
  b = f32[2,2]{1,0} negate(p)             // temp+0
  x = f32[2,2]{1,0} triangular-solve(p, b), left_side=true, lower=true // temp+0
  ROOT r = f32[2,2]{1,0} negate(x)        // out+0
}",
    );
}

#[test]
fn donated_arguments_are_memory() {
    accepts(
        "HloModule m, is_scheduled=true, input_output_alias={ {1}: (0, {}, may-alias) }, buffer_donor={ (1, {}) }
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  q = f32[4]{0} parameter(1)          // arg1+0
  a = f32[4]{0} reverse(q), dimensions={0} // out+0
  b = f32[4]{0} add(p, a)             // arg1+0
  c = f32[4]{0} reverse(p), dimensions={0} // temp+0
  d = f32[4]{0} multiply(b, c)        // arg0+0
  ROOT t = (f32[4]{0}, f32[4]{0}) tuple(a, d) // {0} out+0 {1} arg0+0
}",
    );
}

#[test]
fn output_memory_is_scratch_until_it_is_written() {
    accepts(
        "HloModule m, is_scheduled=true
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  a = f32[2]{0} slice(p), slice={[0:2]} // out+0
  b = f32[2]{0} reverse(a), dimensions={0} // out+8
  c = f32[4]{0} concatenate(a, b), dimensions={0} // temp+0
  ROOT r = f32[4]{0} reverse(c), dimensions={0} // out+0
}",
    );
}

#[test]
fn small_constants_are_immediates_and_equal_ones_share() {
    accepts(
        "HloModule m, is_scheduled=true
ENTRY main {
  z = f32[] constant(0)
  c = f32[6]{0} constant({1,2,3,4,5,6}) // const0+0
  d = f32[6]{0} constant({1,2,3,4,5,6}) // const0+0
  b = f32[6]{0} broadcast(z), dimensions={} // temp+0
  e = f32[6]{0} add(c, b)             // temp+0
  ROOT r = f32[6]{0} add(d, e)        // out+0
}",
    );
}

/// The loop that stores `s` reads `p` for it and folds it, element by element, before another result takes its place.
#[test]
fn what_is_folded_beside_what_it_becomes_may_be_overwritten() {
    accepts(
        "HloModule m, is_scheduled=true
add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}
fused {
  p = f32[8]{0} parameter(0)
  q = f32[8]{0} parameter(1)
  zero = f32[] constant(0)
  fs = f32[8]{0} add(p, q)
  n = f32[] reduce(fs, zero), dimensions={0}, to_apply=add
  ft = f32[8]{0} negate(q)
  ROOT all = (f32[], f32[8]{0}, f32[8]{0}) tuple(n, fs, ft)
}
ENTRY main {
  a = f32[8]{0} parameter(0)          // arg0+0
  b = f32[8]{0} negate(a)             // temp+0
  f = (f32[], f32[8]{0}, f32[8]{0}) fusion(b, a), kind=kLoop, calls=fused // {0} temp+64 {1} temp+32 {2} temp+0
  s = f32[8]{0} get-tuple-element(f), index=1 // temp+32
  t = f32[8]{0} get-tuple-element(f), index=2 // temp+0
  ROOT r = f32[8]{0} add(s, t)        // out+0
}",
    );
}

const LOOP: &str = "HloModule m, is_scheduled=true
body {
  bp = (s32[], f32[4]{0}, f32[4]{0}) parameter(0) // {0} temp+0 {1} temp+4 {2} arg0+0
  bi = s32[] get-tuple-element(bp), index=0 // temp+0
  bx = f32[4]{0} get-tuple-element(bp), index=1 // temp+4
  bw = f32[4]{0} get-tuple-element(bp), index=2 // arg0+0
  one = s32[] constant(1)
  bn = s32[] add(bi, one)             // temp+0
  by = f32[4]{0} reverse(bx), dimensions={0} // temp+32
  bz = f32[4]{0} add(by, bw)          // temp+4
  ROOT br = (s32[], f32[4]{0}, f32[4]{0}) tuple(bn, bz, bw) // {0} temp+0 {1} temp+4 {2} arg0+0
}
cond {
  cp = (s32[], f32[4]{0}, f32[4]{0}) parameter(0) // {0} temp+0 {1} temp+4 {2} arg0+0
  ci = s32[] get-tuple-element(cp), index=0 // temp+0
  ten = s32[] constant(10)
  ROOT lt = pred[] compare(ci, ten), direction=LT // temp+20
}
ENTRY main {
  w = f32[4]{0} parameter(0)          // arg0+0
  zero = s32[] constant(0)
  i = s32[] copy(zero)                // temp+0
  x = f32[4]{0} copy(w)               // temp+4
  t = (s32[], f32[4]{0}, f32[4]{0}) tuple(i, x, w) // {0} temp+0 {1} temp+4 {2} arg0+0
  l = (s32[], f32[4]{0}, f32[4]{0}) while(t), condition=cond, body=body // {0} temp+0 {1} temp+4 {2} arg0+0
  y = f32[4]{0} get-tuple-element(l), index=1 // temp+4
  v = f32[4]{0} get-tuple-element(l), index=2 // arg0+0
  s = f32[4]{0} add(y, v)             // temp+4
  ROOT r = f32[4]{0} multiply(s, w)   // out+0
}";

#[test]
fn loop_state_stays_where_it_is() {
    accepts(LOOP);
}

/// Tables of the loop state are rewritten with the same pointers by every iteration.
#[test]
fn tables_are_what_they_point_to() {
    let text = LOOP
        .replace("temp+32", "temp+192")
        .replace("temp+20", "temp+256")
        .replace("temp+4", "temp+64")
        .replace("// {0}", "// temp+128 {0}");
    accepts_on("cpu", &text);
}

#[test]
fn branches_share_memory_with_each_other() {
    accepts(
        "HloModule m, is_scheduled=true
yes {
  yp = f32[4]{0} parameter(0)         // temp+4
  yr = f32[4]{0} reverse(yp), dimensions={0} // temp+20
  ROOT ys = f32[4]{0} negate(yr)      // temp+20
}
no {
  np = (f32[4]{0}) parameter(0)       // {0} arg1+0
  nx = f32[4]{0} get-tuple-element(np), index=0 // arg1+0
  nr = f32[4]{0} reverse(nx), dimensions={0} // temp+0
  ROOT ns = f32[4]{0} reverse(nr), dimensions={0} // temp+20
}
ENTRY main {
  p = pred[] parameter(0)             // arg0+0
  x = f32[4]{0} parameter(1)          // arg1+0
  q = pred[] not(p)                   // temp+0
  a = f32[4]{0} negate(x)             // temp+4
  t = (f32[4]{0}) tuple(x)            // {0} arg1+0
  c = f32[4]{0} conditional(q, a, t), true_computation=yes, false_computation=no // temp+20
  ROOT r = f32[4]{0} reverse(c), dimensions={0} // out+0
}",
    );
}

#[test]
fn one_computation_serves_several_calls() {
    accepts(
        "HloModule m, is_scheduled=true
inc {
  ip = f32[4]{0} parameter(0)         // temp+0
  ROOT ir = f32[4]{0} reverse(ip), dimensions={0} // temp+16
}
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  a = f32[4]{0} negate(p)             // temp+0
  b = f32[4]{0} call(a), to_apply=inc // temp+16
  c = f32[4]{0} add(a, b)             // temp+0
  d = f32[4]{0} call(c), to_apply=inc // temp+16
  ROOT r = f32[4]{0} reverse(d), dimensions={0} // out+0
}",
    );
}

#[test]
fn copies_in_flight_leave_the_rest_alone() {
    accepts(
        "HloModule m, is_scheduled=true
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  a = f32[4]{0} negate(p)             // temp+0
  s = (f32[4]{0:S(1)}, f32[4]{0}, u32[]) copy-start(a) // {0} fast+0 {1} temp+0 {2} temp+16
  b = f32[4]{0} reverse(a), dimensions={0} // temp+20
  f = f32[4]{0:S(1)} copy-done(s)     // fast+0
  c = f32[4]{0} reverse(f), dimensions={0} // temp+0
  ROOT r = f32[4]{0} add(b, c)        // out+0
}",
    );
}

#[test]
fn asynchronous_computations_have_memory_of_their_own() {
    accepts(
        "HloModule m, is_scheduled=true
wrapped {
  wp = f32[4]{0} parameter(0)         // temp+0
  wt = f32[4]{0} reverse(wp), dimensions={0} // temp+16
  ROOT wr = f32[4]{0} reverse(wt), dimensions={0} // temp+32
}, execution_thread=\"other\"
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  a = f32[4]{0} negate(p)             // temp+0
  s = ((f32[4]{0}), f32[4]{0}, u32[]) async-start(a), async_execution_thread=\"other\", calls=wrapped // {0,0} temp+0 {1} temp+32 {2} temp+48
  b = f32[4]{0} reverse(a), dimensions={0} // temp+52
  d = f32[4]{0} async-done(s)         // temp+32
  c = f32[4]{0} add(b, d)             // temp+32
  ROOT r = f32[4]{0} reverse(c), dimensions={0} // out+0
}",
    );
}

#[test]
fn fusions_overwrite_what_they_read_element_by_element() {
    accepts(
        "HloModule m, is_scheduled=true
fused {
  x = f32[4]{0} parameter(0)
  y = f32[4]{0} parameter(1)
  u = s32[] parameter(2)
  e = f32[4]{0} exponential(x)
  m = f32[4]{0} multiply(e, x)
  g = pred[4]{0} compare(x, y), direction=GT
  ROOT t = (f32[4]{0}, pred[4]{0}) tuple(m, g)
}
updated {
  ux = f32[8]{0} parameter(0)
  ui = s32[] parameter(1)
  ud = f32[2]{0} dynamic-slice(ux, ui), dynamic_slice_sizes={2}
  ue = f32[2]{0} negate(ud)
  ROOT uu = f32[8]{0} dynamic-update-slice(ux, ue, ui)
}
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  q = f32[8]{0} parameter(1)          // arg1+0
  i = s32[] parameter(2)              // arg2+0
  a = f32[4]{0} negate(p)             // temp+0
  j = s32[] negate(i)                 // temp+16
  f = (f32[4]{0}, pred[4]{0}) fusion(a, p, j), kind=kLoop, calls=fused // {0} temp+0 {1} temp+16
  b = f32[8]{0} negate(q)             // temp+20
  d = f32[8]{0} fusion(b, i), kind=kLoop, calls=updated // temp+20
  o = f32[4]{0} get-tuple-element(f), index=0 // temp+0
  ROOT r = f32[12]{0} concatenate(o, d), dimensions={0} // out+0
}",
    );
}

/// Passes leave instructions that nobody needs in the table.
#[test]
fn what_is_in_no_computation_reserves_nothing() {
    let mut case = Case::new(
        "tpu-v5e",
        "HloModule m, is_scheduled=true
ENTRY main {
  p = f32[8,128]{1,0:T(8,128)} parameter(0)      // arg0+0
  ROOT r = f32[8,128]{1,0:T(8,128)} negate(p)    // out+0
}",
    );
    let dead = case.module.instructions[case.find("r")].clone();
    case.module.instructions.push(dead);
    assert_eq!(case.complaints(), "");
}
