//! What XLA's parser makes of a text beyond what the text says, so that both write the same protobuf: a case each.

use memplan_hlo::{parse, print, proto};
use memplan_ir::{Instruction, Module, Op};

#[test]
fn what_runs_asynchronously_is_named_by_its_opcode_and_has_the_notes() {
    let text = r#"HloModule m

ENTRY e {
  x = f32[8] parameter(0)
  s = ((f32[8]), f32[4], s32[]) slice-start(x), slice={[0:4]}, metadata={op_name="start"}, backend_config={"k":1}
  ROOT d = f32[4] slice-done(s), metadata={op_name="done"}, frontend_attributes={a="1"}
}
"#;
    let module = parse(text).expect("the text is valid");
    let slice = root_of_first(&module);
    assert_eq!((&*slice.name, slice.opcode().to_string().as_str()), ("slice", "slice"));
    assert_eq!(
        slice.metadata.as_ref().map(|metadata| &*metadata.op_name),
        Some("done"),
        "the last one stays"
    );
    assert_eq!(slice.backend_config.as_deref(), Some(&br#"{"k":1}"#[..]));
    assert_eq!(slice.frontend_attribute("a"), Some("1"));
    // Text says it once again.
    assert!(!print(&module).contains("async_wrapped"), "{}", print(&module));
    assert_eq!(parse(&print(&module)).expect("own text is valid"), module);
}

#[test]
fn notes_that_the_operations_do_not_say_are_in_the_text() {
    let text = "HloModule m

ENTRY e {
  x = f32[8] parameter(0)
  s = ((f32[8]), f32[4], s32[]) slice-start(x), slice={[0:4]}
  ROOT d = f32[4] slice-done(s)
}
";
    let mut module = parse(text).expect("the text is valid");
    let root = module.computations.values().next().expect("there is one").root;
    module.instructions[root].backend_config = Some(b"own".as_slice().into());
    assert!(print(&module).contains("calls=%async_wrapped"), "{}", print(&module));
}

#[test]
fn a_computation_that_is_called_asynchronously_gets_the_notes_too() {
    let text = "HloModule m

f {
  x = f32[4] parameter(0)
  y = f32[4] negate(x)
  ROOT t = f32[4] add(x, y)
}

ENTRY e {
  x = f32[4] parameter(0)
  s = ((f32[4]), f32[4]) async-start(x), calls=f, frontend_attributes={group=\"\"}
  ROOT d = f32[4] async-done(s)
}
";
    let module = parse(text).expect("the text is valid");
    assert_eq!(root_of_first(&module).frontend_attribute("group"), Some(""));
}

#[test]
fn a_scan_that_says_nothing_is_not_associative() {
    let text = "HloModule m

f {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT t = (f32[], f32[]) tuple(x, y)
}

ENTRY e {
  x = f32[8] parameter(0)
  y = f32[] parameter(1)
  ROOT s = (f32[8], f32[]) scan(x, y), dimensions={0}, num_carries=1, to_apply=f
}
";
    let module = parse(text).expect("the text is valid");
    let Op::Scan(scan) = &module.instructions[module.entry_computation().root].op else { panic!("a scan") };
    assert_eq!(scan.is_associative, Some(false));
}

#[test]
fn a_recovery_table_goes_through_protobuf() {
    let text = r#"HloModule m, origin_recovery_table={
  {"a"} : {"b"}
  {"a"} : {"not this one"}
  {"c" {0}} : {"d" {1}},
  "HloModule r
   ENTRY e {
     x = f32[4] parameter(0), metadata={op_name=\"n\"}
     ROOT y = f32[4] negate(x)
   }"
}

ENTRY e {
  ROOT x = f32[4] parameter(0)
}
"#;
    let mut module = parse(text).expect("the text is valid");
    let written = proto::write_module(&module).expect("the recovery module is valid");
    let read = proto::read(&written).expect("own bytes can be read");
    assert_eq!(read.warnings, []);
    let recovery = &mut module.config.origin_recovery_table[1].recovery_module;
    let inner = proto::write_module(&parse(recovery).expect("valid")).expect("valid");
    *recovery = print(&proto::read(&inner).expect("own bytes can be read").module).into();
    assert_eq!(read.module.config.origin_recovery_table, module.config.origin_recovery_table);
    assert_eq!(proto::write_module(&read.module).as_ref(), Ok(&written));

    module.config.origin_recovery_table[1].recovery_module = "no module".into();
    let error = proto::write_module(&module).expect_err("it cannot be read");
    assert_eq!(error.to_string(), "a recovery module of the origin_recovery_table cannot be read");
}

/// The root of the first computation, which something calls.
fn root_of_first(module: &Module) -> &Instruction {
    &module.instructions[module.computations.values().next().expect("there is one").root]
}
