//! Programs of another size: resized dimensions, and errors.

use memplan_analysis::Dimensions;
use memplan_hlo::{parse, print};
use memplan_ir::Module;
use memplan_memory::Target;
use memplan_passes::{Context, FOLLOWABLE, ResizeError, RunOptions, resize, run};

fn followable(text: &str) -> (Module, Dimensions) {
    let mut module = parse(text).unwrap();
    let target = Target::find("cpu").unwrap();
    run(&mut module, &[&FOLLOWABLE], &Context { target: &target }, RunOptions::default()).unwrap();
    let dimensions = Dimensions::follow(&module);
    (module, dimensions)
}

/// The program with the dimension of a parameter scaled to an extent, or why there is none.
fn resized(text: &str, (parameter, dimension): (usize, usize), extent: i64) -> Result<String, String> {
    let (module, dimensions) = followable(text);
    let found = dimensions.batch_at(&module, parameter, 0, dimension).unwrap();
    let text = |resized: Result<_, ResizeError>| match resized {
        Ok(memplan_passes::Resized { module, .. }) => Ok(print(&module)),
        Err(error) => Err(error.to_string()),
    };
    text(resize(&module, &dimensions, found.factor, extent))
}

#[track_caller]
fn check(text: &str, at: (usize, usize), extent: i64, expected: &[&str]) {
    let found = resized(text, at, extent).unwrap();
    for line in expected {
        assert!(found.contains(line), "`{line}` is not in\n{found}");
    }
}

/// Two zeros of one shape are one instruction, a mask is as wide as weights, and a batch is a part of rows.
const STEP: &str = "
HloModule step, entry_computation_layout={(f32[4,16,16]{2,1,0}, f32[16,16]{1,0})->f32[64,16]{1,0}}
ENTRY main {
  x = f32[4,16,16] parameter(0)
  w = f32[16,16] parameter(1)
  zero = f32[] constant(0)
  zeros = f32[16,16] broadcast(zero), dimensions={}
  mask = f32[4,16,16] broadcast(zeros), dimensions={1,2}
  masked = f32[4,16,16] add(x, mask)
  shifted = f32[16,16] add(w, zeros)
  rows = f32[64,16] reshape(masked)
  ROOT out = f32[64,16] dot(rows, shifted), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}";

#[test]
fn a_batch_is_followed_through_reshapes_and_products() {
    check(STEP, (0, 0), 2, &["->f32[32,16]", "x = f32[2,16,16]", "w = f32[16,16]", "rows = f32[32,16]"]);
    check(STEP, (0, 1), 8, &["x = f32[4,8,16]", "w = f32[16,16]", "rows = f32[32,16]"]);
    // What is contracted goes with the weights.
    check(STEP, (0, 2), 8, &["x = f32[4,16,8]", "w = f32[8,16]", "out = f32[64,16]"]);
}

#[test]
fn slices_pads_and_windows_follow() {
    let text = "
HloModule m
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY main {
  x = f32[9,4] parameter(0)
  zero = f32[] constant(0)
  but_last = f32[8,4] slice(x), slice={[0:8], [0:4]}
  half = f32[4,4] slice(but_last), slice={[4:8], [0:4]}
  padded = f32[11,4] pad(x, zero), padding=1_1x0_0
  sums = f32[9,4] reduce-window(x, zero), window={size=9x1 pad=8_0x0_0}, to_apply=add
  pairs = f32[4,4] reduce-window(but_last, zero), window={size=2x1 stride=2x1}, to_apply=add
  both = f32[18,4] concatenate(x, sums), dimensions={0}
  ROOT t = (f32[4,4], f32[11,4], f32[4,4], f32[18,4]) tuple(half, padded, pairs, both)
}";
    let expected = [
        "but_last = f32[16,4]",
        "slice={[0:16], [0:4]}",
        "slice={[8:16], [0:4]}",
        "padded = f32[19,4]",
        "size=17x1 pad=16_0x0_0",
        "pairs = f32[8,4]",
        "both = f32[34,4]",
    ];
    check(text, (0, 0), 17, &expected);
}

#[test]
fn loops_and_scatters_follow() {
    let text = "
HloModule m
second { a = f32[] parameter(0) ROOT b = f32[] parameter(1) }
body {
  s = (f32[8,4], s32[]) parameter(0)
  x = f32[8,4] get-tuple-element(s), index=0
  i = s32[] get-tuple-element(s), index=1
  one = s32[] constant(1)
  n = s32[] add(i, one)
  zero = s32[] constant(0)
  row = f32[8,1] dynamic-slice(x, zero, i), dynamic_slice_sizes={8,1}
  y = f32[8,4] dynamic-update-slice(x, row, zero, zero)
  ROOT r = (f32[8,4], s32[]) tuple(y, n)
}
condition {
  s = (f32[8,4], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=1
  n = s32[] constant(4)
  ROOT r = pred[] compare(i, n), direction=LT
}
ENTRY main {
  x = f32[8,4] parameter(0)
  places = s32[8,1] parameter(1)
  zero = s32[] constant(0)
  nothing = f32[] constant(0)
  init = (f32[8,4], s32[]) tuple(x, zero)
  loop = (f32[8,4], s32[]) while(init), condition=condition, body=body
  y = f32[8,4] get-tuple-element(loop), index=0
  room = f32[16,4] broadcast(nothing), dimensions={}
  ROOT out = f32[16,4] scatter(room, places, y), update_window_dims={1}, inserted_window_dims={0}, \
       scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=second
}";
    let expected = ["dynamic_slice_sizes={4,1}", "places = s32[4,1]", "out = f32[8,4]"];
    check(text, (0, 0), 4, &expected);
}

#[test]
fn random_bits_follow() {
    let text = "
HloModule m
ENTRY main {
  bits = u32[8,4] parameter(0)
  numbers = f32[8,4] bitcast-convert(bits)
  bytes = u8[8,4,4] bitcast-convert(bits)
  ROOT t = (f32[8,4], u8[8,4,4]) tuple(numbers, bytes)
}";
    check(text, (0, 0), 2, &["numbers = f32[2,4]", "bytes = u8[2,4,4]"]);
}

#[test]
fn what_cannot_follow_is_refused() {
    let table = "
HloModule m
ENTRY main { x = f32[3] parameter(0)  c = f32[3] constant({1, 2, 3})  ROOT s = f32[3] add(x, c) }";
    let error = resized(table, (0, 0), 6).unwrap_err();
    assert_eq!(error, "the constant `c` has 3 elements in this dimension, and others are unknown");
    let call = "
HloModule m
ENTRY main { x = f32[3] parameter(0)  ROOT s = f32[5] custom-call(x), custom_call_target=\"f\" }";
    let error = resized(call, (0, 0), 6).unwrap_err();
    assert_eq!(error, "`s` (custom-call) requires a dimension of exactly 3");
}

#[test]
fn the_batch_is_found() {
    let batch = |text: &str| {
        let (module, dimensions) = followable(text);
        dimensions.batch(&module).map(|batch| batch.at)
    };
    assert_eq!(batch(STEP), Some((0, 0, 0)));
    let labels = "
HloModule m
ENTRY main { xs = f32[128,256,64] parameter(0)  y = s32[256] parameter(1)
  b = s32[128,256,64] broadcast(y), dimensions={1}  c = f32[128,256,64] convert(b)
  ROOT r = f32[128,256,64] add(xs, c) }";
    assert_eq!(batch(labels), Some((1, 0, 0)));
    // As many targets as a bias has elements: the one bias that comes back is the first.
    let like_a_bias = "
HloModule m
sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
ENTRY main { bias = f32[4] parameter(0)  x = f32[4,16] parameter(1)  t = f32[4] parameter(2)
  zero = f32[] constant(0)  s = f32[4] reduce(x, zero), dimensions={1}, to_apply=sum
  d = f32[4] subtract(s, t)  e = f32[] reduce(d, zero), dimensions={0}, to_apply=sum
  es = f32[4] broadcast(e), dimensions={}
  ROOT new = f32[4] add(bias, es) }";
    assert_eq!(batch(like_a_bias), Some((1, 0, 0)));
    // Time first: the loop goes along it.
    let over_time = "
HloModule m
condition { s = (s32[], s32[12,8], s32[8]) parameter(0)  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(12)  ROOT c = pred[] compare(i, n), direction=LT }
body { s = (s32[], s32[12,8], s32[8]) parameter(0)  i = s32[] get-tuple-element(s), index=0
  xs = s32[12,8] get-tuple-element(s), index=1  h = s32[8] get-tuple-element(s), index=2
  zero = s32[] constant(0)  row = s32[1,8] dynamic-slice(xs, i, zero), dynamic_slice_sizes={1,8}
  x = s32[8] reshape(row)  next = s32[8] add(h, x)  one = s32[] constant(1)  j = s32[] add(i, one)
  ROOT t = (s32[], s32[12,8], s32[8]) tuple(j, xs, next) }
ENTRY main { xs = s32[12,8] parameter(0)  zero = s32[] constant(0)  h = s32[8] broadcast(zero), dimensions={}
  t = (s32[], s32[12,8], s32[8]) tuple(zero, xs, h)
  w = (s32[], s32[12,8], s32[8]) while(t), condition=condition, body=body
  ROOT last = s32[8] get-tuple-element(w), index=2 }";
    assert_eq!(batch(over_time), Some((0, 0, 1)));
    let random_key = "
HloModule m
ENTRY main { key = u32[2] parameter(0)  x = f32[16,4] parameter(1)
  first = u32[1] slice(key), slice={[0:1]}  seed = u32[] reshape(first)  noise = f32[] convert(seed)
  noises = f32[16,4] broadcast(noise), dimensions={}  ROOT y = f32[16,4] add(x, noises) }";
    assert_eq!(batch(random_key), Some((1, 0, 0)));
    // The edges of a graph say which nodes are added up: it has no examples.
    let graph = "
HloModule m
sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
ENTRY main { nodes = f32[10,4] parameter(0)  from = s32[30] parameter(1)  to = s32[30] parameter(2)
  bias = f32[4] parameter(3)  biases = f32[10,4] broadcast(bias), dimensions={1}  x = f32[10,4] add(nodes, biases)
  sent = f32[30,4] gather(x, from), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}
  zero = f32[] constant(0)  zeros = f32[10,4] broadcast(zero), dimensions={}
  all = f32[10,4] scatter(zeros, to, sent), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=sum
  next = f32[10,4] add(x, all)  ROOT n = f16[10,4] convert(next) }";
    assert_eq!(batch(graph), None);
    // Examples look up rows of a table that is no data.
    let tokens = "
HloModule m
ENTRY main { table = s8[100,8] parameter(0)  scale = f32[8] parameter(1)  tokens = s32[6,5] parameter(2)
  wide = f32[100,8] convert(table)  scales = f32[100,8] broadcast(scale), dimensions={1}
  weights = f32[100,8] multiply(wide, scales)
  ROOT x = f32[6,5,8] gather(weights, tokens), offset_dims={2}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=2, slice_sizes={1,8} }";
    assert_eq!(batch(tokens), Some((2, 0, 0)));
    assert_eq!(batch("HloModule m\nENTRY main { x = f32[] parameter(0)  ROOT n = f32[] negate(x) }"), None);
}
