//! Orders as XLA's memory schedulers find them.

use memplan_ir::Module;
use memplan_memory::Target;
use memplan_planner::{DEPTH_FIRST_AS_XLA, Method, POST_ORDER_AS_XLA, ScheduleOptions, schedule};

/// The names of what the entry computation computes, in the order that one method finds.
fn order(text: &str, method: Method) -> String {
    let module: Module = memplan_hlo::parse(text).expect("parses");
    let target = Target::find("toy").expect("built in");
    let options = ScheduleOptions { budget: 0, methods: vec![method], ..ScheduleOptions::default() };
    let (schedule, _) = schedule(&module, &target, &options).expect("there is an order");
    let computes = |name: &&str| !name.starts_with("arg");
    let names = schedule.sequence(module.entry).iter().map(|&id| &*module.instructions[id].name);
    names.filter(computes).collect::<Vec<_>>().join(" ")
}

/// `d` has an extra user behind it, more bytes are behind `c`.
#[test]
fn extra_users_weigh_more_than_bytes() {
    let text = "HloModule m
        ENTRY main {
          arg0 = f32[64] parameter(0)
          arg1 = f32[8] parameter(1)
          a = f32[64] negate(arg0)
          c = f32[8] slice(a), slice={[0:8]}
          b = f32[8] negate(arg1)
          d = f32[8] multiply(b, b)
          e = f32[8] add(c, d)
          ROOT r = f32[8] add(e, b)
        }";
    assert_eq!(order(text, DEPTH_FIRST_AS_XLA), "b d a c e r");
    assert_eq!(order(text, POST_ORDER_AS_XLA), "a c b d e r");
}

/// Without extra users, the operand with more bytes behind it comes first, and among equals the name decides.
#[test]
fn bytes_decide_among_equals_then_names() {
    let text = "HloModule m
        ENTRY main {
          arg0 = f32[8] parameter(0)
          arg1 = f32[64] parameter(1)
          arg2 = f32[8] parameter(2)
          z = f32[8] negate(arg0)
          l = f32[8] slice(arg1), slice={[0:8]}
          k = f32[8] negate(arg2)
          ROOT r = (f32[8], f32[8], f32[8]) tuple(z, l, k)
        }";
    assert_eq!(order(text, DEPTH_FIRST_AS_XLA), "l k z r");
}

/// Every step of a chain doubles what is counted behind it, so both chains reach the limits; then the bytes so far decide,
/// which are more for the chain that comes later in post-order.
#[test]
fn sums_stop_at_what_there_is() {
    let chain = |of: &str| {
        let step = |i: usize| {
            let before = if i == 0 { format!("arg{of}") } else { format!("{of}{}", i - 1) };
            format!("{of}n{i} = f32[8] negate({before})\n {of}{i} = f32[8] add({before}, {of}n{i})\n")
        };
        (0..6).map(step).collect::<String>()
    };
    let text = format!(
        "HloModule m
        ENTRY main {{
          argx = f32[8] parameter(0)
          argy = f32[8] parameter(1)
          {}{}
          ROOT r = f32[8] add(x5, y5)
        }}",
        chain("x"),
        chain("y")
    );
    let order = order(&text, DEPTH_FIRST_AS_XLA);
    assert!(order.starts_with("yn0 y0") && order.ends_with("xn5 x5 r"), "{order}");
}
