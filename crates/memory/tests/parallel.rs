//! The arguments on one device, for a program that is not partitioned yet.

use memplan_hlo::parse;
use memplan_memory::parallel::arguments_per_device;
use memplan_memory::{Bytes, Target};

#[track_caller]
fn check(parameters: &str, target: &str, expected: Option<u64>) {
    let text = format!("HloModule m\nENTRY e {{ {parameters} ROOT t = token[] after-all() }}\n");
    let module = parse(&text).unwrap_or_else(|error| panic!("{text}: {error:?}"));
    assert_eq!(arguments_per_device(&module, &Target::find(target).unwrap()), expected.map(Bytes), "{text}");
}

#[test]
fn pieces_are_rounded_up() {
    check("p = f32[10,6] parameter(0), sharding={devices=[4,1]<=[4]}", "cpu", Some(4 * 3 * 6));
    let mesh = "p = f32[10,6] parameter(0), sharding={mesh['a'=4,'b'=3], [{'a'},{'b'}]}";
    check(mesh, "cpu", Some(4 * 3 * 2));
}

#[test]
fn what_is_not_cut_counts_whole() {
    let both =
        "p = f32[8] parameter(0), sharding={devices=[2]<=[2]} q = f32[8] parameter(1), sharding={replicated}";
    check(both, "cpu", Some(16 + 32));
    check("p = f32[8] parameter(0), sharding={replicated}", "cpu", None);
    check("p = f32[8] parameter(0)", "cpu", None);
}

#[test]
fn leaves_of_tuples_have_their_own() {
    let tuple = "p = (f32[8], (s32[4])) parameter(0), sharding={{devices=[4]<=[4]}, {replicated}}";
    check(tuple, "cpu", Some(8 + 16 + 16 + 8));
}

#[test]
fn layouts_pad_the_piece() {
    // 129 rows are 17 tiles of 8; the half of 65 rows is 9, not 8.5.
    let halves = "p = f32[129,128]{1,0:T(8,128)} parameter(0), sharding={devices=[2,1]<=[2]}";
    check(halves, "tpu-v5e", Some(9 * 8 * 128 * 4));
}
