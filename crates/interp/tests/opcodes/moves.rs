//! Moving an element keeps its bits, even of signalling NaNs: every pattern of 16 and of 8 bits goes through every
//! operation that moves elements, as a float and as an integer, unchanged.

use std::collections::BTreeSet;

use memplan_interp::{Devices, Options, evaluate_on};
use memplan_ir::{Access, Effect, ElementType, Literal, Opcode, Role};
use strum::IntoEnumIterator;

use super::{in_arena, leaves_of};

/// Instructions after the parameters of the entry: `p` is `T[S,S]` with every pattern of `T` once, `x` is its first element,
/// `i` is `s32[S,S]` from 0 on, and `t` is true in its first half. `W` is the unsigned type twice as wide, `H` half of `S`.
const MOVES: &[&str] = &[
    "ROOT r = T[S,S]{0,1} copy(p)",
    "ROOT r = T[S,S] transpose(p), dimensions={1,0}",
    "ROOT r = T[S,S] reverse(p), dimensions={0,1}",
    "ROOT r = T[S,S,1] reshape(p)",
    "ROOT r = T[1,S,S] bitcast(p)",
    "ROOT r = T[2,S,S] broadcast(p), dimensions={1,2}",
    "ROOT r = T[8,S] slice(p), slice={[1:16:2], [0:S]}",
    "ROOT r = T[S,S] pad(p, x), padding=1_-1x-1_1",
    "a = T[S,H] slice(p), slice={[0:S], [0:H]}; b = T[S,H] slice(p), slice={[0:S], [H:S]}; ROOT r = T[S,S] concatenate(b, a), dimensions={1}",
    "k = s32[] constant(3); ROOT r = T[S,8] dynamic-slice(p, k, k), dynamic_slice_sizes={S,8}",
    "c = T[8,8] slice(p), slice={[8:16], [8:16]}; k = s32[] constant(3); ROOT r = T[S,S] dynamic-update-slice(p, c, k, k)",
    "ROOT r = T[S,S,1] gather(p, i), offset_dims={2}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=2, slice_sizes={1,1}",
    "k = s32[S] iota(), iota_dimension=0; q = T[S,S] reverse(p), dimensions={0}; ROOT r = T[S,S] scatter(q, k, p), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=second",
    "q = T[S,S] reverse(p), dimensions={1}; ROOT r = T[S,S] select(t, p, q)",
    "ROOT r = T[S,S] convert(p)",
    "h = T[S,H,2] reshape(p); b = W[S,H] bitcast-convert(h); ROOT r = T[S,H,2] bitcast-convert(b)",
    "ROOT r = T[S,S] map(p, p), dimensions={0,1}, to_apply=second",
    "ROOT r = T[S,S] fusion(p), kind=kLoop, calls=turned",
    "ROOT r = T[S,S] call(p), to_apply=turned",
    "k = s32[] constant(0); ROOT r = T[S,S] conditional(k, p, p), branch_computations={turned, same}",
    "k = s32[] constant(0); w = (s32[], T[S,S]) tuple(k, p); l = (s32[], T[S,S]) while(w), condition=below, body=turn; ROOT r = T[S,S] get-tuple-element(l), index=1",
    "s = (s32[S,S], T[S,S]) sort(i, p), dimensions={0}, to_apply=larger; ROOT r = T[S,S] get-tuple-element(s), index=1",
    "k = s32[] constant(-1); m = (s32[S], T[S]) reduce(i, p, k, x), dimensions={1}, to_apply=largest; ROOT r = T[S] get-tuple-element(m), index=1",
    "k = s32[] constant(-1); m = (s32[S,S], T[S,S]) reduce-window(i, p, k, x), window={size=1x2 pad=0_0x0_1}, to_apply=largest; ROOT r = T[S,S] get-tuple-element(m), index=1",
    "ROOT r = T[S,S] select-and-scatter(p, p, x), window={size=1x1}, select=always, scatter=second",
    "o = T[1,S] slice(p), slice={[5:6], [0:S]}; z = T[S] reshape(o); ROOT r = (T[S,S], T[S]) scan(p, z), dimensions={0}, num_carries=1, to_apply=swap",
    "ROOT r = T[S,S] opt-barrier(p)",
    "n = token[] after-all(); ROOT r = T[S,S] add-dependency(p, n)",
    "ROOT r = T[S,S] domain(p), domain={kind=\"sharding\", entry={maximal device=0}, exit={maximal device=1}}",
    "s = (T[S,S], T[S,S], u32[]) copy-start(p); ROOT r = T[S,S] copy-done(s)",
    "s = ((T[S,S]), T[S,S], u32[]) async-start(p), calls=turned; u = ((T[S,S]), T[S,S], u32[]) async-update(s); ROOT r = T[S,S] async-done(u)",
    "k = s32[] constant(5); d = T[<=S,S] set-dimension-size(p, k), dimensions={0}; ROOT r = T[S,<=S] transpose(d), dimensions={1,0}",
    "k = s32[] constant(S); ROOT r = T[<=S,S] dynamic-reshape(p, k, k)",
    "q = T[H,S] slice(p), slice={[0:H], [0:S]}; ROOT r = T[S,S] all-gather(q), dimensions={0}, replica_groups={{0,1}}",
    "q = T[H,S] slice(p), slice={[0:H], [0:S]}; s = (T[H,S], T[S,S]) all-gather-start(q), dimensions={0}, replica_groups={{0,1}}; ROOT r = T[S,S] all-gather-done(s)",
    "ROOT r = T[S,S] all-to-all(p), dimensions={0}, replica_groups={{0,1}}",
    "ROOT r = T[S,S] collective-broadcast(p), replica_groups={{1,0}}",
    "ROOT r = T[S,S] collective-permute(p), source_target_pairs={{0,1},{1,0}}",
    "s = (T[S,S], T[S,S], u32[], u32[]) collective-permute-start(p), source_target_pairs={{0,1},{1,0}}; ROOT r = T[S,S] collective-permute-done(s)",
    "ROOT r = T[S,S] all-reduce(p), replica_groups={{0,1}}, to_apply=second",
    "s = T[S,S] all-reduce-start(p), replica_groups={{0,1}}, to_apply=second; ROOT r = T[S,S] all-reduce-done(s)",
    "ROOT r = T[H,S] reduce-scatter(p), dimensions={0}, replica_groups={{0,1}}, to_apply=second",
    "f = s32[2] constant({0, 3}); l = s32[2] constant({3, 5}); ROOT r = T[S,S] ragged-all-to-all(p, p, f, l, f, l), replica_groups={{0,1}}",
];

const ENTRY: &str = "
ENTRY e {
  p = T[S,S] parameter(0)
  corner = T[1,1] slice(p), slice={[0:1], [0:1]}
  x = T[] reshape(corner)
  line = s32[A] iota(), iota_dimension=0
  i = s32[S,S] reshape(line)
  middle = s32[] constant(B)
  middles = s32[S,S] broadcast(middle), dimensions={}
  t = pred[S,S] compare(i, middles), direction=LT
";

const CALLEES: &str = "
second {
  a = T[] parameter(0)
  ROOT b = T[] parameter(1)
}

always {
  a = T[] parameter(0)
  b = T[] parameter(1)
  ROOT t = pred[] constant(true)
}

same {
  ROOT a = T[S,S] parameter(0)
}

turned {
  a = T[S,S] parameter(0)
  ROOT r = T[S,S] reverse(a), dimensions={1}
}

below {
  w = (s32[], T[S,S]) parameter(0)
  k = s32[] get-tuple-element(w), index=0
  n = s32[] constant(3)
  ROOT c = pred[] compare(k, n), direction=LT
}

turn {
  w = (s32[], T[S,S]) parameter(0)
  k = s32[] get-tuple-element(w), index=0
  one = s32[] constant(1)
  next = s32[] add(k, one)
  a = T[S,S] get-tuple-element(w), index=1
  r = T[S,S] transpose(a), dimensions={1,0}
  ROOT s = (s32[], T[S,S]) tuple(next, r)
}

larger {
  k = s32[] parameter(0)
  l = s32[] parameter(1)
  a = T[] parameter(2)
  b = T[] parameter(3)
  ROOT c = pred[] compare(k, l), direction=GT
}

largest {
  k = s32[] parameter(0)
  a = T[] parameter(1)
  l = s32[] parameter(2)
  b = T[] parameter(3)
  c = pred[] compare(k, l), direction=GE
  m = s32[] select(c, k, l)
  v = T[] select(c, a, b)
  ROOT r = (s32[], T[]) tuple(m, v)
}

swap {
  row = T[S] parameter(0)
  carry = T[S] parameter(1)
  ROOT r = (T[S], T[S]) tuple(carry, row)
}
";

#[test]
fn moved_elements_keep_their_bits() {
    use ElementType::*;
    let mut wrong = Vec::new();
    for (float, integer) in [
        (Bf16, U16),
        (F16, U16),
        (F8e5m2, U8),
        (F8e4m3, U8),
        (F8e3m4, U8),
        (F8e4m3fn, U8),
        (F8e4m3b11fnuz, U8),
        (F8e5m2fnuz, U8),
        (F8e4m3fnuz, U8),
        (F8e8m0fnu, U8),
    ] {
        for body in MOVES {
            if moved(float, body) != moved(integer, body) {
                wrong.push(format!("{float}: {body}"));
            }
        }
    }
    assert!(wrong.is_empty(), "bits change in\n{}", wrong.join("\n"));
}

/// Every operation that moves elements and computes none is among [`MOVES`].
#[test]
fn all_operations_that_move_elements_are_tried() {
    let tried: BTreeSet<Opcode> = MOVES
        .iter()
        .map(|body| memplan_hlo::parse(&text(ElementType::Bf16, body)).expect("the module is valid"))
        .flat_map(|module| module.instructions.values().map(|it| it.opcode()).collect::<Vec<_>>())
        .collect();
    let moves = |opcode: &Opcode| {
        let traits = opcode.traits();
        let access = matches!(traits.access, Access::Reindexing | Access::Update);
        let role = matches!(
            traits.role,
            Role::PassesOn | Role::Regroups | Role::Calls | Role::Starts | Role::Continues | Role::Ends
        );
        let is_made = *opcode == Opcode::Iota;
        (access || role || traits.effect == Effect::Devices) && traits.effect != Effect::Host && !is_made
    };
    let missing: Vec<Opcode> =
        Opcode::iter().filter(moves).filter(|opcode| !tried.contains(opcode)).collect();
    assert!(missing.is_empty(), "{missing:?} move elements and are not tried");
}

/// The bytes that each device ends with, which are the same in both modes.
fn moved(t: ElementType, body: &str) -> Vec<Vec<u8>> {
    let module = memplan_hlo::parse(&text(t, body)).unwrap_or_else(|error| panic!("{body}: {error}"));
    memplan_ir::verify(&module).unwrap_or_else(|errors| panic!("{body}: {errors}"));
    let devices = Devices::of(&module);
    let side = side(t) as i64;
    let patterns: Vec<u8> = match t.byte_width() {
        1 => (0..=u8::MAX).collect(),
        _ => (0..=u16::MAX).flat_map(u16::to_le_bytes).collect(),
    };
    let inputs = vec![vec![Literal::array(t, [side, side], patterns)]; devices.count()];
    let found = evaluate_on(&module, devices, &inputs, &Options::default());
    let found = found.unwrap_or_else(|error| panic!("{body}: {error}"));
    let planned =
        in_arena(&module, "cpu", devices, &inputs).unwrap_or_else(|error| panic!("{body}: {error}"));
    assert!(found == planned, "{t}: {body}: the arena differs");
    found.iter().flat_map(leaves_of).map(|array| array.bytes().to_vec()).collect()
}

/// Rows and columns of an array with every pattern once.
fn side(t: ElementType) -> usize {
    if t.byte_width() == 1 { 16 } else { 256 }
}

fn text(t: ElementType, body: &str) -> String {
    let (side, wide) = if t.byte_width() == 1 { (16, "u16") } else { (256, "u32") };
    let header = if body.contains("replica_groups") || body.contains("source_target_pairs") {
        ", replica_count=2"
    } else {
        ""
    };
    let text = format!("HloModule m{header}\n{CALLEES}\n{ENTRY}  {}\n}}\n", body.replace("; ", "\n  "));
    let all = side * side;
    let number = |word: &str| match word {
        "T" => t.to_string(),
        "W" => wide.to_string(),
        "S" => side.to_string(),
        "H" => (side / 2).to_string(),
        "A" => all.to_string(),
        "B" => (all / 2).to_string(),
        _ => word.to_string(),
    };
    words(&text).into_iter().map(number).collect()
}

/// The words of a text and what is between them.
fn words(text: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut parts = Vec::new();
    let mut begin = 0;
    let mut was_word = None;
    for (at, c) in text.char_indices() {
        if was_word.is_some_and(|was| was != is_word(c)) {
            parts.push(&text[begin..at]);
            begin = at;
        }
        was_word = Some(is_word(c));
    }
    parts.push(&text[begin..]);
    parts
}
