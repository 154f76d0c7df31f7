//! Programs on several devices that exchange arrays.

use memplan_interp::{Devices, Error, Options, evaluate_on};
use memplan_ir::{ElementType, Literal, Module};

/// Runs on as many devices as the module says, each given its own `[10 d, 10 d + 1, ...]`, and gives the integers that
/// each ends with.
#[track_caller]
fn run(body: &str, header: &str, extent: i32) -> Vec<Vec<i32>> {
    let module = parse(body, header, extent);
    let devices = Devices::of(&module);
    let inputs: Vec<Vec<Literal>> = (0..devices.count() as i32).map(|d| vec![input(d, extent)]).collect();
    let found = evaluate_on(&module, devices, &inputs, &Options::default()).expect("the program runs");
    found.iter().map(integers).collect()
}

fn parse(body: &str, header: &str, extent: i32) -> Module {
    let text = format!(
        "HloModule m, {header}\n\nadd {{\n  a = s32[] parameter(0)\n  b = s32[] parameter(1)\n  ROOT r = s32[] add(a, b)\n\
         }}\n\nENTRY e {{\n  p = s32[{extent}] parameter(0)\n  {body}\n}}\n"
    );
    memplan_hlo::parse(&text).expect("the module is valid")
}

fn input(device: i32, extent: i32) -> Literal {
    let bytes: Vec<u8> = (0..extent).flat_map(|i| (10 * device + i).to_le_bytes()).collect();
    Literal::array(ElementType::S32, [extent as i64], bytes)
}

fn integers(literal: &Literal) -> Vec<i32> {
    match literal {
        Literal::Array(a) => {
            a.bytes().chunks(4).map(|b| i32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
        }
        Literal::Tuple(elements) => elements.iter().flat_map(integers).collect(),
        Literal::Token => Vec::new(),
    }
}

#[test]
fn a_reduction_adds_up_each_group() {
    let body = "ROOT r = s32[2] all-reduce(p), replica_groups={{0,2},{1,3}}, to_apply=add";
    let found = run(body, "replica_count=4", 2);
    assert_eq!(found, [[20, 22], [40, 42], [20, 22], [40, 42]]);
}

#[test]
fn who_is_in_no_group_of_a_broadcast_gets_zeros() {
    let body = "ROOT r = s32[2] collective-broadcast(p), replica_groups={{2,1}}";
    assert_eq!(run(body, "replica_count=4", 2), [[0, 0], [20, 21], [20, 21], [0, 0]]);
    assert_eq!(run(body, "replica_count=1", 2), [[0, 0]]);
    let body = "ROOT r = s32[1] collective-broadcast(p), replica_groups={{1},{3,0}}";
    assert_eq!(run(body, "replica_count=4", 1), [[30], [10], [0], [30]]);
}

#[test]
fn groups_may_be_an_iota() {
    let body = "ROOT r = s32[2] all-reduce(p), channel_id=1, use_global_device_ids=true, \
                replica_groups=[2,2]<=[2,2]T(1,0), to_apply=add";
    let found = run(body, "num_partitions=4", 2);
    assert_eq!(found, [[20, 22], [40, 42], [20, 22], [40, 42]]);
}

#[test]
fn without_a_channel_replicas_meet_within_their_partition() {
    let body = "ROOT r = s32[1] all-reduce(p), replica_groups={}, to_apply=add";
    let found = run(body, "replica_count=2, num_partitions=2", 1);
    assert_eq!(found, [[20], [40], [20], [40]]);
}

#[test]
fn with_a_channel_partitions_take_part() {
    let body = "ROOT r = s32[1] all-reduce(p), channel_id=1, replica_groups={{0},{1}}, to_apply=add";
    let found = run(body, "replica_count=2, num_partitions=2", 1);
    assert_eq!(found, [[10], [10], [50], [50]]);
}

#[test]
fn gathered_parts_are_in_the_order_of_the_group() {
    let body = "ROOT r = s32[4] all-gather(p), dimensions={0}, replica_groups={{1,0}}";
    assert_eq!(run(body, "replica_count=2", 2), [[10, 11, 0, 1], [10, 11, 0, 1]]);
}

#[test]
fn a_scattered_sum_leaves_each_its_part() {
    let body = "ROOT r = s32[1] reduce-scatter(p), dimensions={0}, replica_groups={{0,1}}, to_apply=add";
    assert_eq!(run(body, "replica_count=2", 2), [[10], [12]]);
}

#[test]
fn all_exchange_with_all() {
    let body = "ROOT r = s32[2] all-to-all(p), dimensions={0}, replica_groups={{0,1}}";
    assert_eq!(run(body, "replica_count=2", 2), [[0, 10], [1, 11]]);
    let body = "q = s32[2] negate(p)\n  ROOT r = (s32[2], s32[2]) all-to-all(p, q), replica_groups={{0,1}}";
    assert_eq!(run(body, "replica_count=2", 2), [[0, 1, 10, 11], [0, -1, -10, -11]]);
}

#[test]
fn who_receives_from_no_one_gets_zeros() {
    let body = "ROOT r = s32[1] collective-permute(p), channel_id=1, source_target_pairs={{0,1},{1,2}}";
    assert_eq!(run(body, "num_partitions=3", 1), [[0], [0], [10]]);
}

#[test]
fn asynchronous_halves_exchange_too() {
    let body = "s = (s32[1], s32[2]) all-gather-start(p), dimensions={0}, replica_groups={{0,1}}\n  \
                ROOT r = s32[2] all-gather-done(s)";
    assert_eq!(run(body, "replica_count=2", 1), [[0, 10], [0, 10]]);
}

#[test]
fn ids_tell_devices_apart() {
    let body = "r = u32[] replica-id()\n  q = u32[] partition-id()\n  ROOT t = (u32[], u32[]) tuple(r, q)";
    assert_eq!(run(body, "replica_count=2, num_partitions=2", 1), [[0, 0], [0, 1], [1, 0], [1, 1]]);
}

#[test]
fn a_device_that_never_comes_is_an_error_and_no_hang() {
    let text = "HloModule m, replica_count=2\n\nadd {\n  a = s32[] parameter(0)\n  b = s32[] parameter(1)\n  \
                ROOT r = s32[] add(a, b)\n}\n\nyes {\n  x = s32[1] parameter(0)\n  ROOT r = s32[1] all-reduce(x), \
                replica_groups={{0,1}}, to_apply=add\n}\n\nno {\n  ROOT x = s32[1] parameter(0)\n}\n\nENTRY e {\n  \
                p = s32[1] parameter(0)\n  i = u32[] replica-id()\n  j = s32[] convert(i)\n  \
                ROOT r = s32[1] conditional(j, p, p), branch_computations={yes, no}\n}\n";
    let module = memplan_hlo::parse(text).expect("the module is valid");
    let inputs = [vec![input(0, 1)], vec![input(1, 1)]];
    let found = evaluate_on(&module, Devices::of(&module), &inputs, &Options::default());
    assert!(matches!(found, Err(Error::Deadlock(_))), "{found:?}");
}

#[test]
fn every_device_needs_inputs() {
    let module = parse("ROOT r = s32[1] negate(p)", "replica_count=2", 1);
    let found = evaluate_on(&module, Devices::of(&module), &[vec![input(0, 1)]], &Options::default());
    assert!(matches!(found, Err(Error::Devices { given: 1, expected: 2, .. })), "{found:?}");
}
