//! Programs that JAX lowered (`scripts/stablehlo_of_jax.py --small`), in each form, with what jaxlib makes of each beside it;
//! forms that MLIR prints and JAX does not write; and what is refused.

use std::fs;
use std::path::{Path, PathBuf};

use memplan_ir::{Module, Op, verify};
use memplan_testkit::{Random, canonical};

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

/// The files with a name that ends so.
fn files(end: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(programs()).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.to_string_lossy().ends_with(end)).collect();
    found.sort();
    assert!(!found.is_empty());
    found
}

/// What jaxlib makes of a program.
fn by_jaxlib(program: &Path) -> Module {
    let name = program.file_stem().unwrap().to_str().unwrap();
    let bytes = fs::read(programs().join(format!("{name}.hlo.pb"))).unwrap();
    memplan_hlo::proto::read(&bytes).unwrap().module
}

#[track_caller]
fn assert_same(program: &Path, ours: &Module) {
    verify(ours).unwrap();
    let theirs = by_jaxlib(program);
    let (ours, theirs) = (canonical(ours, true), canonical(&theirs, true));
    let line = ours.lines().zip(theirs.lines()).find(|(ours, theirs)| ours != theirs);
    assert!(ours == theirs, "{}: {line:#?}", program.display());
}

#[test]
fn texts_are_the_modules_that_jaxlib_makes_of_them() {
    for program in files(".mlir") {
        let ours = memplan_stablehlo::parse(&fs::read_to_string(&program).unwrap()).unwrap();
        assert_same(&program, &ours);
    }
}

#[test]
fn bytecode_is_the_module_that_jaxlib_makes_of_it() {
    for program in files(".bc").into_iter().chain(files(".jaxexport")) {
        let bytes = fs::read(&program).unwrap();
        assert!(memplan_stablehlo::is_binary(&bytes));
        assert_same(&program, &memplan_stablehlo::read(&bytes).unwrap());
    }
}

#[test]
fn source_lines_are_kept() {
    let text = fs::read_to_string(programs().join("mlp_step.mlir")).unwrap();
    let module = memplan_stablehlo::parse(&text).unwrap();
    let theirs = by_jaxlib(Path::new("mlp_step.mlir"));
    assert_eq!(module.config.stack_frames.file_names, theirs.config.stack_frames.file_names);
    let lines = |module: &Module| {
        let of = |id| {
            let frame = module.instructions[id].metadata.as_ref()?.stack_frame_id;
            let frames = &module.config.stack_frames;
            let frame = frames.frames.get(usize::try_from(frame - 1).ok()?)?;
            let location = frames.file_locations[frame.file_location_id as usize - 1];
            // XLA's table has one entry for places that begin at one column.
            Some((location.line, location.column))
        };
        let dots = module.instructions.iter().filter(|(_, it)| matches!(it.op, Op::Dot(_)));
        let mut lines: Vec<_> = dots.map(|(id, _)| of(id)).collect();
        lines.sort_unstable();
        lines
    };
    assert!(lines(&module).iter().all(Option::is_some));
    assert_eq!(lines(&module), lines(&theirs));
}

/// The entry of a function with this body is this HLO.
#[track_caller]
fn check(function: &str, hlo: &str) {
    let module = memplan_stablehlo::parse(function).unwrap_or_else(|error| panic!("{error}"));
    verify(&module).unwrap();
    let expected = memplan_hlo::parse(hlo).unwrap();
    assert_eq!(canonical(&module, false), canonical(&expected, false));
}

#[test]
fn generic_forms_are_read() {
    check(
        r#"
        "builtin.module"() ({
          "func.func"() <{function_type = (tensor<4xf32>) -> tensor<2xf32>, sym_name = "main"}> ({
          ^bb0(%arg0: tensor<4xf32>):
            %0 = "stablehlo.slice"(%arg0) <{limit_indices = array<i64: 3>, start_indices = array<i64: 1>, strides = array<i64: 1>}> : (tensor<4xf32>) -> tensor<2xf32>
            "func.return"(%0) : (tensor<2xf32>) -> ()
          }) : () -> ()
        }) {mhlo.num_partitions = 1 : i32} : () -> ()"#,
        "ENTRY e { p = f32[4] parameter(0) ROOT s = f32[2] slice(p), slice={[1:3]} }",
    );
}

#[test]
fn constants_are_read_in_every_form() {
    check(
        r#"func.func @main() -> (tensor<2xf32>, tensor<2xi32>, tensor<i1>, tensor<2xbf16>, tensor<complex<f32>>, tensor<3xi4>) {
          %0 = stablehlo.constant dense<"0x0000803F00000040"> : tensor<2xf32>
          %1 = stablehlo.constant dense<[-1, 2]> : tensor<2xi32>
          %2 = stablehlo.constant dense<true> : tensor<i1>
          %3 = stablehlo.constant dense<0x7F80> : tensor<2xbf16>
          %4 = stablehlo.constant dense<(1.0, -2.0)> : tensor<complex<f32>>
          %5 = stablehlo.constant dense<[1, -8, 7]> : tensor<3xi4>
          return %0, %1, %2, %3, %4, %5 : tensor<2xf32>, tensor<2xi32>, tensor<i1>, tensor<2xbf16>, tensor<complex<f32>>, tensor<3xi4>
        }"#,
        "ENTRY e {
          a = f32[2] constant({1, 2})  b = s32[2] constant({-1, 2})  c = pred[] constant(true)
          d = bf16[] constant(inf)  e = bf16[2] broadcast(d), dimensions={}
          f = c64[] constant((1, -2))  g = s4[3] constant({1, -8, 7})
          ROOT t = (f32[2], s32[2], pred[], bf16[2], c64[], s4[3]) tuple(a, b, c, e, f, g)
        }",
    );
}

#[test]
fn reductions_with_a_region_are_read() {
    check(
        "func.func @main(%a: tensor<4xf32>, %b: tensor<4xi32>) -> (tensor<f32>, tensor<i32>) {
          %z = stablehlo.constant dense<0.0> : tensor<f32>
          %y = stablehlo.constant dense<0> : tensor<i32>
          %0:2 = stablehlo.reduce(%a init: %z), (%b init: %y) across dimensions = [0] : (tensor<4xf32>, tensor<4xi32>, tensor<f32>, tensor<i32>) -> (tensor<f32>, tensor<i32>)
           reducer(%l: tensor<f32>, %r: tensor<f32>) (%m: tensor<i32>, %s: tensor<i32>)  {
            %1 = stablehlo.maximum %l, %r : tensor<f32>
            %2 = stablehlo.add %m, %s : tensor<i32>
            stablehlo.return %1, %2 : tensor<f32>, tensor<i32>
          }
          return %0#0, %0#1 : tensor<f32>, tensor<i32>
        }",
        "r { a = f32[] parameter(0) b = s32[] parameter(1) c = f32[] parameter(2) d = s32[] parameter(3)
             m = f32[] maximum(a, c) s = s32[] add(b, d) ROOT t = (f32[], s32[]) tuple(m, s) }
         ENTRY e {
           a = f32[4] parameter(0) b = s32[4] parameter(1) z = f32[] constant(0) y = s32[] constant(0)
           r = (f32[], s32[]) reduce(a, b, z, y), dimensions={0}, to_apply=r
           x = f32[] get-tuple-element(r), index=0  w = s32[] get-tuple-element(r), index=1
           ROOT t = (f32[], s32[]) tuple(x, w) }",
    );
}

#[test]
fn loops_take_what_they_use_from_around_them() {
    check(
        "func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
          %c = stablehlo.constant dense<0> : tensor<i32>
          %0:3 = stablehlo.while(%i = %c, %a = %x, %b = %y) : tensor<i32>, tensor<4xf32>, tensor<4xf32>
          cond {
            %n = stablehlo.constant dense<3> : tensor<i32>
            %1 = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
            stablehlo.return %1 : tensor<i1>
          } do {
            %1 = stablehlo.add %a, %b : tensor<4xf32>
            %one = stablehlo.constant dense<1> : tensor<i32>
            %2 = stablehlo.add %i, %one : tensor<i32>
            stablehlo.return %2, %1, %b : tensor<i32>, tensor<4xf32>, tensor<4xf32>
          }
          return %0#1 : tensor<4xf32>
        }",
        "body { s = (s32[], f32[4], f32[4]) parameter(0)
            i = s32[] get-tuple-element(s), index=0  a = f32[4] get-tuple-element(s), index=1
            b = f32[4] get-tuple-element(s), index=2  one = s32[] constant(1)
            n = s32[] add(i, one)  t = f32[4] add(a, b)
            ROOT r = (s32[], f32[4], f32[4]) tuple(n, t, b) }
         test { s = (s32[], f32[4], f32[4]) parameter(0) i = s32[] get-tuple-element(s), index=0
            n = s32[] constant(3) ROOT c = pred[] compare(i, n), direction=LT }
         ENTRY e { x = f32[4] parameter(0) y = f32[4] parameter(1) z = s32[] constant(0)
            s = (s32[], f32[4], f32[4]) tuple(z, x, y)
            w = (s32[], f32[4], f32[4]) while(s), condition=test, body=body
            ROOT r = f32[4] get-tuple-element(w), index=1 }",
    );
}

/// What MLIR folds before there is HLO.
#[test]
fn constants_are_folded() {
    check(
        "func.func @main(%a: tensor<4xf32>, %b: tensor<2xf32>, %e: tensor<0xf32>, %p: tensor<i1>) -> (tensor<3xf32>, tensor<f32>, tensor<4xf32>, tensor<i1>, tensor<i1>, tensor<3xi32>) {
          %three = stablehlo.constant dense<3> : tensor<i32>
          %0 = stablehlo.concatenate %b, %a, dim = 0 : (tensor<2xf32>, tensor<4xf32>) -> tensor<6xf32>
          %1 = stablehlo.dynamic_slice %0, %three, sizes = [3] : (tensor<6xf32>, tensor<i32>) -> tensor<3xf32>
          %2 = stablehlo.constant dense<4.0> : tensor<f32>
          %3 = stablehlo.sqrt %2 : tensor<f32>
          %4 = stablehlo.dynamic_update_slice %a, %e, %three : (tensor<4xf32>, tensor<0xf32>, tensor<i32>) -> tensor<4xf32>
          %no = stablehlo.constant dense<false> : tensor<i1>
          %5 = stablehlo.compare NE, %p, %no : (tensor<i1>, tensor<i1>) -> tensor<i1>
          %6 = stablehlo.compare GT, %3, %2 : (tensor<f32>, tensor<f32>) -> tensor<i1>
          %7 = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
          %8 = stablehlo.constant dense<[3]> : tensor<1xi32>
          %9 = stablehlo.concatenate %7, %8, dim = 0 : (tensor<2xi32>, tensor<1xi32>) -> tensor<3xi32>
          return %1, %3, %4, %5, %6, %9 : tensor<3xf32>, tensor<f32>, tensor<4xf32>, tensor<i1>, tensor<i1>, tensor<3xi32>
        }",
        "ENTRY e {
          a = f32[4] parameter(0) b = f32[2] parameter(1) e = f32[0] parameter(2) p = pred[] parameter(3)
          s = f32[3] slice(a), slice={[1:4]}  c = f32[] constant(2)  n = pred[] constant(false)
          l = s32[3] constant({1, 2, 3})
          ROOT t = (f32[3], f32[], f32[4], pred[], pred[], s32[3]) tuple(s, c, a, p, n, l) }",
    );
}

#[test]
fn what_is_wrong_is_said_at_its_place() {
    let text = "module @m {\n  func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n    %0 = LINE\n    return %0 : tensor<4xf32>\n  }\n}";
    for (line, at, message) in [
        (
            "stablehlo.frobnicate %a : tensor<4xf32>",
            "stablehlo.frobnicate",
            "operation `stablehlo.frobnicate` is not supported",
        ),
        ("stablehlo.negate %b : tensor<4xf32>", "%b", "there is no value `%b`"),
        (
            "chlo.is_inf %a : tensor<4xf32> -> tensor<4xi1>",
            "chlo.is_inf",
            "operation `chlo.is_inf` of f32 is not supported",
        ),
        (
            "chlo.digamma %a : tensor<4xf32> -> tensor<3xf32>",
            "chlo.digamma",
            "operation `chlo.digamma` of f32 is not supported",
        ),
        (
            "chlo.zeta %a : tensor<4xf32> -> tensor<4xf32>",
            "chlo.zeta",
            "operation `chlo.zeta` of f32 is not supported",
        ),
        ("stablehlo.constant dense<[1.0, x]> : tensor<2xf32>", "x", "this is no element of type f32"),
        ("stablehlo.constant dense<[1.0, 2.0]> : tensor<4xf32>", "[", "expected 4 elements, found 2"),
        ("call @other(%a) : (tensor<4xf32>) -> tensor<4xf32>", "func.call", "there is no function `other`"),
        (
            "stablehlo.negate %a : tensor<?xf32>",
            "stablehlo.negate",
            "`stablehlo.negate` has an extent that is left open (`?`)",
        ),
        (
            "stablehlo.uniform_quantize %a : (tensor<4xf32>) -> tensor<4x!quant.uniform<i8:f32, 1.0>>",
            "stablehlo.uniform_quantize",
            "`stablehlo.uniform_quantize`: type `tensor<4x!quant.uniform<i8:f32, 1.0>>` is not supported",
        ),
        ("stablehlo.negate %a ; tensor<4xf32>", ";", "expected `:` and a type, found `;`"),
    ] {
        let text = text.replace("LINE", line);
        let error = memplan_stablehlo::parse(&text).map(|_| line).unwrap_err();
        let found = error.span.clone().map(|span| &text[span]);
        let at = if at == "func.call" { "call @other" } else { at };
        assert!(
            found.is_some_and(|found| at.starts_with(found) || found.starts_with(at)),
            "{line}: {error} at {found:?}"
        );
        assert_eq!(error.message, message, "{line}");
    }
}

#[test]
fn functions_that_call_themselves_are_refused() {
    let text = "func.func @main(%a: tensor<f32>) -> tensor<f32> {
        %0 = call @main(%a) : (tensor<f32>) -> tensor<f32>
        return %0 : tensor<f32>
    }";
    assert_eq!(memplan_stablehlo::parse(text).unwrap_err().message, "function `main` calls itself");
}

#[test]
fn stacks_of_calls_end() {
    // Each location calls the next one twice, and the last one itself.
    let aliases: String = (0..60)
        .map(|i| format!("#loc{i} = loc(callsite(#loc{} at #loc{}))\n", i + 1, i + 1))
        .chain(["#loc60 = loc(callsite(\"f\"(\"a.py\":1:2) at #loc60))\n".to_owned()])
        .collect();
    let text = format!(
        "module @m {{
          func.func @main(%a: tensor<f32>) -> tensor<f32> {{
            %0 = stablehlo.negate %a : tensor<f32> loc(#loc0)
            return %0 : tensor<f32>
          }}
        }}\n{aliases}"
    );
    let module = memplan_stablehlo::parse(&text).unwrap();
    let frames = module.config.stack_frames.frames.len();
    assert!((1..=4096).contains(&frames), "{frames}");
}

/// Damaged files are modules or errors.
#[test]
fn damage_is_no_reason_to_panic() {
    let mut random = Random::new(7);
    let damage = |bytes: &[u8], random: &mut Random| {
        let mut bytes = bytes.to_vec();
        for _ in 0..1 + random.below(3) {
            let at = random.below(bytes.len());
            match random.below(3) {
                0 => bytes.truncate(at.max(1)),
                1 => bytes[at] = random.below(256) as u8,
                _ => drop(bytes.remove(at)),
            }
            if bytes.is_empty() {
                return bytes;
            }
        }
        bytes
    };
    for (end, check) in [
        (".mlir", memplan_stablehlo::fuzzing::check_text as fn(&[u8])),
        (".bc", memplan_stablehlo::fuzzing::check_bytecode),
        (".jaxexport", memplan_stablehlo::fuzzing::check_bytecode),
    ] {
        for file in files(end) {
            let bytes = fs::read(file).unwrap();
            for _ in 0..40 {
                check(&damage(&bytes, &mut random));
            }
        }
    }
}
