//! The program of one device: sharded, gathered and summed values.

use memplan_hlo::{parse, print};
use memplan_ir::verify;
use memplan_memory::Target;
use memplan_passes::{Context, partition};

#[track_caller]
fn of_one_device(parameters: &str, body: &str) -> Option<(String, u64)> {
    let text = format!("HloModule m\nENTRY main {{\n{parameters}\n{body}\n}}\n");
    let target = Target::find("cpu").unwrap();
    let (module, devices) = partition(&parse(&text).unwrap(), &Context { target: &target }).unwrap()?;
    verify(&module).unwrap();
    Some((print(&module).to_string(), devices))
}

#[track_caller]
fn check(body: &str, expected: &[&str]) {
    let parameters = "w = f32[64,32] parameter(0), sharding={devices=[8,1]<=[8]}
                      x = f32[16,64] parameter(1), sharding={devices=[8,1]<=[8]}
                      y = f32[16,64] parameter(2)";
    let (text, devices) = of_one_device(parameters, body).expect("parameters are cut");
    assert_eq!(devices, 8);
    assert!(text.contains("f32[8,32]{1,0} parameter(0)"), "{text}");
    for line in expected {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[test]
fn rows_of_a_product_come_before_its_columns() {
    check(
        "ROOT d = f32[16,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        &["= f32[64,32]{1,0} all-gather(", "ROOT %d = f32[2,32]{1,0} dot(%x, "],
    );
    check(
        "z = f32[5,32] constant({...})
         ROOT d = f32[5,64] dot(z, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
        &["ROOT %d = f32[5,8]{1,0} dot(%z, %w)"],
    );
}

#[test]
fn sums_of_parts_are_added_up() {
    check(
        "ROOT d = f32[64,64] dot(x, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}",
        &["= f32[64,64]{1,0} dot(%x, %x)", "ROOT %d = f32[64,64]{1,0} all-reduce("],
    );
}

#[test]
fn what_is_computed_from_parts_is_a_part() {
    check(
        "t = f32[32,64] transpose(w), dimensions={1,0}\nROOT n = f32[32,64] negate(t)",
        &["ROOT %n = f32[32,8]{1,0} negate(", "f32[32,8]"],
    );
    check("ROOT s = f32[16,64] add(x, y)", &["= f32[2,64]{1,0} slice(%y)", "ROOT %s = f32[2,64]"]);
}

#[test]
fn there_is_no_program_of_one_device_where_parameters_are_cut_otherwise() {
    let cut_twice = "p = f32[8,8] parameter(0), sharding={devices=[2,2]<=[4]}";
    assert_eq!(of_one_device(cut_twice, "ROOT n = f32[8,8] negate(p)"), None);
    assert_eq!(of_one_device("p = f32[8,8] parameter(0)", "ROOT n = f32[8,8] negate(p)"), None);
}
