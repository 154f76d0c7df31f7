//! Modules of 100,000 instructions, shaped to be the worst case of anything that is not close to linear. Seconds are
//! printed (`--nocapture`), and no test judges them.

use std::fmt::Write;
use std::time::Instant;

use memplan_memory::Target;
use memplan_passes::{Context, SIMPLIFY, TAKE_APART};

use crate::simplify::filetests::run_twice;

const N: usize = 100_000;

#[track_caller]
fn check(body: &str, instructions_after: usize) {
    let source = format!("HloModule big\nENTRY main {{\n  p = f32[8,4] parameter(0)\n{body}}}\n");
    let module = memplan_hlo::parse(&source).unwrap();
    let target = Target::find("cpu").unwrap();
    let start = Instant::now();
    let after = run_twice(&module, &[&TAKE_APART, &SIMPLIFY], &Context { target: &target });
    eprintln!(
        "{} -> {} instructions in {:?}",
        module.instruction_count(),
        after.instruction_count(),
        start.elapsed()
    );
    assert_eq!(after.instruction_count(), instructions_after);
}

#[test]
fn chain_that_stays() {
    let mut body = String::from("  i0 = f32[8,4] negate(p)\n");
    for i in 1..N {
        let op = if i % 2 == 0 { "negate" } else { "exponential" };
        writeln!(body, "  i{i} = f32[8,4] {op}(i{})", i - 1).unwrap();
    }
    check(&body, 1 + N);
}

#[test]
fn chain_that_collapses() {
    let mut body = String::from("  i0 = f32[8,4] exponential(p)\n");
    for i in 1..N {
        let before = i - 1;
        match i % 2 {
            1 => writeln!(body, "  i{i} = f32[4,8] transpose(i{before}), dimensions={{1,0}}").unwrap(),
            _ => writeln!(body, "  i{i} = f32[8,4] transpose(i{before}), dimensions={{1,0}}").unwrap(),
        }
    }
    // The parameter, the exponential, and one transpose: their number is odd.
    check(&body, 3);
}

#[test]
fn one_array_with_many_users() {
    let mut body = String::from("  c = f32[] constant(0)\n  z = f32[8,4] broadcast(c), dimensions={}\n");
    body.push_str("  x = f32[8,4] add(p, z)\n");
    for i in 0..N {
        let (row, column) = (i % 8, i % 4);
        writeln!(
            body,
            "  k{i} = f32[1,1] slice(x), slice={{[{row}:{}],[{column}:{}]}}\n  e{i} = f32[1,1] exponential(k{i})",
            row + 1,
            column + 1
        )
        .unwrap();
    }
    let users: Vec<String> = (0..N).map(|i| format!("e{i}")).collect();
    writeln!(body, "  ROOT t = ({}) tuple({})", vec!["f32[1,1]"; N].join(", "), users.join(", ")).unwrap();
    // The parameter, 8 distinct slices, 8 exponentials, and the tuple.
    check(&body, 18);
}
