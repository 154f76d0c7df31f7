//! Random programs of narrow arrays that make wide ones that make narrow ones.

use std::fmt::Write;

use memplan_memory::Bytes;
use memplan_testkit::Random;

use super::{cut_twice, parse};
use crate::fusion::numbers;

/// Every program means the same in blocks, and most are cut somewhere.
#[test]
fn random_programs_keep_their_meaning_in_blocks() {
    let n_programs = std::env::var("N_PROGRAMS").map_or(300, |n| n.parse().expect("a number"));
    let mut n_cut = 0;
    for seed in 0..n_programs {
        let source = RandomProgram::new(seed).source();
        let name = format!("seed {seed}");
        let before = parse(&name, &source);
        let after = cut_twice(&name, &before, Bytes(256));
        n_cut += usize::from(after.instruction_count() > before.instruction_count());
        let result = std::panic::catch_unwind(|| numbers::check_same(&before, &after));
        assert!(result.is_ok(), "{name}:\n{source}\nbecame\n{}", memplan_hlo::print(&after));
    }
    eprintln!("{n_cut} of {n_programs} programs are cut");
    assert!(n_cut * 4 > n_programs as usize, "only {n_cut} of {n_programs} programs are cut");
}

/// A program under construction.
pub(crate) struct RandomProgram {
    random: Random,
    body: String,
    /// The extents of each array.
    arrays: Vec<Vec<i64>>,
}

impl RandomProgram {
    pub(crate) fn new(seed: u64) -> RandomProgram {
        let mut program =
            RandomProgram { random: Random::new(seed), body: String::new(), arrays: Vec::new() };
        for (i, dimensions) in [vec![8, 2], vec![2, 16], vec![4, 8, 2], vec![4, 2, 16], vec![16], vec![4, 8]]
            .into_iter()
            .enumerate()
        {
            program.push(dimensions, &format!("parameter({i})"));
        }
        for _ in 0..24 {
            program.step();
        }
        program
    }

    pub(crate) fn source(&self) -> String {
        // Narrow results, of what came last.
        let is_narrow = |&i: &usize| self.arrays[i].iter().product::<i64>() <= 64;
        let results: Vec<usize> = (0..self.arrays.len()).rev().filter(is_narrow).take(4).collect();
        let shapes: Vec<String> = results.iter().map(|&i| shape(&self.arrays[i])).collect();
        let names: Vec<String> = results.iter().map(|i| format!("x{i}")).collect();
        format!(
            "HloModule random\n\n\
             add_f32 {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }}\n\
             max_f32 {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] maximum(a, b) }}\n\n\
             ENTRY main {{\n  zero = f32[] constant(0)\n{}  ROOT r = ({}) tuple({})\n}}\n",
            self.body,
            shapes.join(", "),
            names.join(", ")
        )
    }

    fn push(&mut self, dimensions: Vec<i64>, operation: &str) {
        writeln!(self.body, "  x{} = {} {operation}", self.arrays.len(), shape(&dimensions)).unwrap();
        self.arrays.push(dimensions);
    }

    fn below(&mut self, n: usize) -> usize {
        (self.random.bits() % n as u64) as usize
    }

    /// One more array, mostly of late ones; nothing where the choice does not fit.
    fn step(&mut self) {
        let n = self.arrays.len();
        let i = n - 1 - self.below(n).min(self.below(n));
        let x = self.arrays[i].clone();
        let d = self.below(x.len().max(1));
        match self.below(11) {
            0 => self.push(x, &format!("tanh(x{i})")),
            1 | 2 => {
                let others: Vec<usize> = (0..n).filter(|&j| self.arrays[j] == x).collect();
                let j = others[self.below(others.len())];
                let op = ["add", "subtract", "maximum"][self.below(3)];
                self.push(x, &format!("{op}(x{i}, x{j})"));
            }
            3 if x.len() > 1 => {
                let mut kept = x;
                kept.remove(d);
                let reducer = ["add_f32", "max_f32"][self.below(2)];
                self.push(kept, &format!("reduce(x{i}, zero), dimensions={{{d}}}, to_apply={reducer}"));
            }
            4 if x.len() < 3 => {
                let extent = [2, 4, 8][self.below(3)];
                let kept: Vec<String> = (0..=x.len()).filter(|&k| k != d).map(|k| k.to_string()).collect();
                let mut wide = x;
                wide.insert(d, extent);
                if wide.iter().product::<i64>() <= 2048 {
                    self.push(wide, &format!("broadcast(x{i}), dimensions={{{}}}", kept.join(",")));
                }
            }
            5 if x.len() > 1 => {
                let mut order: Vec<usize> = (0..x.len()).collect();
                let to = self.below(x.len());
                order.swap(d, to);
                let names: Vec<String> = order.iter().map(usize::to_string).collect();
                let moved = order.iter().map(|&k| x[k]).collect();
                self.push(moved, &format!("transpose(x{i}), dimensions={{{}}}", names.join(",")));
            }
            6 if d + 1 < x.len() => {
                let mut merged = x;
                merged[d] *= merged.remove(d + 1);
                self.push(merged, &format!("reshape(x{i})"));
            }
            7 if x.len() < 3 && !x.is_empty() && x[d] % 4 == 0 => {
                let mut split = x;
                split[d] /= 4;
                split.insert(d, 4);
                self.push(split, &format!("reshape(x{i})"));
            }
            8 if !x.is_empty() => {
                let mut half = x.clone();
                half[d] = (half[d] / 2).max(1);
                let ranges: Vec<String> = half.iter().map(|to| format!("[0:{to}]")).collect();
                self.push(half, &format!("slice(x{i}), slice={{{}}}", ranges.join(",")));
            }
            _ => self.dot(i),
        }
    }

    /// A product with an array that has an extent in common, and perhaps a first dimension.
    fn dot(&mut self, i: usize) {
        let n = self.arrays.len();
        let j = self.below(n);
        let (x, y) = (self.arrays[i].clone(), self.arrays[j].clone());
        let is_batched = x.len() == 3 && y.len() == 3 && x[0] == y[0];
        let from = usize::from(is_batched);
        let pairs: Vec<(usize, usize)> = (from..x.len())
            .flat_map(|a| (from..y.len()).map(move |b| (a, b)))
            .filter(|&(a, b)| x[a] == y[b])
            .collect();
        if pairs.is_empty() {
            return;
        }
        let (a, b) = pairs[self.below(pairs.len())];
        let batch = if is_batched { "lhs_batch_dims={0}, rhs_batch_dims={0}, " } else { "" };
        let free = |array: &[i64], out: usize| -> Vec<i64> {
            (from..array.len()).filter(|&k| k != out).map(|k| array[k]).collect()
        };
        let result: Vec<i64> = x[..from].iter().copied().chain(free(&x, a)).chain(free(&y, b)).collect();
        if result.len() <= 3 && result.iter().product::<i64>() <= 2048 {
            let attributes = format!("{batch}lhs_contracting_dims={{{a}}}, rhs_contracting_dims={{{b}}}");
            self.push(result, &format!("dot(x{i}, x{j}), {attributes}"));
            // What comes next stays in range.
            let last = self.arrays.len() - 1;
            self.push(self.arrays[last].clone(), &format!("tanh(x{last})"));
        }
    }
}

fn shape(dimensions: &[i64]) -> String {
    let extents: Vec<String> = dimensions.iter().map(i64::to_string).collect();
    format!("f32[{}]", extents.join(","))
}
