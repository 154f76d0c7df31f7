//! Orders as XLA's memory schedulers find them.

use memplan_ir::Module;
use memplan_memory::Target;
use memplan_plan_hlo::{
    BREADTH_FIRST_AS_XLA, DEPTH_FIRST_AS_XLA, LIST_AS_XLA, Method, POST_ORDER_AS_XLA, ScheduleOptions,
    schedule,
};

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
          w = f32[64] negate(arg1)
          l = f32[8] slice(w), slice={[0:8]}
          k = f32[8] negate(arg2)
          ROOT r = (f32[8], f32[8], f32[8]) tuple(z, l, k)
        }";
    assert_eq!(order(text, DEPTH_FIRST_AS_XLA), "w l k z r");
}

/// Nothing is behind parameters: not the bytes of `arg1`, nor its users.
#[test]
fn parameters_count_for_nothing() {
    let text = "HloModule m
        ENTRY main {
          arg0 = f32[8] parameter(0)
          arg1 = f32[64] parameter(1)
          l = f32[8] slice(arg1), slice={[0:8]}
          k = f32[8] negate(arg0)
          m = f32[8] slice(arg1), slice={[8:16]}
          ROOT r = (f32[8], f32[8], f32[8]) tuple(m, l, k)
        }";
    assert_eq!(order(text, DEPTH_FIRST_AS_XLA), "k l m r");
}

/// What takes one array comes before what takes four, and before that what frees as much as it takes.
#[test]
fn list_takes_what_frees_the_most() {
    let text = "HloModule m
        add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
        ENTRY main {
          arg0 = f32[256] parameter(0)
          arg1 = f32[] parameter(1)
          wide = f32[4,256] broadcast(arg0), dimensions={1}
          sum = f32[256] reduce(wide, arg1), dimensions={0}, to_apply=add
          small = f32[256] negate(arg0)
          same = f32[256] exponential(small)
          ROOT r = (f32[256], f32[256]) tuple(sum, same)
        }";
    assert_eq!(order(text, LIST_AS_XLA), "small same wide sum r");
    assert_eq!(order(text, DEPTH_FIRST_AS_XLA), "wide sum small same r");
    assert_eq!(order(text, BREADTH_FIRST_AS_XLA), "wide small sum same r");
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
