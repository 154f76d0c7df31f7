//! Random programs of small arrays, dense in the patterns that simplifications look for.

use std::fmt::Write;

use memplan_ir::verify;
use memplan_memory::Target;
use memplan_passes::{Context, SIMPLIFY, TAKE_APART};
use memplan_testkit::Random;

use crate::simplify::equivalence;
use crate::simplify::filetests::run_twice;

/// Enough that each rule of the algebraic simplifier fires many times.
const N_PROGRAMS: u64 = 300;

/// Every program means the same after simplification, and simplifying again changes nothing.
#[test]
fn random_programs_keep_their_meaning() {
    let target = Target::find("cpu").unwrap();
    let context = Context { target: &target };
    let only = std::env::var("ONLY_SEED").ok().map(|seed| seed.parse::<u64>().expect("a number"));
    let (mut n_before, mut n_after) = (0, 0);
    let n_programs = std::env::var("N_PROGRAMS").map_or(N_PROGRAMS, |n| n.parse().expect("a number"));
    for seed in 0..n_programs {
        if only.is_some_and(|only| only != seed) {
            continue;
        }
        let source = RandomProgram::new(seed).source();
        if only.is_some() {
            eprintln!("{source}");
        }
        let before =
            memplan_hlo::parse(&source).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{source}"));
        verify(&before).unwrap_or_else(|errors| panic!("seed {seed}: {errors}\n{source}"));
        let after = run_twice(&before, &[&TAKE_APART, &SIMPLIFY], &context);
        if only.is_some() {
            eprintln!("{}", memplan_hlo::print(&after));
        }
        equivalence::check(&before, &after);
        (n_before, n_after) = (n_before + before.instruction_count(), n_after + after.instruction_count());
    }
    eprintln!("{n_before} -> {n_after} instructions");
}

/// An array of the program under construction.
#[derive(Clone)]
struct Array {
    name: String,
    element_type: &'static str,
    dimensions: Vec<i64>,
}

struct RandomProgram {
    seed: u64,
    random: Random,
    body: String,
    arrays: Vec<Array>,
}

impl Array {
    fn shape(&self) -> String {
        shape(self.element_type, &self.dimensions)
    }

    fn rank(&self) -> usize {
        self.dimensions.len()
    }
}

impl RandomProgram {
    fn new(seed: u64) -> RandomProgram {
        let mut program =
            RandomProgram { seed, random: Random::new(seed), body: String::new(), arrays: Vec::new() };
        for (i, (element_type, dimensions)) in [
            ("f32", vec![2, 3]),
            ("f32", vec![3, 1, 4]),
            ("f32", vec![2, 3, 2]),
            ("s32", vec![6]),
            ("f32", vec![]),
            ("s32", vec![3, 2]),
            ("pred", vec![2, 3]),
        ]
        .into_iter()
        .enumerate()
        {
            program.push(element_type, dimensions, format!("parameter({i})"));
        }
        for value in ["0", "1", "-1", "3"] {
            program.push("f32", vec![], format!("constant({value})"));
            program.push("s32", vec![], format!("constant({value})"));
        }
        for _ in 0..40 {
            program.step();
        }
        program
    }

    fn source(&self) -> String {
        // What came last depends on most of the rest.
        let results = &self.arrays[self.arrays.len() - 12..];
        let names: Vec<&str> = results.iter().map(|a| a.name.as_str()).collect();
        let shapes: Vec<String> = results.iter().map(Array::shape).collect();
        format!(
            "HloModule seed_{}\n\n\
             add_f32 {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }}\n\
             max_f32 {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] maximum(a, b) }}\n\
             add_s32 {{ a = s32[] parameter(0) b = s32[] parameter(1) ROOT c = s32[] add(a, b) }}\n\
             max_s32 {{ a = s32[] parameter(0) b = s32[] parameter(1) ROOT c = s32[] maximum(a, b) }}\n\n\
             ENTRY main {{\n{}  ROOT results = ({}) tuple({})\n}}\n",
            self.seed,
            self.body,
            shapes.join(", "),
            names.join(", ")
        )
    }

    fn push(&mut self, element_type: &'static str, dimensions: Vec<i64>, operation: String) -> Array {
        let array = Array { name: format!("x{}", self.arrays.len()), element_type, dimensions };
        writeln!(self.body, "  {} = {} {operation}", array.name, array.shape()).unwrap();
        self.arrays.push(array.clone());
        array
    }

    fn below(&mut self, n: usize) -> usize {
        (self.random.bits() % n as u64) as usize
    }

    /// One of the arrays, half of the time the last one, so that operations follow each other in chains.
    fn any(&mut self) -> Array {
        let n = self.arrays.len();
        let at = match self.below(4) {
            0 => self.below(n),
            1 => n - 1 - self.below(n.min(8)),
            _ => n - 1,
        };
        self.arrays[at].clone()
    }

    fn any_of(&mut self, element_type: &str) -> Array {
        let of_type: Vec<Array> =
            self.arrays.iter().filter(|a| a.element_type == element_type).cloned().collect();
        of_type[self.below(of_type.len())].clone()
    }

    fn step(&mut self) {
        match self.below(16) {
            0 => self.reshape(),
            1 => self.transpose(),
            2 | 3 => self.broadcast(),
            4 => self.slice(),
            5 => self.pad(),
            6 => self.concatenate(),
            7 => self.reduce(),
            8 => self.reverse(),
            9 => self.convert(),
            10 => self.compare_and_select(),
            11 => self.iota(),
            12 => self.dynamic_slice(),
            13 => self.dot(),
            14 => self.unary(),
            _ => self.binary(),
        }
    }

    fn reshape(&mut self) {
        let x = self.any();
        let n: i64 = x.dimensions.iter().product();
        let mut rest = n;
        let mut dimensions = Vec::new();
        while rest > 1 && dimensions.len() < 3 {
            let divisors: Vec<i64> = (1..=rest).filter(|d| rest % d == 0).collect();
            let d = divisors[self.below(divisors.len())];
            dimensions.push(d);
            rest /= d;
        }
        dimensions.push(rest);
        if rest == 1 && self.below(2) == 0 {
            dimensions.pop();
        }
        self.push(
            x.element_type,
            if n == 0 { x.dimensions } else { dimensions },
            format!("reshape({})", x.name),
        );
    }

    fn transpose(&mut self) {
        let x = self.any();
        let mut permutation: Vec<usize> = (0..x.rank()).collect();
        for i in (1..permutation.len()).rev() {
            permutation.swap(i, self.below(i + 1));
        }
        let dimensions = permutation.iter().map(|&d| x.dimensions[d]).collect();
        self.push(
            x.element_type,
            dimensions,
            format!("transpose({}), dimensions={{{}}}", x.name, list(&permutation)),
        );
    }

    fn broadcast(&mut self) {
        let x = self.any();
        if x.rank() > 3 || x.dimensions.iter().product::<i64>() > 24 {
            return self.reduce();
        }
        let (mut dimensions, mut map) = (Vec::new(), Vec::new());
        for &d in &x.dimensions {
            if self.below(2) == 0 {
                let extent = self.below(3) as i64 + 1;
                dimensions.push(extent);
            }
            map.push(dimensions.len());
            dimensions.push(d);
        }
        if self.below(2) == 0 || dimensions.is_empty() {
            let extent = self.below(4) as i64 + 1;
            dimensions.push(extent);
        }
        self.push(
            x.element_type,
            dimensions,
            format!("broadcast({}), dimensions={{{}}}", x.name, list(&map)),
        );
    }

    fn slice(&mut self) {
        let x = self.any();
        let (mut dimensions, mut ranges) = (Vec::new(), Vec::new());
        for &d in &x.dimensions {
            let start = self.below(d as usize) as i64;
            let limit = start + 1 + self.below((d - start) as usize) as i64;
            let stride = self.below(2) as i64 + 1;
            ranges.push(format!("[{start}:{limit}:{stride}]"));
            dimensions.push((limit - start + stride - 1) / stride);
        }
        self.push(x.element_type, dimensions, format!("slice({}), slice={{{}}}", x.name, ranges.join(", ")));
    }

    fn pad(&mut self) {
        let x = self.any();
        let value = self.any_of(x.element_type);
        if x.rank() == 0 || value.rank() != 0 {
            return;
        }
        let (mut dimensions, mut padding) = (Vec::new(), Vec::new());
        for &d in &x.dimensions {
            let [low, high] = [0, 1].map(|_| (self.below(4) as i64 - 1).max(-(d / 2)));
            let interior = if self.below(4) == 0 { 1 } else { 0 };
            let extent = low + high + d + (d - 1) * interior;
            let (low, high, interior, extent) =
                if !(1..=8).contains(&extent) { (0, 0, 0, d) } else { (low, high, interior, extent) };
            padding.push(format!("{low}_{high}_{interior}"));
            dimensions.push(extent);
        }
        self.push(
            x.element_type,
            dimensions,
            format!("pad({}, {}), padding={}", x.name, value.name, padding.join("x")),
        );
    }

    fn concatenate(&mut self) {
        let x = self.any();
        if x.rank() == 0 {
            return;
        }
        let along = self.below(x.rank());
        let fits = |a: &&Array| {
            a.element_type == x.element_type
                && a.rank() == x.rank()
                && (0..a.rank()).all(|d| d == along || a.dimensions[d] == x.dimensions[d])
        };
        let others: Vec<Array> = self.arrays.iter().filter(fits).cloned().collect();
        let y = others[self.below(others.len())].clone();
        let mut dimensions = x.dimensions.clone();
        dimensions[along] += y.dimensions[along];
        if dimensions[along] <= 8 {
            let operation = format!("concatenate({}, {}), dimensions={{{along}}}", x.name, y.name);
            self.push(x.element_type, dimensions, operation);
        }
    }

    fn reduce(&mut self) {
        let x = self.any();
        if !matches!(x.element_type, "f32" | "s32") || x.rank() == 0 {
            return;
        }
        let reduced: Vec<usize> = (0..x.rank()).filter(|_| self.below(2) == 0).collect();
        let kept: Vec<i64> =
            (0..x.rank()).filter(|d| !reduced.contains(d)).map(|d| x.dimensions[d]).collect();
        let op = ["add", "max"][self.below(2)];
        let neutral = match (op, x.element_type) {
            ("add", _) => "0",
            (_, "f32") => "-inf",
            _ => "-2147483648",
        };
        let value = if self.below(4) == 0 { "1" } else { neutral };
        let init = self.push(x.element_type, vec![], format!("constant({value})"));
        let operation = format!(
            "reduce({}, {}), dimensions={{{}}}, to_apply={op}_{}",
            x.name,
            init.name,
            list(&reduced),
            x.element_type
        );
        self.push(x.element_type, kept, operation);
    }

    fn reverse(&mut self) {
        let x = self.any();
        let reversed: Vec<usize> = (0..x.rank()).filter(|_| self.below(2) == 0).collect();
        self.push(
            x.element_type,
            x.dimensions,
            format!("reverse({}), dimensions={{{}}}", x.name, list(&reversed)),
        );
    }

    fn convert(&mut self) {
        let x = self.any();
        let element_type = ["f32", "s32", "pred", "s8", "u8", "bf16", "f64"][self.below(7)];
        let y = self.push(element_type, x.dimensions, format!("convert({})", x.name));
        if !matches!(element_type, "f32" | "s32" | "pred") {
            let back = ["f32", "s32"][self.below(2)];
            self.push(back, y.dimensions, format!("convert({})", y.name));
        }
    }

    /// An array like `x` in type and extents.
    fn like(&mut self, x: &Array) -> Array {
        let same: Vec<Array> = self
            .arrays
            .iter()
            .filter(|a| a.element_type == x.element_type && a.dimensions == x.dimensions)
            .cloned()
            .collect();
        if self.below(2) == 0 {
            let scalar = self.any_of(x.element_type);
            if scalar.rank() == 0 && x.rank() > 0 {
                return self.push(
                    x.element_type,
                    x.dimensions.clone(),
                    format!("broadcast({}), dimensions={{}}", scalar.name),
                );
            }
        }
        same[self.below(same.len())].clone()
    }

    fn compare_and_select(&mut self) {
        let x = self.any();
        let (y, z) = (self.like(&x), self.like(&x));
        let direction = ["EQ", "NE", "LT", "LE", "GT", "GE"][self.below(6)];
        let operation = format!("compare({}, {}), direction={direction}", x.name, y.name);
        let mut predicate = self.push("pred", x.dimensions.clone(), operation);
        if self.below(3) == 0 {
            predicate = self.push("pred", x.dimensions.clone(), format!("not({})", predicate.name));
        }
        let operation = format!("select({}, {}, {})", predicate.name, x.name, z.name);
        self.push(x.element_type, x.dimensions, operation);
    }

    fn iota(&mut self) {
        let dimensions: Vec<i64> = (0..self.below(3) + 1).map(|_| self.below(4) as i64 + 1).collect();
        let along = self.below(dimensions.len());
        let element_type = ["f32", "s32"][self.below(2)];
        self.push(element_type, dimensions, format!("iota(), iota_dimension={along}"));
    }

    fn dynamic_slice(&mut self) {
        let x = self.any();
        if x.rank() == 0 {
            return;
        }
        let sizes: Vec<i64> = x.dimensions.iter().map(|&d| self.below(d as usize) as i64 + 1).collect();
        let scalars: Vec<Array> =
            self.arrays.iter().filter(|a| a.element_type == "s32" && a.rank() == 0).cloned().collect();
        let indices: Vec<String> =
            sizes.iter().map(|_| scalars[self.below(scalars.len())].name.clone()).collect();
        let indices = indices.join(", ");
        let operation =
            format!("dynamic-slice({}, {indices}), dynamic_slice_sizes={{{}}}", x.name, list(&sizes));
        let y = self.push(x.element_type, sizes, operation);
        if self.below(2) == 0 {
            let onto = self.like(&x);
            self.push(
                x.element_type,
                x.dimensions,
                format!("dynamic-update-slice({}, {}, {indices})", onto.name, y.name),
            );
        }
    }

    fn dot(&mut self) {
        let (x, y) = (self.any_of("f32"), self.any_of("f32"));
        let pairs: Vec<(usize, usize)> = (0..x.rank())
            .flat_map(|i| (0..y.rank()).map(move |j| (i, j)))
            .filter(|&(i, j)| x.dimensions[i] == y.dimensions[j])
            .collect();
        if pairs.is_empty() || x.rank() + y.rank() > 6 {
            return;
        }
        let (i, j) = pairs[self.below(pairs.len())];
        let batch = pairs.iter().copied().find(|&(a, b)| a != i && b != j).filter(|_| self.below(2) == 0);
        let free = |array: &Array, contracted: usize, batch: Option<usize>| -> Vec<i64> {
            (0..array.rank())
                .filter(|&d| d != contracted && Some(d) != batch)
                .map(|d| array.dimensions[d])
                .collect()
        };
        let mut dimensions: Vec<i64> = batch.iter().map(|&(a, _)| x.dimensions[a]).collect();
        dimensions.extend(free(&x, i, batch.map(|b| b.0)));
        dimensions.extend(free(&y, j, batch.map(|b| b.1)));
        if dimensions.iter().product::<i64>() > 200 {
            return;
        }
        let mut operation = format!(
            "dot({}, {}), lhs_contracting_dims={{{i}}}, rhs_contracting_dims={{{j}}}",
            x.name, y.name
        );
        if let Some((a, b)) = batch {
            write!(operation, ", lhs_batch_dims={{{a}}}, rhs_batch_dims={{{b}}}").unwrap();
        }
        self.push("f32", dimensions, operation);
    }

    fn unary(&mut self) {
        let x = self.any();
        let op = match x.element_type {
            "pred" => "not",
            "u8" => "copy",
            _ => ["negate", "abs", "copy", "negate"][self.below(4)],
        };
        self.push(x.element_type, x.dimensions, format!("{op}({})", x.name));
    }

    fn binary(&mut self) {
        let x = self.any();
        let y = self.like(&x);
        let op = match x.element_type {
            "pred" => ["and", "or", "xor"][self.below(3)],
            "f32" | "bf16" | "f64" => ["add", "subtract", "multiply", "maximum", "minimum"][self.below(5)],
            _ => ["add", "subtract", "multiply", "maximum", "and", "xor"][self.below(6)],
        };
        let (a, b) = if self.below(2) == 0 { (&x, &y) } else { (&y, &x) };
        let operation = format!("{op}({}, {})", a.name, b.name);
        self.push(x.element_type, x.dimensions.clone(), operation);
    }
}

fn shape(element_type: &str, dimensions: &[i64]) -> String {
    format!("{element_type}[{}]", list(dimensions))
}

fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}
