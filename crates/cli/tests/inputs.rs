//! Inputs: compressed files, folders of dumps, and files that are not HLO.

use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;

use crate::{failure, memplan, repository};

/// A folder as XLA leaves it, with two programs.
fn dump() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let corpus = |file: &str| fs::read(repository("tests/corpus").join(file)).unwrap();
    for (name, contents) in [
        ("module_0001.jit_attention.before_optimizations.txt", corpus("attention/before.hlo.txt")),
        ("module_0001.jit_attention.sm_9.0_gpu_after_optimizations.txt", corpus("attention/gpu.hlo.txt")),
        (
            "module_0001.jit_attention.sm_9.0_gpu_after_optimizations-buffer-assignment.txt",
            b"BufferAssignment:\nallocation 0: size 4096, parameter 0, shape |f32[1024]| at ShapeIndex {}:\n\
              allocation 1: size 1024, preallocated-temp:\n"
                .to_vec(),
        ),
        ("module_0001.jit_attention.thunk_sequence.txt", b"000: kGemm".to_vec()),
        ("module_0007.jit_branches.before_optimizations.hlo.pb.gz", gzip(&corpus("branches/before.hlo.pb"))),
        ("module_0009.jit_broken.before_optimizations.txt", b"HloModule broken\n\nENTRY".to_vec()),
        ("module_0009.jit_broken.debug_options", b"xla_dump_to: \"x\"".to_vec()),
    ] {
        fs::write(folder.path().join(name), contents).unwrap();
    }
    fs::create_dir(folder.path().join("module_0001.jit_attention")).unwrap();
    folder
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Both streams of a run that succeeds, with the name of the folder left out.
fn shown(folder: &Path, args: &[&str]) -> String {
    let output = memplan(folder, args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
}

/// Whoever asks for a plan gets a report, too, however strange the program is.
#[test]
fn programs_that_are_rarely_met_have_reports() {
    for file in fs::read_dir(repository("tests/hlo/proved")).unwrap() {
        let path = file.unwrap().path();
        let text = shown(&repository(""), &["plan", path.to_str().unwrap(), "--quiet"]);
        assert!(text.contains("passed by the caller"), "{path:?}: {text}");
    }
}

#[test]
fn programs_of_a_folder_are_listed() {
    let folder = dump();
    let text = shown(folder.path(), &["plan", ".", "--target", "gpu-h100"]);
    let list = text.split_once("jit_attention on gpu-h100").unwrap().0;
    insta::with_settings!({
        snapshot_path => "../../../snapshots",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, { insta::assert_snapshot!("programs_of_a_folder", list) });
    assert!(text.ends_with("note: this is ./module_0001.jit_attention.sm_9.0_gpu_after_optimizations.txt, which needs most of 3 programs; `./module_0007.jit_branches` names another\n"), "{text}");

    let text = shown(folder.path(), &["plan", ".", "--target", "gpu-h100", "--format", "json"]);
    let plan: Value = serde_json::from_str(text.split_once("\nnote:").unwrap().0).unwrap();
    let programs = plan["resident"]["programs"].as_array().unwrap();
    assert_eq!(plan["totals"], programs[0]["totals"]);
    assert_eq!(programs[0]["assigned"]["total"], 5120);
    let sum = |key: &str| (0..2).map(|i| programs[i]["totals"][key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(plan["resident"]["all_running"].as_u64(), Some(sum("total")));
}

#[test]
fn one_program_of_a_folder_has_a_name() {
    let folder = dump();
    let parent = folder.path().parent().unwrap();
    let name = folder.path().file_name().unwrap().to_str().unwrap();
    for program in ["jit_branches", "module_0007.jit_branches"] {
        let text = shown(parent, &["plan", &format!("{name}/{program}"), "--target", "cpu"]);
        assert!(text.contains("jit_branches on cpu") || text.contains(" on cpu"), "{text}");
        assert!(text.contains("module_0007.jit_branches.before_optimizations.hlo.pb.gz"), "{text}");
    }
    // A folder that XLA made for a program holds none of its modules.
    let text = shown(folder.path(), &["opt", "module_0001.jit_attention"]);
    assert!(text.contains("module_0001.jit_attention.before_optimizations.txt"), "{text}");

    let (message, status) = failure(folder.path(), &["plan", "./jit_nothing"]);
    assert!(message.contains("module_0001.jit_attention, module_0007.jit_branches"), "{message}");
    assert_eq!(status, 1);
    let empty = tempfile::tempdir().unwrap();
    let (message, status) = failure(empty.path(), &["plan", "."]);
    assert!(message.contains("--xla_dump_to=. --xla_dump_hlo_as_text"), "{message}");
    assert_eq!(status, 1);
}

#[test]
fn compressed_files_are_read_and_bombs_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read(repository("tests/corpus/branches/before.hlo.txt")).unwrap();
    fs::write(folder.path().join("plain.hlo"), &text).unwrap();
    fs::write(folder.path().join("small.hlo.gz"), gzip(&text)).unwrap();
    let plan = |file| shown(folder.path(), &["plan", file, "--format", "json"]);
    assert_eq!(plan("plain.hlo"), plan("small.hlo.gz"));

    fs::write(folder.path().join("cut.gz"), &gzip(&text)[..100]).unwrap();
    let (message, status) = failure(folder.path(), &["plan", "cut.gz"]);
    assert!(message.contains("compressed and damaged"), "{message}");
    assert_eq!(status, 1);
    let zeros = vec![0; 1 << 20];
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    (0..80).for_each(|_| bomb.write_all(&zeros).unwrap());
    fs::write(folder.path().join("bomb.gz"), bomb.finish().unwrap()).unwrap();
    let (message, status) = failure(folder.path(), &["plan", "bomb.gz"]);
    assert!(message.contains("unpacks to more than 100 times its size"), "{message}");
    assert_eq!(status, 1);
}

#[test]
fn what_is_no_hlo_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for (contents, name, help) in [
        (&b"{ lambda ; a:f32[3]. let b = sin a in (b,) }"[..], "a jaxpr", "debug_info=True"),
        (b"BufferAssignment:\nallocation 0: size 4:", "buffer assignment", "beside it"),
        (b"{\n  \"format\": \"memplan.plan\"", "a plan file", "memplan diff"),
        (b"PK\x03\x04", "an archive", "unpack"),
        (b"\x28\xb5\x2f\xfd\x04", "compressed with zstd", "`zstd -d FILE`"),
        (b"\xfd7zXZ\x00\x00", "compressed with xz", "`xz -d FILE`"),
        (b"BZh91AY&SY", "compressed with bzip2", "`bzip2 -d FILE`"),
        (&tar(), "a tar archive", "`tar -xf FILE`"),
        (b"\x1c\x00\x00\x00ET12\x14", "an ExecuTorch program", "made from"),
        (b"\x08\x08\x12\x07pytorch\x1a\x05", "an ONNX model", "exported from"),
        (b"\xff\xfeH\x00l\x00o\x00", "text in UTF-16", "UTF-8"),
        (b"import jax\n\n@jax.jit\ndef f(x):\n    return x\n", "a Python program", "debug_info=True"),
        (b"2026-11-23 20:05:01.123: I compiler.cc] compiling\n", "a log", "--xla_dump_to"),
        (b"E1123 20:05:01.123456 71 x.cc:1] no\n", "a log", "--xla_dump_to"),
        (
            b"I0 compiling\nHloModule f\n\nENTRY m {\n  ROOT p = f32[] parameter(0)\n}\n",
            "with a module in it",
            "cut out",
        ),
    ] {
        fs::write(folder.path().join("given"), contents).unwrap();
        let (message, status) = failure(folder.path(), &["plan", "given"]);
        assert_eq!(status, 1);
        assert!(message.contains(name) && message.contains(help), "{message}");
    }
}

/// Programs of StableHLO are planned as the HLO that they are, in each form; mistakes are shown with their line.
#[test]
fn stablehlo_is_read_in_every_form() {
    let programs = repository("crates/stablehlo/tests/programs");
    let plan = |file: &str| {
        let text = shown(&programs, &["plan", file, "--format", "json"]);
        serde_json::from_str::<Value>(&text).unwrap()["totals"].clone()
    };
    let expected = plan("scan_rows.hlo.pb");
    for file in ["scan_rows.mlir", "scan_rows.bc", "scan_rows.jaxexport"] {
        assert_eq!(plan(file), expected, "{file}");
    }
    let folder = tempfile::tempdir().unwrap();
    let text = "module {\n  func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {\n    %0 = stablehlo.tanhh %a : tensor<4xf32>\n    return %0 : tensor<4xf32>\n  }\n}\n";
    fs::write(folder.path().join("f.mlir"), text).unwrap();
    let (message, status) = failure(folder.path(), &["plan", "f.mlir"]);
    assert!(status == 1 && message.contains("operation `stablehlo.tanhh` is not supported"), "{message}");
    assert!(message.contains("f.mlir:3:10") && message.contains("^^^^"), "{message}");
    fs::write(folder.path().join("f.bc"), b"ML\xefR\x0dStableHLO_v1.9.3\x00").unwrap();
    let (message, status) = failure(folder.path(), &["plan", "f.bc"]);
    assert!(status == 1 && message.contains("ends in the middle"), "{message}");
}

/// XLA's text about a lack of memory is explained; nothing fits, so the status is 3.
#[test]
fn texts_about_a_lack_of_memory_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let text = "W1123 20:05:01.123456 71 x.cc:1] RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1073741824 bytes.\n\
        Peak buffers:\n\tBuffer 1:\n\t\tSize: 1.00GiB\n\t\tOperator: op_name=\"jit(f)/jvp()/dot_general\" \
        source_file=\"/a/b/train.py\" source_line=12\n\t\tXLA Label: fusion\n\t\tShape: f32[16384,16384]\n\t\t==========\n";
    fs::write(folder.path().join("oom.txt"), text).unwrap();
    for verb in
        [&["plan", "oom.txt"][..], &["explain", "oom.txt"], &["fit", "oom.txt", "--target", "gpu-h100"]]
    {
        let (message, status) = failure(folder.path(), verb);
        assert_eq!(status, 3, "{message}");
        assert!(message.contains("b/train.py:12  dot_general  f32[16384,16384]"), "{message}");
        assert!(message.contains("jax.checkpoint") && message.contains("memplan fit dump"), "{message}");
    }
}

/// A profile has the programs that ran, each by name.
#[test]
fn programs_of_a_profile_are_planned() {
    let folder = tempfile::tempdir().unwrap();
    let program = fs::read(repository("tests/corpus/branches/before.hlo.pb")).unwrap();
    let field = |number: u8, value: &[u8]| {
        let mut out = vec![number << 3 | 2];
        let mut length = value.len();
        while length >= 0x80 {
            out.push(length as u8 | 0x80);
            length >>= 7;
        }
        out.push(length as u8);
        [out, value.to_vec()].concat()
    };
    let entry = |value: &[u8]| [vec![8, 1], field(2, value)].concat();
    let event = |name: &str| {
        let statistic = [vec![8, 4], field(6, &program)].concat();
        field(4, &entry(&[field(2, name.as_bytes()), field(5, &statistic)].concat()))
    };
    let statistics = field(5, &entry(&[vec![8, 4], field(2, b"Hlo Proto")].concat()));
    let plane = [field(2, b"/host:metadata"), event("jit_f(3)"), event("jit_g(4)"), statistics].concat();
    fs::write(folder.path().join("vm.xplane.pb"), field(1, &plane)).unwrap();
    let text = shown(folder.path(), &["plan", "vm.xplane.pb"]);
    assert!(text.contains("which needs most of 2 programs; `vm.xplane.pb/jit_"), "{text}");
    let text = shown(folder.path(), &["plan", "vm.xplane.pb/jit_g"]);
    assert!(text.contains("note: this is jit_g(4)"), "{text}");
    let (message, status) = failure(folder.path(), &["plan", "vm.xplane.pb/jit_h"]);
    assert!(status == 1 && message.contains("has no program `jit_h`"), "{message}");
}

/// A TFLite model is planned in its own numbering, and gets the offsets into its metadata.
#[test]
fn tflite_models_are_planned() {
    let folder = tempfile::tempdir().unwrap();
    let model = repository("crates/tflite/tests/residual.tflite");
    fs::copy(&model, folder.path().join("m.tflite")).unwrap();
    let text = shown(folder.path(), &["plan", "m.tflite", "--emit", "tflite-micro=planned.tflite"]);
    assert!(text.contains("arena of 1.00 KiB for 5 of 7 tensors; no placement needs less"), "{text}");
    let json = shown(folder.path(), &["plan", "planned.tflite", "--format", "json"]);
    let plan: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&plan["arena"], &plan["lower_bound"]), (&1024.into(), &1024.into()));
    assert_eq!(plan["tensors"][1]["offset"], Value::Null);
    assert_eq!(plan["tensors"][2]["size"], 512);
    let (message, status) = failure(folder.path(), &["plan", "m.tflite", "--emit", "html=x.html"]);
    assert!(status == 2 && message.contains("a model has no form `html`"), "{message}");
    let (message, status) = failure(folder.path(), &["compile", "m.tflite", "--target", "cpu"]);
    assert!(status == 1 && message.contains("a TFLite model"), "{message}");
    fs::write(folder.path().join("cut.tflite"), &fs::read(model).unwrap()[..300]).unwrap();
    let (message, status) = failure(folder.path(), &["plan", "cut.tflite"]);
    assert!(status == 1 && message.contains("is damaged"), "{message}");
}

/// An archive with an empty file in it.
fn tar() -> Vec<u8> {
    let mut header = vec![0; 512];
    header[..5].copy_from_slice(b"a.hlo");
    header[257..265].copy_from_slice(b"ustar\x0000");
    header
}

/// A mistake in HLO is shown with its line, whatever else the text reminds of.
#[test]
fn hlo_with_a_mistake_is_still_hlo() {
    let folder = tempfile::tempdir().unwrap();
    let text = "// made by\n// import jax\nHloModule m\n\nENTRY e {\n  ROOT p = f32[] parameter(), \
                metadata={op_name=\"stablehlo.add\"}\n}\n";
    fs::write(folder.path().join("m.hlo"), text).unwrap();
    let (message, status) = failure(folder.path(), &["plan", "m.hlo"]);
    assert!(status == 1 && message.contains("m.hlo:6:"), "{message}");
}

#[test]
fn a_mark_before_the_text_is_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let text = "HloModule m\n\nENTRY e {\n  ROOT p = f32[] parameter(0)\n}\n";
    fs::write(folder.path().join("m.hlo"), format!("\u{feff}{text}")).unwrap();
    assert!(shown(folder.path(), &["plan", "m.hlo"]).contains("m on cpu"));
    let toy = fs::read_to_string(repository("crates/memory/targets/toy.toml")).unwrap();
    fs::write(folder.path().join("t.toml"), format!("\u{feff}{toy}")).unwrap();
    assert!(shown(folder.path(), &["plan", "m.hlo", "--target", "t.toml"]).contains("m on toy"));
}

/// The assignment is a part of the protobuf that XLA dumps.
#[test]
fn assignments_within_protobufs_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let text = "HloModule m, is_scheduled=true\n\nENTRY e {\n  p = f32[8] parameter(0)\n  ROOT n = f32[8] negate(p)\n}\n";
    let module = memplan::hlo::parse(text).unwrap();
    // Allocations of 32 bytes for the argument, 32 for the result, 100 of scratch.
    let assignment =
        b"\x1a\x06\x08\x00\x10\x20\x28\x01\x1a\x06\x08\x01\x10\x20\x38\x01\x1a\x04\x08\x02\x10\x64";
    let file = memplan::hlo::proto::write(&module, Some(assignment)).unwrap();
    fs::write(folder.path().join("module_0001.m.cpu_after_optimizations.hlo.pb"), file).unwrap();
    let text = shown(folder.path(), &["plan", ".", "--format", "json"]);
    let plan: Value =
        serde_json::from_str(text.split_once("\nnote:").map_or(&*text, |(json, _)| json)).unwrap();
    assert_eq!(plan["resident"]["programs"][0]["assigned"], serde_json::json!({ "total": 164, "temp": 100 }));
}

#[test]
fn a_module_without_source_lines_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let note = "the operations of this module have no source lines";
    let with = "HloModule m\n\nENTRY main {\n  p = f32[8] parameter(0)\n  \
                ROOT n = f32[8] negate(p), metadata={op_name=\"neg\" source_file=\"a.py\" source_line=3}\n}\n";
    fs::write(folder.path().join("with.hlo"), with).unwrap();
    assert!(!shown(folder.path(), &["plan", "with.hlo"]).contains(note));
    let without = repository("tests/hlo/estimate/xla-gpu__stable_sort.hlo");
    assert!(shown(folder.path(), &["plan", without.to_str().unwrap()]).contains(note));
}

#[test]
fn what_does_not_fit_is_status_3_in_every_verb() {
    let folder = tempfile::tempdir().unwrap();
    let text = "HloModule big\n\nENTRY main {\n  p = f32[32768,1048576] parameter(0)\n  ROOT n = f32[32768,1048576] negate(p)\n}\n";
    fs::write(folder.path().join("big.hlo"), text).unwrap();
    let plan =
        ["plan", "big.hlo", "--target", "gpu-h100", "--emit", "plan=plan.json", "--emit", "hlo=planned.hlo"];
    for args in [
        &plan[..],
        &["check", "planned.hlo", "plan.json"],
        &["plan", "big.hlo", "--target", "gpu-h100"],
        &["compile", "big.hlo", "--target", "gpu-h100"],
        &["compile", "big.hlo", "--target", "gpu-h100", "--frontier"],
        &["estimate", "big.hlo", "--compiler", "xla-gpu"],
        &["rewrite", "big.hlo", "--compiler", "xla-gpu"],
    ] {
        let output = memplan(folder.path(), args);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{args:?}: {message}");
        assert!(message.contains("too much ("), "{args:?}: {message}");
    }
}
