//! Compilers, as built in and as files describe them.

use memplan_memory::{Bytes, Compiler, Family, ProgramKind, Target};
use serde::Deserialize;

#[test]
fn every_compiler_has_a_machine() {
    for compiler in Compiler::versions() {
        let name = compiler.name_with_version();
        let file = format!("{}/compilers/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        assert!(std::fs::exists(file).is_ok_and(|exists| exists), "the file of {name} is named after it");
        let found = Compiler::find(&name);
        assert!(found.is_ok_and(|found| found == compiler));
        assert!(Target::find(&compiler.target).is_ok(), "{}", compiler.name);
    }
}

#[test]
fn an_unknown_name_is_told_the_known_ones() {
    let error = |name| Compiler::find(name).map(|_| ()).unwrap_err().to_string();
    let known = "\n  the built-in ones are xla-gpu, xla-cpu, xla-tpu, by version xla-gpu@0.12, xla-gpu@0.10, \
                 xla-cpu@0.12, xla-cpu@0.10, xla-tpu@0.12, and a FILE.toml describes your own";
    assert_eq!(error("gcc"), format!("there is no compiler `gcc`{known}"));
    assert_eq!(error("xla_gpu"), format!("there is no compiler `xla_gpu`; did you mean `xla-gpu`?{known}"));
}

#[test]
fn options_are_for_who_knows_them() {
    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Own {
        n: u32,
    }
    let base = "based_on = 'xla-gpu@0.10'\n";
    let text = format!("{base}\n[options.own]\nn = 3\n");
    let of = |text: &str| Compiler::parse(text, "mine.toml").unwrap().options_of("own");
    assert_eq!(of(&text).unwrap(), Some(Own { n: 3 }));
    assert_eq!(of(base).unwrap(), None);
    let wrong = text.replace("\nn = 3", "\nm = 3");
    let line = wrong.lines().position(|line| line == "m = 3").unwrap() + 1;
    let error = format!("mine.toml:{line}:1: unknown field `m`, expected `n`");
    assert_eq!(of(&wrong).unwrap_err().to_string(), error);
}

#[test]
fn the_newest_version_is_the_default() {
    let version = |name| Compiler::find(name).unwrap().version;
    assert_eq!((version("xla-cpu"), version("xla-cpu@0.10")), ("0.12".to_string(), "0.10".to_string()));
    let nearest = |jaxlib| Compiler::nearest("xla-gpu", jaxlib).unwrap().version;
    assert_eq!(
        ["0.9.1", "0.10.2", "0.11.0", "0.12.0.1", "0.13.0"].map(nearest),
        ["0.10", "0.10", "0.10", "0.12", "0.12"]
    );
}

#[test]
fn a_file_says_what_differs() {
    let of = |text: &str| Compiler::parse(text, "mine.toml");
    let base = Compiler::find("xla-cpu@0.12").unwrap();
    let mine = "based_on = 'xla-cpu@0.12'\nname = 'mine'\n[fusion]\nmax_outputs = 7\n";
    let mine = of(mine).unwrap();
    assert_eq!((mine.name.as_str(), mine.fusion.max_outputs), ("mine", 7));
    assert_eq!((&mine.passes, mine.fusion.max_operands), (&base.passes, base.fusion.max_operands));
    let error = |text: &str| of(text).unwrap_err().to_string();
    assert!(
        error("name = 'mine'\nbased_on = 'gcc'").starts_with("mine.toml:2:12: no built-in compiler is `gcc`")
    );
    let without = |names: &str| format!("based_on = 'xla-cpu@0.12'\nwithout = {names}\n");
    let passes = of(&without("['copy-insertion']")).unwrap().passes;
    assert_eq!(passes.as_slice(), &base.passes[..base.passes.len() - 1]);
    assert_eq!(
        error(&without("['done']")),
        "mine.toml:2:12: expected a pass that the built-in compiler runs"
    );
    assert_eq!(error(&without("3")), "mine.toml:2:11: expected a list of passes");
    let before = |next: &str| format!("based_on = 'xla-cpu@0.12'\n[before]\n{next} = 'cse'\n");
    let passes = of(&before("copy-insertion")).unwrap().passes;
    assert_eq!(passes[base.passes.len() - 1..], ["cse", "copy-insertion"]);
    assert_eq!(error(&before("done")), "mine.toml:3:8: the built-in compiler does not run `done`");
    assert_eq!(error("based_on = 3"), "mine.toml:1:12: expected the name of a built-in compiler");
    let wrong = "based_on = 'xla-cpu@0.12'\nname = 'mine'\n[fusion]\nmax_outputs = 'x'\n";
    assert!(error(wrong).starts_with("mine.toml:4:15: invalid type"), "{}", error(wrong));
}

#[test]
fn intervals_hold_the_estimate_and_what_is_known() {
    let text = "based_on = 'xla-cpu@0.12'\n[intervals]\nprograms = 9\ncheckpointed = [0.5, 0.9]\n\
                convolutions-in-loops = [1, 1]\nconvolutions = [1, 1]\nloops = [1, 2]\nstraight = [1, 1]\n";
    let compiler = Compiler::parse(text, "mine.toml").unwrap();
    let interval = |kind, temp| {
        let range = compiler.interval(kind, Bytes(100), Bytes(temp)).unwrap();
        (range.low.0, range.high.0)
    };
    assert_eq!(interval(ProgramKind::Checkpointed, 100), (50, 100));
    assert_eq!(interval(ProgramKind::Checkpointed, 10), (90, 100), "arguments and results are known");
    assert_eq!(interval(ProgramKind::Loops, 100), (100, 200));
    let mut unknown = compiler;
    unknown.intervals = None;
    assert_eq!(unknown.interval(ProgramKind::Loops, Bytes(1), Bytes(1)), None);
}

#[test]
fn compilers_are_for_machines_of_one_family() {
    let [gpu, cpu, tpu] = ["xla-gpu", "xla-cpu", "xla-tpu"].map(|name| Compiler::find(name).unwrap());
    let target = |name| Target::find(name).unwrap();
    assert!(gpu.compiles_for(&target("gpu-a100")) && !gpu.compiles_for(&target("tpu-v5e")));
    assert!(tpu.compiles_for(&target("tpu-v6e")) && !tpu.compiles_for(&target("cpu")));
    // Nobody knows what compiles for a machine that is described as another one.
    assert!(cpu.compiles_for(&Target { family: Family::Other, ..target("cpu") }));
}
