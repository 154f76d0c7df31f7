//! Programs of one device, run on all devices, give what the whole program gives.
//!
//! `tests/spmd` has small programs of `scripts/sharded_programs.py --small`.

use std::path::PathBuf;

use memplan_interp::{Devices, Options, evaluate, evaluate_on};
use memplan_ir::{Literal, Module, Op, verify};
use memplan_memory::Target;
use memplan_rewriter::Context;
use memplan_spmd::{OfOneDevice, partition};
use memplan_testkit::{first_difference, leaves, part, random_inputs};

fn parsed(text: &str) -> Module {
    let module = memplan_hlo::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    verify(&module).expect("the program is valid");
    module
}

fn of_one_device(module: &Module) -> Option<OfOneDevice> {
    of_one_device_of(module, "gpu-h100")
}

fn of_one_device_of(module: &Module, target: &str) -> Option<OfOneDevice> {
    let target = Target::find(target).expect("a built-in target");
    let of_one = partition(module, &Context { target: &target }).expect("calls can be inlined")?;
    if let Err(errors) = verify(&of_one.module) {
        panic!("{errors}\n{}", memplan_hlo::print(&of_one.module));
    }
    Some(of_one)
}

/// Runs a program whole, and on all devices of a target.
fn check(text: &str, name: &str, target: &str) {
    let module = parsed(text);
    let of_one = of_one_device_of(&module, target).unwrap_or_else(|| panic!("{name} is not partitioned"));
    let mut inputs = random_inputs(&module, 1);
    // Labels and places are small numbers, and not negative.
    for input in &mut inputs {
        if let Literal::Array(array) = input
            && !array.element_type.is_floating()
        {
            let bytes = vec![0; array.bytes().len()];
            *input = Literal::array(array.element_type, array.dimensions.iter().copied(), bytes);
        }
    }
    let expected = evaluate(&module, &inputs, &Options::default()).expect("the whole program runs");
    let local = &of_one.module;
    let n = of_one.devices;
    let of_device = |device: u64| -> Vec<Literal> {
        let parameters = &local.entry_computation().parameters;
        let cut = |(k, &parameter): (usize, &_)| {
            let extents = &local.shape(parameter).as_array().expect("parameters are arrays").dimensions;
            let starts = of_one.parameter_starts(k, device, extents);
            part(inputs[k].as_array().expect("inputs are arrays"), &starts, extents)
        };
        parameters.iter().enumerate().map(cut).collect()
    };
    let given: Vec<Vec<Literal>> = (0..n).map(of_device).collect();
    let devices = Devices { replicas: 1, partitions: n as usize };
    let found = evaluate_on(local, devices, &given, &Options::default())
        .unwrap_or_else(|error| panic!("{name}: {error}\n{}", memplan_hlo::print(local)));
    for (device, found) in (0..).zip(&found) {
        for (leaf, (found, expected)) in leaves(found).into_iter().zip(leaves(&expected)).enumerate() {
            let starts = of_one.result_starts(leaf, device, &found.dimensions);
            let expected = part(expected, &starts, &found.dimensions);
            if let Some(difference) = first_difference(&Literal::Array(found.clone()), &expected, 1e-4) {
                panic!(
                    "{name}: result {leaf} of device {device} {difference}\n{}",
                    memplan_hlo::print(local)
                );
            }
        }
    }
}

/// The programs of `tests/spmd`.
fn programs() -> Vec<(String, String)> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/spmd"));
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("the programs are in the repository")
        .filter_map(|e| Some(e.ok()?.path()))
        .collect();
    files.sort();
    let name = |file: &PathBuf| file.file_name().expect("a file").to_string_lossy().into_owned();
    files.iter().map(|file| (name(file), std::fs::read_to_string(file).expect("a program is text"))).collect()
}

#[test]
fn programs_of_one_device_give_what_the_whole_gives() {
    let mut n = 0;
    for (name, text) in programs() {
        // The evaluator does not run a `shard_map` as a whole.
        if !text.contains("GlobalToLocalShape") {
            check(&text, &name, "gpu-h100");
            // Sums are whole on every device.
            check(&text, &name, "cpu");
            n += 1;
        }
    }
    assert!(n >= 5, "{n} programs were run");
}

#[test]
fn a_program_of_all_devices_is_partitioned_into_the_same() {
    for (name, text) in programs() {
        let module = parsed(&text);
        let of_one = of_one_device(&module).unwrap_or_else(|| panic!("{name} is not partitioned"));
        let all =
            of_one.for_all(&module, &of_one.module).unwrap_or_else(|| panic!("{name} has another interface"));
        let all = parsed(&memplan_hlo::print(&all).to_string());
        let again = of_one_device(&all).expect("it is a manual computation");
        let shapes = |module: &Module| -> Vec<String> {
            let live = module.entry_computation().instructions.iter();
            let is_work = |op: &Op| !matches!(op, Op::Tuple | Op::GetTupleElement { .. });
            let names = live.filter(|&&id| is_work(&module.instructions[id].op));
            names
                .map(|&id| format!("{:?} {:?}", module.instructions[id].opcode(), module.shape(id)))
                .collect()
        };
        assert_eq!(shapes(&of_one.module).len(), shapes(&again.module).len(), "{name}");
        assert_eq!((of_one.parameters, of_one.results), (again.parameters, again.results), "{name}");
    }
}

#[track_caller]
fn one(parameters: &str, body: &str) -> String {
    let text = format!("HloModule m\nENTRY main {{\n{parameters}\n{body}\n}}\n");
    check(&text, &text, "gpu-h100");
    check(&text, &text, "cpu");
    memplan_hlo::print(&of_one_device(&parsed(&text)).expect("parameters are cut").module).to_string()
}

#[track_caller]
fn expect(body: &str, lines: &[&str]) {
    let parameters = "w = f32[64,32] parameter(0), sharding={devices=[8,1]<=[8]}
                      x = f32[16,64] parameter(1), sharding={devices=[8,1]<=[8]}
                      y = f32[16,64] parameter(2), sharding={replicated}";
    let text = one(parameters, body);
    assert!(text.contains("f32[8,32]{1,0} parameter(0)"), "{text}");
    for line in lines {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[test]
fn rows_of_a_product_come_before_its_columns() {
    expect(
        "ROOT d = f32[16,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        &["= f32[64,32]{1,0} all-gather(", "ROOT %d = f32[2,32]{1,0} dot(%x, "],
    );
    expect(
        "z = f32[5,32] iota(), iota_dimension=1
         ROOT d = f32[5,64] dot(z, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
        &["ROOT %d = f32[5,8]{1,0} dot(%z, %w)"],
    );
}

#[test]
fn sums_of_parts_are_added_up() {
    expect(
        "ROOT d = f32[64,64] dot(x, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}",
        &["= f32[64,64]{1,0} dot(%x, %x)", "= f32[64,64]{1,0} all-reduce("],
    );
    expect(
        "ROOT d = f32[64,64] dot(x, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}, sharding={devices=[8,1]<=[8]}",
        &["= f32[64,64]{1,0} dot(%x, %x)", "= f32[8,64]{1,0} reduce-scatter("],
    );
}

#[test]
fn dimensions_change_by_exchange() {
    expect("ROOT n = f32[16,64] negate(x), sharding={devices=[1,8]<=[8]}", &["all-to-all("]);
    let parameters = "p = f32[8,12,4] parameter(0), sharding={devices=[2,1,2]<=[4]}";
    one(parameters, "ROOT t = f32[8,12,4] negate(p), sharding={devices=[1,2,2]<=[2,2]T(1,0)}");
    one(parameters, "t = f32[4,12,8] transpose(p), dimensions={2,1,0}\nROOT r = f32[48,8] reshape(t)");
}

#[test]
fn windows_and_orders_get_whole_operands() {
    let parameters = "p = f32[8,4] parameter(0), sharding={devices=[4,1]<=[4]}";
    one(parameters, "z = f32[] constant(1)\nROOT t = f32[9,4] pad(p, z), padding=1_0x0_0");
    one(parameters, "ROOT t = f32[8,4] reverse(p), dimensions={0}");
    one(parameters, "ROOT t = f32[16,4] concatenate(p, p), dimensions={0}");
    one(parameters, "ROOT t = f32[4,4] slice(p), slice={[1:8:2],[0:4]}");
    one(parameters, "i = f32[8,4] iota(), iota_dimension=0\nROOT t = f32[8,4] add(i, p)");
}

#[test]
fn what_is_not_cut_is_not_partitioned() {
    let text = "HloModule m\nENTRY main {\n p = f32[8,8] parameter(0)\n ROOT n = f32[8,8] negate(p)\n}\n";
    assert!(of_one_device(&parsed(text)).is_none());
    let uneven = text.replace("parameter(0)", "parameter(0), sharding={devices=[3,1]<=[3]}");
    assert!(of_one_device(&parsed(&uneven)).is_none());
    let disordered = text.replace("parameter(0)", "parameter(0), sharding={devices=[4,1]0,2,1,3}");
    assert!(of_one_device(&parsed(&disordered)).is_none());
}
