//! The notes of `plan` and `explain` on an unscheduled program: whose figures these are, what a compiler will need
//! instead, and which copies and donated arguments are XLA's.

use crate::{memplan, repository};

fn said(folder: &std::path::Path, args: &[&str]) -> String {
    let output = memplan(folder, args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_first_lines_say_whose_figures_follow() {
    let module = "tests/corpus/attention/before.hlo.txt";
    let first = |args: &[&str]| said(&repository(""), args).lines().take(3).collect::<Vec<_>>().join("\n");
    let plan = first(&["plan", module, "--target", "gpu-h100"]);
    assert!(plan.starts_with("This is a plan of the program as JAX wrote it"), "{plan}");
    assert!(
        plan.contains("xla-gpu will need ") && plan.contains("`memplan estimate --compiler xla-gpu`"),
        "{plan}"
    );
    let explained = first(&["explain", module, "--target", "tpu-v5e"]);
    assert!(explained.contains("as JAX wrote it") && explained.contains("xla-tpu will need "), "{explained}");
    // Nobody has a compiler for this machine but memplan.
    let plan = first(&["plan", module, "--target", "mcu-cortex-m7"]);
    assert!(plan.contains("`memplan compile --target mcu-cortex-m7`"), "{plan}");
    // What XLA has scheduled is what runs.
    let plan = first(&["plan", "tests/corpus/attention/gpu.hlo.txt", "--target", "gpu-h100"]);
    assert!(!plan.contains("no compiler has fused"), "{plan}");
}

/// The figure is the estimate's.
#[test]
fn what_a_compiler_will_need_is_its_estimate() {
    let (folder, module) = (repository(""), "tests/corpus/attention/before.hlo.txt");
    let json = |args: &[&str]| -> serde_json::Value { serde_json::from_str(&said(&folder, args)).unwrap() };
    let estimate = json(&["estimate", module, "--compiler", "xla-gpu", "--format", "json"]);
    let explained = json(&["explain", module, "--target", "gpu-h100", "--format", "json"]);
    assert_eq!(
        explained["expected"],
        serde_json::json!({ "compiler": "xla-gpu", "total": estimate["total"] })
    );
}

/// Of a program that XLA is yet to compile, they are those of the estimate.
#[test]
fn copies_are_those_that_the_compiler_makes() {
    let folder = tempfile::tempdir().unwrap();
    let text = "HloModule jit_f\n\nENTRY main {\n  p = f32[1024] parameter(0)\n  row = f32[1] parameter(1)\n  at = s32[] constant(0)\n  \
                n = f32[1024] negate(p)\n  s = f32[1] slice(n), slice={[0:1]}\n  u = f32[1024] dynamic-update-slice(n, row, at)\n  \
                ROOT r = (f32[1024], f32[1]) tuple(u, s)\n}\n";
    std::fs::write(folder.path().join("m.hlo"), text).unwrap();
    let explained = said(folder.path(), &["explain", "m.hlo", "--target", "gpu-h100"]);
    assert!(explained.contains("copies that xla-gpu will make, by memplan's estimate:"), "{explained}");
    // A module that XLA has scheduled has the copies that it has.
    std::fs::write(folder.path().join("s.hlo"), text.replacen("jit_f", "jit_f, is_scheduled=true", 1))
        .unwrap();
    let explained = said(folder.path(), &["explain", "s.hlo", "--target", "gpu-h100"]);
    assert!(explained.contains("\ncopies: "), "{explained}");
}

/// A loop reads a row of its state before it overwrites it: the copy that keeps both apart on paper is where its original is.
#[test]
fn what_stays_in_place_is_no_copy() {
    let explained =
        said(&repository("tests/questions"), &["explain", "read_before_write.hlo", "--target", "gpu-h100"]);
    assert!(explained.contains("copies that xla-gpu will make, by memplan's estimate: none"), "{explained}");
}

/// An argument of f32 whose only result is bf16: XLA lets no result live in it, whatever else a plan puts there.
#[test]
fn donation_in_vain_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let text = |to: &str| {
        format!(
            "HloModule jit_f, buffer_donor={{ (0, {{}}) }}\n\nENTRY main {{\n  p = f32[1024] parameter(0)\n  g = f32[1024] parameter(1)\n  \
             s = f32[1024] subtract(p, g)\n  t = f32[1024] tanh(s)\n  ROOT c = {to}[1024] convert(t)\n}}\n"
        )
    };
    let explained = |to: &str| {
        std::fs::write(folder.path().join("m.hlo"), text(to)).unwrap();
        let text = said(folder.path(), &["explain", "m.hlo", "--target", "gpu-h100"]);
        // However the lines are broken.
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let vain = explained("bf16");
    assert!(vain.contains("0 B are donated and used, 4.00 KiB are donated in vain"), "{vain}");
    assert!(
        vain.contains("XLA requires a result of exactly 4.00 KiB")
            && vain.contains("the closest is bf16[1024], 2.00 KiB"),
        "{vain}"
    );
    // Bytes count, not types.
    let used = explained("s32");
    assert!(used.contains("4.00 KiB are donated and used"), "{used}");
}
