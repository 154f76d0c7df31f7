//! Random networks of convolutions, pooling, padding, slices and sums, on images that are not square.

use std::fmt::Write;

use memplan_passes::{BANDS, Bands, Halo};
use memplan_testkit::Random;

use super::{check_equal, in_bands};
use crate::fusion::row_blocks::parse;

/// Every network means the same in bands, and most are computed in some, of every kind.
#[test]
fn random_networks_keep_their_meaning_in_bands() {
    let n_networks = std::env::var("N_PROGRAMS").map_or(120, |n| n.parse().expect("a number"));
    let (mut n_banded, mut n_loops, mut n_recomputed) = (0, 0, 0);
    for seed in 0..n_networks {
        let source = network(seed);
        let name = format!("seed {seed}");
        let before = parse(&name, &source);
        let share = [0.0, 0.0, 0.5][seed as usize % 3];
        let (after, report) = in_bands(&name, &before, Bands { share, ..BANDS });
        check_equal(&name, &before, &after);
        let Some(report) = report else { continue };
        n_banded += 1;
        n_loops += usize::from(report.parts.iter().any(|part| part.in_loop > 0));
        n_recomputed += usize::from(report.parts.iter().any(|part| part.halo == Halo::Recomputed));
    }
    eprintln!(
        "{n_banded} of {n_networks} networks are in bands, {n_loops} with loops, {n_recomputed} recompute rows"
    );
    // Recomputed rows are seldom best where layers are this few.
    let expected = [(n_banded, 2), (n_loops, 5), (n_recomputed, 100)];
    assert!(
        expected.iter().all(|(n, one_in)| n * one_in >= n_networks as usize),
        "{n_banded} in bands, {n_loops} with loops, {n_recomputed} recompute rows"
    );
}

/// A network of a few layers.
fn network(seed: u64) -> String {
    let mut random = Random::new(seed);
    let mut below = |n: usize| random.below(n) as i64;
    let mut body = String::new();
    let mut layers: Vec<[i64; 3]> = vec![[14 + below(12), 5 + below(4), 1 + below(3)]];
    for i in 1..=5 + below(5) {
        let from = layers.len() - 1;
        let [h, w, c] = layers[from];
        let shape = |[h, w, c]: [i64; 3]| format!("[1,{h},{w},{c}]");
        let twin = layers[..from].iter().position(|&other| other == [h, w, c]).filter(|_| below(3) > 0);
        let layer = match (below(8), twin) {
            (_, Some(other)) => {
                writeln!(body, "  a{i} = s8[1,{h},{w},{c}] add(x{from}, x{other})").unwrap();
                writeln!(body, "  x{i} = s8[1,{h},{w},{c}] maximum(a{i}, x{from})").unwrap();
                [h, w, c]
            }
            (0, _) if h > 4 => {
                let (stride, low) = (1 + below(2), below(2));
                let out = [(h + low + 1 - 3) / stride + 1, w, c];
                writeln!(body, "  m{i} = s8[] constant(-128)").unwrap();
                writeln!(
                    body,
                    "  x{i} = s8{} reduce-window(x{from}, m{i}), window={{size=1x3x1x1 stride=1x{stride}x1x1 \
                     pad=0_0x{low}_1x0_0x0_0}}, to_apply=most",
                    shape(out)
                )
                .unwrap();
                out
            }
            (1, _) => {
                let (low, high) = (below(4), below(3));
                let out = [h + low + high, w, c];
                writeln!(body, "  m{i} = s8[] constant(3)").unwrap();
                writeln!(
                    body,
                    "  x{i} = s8{} pad(x{from}, m{i}), padding=0_0x{low}_{high}x0_0x0_0",
                    shape(out)
                )
                .unwrap();
                out
            }
            (2, _) if h > 8 => {
                let (start, stride) = (below(3), 1 + below(2));
                let out = [(h - start + stride - 1) / stride, w, c];
                writeln!(
                    body,
                    "  x{i} = s8{} slice(x{from}), slice={{[0:1], [{start}:{h}:{stride}], [0:{w}], [0:{c}]}}",
                    shape(out)
                )
                .unwrap();
                out
            }
            (kind, _) => {
                let is_depthwise = kind < 5;
                let (size, stride, dilation) = (1 + below(5), 1 + below(2), 1 + below(2));
                let reach = (size - 1) * dilation + 1;
                let (low, high) = (below(reach as usize), below(reach as usize));
                let (size, dilation, low, high) =
                    if h + low + high < reach { (1, 1, 0, 0) } else { (size, dilation, low, high) };
                let reach = (size - 1) * dilation + 1;
                let features = if is_depthwise { c } else { 1 + below(12) };
                let (inputs, groups) = if is_depthwise { (1, c) } else { (c, 1) };
                let out = [(h + low + high - reach) / stride + 1, w, features];
                let dims = shape(out);
                writeln!(body, "  k{i} = s8[{size},3,{inputs},{features}] parameter(P)").unwrap();
                writeln!(
                    body,
                    "  c{i} = s32{dims} convolution(x{from}, k{i}), window={{size={size}x3 stride={stride}x1 \
                     pad={low}_{high}x1_1 rhs_dilate={dilation}x1}}, dim_labels=b01f_01io->b01f, \
                     feature_group_count={groups}"
                )
                .unwrap();
                writeln!(body, "  b{i} = s32[{features}] parameter(P)").unwrap();
                writeln!(body, "  e{i} = s32{dims} broadcast(b{i}), dimensions={{3}}").unwrap();
                writeln!(body, "  sum{i} = s32{dims} add(c{i}, e{i})").unwrap();
                writeln!(body, "  l{i} = s32[] constant(-100)\n  h{i} = s32[] constant(100)").unwrap();
                writeln!(body, "  d{i} = s32{dims} clamp(l{i}, sum{i}, h{i})").unwrap();
                writeln!(body, "  x{i} = s8{dims} convert(d{i})").unwrap();
                out
            }
        };
        layers.push(layer);
    }
    let [h, w, c] = layers[layers.len() - 1];
    let last = layers.len() - 1;
    let [ih, iw, ic] = layers[0];
    let mut text = format!(
        "HloModule random\n\nmost {{\n  a = s8[] parameter(0)\n  b = s8[] parameter(1)\n  ROOT m = s8[] maximum(a, b)\n}}\n\n\
         ENTRY main {{\n  x0 = s8[1,{ih},{iw},{ic}] parameter(P)\n{body}  f = s32[1,{h},{w},{c}] convert(x{last})\n  \
         ROOT r = s32[1,{h},{w},{c}] negate(f)\n}}\n"
    );
    let mut number = 0;
    while text.contains("parameter(P)") {
        text = text.replacen("parameter(P)", &format!("parameter({number})"), 1);
        number += 1;
    }
    text
}
