//! `--emit KIND=FILE`: every kind from both verbs, files whole or not there.

use memplan::memory::{Family, Target};

use crate::{failure, memplan, repository};

const MODULE: &str = "examples/attention.hlo.txt";

#[test]
fn every_kind_from_both_verbs() {
    let module = repository(MODULE).display().to_string();
    for verb in ["plan", "compile"] {
        let folder = tempfile::tempdir().unwrap();
        let emits = [
            "hlo=a.hlo",
            "plan=a.json",
            "layout=a.txt",
            "layout=b.json",
            "c-header=a.h",
            "constants=a.bin",
            "costs=a.tsv",
            "html=view.html",
            "svg=a.svg",
            "dot=a.dot",
            "perfetto=trace.json",
            "xprof=log",
        ];
        let mut args = vec![verb, &module, "--target", "tpu-v5e", "-o", "report.txt"];
        args.extend(emits.iter().flat_map(|emit| ["--emit", emit]));
        let output = memplan(folder.path(), &args);
        assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let json = |name: &str| serde_json::from_str::<serde_json::Value>(&read(name)).unwrap();
        assert!(read("a.hlo").starts_with("HloModule"));
        assert!(read("a.txt").contains("memory spaces\n"));
        assert!(read("a.h").contains("#ifndef MEMPLAN_ATTENTION_H"));
        assert_eq!(json("b.json")["format"], "memplan.layout");
        // All of them are about one plan of one module.
        assert_eq!(json("a.json")["fingerprint"], json("b.json")["fingerprint"]);
        assert_eq!(json("a.json")["totals"], json("b.json")["totals"]);
        assert_eq!(read("a.bin").len() as u64, json("b.json")["constants_file"].as_u64().unwrap());
        // Those to look at are about the same plan.
        let total = &json("a.json")["totals"]["total"];
        assert_eq!(&json("trace.json")["otherData"]["total"], total);
        assert_eq!(&document(&read("view.html"))["stages"][0]["totals"]["total"], total);
        let stages = document(&read("view.html"))["stages"].as_array().unwrap().len();
        assert_eq!(stages, if verb == "compile" { 2 } else { 1 }, "what it was before is beside it");
        assert!(read("a.svg").starts_with("<svg") && read("a.dot").starts_with("digraph \"attention\" {"));
        let run = folder.path().join("log/plugins/profile/memplan");
        assert!(run.join("attention.hlo_proto.pb").metadata().unwrap().len() > 1000);
        assert_eq!(run.join("x.xplane.pb").metadata().unwrap().len(), 0);
        // The seconds of all runs come to those of the program, transfers aside.
        let costs = read("a.tsv");
        let seconds: f64 = costs
            .lines()
            .skip(1)
            .map(|row| {
                let cells: Vec<&str> = row.split('\t').collect();
                cells[2].parse::<f64>().unwrap() * cells[3].parse::<f64>().unwrap()
            })
            .sum();
        let total = json("a.json")["cost"]["seconds"].as_f64().unwrap();
        assert!(seconds > 0.0 && seconds <= total * (1.0 + 1e-9), "{verb}: {seconds} of {total}");
        // And it is proved from the files alone.
        assert!(memplan(folder.path(), &["check", "a.hlo", "a.json"]).status.success(), "{verb}");
        let names = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, emits.len() + 1, "no other files are left");
    }
}

/// What a page is about.
fn document(page: &str) -> serde_json::Value {
    let (_, rest) = page.split_once("id=\"document\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// Offsets for runtimes of small devices are those of the layout, by the numbers of its buffers.
#[test]
fn offsets_for_small_devices() {
    let folder = tempfile::tempdir().unwrap();
    let module = repository(MODULE).display().to_string();
    let emits = ["layout=a.json", "tflite-micro=a.bin", "executorch=e.json"];
    let mut args = vec!["plan", &module, "-o", "r.txt"];
    args.extend(emits.iter().flat_map(|emit| ["--emit", emit]));
    assert!(memplan(folder.path(), &args).status.success());
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(folder.path().join(name)).unwrap()).unwrap()
    };
    let (layout, executorch) = (json("a.json"), json("e.json"));
    let bytes = std::fs::read(folder.path().join("a.bin")).unwrap();
    let words: Vec<i32> =
        bytes.chunks(4).map(|word| i32::from_le_bytes(word.try_into().expect("words are whole"))).collect();
    let buffers = layout["buffers"].as_array().unwrap();
    assert_eq!(words[..3], [1, 0, buffers.len() as i32]);
    assert_eq!(executorch["non_const_buffer_sizes"][1], layout["totals"]["temp"]);
    for (i, buffer) in buffers.iter().enumerate() {
        let is_temp =
            layout["allocations"][buffer["allocation"].as_u64().unwrap() as usize]["kind"] == "temp";
        let details = &executorch["values"][i]["allocation_info"];
        assert_eq!(executorch["values"][i]["nbytes"], buffer["size"]);
        match is_temp {
            true => {
                assert_eq!(i64::from(words[i + 3]), buffer["offset"].as_i64().unwrap());
                assert_eq!(
                    (details["memory_id"].as_u64(), &details["memory_offset_low"]),
                    (Some(1), &buffer["offset"])
                );
            }
            false => assert!(words[i + 3] == -1 && details.is_null()),
        }
    }
    assert!(words[3..].iter().any(|&offset| offset >= 0));

    // What has several memories, TFLite Micro has no numbers for.
    let tiered = std::fs::read_to_string(repository("crates/memory/targets/tpu-v5e.toml")).unwrap();
    std::fs::write(folder.path().join("tiered.toml"), tiered.replacen("\"tpu\"", "\"other\"", 1)).unwrap();
    let args = ["compile", &module, "--target", "tiered.toml", "--emit", "tflite-micro=b.bin"];
    let (text, status) = failure(folder.path(), &args);
    assert!(text.contains("and TFLite Micro has one arena"), "{text}");
    assert_eq!(status, 1);
}

#[test]
fn a_graph_around_an_instruction() {
    let folder = tempfile::tempdir().unwrap();
    let text = "HloModule m\nENTRY e {\n  p = f32[8] parameter(0)\n  a = f32[8] negate(p)\n  b = f32[8] exponential(a)\n  c = f32[8] negate(b)\n  ROOT d = f32[8] exponential(c)\n}";
    std::fs::write(folder.path().join("m.hlo"), text).unwrap();
    let draw = |depth: &str| {
        let args = ["plan", "m.hlo", "-o", "r.txt", "--emit", "dot=a.dot", "--around", "b", "--depth", depth];
        assert!(memplan(folder.path(), &args).status.success());
        let graph = std::fs::read_to_string(folder.path().join("a.dot")).unwrap();
        ["p", "a", "b", "c", "d"].map(|name| graph.contains(&format!("label=\"{name}\\n")))
    };
    assert_eq!(draw("0"), [false, false, true, false, false]);
    assert_eq!(draw("1"), [false, true, true, true, false]);
    assert_eq!(draw("2"), [true; 5]);
    let args = ["plan", "m.hlo", "--emit", "dot=a.dot", "--around", "z"];
    assert_eq!(
        failure(folder.path(), &args),
        ("error: no instruction `z` runs in m as it is planned\n".into(), 1)
    );
    assert_eq!(failure(folder.path(), &["plan", "m.hlo", "--emit", "xprof=-"]).1, 2);
}

#[test]
fn unknown_kinds_and_missing_files_are_wrong_usage() {
    let folder = tempfile::tempdir().unwrap();
    let module = repository(MODULE).display().to_string();
    for (emit, expected) in [
        (
            "ptx=a",
            "there is no kind `ptx`\n  the kinds are hlo, plan, html, svg, dot, perfetto, xprof, costs, layout, c, c-header",
        ),
        ("layout", "expected KIND=FILE; the kinds are hlo, plan"),
        ("layout=", "the file name is missing after `=`"),
    ] {
        let (text, status) = failure(folder.path(), &["plan", &module, "--emit", emit]);
        assert!(text.contains(expected), "{text}");
        assert_eq!(status, 2);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Where a file cannot be written, nothing is; where its contents cannot be made, what was there before stays.
#[test]
fn files_are_whole_or_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let module = repository(MODULE).display().to_string();
    let (text, status) = failure(folder.path(), &["plan", &module, "--emit", "layout=no/such/folder/a.json"]);
    assert!(text.contains("cannot write `no/such/folder/a.json`"), "{text}");
    assert_eq!((status, std::fs::read_dir(folder.path()).unwrap().count()), (1, 0));

    let elided = "HloModule m\nENTRY e {\n  c = f32[64] constant({...})\n  ROOT r = f32[64] negate(c)\n}";
    std::fs::write(folder.path().join("m.hlo"), elided).unwrap();
    std::fs::write(folder.path().join("c.bin"), "before").unwrap();
    let (text, status) = failure(folder.path(), &["plan", "m.hlo", "--emit", "constants=c.bin"]);
    assert!(text.contains("the data of constant `c` is not in the program"), "{text}");
    assert_eq!(status, 1);
    assert_eq!(std::fs::read_to_string(folder.path().join("c.bin")).unwrap(), "before");
}

/// C and its header come together, for the plan that other forms describe.
#[test]
fn c_with_its_header() {
    let folder = tempfile::tempdir().unwrap();
    let module = repository(MODULE).display().to_string();
    for verb in ["plan", "compile"] {
        let args =
            [verb, &module, "--target", "cpu", "--emit", "c=net.c", "--emit", "plan=net.json", "-o", "r.txt"];
        let output = memplan(folder.path(), &args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        let plan: serde_json::Value = serde_json::from_str(&read("net.json")).unwrap();
        let temp = plan["totals"]["temp"].as_u64().unwrap();
        assert!(read("net.h").contains(&format!("#define net_ARENA_BYTES {temp}\n")));
        assert!(read("net.c").contains("void net_run(const void *const arguments[], void *const results[])"));
    }
}

/// What cannot be written as C is refused by name, before anything is written: other forms, too.
#[test]
fn c_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let line = |n: u32| format!(r#"metadata={{op_name="f" source_file="/home/me/net.py" source_line={n}}}"#);
    for (body, said) in [
        (
            format!("p = c64[8] parameter(0), {}\n  ROOT r = c64[8] negate(p)", line(3)),
            "instruction `p` (parameter, net.py:3) cannot be written as C: numbers of c64 are not supported",
        ),
        (
            format!(
                "p = f32[8] parameter(0)\n  n = s32[] parameter(1)\n  \
                 ROOT cut = f32[<=8] set-dimension-size(p, n), dimensions={{0}}, {}",
                line(5)
            ),
            "instruction `cut` (set-dimension-size, net.py:5) cannot be written as C: its extents are dynamic",
        ),
        (
            format!(
                "p = f32[8] parameter(0)\n  \
                 ROOT call = f32[8] custom-call(p), custom_call_target=\"vendor_filter\", {}",
                line(7)
            ),
            "instruction `call` (custom-call, net.py:7) cannot be written as C: there is no C for it",
        ),
    ] {
        let source = format!("HloModule m\nENTRY e {{\n  {body}\n}}");
        std::fs::write(folder.path().join("m.hlo"), source).unwrap();
        let args = [
            "compile",
            "m.hlo",
            "--target",
            "cpu",
            "--emit",
            "hlo=a.hlo",
            "--emit",
            "c=net.c",
            "-o",
            "r.txt",
        ];
        let (text, status) = failure(folder.path(), &args);
        assert!(text.contains(said), "{text}");
        assert_eq!((status, std::fs::read_dir(folder.path()).unwrap().count()), (1, 1));
    }
}

/// A machine without C is told of all that have it.
#[test]
fn targets_with_c_are_said() {
    let folder = tempfile::tempdir().unwrap();
    let module = repository(MODULE).display().to_string();
    for target in Target::built_in() {
        let args = ["plan", &module, "--target", &target.name, "--emit", "c=net.c", "-o", "r.txt"];
        if matches!(target.family, Family::Cpu | Family::Mcu) {
            continue;
        }
        let (text, status) = failure(folder.path(), &args);
        let with_c =
            Target::built_in().into_iter().filter(|it| matches!(it.family, Family::Cpu | Family::Mcu));
        let unsaid: Vec<String> = with_c.map(|it| it.name).filter(|name| !text.contains(name)).collect();
        assert!(unsaid.is_empty() && text.contains(&target.name), "{unsaid:?}: {text}");
        assert_eq!((status, std::fs::read_dir(folder.path()).unwrap().count()), (2, 0));
    }
}

/// Where one of the two files does not fit, there is neither, and what was there before is.
#[test]
#[cfg(target_os = "linux")]
fn c_and_header_are_whole_or_not_there() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("net.h"), "before").unwrap();
    let script = format!(
        "trap '' XFSZ; ulimit -f 1; exec {} plan {} --target cpu --emit c=net.c -o /dev/null",
        env!("CARGO_BIN_EXE_memplan"),
        repository(MODULE).display()
    );
    let output =
        std::process::Command::new("sh").current_dir(folder.path()).args(["-c", &script]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("cannot write `net.c`: File too large"), "{text}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(std::fs::read_to_string(folder.path().join("net.h")).unwrap(), "before");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
}

#[test]
fn advice_as_python() {
    let folder = tempfile::tempdir().unwrap();
    let module = repository("tests/questions/training_step.hlo").display().to_string();
    let written = |limit: &str| {
        let args = ["fit", &module, "--target", "gpu-h100", "--memory-limit", limit, "--emit", "policy=p.py"];
        let output = memplan(folder.path(), &args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::read_to_string(folder.path().join("p.py")).unwrap()
    };
    let text = written("250KiB");
    assert!(text.starts_with("\"\"\"Changes of `jit_step` for gpu-h100"), "{text}");
    assert!(text.contains("# 2. batch 256 as 4 micro-batches of 64\n"), "{text}");
    assert!(text.contains("def value_and_grad(loss, parts=4):"), "{text}");
    assert!(written("1GiB").contains("without a change"));
    let (text, status) = failure(folder.path(), &["fit", &module, "--target", "cpu", "--emit", "svg=a.svg"]);
    assert!(text.contains("expected html=FILE or policy=FILE") && status == 2, "{status}: {text}");
}
