//! Programs of any size, each large in one way: the cost of planning should grow in proportion.

use std::fmt::Write;

use crate::Random;

/// A way of being large: its name, and the text of a program of about so many instructions, elements or dimensions.
pub type GrowthShape = (&'static str, fn(usize) -> String);

/// All ways.
pub const GROWTH_SHAPES: [GrowthShape; 10] = [
    ("training", training),
    ("random", random),
    ("wide loop", wide_loop),
    ("loops in a row", loops_in_a_row),
    ("nested loops", nested_loops),
    ("tuple", tuple),
    ("parameters", parameters),
    ("parts", parts),
    ("gradients", gradients),
    ("rank", rank),
];

/// Collects the lines of a program.
struct Text(String);

impl Text {
    fn new() -> Text {
        Text("HloModule growth\n".to_string())
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.0, "{line}").expect("writing to a string");
    }
}

macro_rules! lines {
    ($text:expr, $($line:literal)+) => {{ $($text.line(format_args!($line));)+ }};
}

/// Like a training step: a forward chain whose values are read again, last first, on the way back.
fn training(n: usize) -> String {
    let mut text = Text::new();
    lines!(text, "ENTRY main {{" "  v0 = f32[64,64] parameter(0)");
    let half = (n / 2).max(2);
    for i in 1..half {
        let (op, before) = (["tanh", "exponential", "negate", "cosine"][i % 4], i - 1);
        lines!(text, "  v{i} = f32[64,64] {op}(v{before})");
    }
    let last = half - 1;
    lines!(text, "  g0 = f32[64,64] negate(v{last})");
    for i in 1..half {
        // Most values are short-lived, every 64th waits for its turn on the way back.
        let (before, kept) = (i - 1, if i % 64 == 0 { half - i } else { last });
        lines!(text, "  g{i} = f32[64,64] multiply(g{before}, v{kept})");
    }
    lines!(text, "  ROOT out = f32[64,64] negate(g{last})" "}}");
    text.0
}

/// Each instruction reads two that shortly precede it.
fn random(n: usize) -> String {
    let mut text = Text::new();
    let mut random = Random::new(n as u64);
    lines!(text, "ENTRY main {{" "  v0 = f32[64,64] parameter(0)");
    let n = n.max(2);
    for i in 1..n {
        let near = i - 1 - random.below(i.min(20));
        let far = i - 1 - random.below(i.min(1000));
        match i % 8 {
            0 => lines!(
                text,
                "  v{i} = f32[64,64] dot(v{near}, v{far}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
            ),
            _ => lines!(text, "  v{i} = f32[64,64] add(v{near}, v{far})"),
        }
    }
    let last = n - 1;
    lines!(text, "  ROOT out = f32[64,64] negate(v{last})" "}}");
    text.0
}

/// One loop with a third as many arrays in its state.
fn wide_loop(n: usize) -> String {
    let n = (n / 3).max(1);
    let list = |item: &dyn Fn(usize) -> String| (0..n).map(item).collect::<Vec<_>>().join(", ");
    let state = format!("(s32[], {})", list(&|_| "f32[16]".to_string()));
    let mut text = Text::new();
    lines!(
        text,
        "more {{"
        "  state = {state} parameter(0)"
        "  i = s32[] get-tuple-element(state), index=0"
        "  end = s32[] constant(10)"
        "  ROOT less = pred[] compare(i, end), direction=LT"
        "}}"
        "step {{"
        "  state = {state} parameter(0)"
        "  i = s32[] get-tuple-element(state), index=0"
        "  one = s32[] constant(1)"
        "  next = s32[] add(i, one)"
    );
    for i in 0..n {
        let index = i + 1;
        lines!(text, "  old{i} = f32[16] get-tuple-element(state), index={index}");
    }
    for i in 0..n {
        let other = (i * 7 + 3) % n;
        lines!(text, "  new{i} = f32[16] add(old{i}, old{other})");
    }
    let new = list(&|i| format!("new{i}"));
    lines!(text, "  ROOT out = {state} tuple(next, {new})" "}}" "ENTRY main {{" "  zero = s32[] constant(0)");
    for i in 0..n {
        lines!(text, "  p{i} = f32[16] parameter({i})");
    }
    let first = list(&|i| format!("p{i}"));
    lines!(
        text,
        "  init = {state} tuple(zero, {first})"
        "  loop = {state} while(init), condition=more, body=step"
        "  ROOT out = f32[16] get-tuple-element(loop), index=1"
        "}}"
    );
    text.0
}

/// So many loops one after the other, all with the same body and condition.
fn loops_in_a_row(n: usize) -> String {
    let state = "(s32[], f32[64,64])";
    let mut text = Text::new();
    lines!(
        text,
        "more {{"
        "  state = {state} parameter(0)"
        "  i = s32[] get-tuple-element(state), index=0"
        "  end = s32[] constant(10)"
        "  ROOT less = pred[] compare(i, end), direction=LT"
        "}}"
        "step {{"
        "  state = {state} parameter(0)"
        "  i = s32[] get-tuple-element(state), index=0"
        "  x = f32[64,64] get-tuple-element(state), index=1"
        "  one = s32[] constant(1)"
        "  next = s32[] add(i, one)"
        "  y = f32[64,64] dot(x, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
        "  ROOT out = {state} tuple(next, y)"
        "}}"
        "ENTRY main {{"
        "  x = f32[64,64] parameter(0)"
        "  zero = s32[] constant(0)"
        "  loop0 = {state} tuple(zero, x)"
    );
    for i in 1..=n {
        let before = i - 1;
        lines!(text, "  loop{i} = {state} while(loop{before}), condition=more, body=step");
    }
    lines!(text, "  ROOT out = f32[64,64] get-tuple-element(loop{n}), index=1" "}}");
    text.0
}

/// So many loops, each in the body of the next.
fn nested_loops(n: usize) -> String {
    let mut text = Text::new();
    lines!(
        text,
        "more {{"
        "  i = s32[] parameter(0)"
        "  end = s32[] constant(3)"
        "  ROOT less = pred[] compare(i, end), direction=LT"
        "}}"
        "body0 {{"
        "  i = s32[] parameter(0)"
        "  one = s32[] constant(1)"
        "  ROOT next = s32[] add(i, one)"
        "}}"
    );
    let n = n.max(1);
    for i in 1..n {
        let inner = i - 1;
        lines!(
            text,
            "body{i} {{"
            "  i = s32[] parameter(0)"
            "  one = s32[] constant(1)"
            "  next = s32[] add(i, one)"
            "  ROOT loop = s32[] while(next), condition=more, body=body{inner}"
            "}}"
        );
    }
    let last = n - 1;
    lines!(
        text,
        "ENTRY main {{"
        "  i = s32[] parameter(0)"
        "  ROOT loop = s32[] while(i), condition=more, body=body{last}"
        "}}"
    );
    text.0
}

/// One scalar so many times in the result.
fn tuple(n: usize) -> String {
    let list = |item: &str| vec![item; n.max(1)].join(", ");
    let (shape, elements) = (list("f32[]"), list("p"));
    let mut text = Text::new();
    lines!(text, "ENTRY main {{" "  p = f32[] parameter(0)" "  ROOT out = ({shape}) tuple({elements})" "}}");
    text.0
}

/// So many scalar parameters, of which two are read.
fn parameters(n: usize) -> String {
    let mut text = Text::new();
    lines!(text, "ENTRY main {{");
    let n = n.max(1);
    for i in 0..n {
        lines!(text, "  p{i} = f32[] parameter({i})");
    }
    let last = n - 1;
    lines!(text, "  ROOT out = f32[] add(p0, p{last})" "}}");
    text.0
}

/// One array made of half as many parts, each computed.
fn parts(n: usize) -> String {
    let n = (n / 2).max(1);
    let mut text = Text::new();
    lines!(text, "ENTRY main {{");
    for i in 0..n {
        lines!(text, "  p{i} = f32[4,128] parameter({i})" "  v{i} = f32[4,128] sine(p{i})");
    }
    let (extent, all) = (4 * n, list_of("v", n));
    lines!(text, "  ROOT out = f32[{extent},128] concatenate({all}), dimensions={{0}}" "}}");
    text.0
}

/// A fifth as many gradients that several devices add up in one all-reduce, as XLA combines them.
fn gradients(n: usize) -> String {
    let n = (n / 5).max(1);
    let mut text = Text::new();
    lines!(
        text,
        "add {{"
        "  a = f32[] parameter(0)"
        "  b = f32[] parameter(1)"
        "  ROOT sum = f32[] add(a, b)"
        "}}"
        ""
        "ENTRY main {{"
    );
    for i in 0..n {
        lines!(text, "  p{i} = f32[64] parameter({i})" "  v{i} = f32[64] sine(p{i})");
    }
    let (shape, all) = (format!("({})", vec!["f32[64]"; n].join(", ")), list_of("v", n));
    lines!(text, "  sums = {shape} all-reduce({all}), replica_groups={{}}, to_apply=add");
    for i in 0..n {
        lines!(
            text,
            "  sum{i} = f32[64] get-tuple-element(sums), index={i}"
            "  new{i} = f32[64] subtract(p{i}, sum{i})"
        );
    }
    let all = list_of("new", n);
    lines!(text, "  ROOT out = {shape} tuple({all})" "}}");
    text.0
}

/// Numbered names.
fn list_of(name: &str, n: usize) -> String {
    (0..n).map(|i| format!("{name}{i}")).collect::<Vec<_>>().join(", ")
}

/// An array of so many dimensions.
fn rank(n: usize) -> String {
    let shape = format!("f32[{}]", vec!["1"; n].join(","));
    let mut text = Text::new();
    lines!(
        text,
        "ENTRY main {{"
        "  p = {shape} parameter(0)"
        "  minus = {shape} negate(p)"
        "  ROOT out = f32[] reshape(minus)"
        "}}"
    );
    text.0
}
