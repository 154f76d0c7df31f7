//! The text front-end against the files in `tests/hlo`, and against everything that is not HLO.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use memplan_hlo::{ParseErrorKind, fuzzing::check_text, parse, print, render};
use memplan_ir::{Module, Op, Opcode, fingerprint};
use strum::IntoEnumIterator;

/// A module with something of everything that has brackets, strings or numbers.
const SMALL: &str = r#"HloModule small, input_output_alias={ {0}: (0, {}, may-alias) }, entry_computation_layout={(f32[4]{0:T(8)})->(f32[4]{0}, f32[])}

FileNames
1 "a.py"

%add (p: f32[], q: f32[]) -> f32[] {
  %p = f32[] parameter(0)
  %q = f32[] parameter(1)
  ROOT %r = f32[] add(%p, %q)
}

ENTRY %main (x: f32[4]) -> (f32[4], f32[]) {
  %x = f32[4]{0:T(8)} parameter(0), sharding={devices=[4]<=[4]}, frontend_attributes={k="v",j={"a":"}"}}
  %c = f32[4]{0} constant({1, -2.5e3, nan(0x1), /*index=3*/inf}), metadata={op_name="a\n" source_line=3}
  %z = f32[] constant(0)
  %s = f32[4]{0} add(%x, f32[4] multiply(%x, %c)), backend_config={"k":["{"]}
  %pad = f32[6]{0} pad(%s, %z), padding=1_1
  %w = f32[4]{0} reduce-window(%pad, %z), window={size=3 stride=1}, to_apply=%add
  %a = ((f32[4]{0}), f32[2]{0}, s32[]) slice-start(%w), slice={[0:4:2]}
  %d = f32[2]{0} slice-done(%a)
  %sum = f32[] reduce(%d, %z), dimensions={0}, to_apply=%add, control-predecessors={%w}
  ROOT %t = (f32[4]{0}, f32[]) tuple(%w, %sum) // the end
}
"#;

#[test]
fn every_file_prints_to_a_fixed_point() {
    let mut opcodes = BTreeSet::new();
    for path in files("parse") {
        let source = std::fs::read_to_string(&path).expect("the case is readable");
        let module = parse_or_panic(&path, &source);
        opcodes.extend(module.instructions.values().map(|i| i.opcode()));
        let once = print(&module);
        let again = parse_or_panic(&path, &once);
        assert_eq!(once, print(&again), "{}", path.display());
        assert_eq!(ops(&module), ops(&again), "{}", path.display());
        assert_eq!(fingerprint(&module), fingerprint(&again), "{}", path.display());
    }
    let missing: Vec<Opcode> = Opcode::iter().filter(|opcode| !opcodes.contains(opcode)).collect();
    assert_eq!(missing, [], "every opcode has a case");
}

#[test]
fn errors_are_found_where_they_are() {
    for path in files("parse_error") {
        let source = std::fs::read_to_string(&path).expect("the case is readable");
        let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
        let error = match parse(&source) {
            Ok(_) => panic!("{name} parses"),
            Err(error) => error,
        };
        if let Some(line) = source.lines().position(|line| line.contains("// error")) {
            assert_eq!(error.line_and_column(&source).0, line + 1, "{name}: {error}");
        }
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_path(workspace().join("snapshots"));
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings
            .bind(|| insta::assert_snapshot!(format!("parse_error@{name}"), render(&error, &name, &source)));
    }
}

#[test]
fn a_text_cut_anywhere_is_an_error_or_a_module() {
    assert!(parse(SMALL).is_ok());
    for end in 0..SMALL.len() {
        check_text(&SMALL.as_bytes()[..end]);
    }
}

#[test]
fn a_text_without_any_one_line_or_byte_is_an_error_or_a_module() {
    let lines: Vec<&str> = SMALL.lines().collect();
    for skipped in 0..lines.len() {
        let kept: Vec<&str> =
            lines.iter().enumerate().filter(|&(i, _)| i != skipped).map(|(_, &line)| line).collect();
        check_text(kept.join("\n").as_bytes());
    }
    for skipped in 0..SMALL.len() {
        check_text(&[&SMALL.as_bytes()[..skipped], &SMALL.as_bytes()[skipped + 1..]].concat());
    }
}

#[test]
fn random_bytes_are_errors() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..2000 {
        let length = random.below(80);
        let bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        check_text(&bytes);
    }
    // Bytes that are wrong in the middle of text that is right go deeper.
    for _ in 0..4000 {
        let mut bytes = SMALL.as_bytes().to_vec();
        for _ in 0..1 + random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            let from = random.below(SMALL.len() as u64) as usize;
            bytes[at] = if random.below(4) == 0 { random.below(256) as u8 } else { SMALL.as_bytes()[from] };
        }
        check_text(&bytes);
    }
}

#[test]
fn depth_is_bounded() {
    let deep = |open: &str, core: &str, close: &str| {
        format!("{}{core}{}", open.repeat(100_000), close.repeat(100_000))
    };
    let cases = [
        format!("HloModule m\nENTRY e {{ ROOT x = {} parameter(0) }}", deep("(", "f32[]", ")")),
        format!(
            "HloModule m\nENTRY e {{ x = f32[] parameter(0) ROOT y = f32[] {} }}",
            deep("negate(", "x", ")")
        ),
        format!("HloModule m\nENTRY e {{ ROOT x = {} parameter(0) }}", deep("f32[1]{0:P(", "f32[]", ")}")),
        format!(
            "HloModule m\nENTRY e {{ ROOT x = f32[] parameter(0), origin={{{}}} }}",
            deep("(", "{}", ")")
        ),
        format!(
            "HloModule m\nENTRY e {{ ROOT x = f32[] custom-call(), custom_call_target=\"\", literal={} }}",
            deep("(", "f32[] 1", ")")
        ),
        format!(
            "HloModule m\nENTRY e {{ p = f32[] parameter(0) ROOT x = f32[] call(p), to_apply={} }}",
            deep("{ p = f32[] parameter(0) ROOT x = f32[] call(p), to_apply=", "y", "}")
        ),
        deep("{", "", "}"),
        deep("(", "", ")"),
    ];
    for source in &cases {
        let error = parse(source).expect_err("too deep");
        let is_depth = matches!(error.kind, ParseErrorKind::TooDeep { .. });
        assert!(is_depth || source.starts_with(['{', '(']), "{error}");
    }
    // Rank is not depth: a literal of any rank is read.
    let rank = 5000;
    let source = format!(
        "HloModule m\nENTRY e {{ ROOT x = f32[{}] constant({}1{}) }}",
        vec!["1"; rank].join(","),
        "{".repeat(rank),
        "}".repeat(rank)
    );
    check_text(source.as_bytes());
}

#[test]
fn numbers_beyond_memory_are_not_allocated() {
    let module =
        parse("HloModule m\nENTRY e { ROOT x = f32[1000000000000,1000000000] constant({...}) }").unwrap();
    assert!(print(&module).contains("constant({...})"));
    for literal in ["{}", "{1}", "{{}}", "1"] {
        let source = format!("HloModule m\nENTRY e {{ ROOT x = f32[1000000000000] constant({literal}) }}");
        assert!(parse(&source).is_err(), "{literal}");
    }
}

#[test]
fn what_is_left_out_is_in_proportion_to_what_is_written() {
    let mut source = "HloModule m\nENTRY e {\n  x = f32[] parameter(0)\n".to_owned();
    let mut previous = "x".to_owned();
    for i in 0..14 {
        source += &format!("  t{i} = tuple({previous}, {previous})\n");
        previous = format!("t{i}");
    }
    for i in 0..1000 {
        source += &format!("  u{i} = opt-barrier({previous})\n");
    }
    source += "}\n";
    assert_eq!(parse(&source).unwrap_err().kind, ParseErrorKind::TooMuchInferred);
}

#[test]
fn positions_count_lines_and_characters() {
    let source = "HloModule m\nENTRY é";
    let error = parse(source).unwrap_err();
    assert_eq!(error.line_and_column(source), (2, 7));
}

/// What each computation computes, in order.
fn ops(module: &Module) -> Vec<(&str, Vec<&Op>)> {
    let ops = |id| module.instructions_of(id).map(|(_, instruction)| &instruction.op).collect();
    module.computations.iter().map(|(id, computation)| (&*computation.name, ops(id))).collect()
}

fn parse_or_panic(path: &Path, source: &str) -> Module {
    parse(source).unwrap_or_else(|error| panic!("{}", render(&error, &path.display().to_string(), source)))
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace exists")
}

/// The cases of a stage, sorted.
fn files(stage: &str) -> Vec<PathBuf> {
    let folder = workspace().join("tests/hlo").join(stage);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.expect("the folder is readable").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "hlo"));
    files.sort();
    assert!(!files.is_empty(), "{} has cases", folder.display());
    files
}

/// Xorshift: the same numbers every time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) % bound
    }
}
