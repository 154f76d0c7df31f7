//! The protobuf front-end: against the corpus, against the texts in `tests/hlo`, and against bytes that are no module.

use std::path::Path;
use std::sync::Arc;

use memplan_hlo::fuzzing::check_proto;
use memplan_hlo::{parse, print, proto};
use memplan_ir::{Instruction, Module, verify};
use memplan_testkit::corpus;

const SMALL: &str = r#"HloModule small, is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }, buffer_donor={ (1, {}) }

%add (p: f32[], q: f32[]) -> f32[] {
  %p = f32[] parameter(0)
  %q = f32[] parameter(1)
  ROOT %r = f32[] add(%p, %q)
}

ENTRY %main (x: f32[4], y: f32[4]) -> f32[4] {
  %x = f32[4]{0:T(8)S(1)} parameter(0), sharding={devices=[4]<=[4]}, frontend_attributes={k="v"}
  %y = f32[4]{0} parameter(1)
  %c = f32[4]{0} constant({1, -2500, 0, inf}), metadata={op_name="a" source_line=3}
  %i = s4[3]{0:E(4)} constant({1, -2, 7})
  %m = s32[2,3]{0,1} constant({ { 1, 2, 3 }, { 4, 5, 6 } })
  %g = pred[4]{0} compare(%y, %c), direction=GE, type=TOTALORDER
  %z = f32[] constant(0)
  %s = f32[] reduce(%c, %z), dimensions={0}, to_apply=%add, backend_config={"k":1}
  %b = f32[4]{0} broadcast(%s), dimensions={}, control-predecessors={%g}
  ROOT %t = f32[4]{0:T(8)S(1)} add(%x, %b)
}

"#;

#[test]
fn the_corpus_reads_as_its_text_does() {
    for program in corpus() {
        let text = program.text("before");
        let program = program.folder;
        let bytes = std::fs::read(program.join("before.hlo.pb")).expect("the corpus is readable");
        let imported = proto::read(&bytes).unwrap_or_else(|error| panic!("{}: {error:?}", program.display()));
        assert_eq!(imported.warnings, [], "{}", program.display());
        assert_eq!(verify(&imported.module), Ok(()), "{}", program.display());
        let mut from_text = parse(&text).expect("the corpus parses");
        forget_what_messages_have_no_place_for(&mut from_text);
        assert_same(&imported.module, &from_text, &program);

        let written =
            proto::write(&imported.module, imported.buffer_assignment.as_deref()).expect("it is valid");
        let again = proto::read(&written).expect("our own output reads back");
        assert_same(&again.module, &imported.module, &program);
        assert_eq!(again.buffer_assignment, imported.buffer_assignment);
        assert_eq!(again.module.config, imported.module.config);
    }
}

#[test]
fn texts_survive_the_way_through_protobuf() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/hlo/parse");
    for case in std::fs::read_dir(cases).expect("the cases are there") {
        let path = case.expect("the cases are readable").path();
        let source = std::fs::read_to_string(&path).expect("the case is readable");
        let Ok(mut module) = parse(&source) else { continue };
        let once = proto::write_module(&module).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let imported = proto::read(&once).unwrap_or_else(|error| panic!("{}: {error:?}", path.display()));
        assert_eq!(imported.warnings, []);
        assert_eq!(proto::write_module(&imported.module).as_ref(), Ok(&once), "{}", path.display());
        forget_what_messages_have_no_place_for(&mut module);
        assert_eq!(imported.module.instruction_count(), module.instruction_count(), "{}", path.display());
        for (a, b) in in_order(&imported.module).zip(in_order(&module)) {
            assert_eq!(imported.module.shape_of(a.shape), module.shape_of(b.shape));
            assert_eq!(a.opcode(), b.opcode());
            // Everything but what `forget` lists and the defaults that text may spell out.
            let spelled_out =
                ["custom-call", "compare", "all-reduce", "all-reduce-start", "reduce-scatter", "topk"];
            if !spelled_out.contains(&a.opcode().to_string().as_str()) {
                assert_eq!(a.op, b.op, "{}: {}", path.display(), b.name);
            }
            assert_eq!(
                (&a.called, a.operands.len()),
                (&b.called, b.operands.len()),
                "{}: {}",
                path.display(),
                b.name
            );
            assert_eq!(
                (&a.metadata, &a.backend_config),
                (&b.metadata, &b.backend_config),
                "{}",
                path.display()
            );
        }
    }
}

#[test]
fn both_messages_are_told_apart() {
    let module = parse(SMALL).expect("the text is valid");
    assert_eq!(verify(&module), Ok(()));
    let bare = proto::read(&proto::write_module(&module).expect("valid")).expect("a bare module reads");
    assert_eq!(bare.buffer_assignment, None);
    let file = proto::read(&proto::write(&module, Some(b"bytes")).expect("valid")).expect("a file reads");
    assert_eq!(file.buffer_assignment.as_deref(), Some(&b"bytes"[..]));
    assert_eq!(print(&bare.module), print(&file.module));
    assert_eq!(print(&bare.module), SMALL.replace(
        "buffer_donor={ (1, {}) }",
        "buffer_donor={ (1, {}) }, entry_computation_layout={(f32[4]{0:T(8)S(1)}, f32[4]{0})->f32[4]{0:T(8)S(1)}}",
    ));
}

/// Field 1000 as a number, a double, a string and a float.
const UNKNOWN: &[u8] = b"\xc0\x3e\x07\xc1\x3e12345678\xc2\x3e\x03abc\xc5\x3e1234";

#[test]
fn unknown_fields_are_kept_in_modules_computations_instructions_and_metadata() {
    let mut module = parse(SMALL).expect("the text is valid");
    module.config.unknown_fields = UNKNOWN.into();
    module.computations[module.entry].unknown_fields = UNKNOWN.into();
    let entry = module.computations[module.entry].instructions.clone();
    module.instructions[entry[1]].extras_mut().unknown_fields = UNKNOWN.into();
    let metadata = module.instructions[entry[2]].metadata.as_mut().expect("the constant has metadata");
    Arc::make_mut(metadata).unknown_fields = UNKNOWN.into();
    let once = proto::write_module(&module).expect("valid");
    let imported = proto::read(&once).expect("what was written reads back");
    assert_eq!(imported.warnings, []);
    assert_eq!(imported.module.config.unknown_fields, module.config.unknown_fields);
    assert_eq!(imported.module.computations[module.entry], module.computations[module.entry]);
    assert_eq!(imported.module.instructions[entry[1]].extras, module.instructions[entry[1]].extras);
    assert_eq!(imported.module.instructions[entry[2]].metadata, module.instructions[entry[2]].metadata);
    assert_eq!(proto::write_module(&imported.module), Ok(once));
}

/// A message of these fields, each a number and its bytes.
fn message(fields: &[(u8, &[u8])]) -> Vec<u8> {
    let field = |&(number, bytes): &(u8, &[u8])| {
        let key = u16::from(number) << 3 | 2;
        let key = if key < 128 { vec![key as u8] } else { vec![key as u8 | 128, (key >> 7) as u8] };
        [key, vec![bytes.len() as u8], bytes.to_vec()].concat()
    };
    fields.iter().flat_map(field).collect()
}

/// A module of one constant with these fields after its name and opcode.
fn one_instruction(opcode: &str, fields: &[(u8, &[u8])]) -> Vec<u8> {
    let instruction = [message(&[(1, b"c"), (2, opcode.as_bytes())]), message(fields)].concat();
    message(&[(1, b"m"), (3, &message(&[(1, b"main"), (2, &instruction)]))])
}

/// The shape `f32[]`, with field 9 unknown.
const SCALAR: &[u8] = b"\x10\x0b\x48\x01";

#[test]
fn deeper_unknown_fields_are_reported() {
    let imported = proto::read(&one_instruction("constant", &[(3, SCALAR)])).expect("a constant is a module");
    let warnings: Vec<String> = imported.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(warnings, ["field 9 of ShapeProto is unknown and was dropped"]);
    assert!(print(&imported.module).contains("f32[] constant({...})"));
}

#[track_caller]
fn check_error(bytes: &[u8], expected: &str) {
    let error = proto::read(bytes).expect_err("the bytes are no module");
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    assert_eq!(text, expected);
}

#[test]
fn errors_name_what_is_wrong() {
    check_error(b"", "the entry computation 0 does not exist");
    check_error(b"\x0a\xff\xff\xff\xff\x0f", "a field ends after the end of its message");
    check_error(b"\x0b", "a field is a group, which HLO does not use");
    check_error(
        &one_instruction("nonsense", &[(3, SCALAR)]),
        "instruction c in main is invalid: there is no opcode \"nonsense\"",
    );
    check_error(&one_instruction("constant", &[]), "instruction c in main is invalid: it has no shape");
    check_error(
        &one_instruction("constant", &[(3, b"\x10\x63")]),
        "instruction c in main is invalid: element_type cannot be 99",
    );
    check_error(
        &one_instruction("tanh", &[(3, SCALAR), (36, b"\x05")]),
        "instruction c in main is invalid: operand_ids names instruction 5, which does not exist",
    );
    check_error(
        &one_instruction("call", &[(3, SCALAR), (38, b"\x05")]),
        "instruction c in main is invalid: called_computation_ids names computation 5, which does not exist",
    );
    // A literal of 2^62 elements in a few bytes.
    let huge = message(&[(
        1,
        &[b"\x10\x0b".to_vec(), message(&[(3, b"\x80\x80\x80\x80\x80\x80\x80\x80\x40")])].concat(),
    )]);
    check_error(
        &one_instruction("constant", &[(3, SCALAR), (8, &huge)]),
        "instruction c in main is invalid: its literal has 0 bytes of elements, its shape asks for 18446744073709551615",
    );
    let twice = message(&[(3, b""), (3, b"")]);
    check_error(&twice, "two computations have the id 0");
}

#[test]
fn deep_shapes_are_an_error() {
    let mut shape = SCALAR.to_vec();
    for _ in 0..200 {
        // A tuple of one, whose length may take two bytes.
        let length = [shape.len() as u8 | 128, (shape.len() >> 7) as u8];
        shape = [&b"\x10\x0d\x22"[..], &length, &shape].concat();
    }
    let mut module = b"\x1a".to_vec();
    let wrap =
        |tag: u8, bytes: &[u8]| [&[tag, bytes.len() as u8 | 128, (bytes.len() >> 7) as u8], bytes].concat();
    module.extend(&wrap(0x1a, &wrap(0x12, &wrap(0x1a, &shape)))[1..]);
    check_error(&module, "messages nest too deep");
}

#[test]
fn cut_anywhere_a_module_is_one_or_an_error() {
    let module = parse(SMALL).expect("the text is valid");
    let bytes = proto::write(&module, Some(b"assignment")).expect("valid");
    for end in 0..bytes.len() {
        check_proto(&bytes[..end]);
    }
}

#[test]
fn damaged_modules_are_modules_or_errors() {
    let module = parse(SMALL).expect("the text is valid");
    let bytes = proto::write_module(&module).expect("valid");
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |n: usize| {
        // xorshift64 (Marsaglia 2003).
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % n as u64) as usize
    };
    for _ in 0..2000 {
        let mut damaged = bytes.clone();
        for _ in 0..=next(4) {
            let at = next(damaged.len());
            match next(3) {
                0 => damaged[at] = next(256) as u8,
                1 => drop(damaged.remove(at)),
                _ => damaged.insert(at, next(256) as u8),
            }
        }
        check_proto(&damaged);
    }
    for length in 0..200 {
        check_proto(&(0..length).map(|_| next(256) as u8).collect::<Vec<u8>>());
    }
}

/// The instructions, computation by computation.
fn in_order(module: &Module) -> impl Iterator<Item = &Instruction> {
    module.computations.keys().flat_map(|id| module.instructions_of(id)).map(|(_, instruction)| instruction)
}

/// What a message cannot say, and what a reader takes from elsewhere.
fn forget_what_messages_have_no_place_for(module: &mut Module) {
    let config = &mut module.config;
    config.replica_count = None;
    config.num_partitions = None;
    config.alias_passthrough_params = false;
    config.allow_spmd_sharding_propagation_to_parameters.clear();
    config.allow_spmd_sharding_propagation_to_output.clear();
    config.debug_attributes.clear();
}

#[track_caller]
fn assert_same(a: &Module, b: &Module, program: &Path) {
    let (a, b) = (print(a), print(b));
    let difference = a.lines().zip(b.lines()).find(|(a, b)| a != b);
    assert_eq!(difference, None, "{}", program.display());
    assert_eq!(a.len(), b.len(), "{}", program.display());
}
