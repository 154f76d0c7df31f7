//! Flags and pairs that mean nothing: wrong usage, whichever verb they are given to, and said before any work is done.

use crate::{failure, repository};

/// Every command is refused with status 2 and says so.
#[track_caller]
fn refused(command: &str, said: &str) {
    let folder = repository("");
    let args: Vec<&str> = command.split_whitespace().collect();
    let (message, status) = failure(&folder, &args);
    assert_eq!(status, 2, "{command}: {message}");
    assert!(message.contains(said), "{command}: {message}");
}

const STEP: &str = "tests/questions/training_step.hlo";

#[test]
fn compilers_are_asked_about_machines_that_they_compile_for() {
    for verb in ["estimate", "rewrite", "fit"] {
        refused(
            &format!("{verb} {STEP} --compiler xla-gpu --target tpu-v5e"),
            "xla-gpu does not compile for tpu-v5e",
        );
        refused(&format!("{verb} {STEP} --compiler xla-tpu --target gpu-a100"), "`--compiler xla-gpu` does");
    }
    refused(
        &format!("diff {STEP} {STEP} --compiler xla-cpu --target gpu-a100"),
        "does not compile for gpu-a100",
    );
}

#[test]
fn flags_that_mean_nothing_for_a_machine_are_refused() {
    for (flags, said) in [
        (
            "--target cpu --no-preallocate",
            "`--no-preallocate` has no effect here: processes on cpu have no memory pool",
        ),
        ("--target tpu-v5e --memory-fraction 0.5", "`--memory-fraction` has no effect"),
        ("--target cpu --collective-memory 1MiB", "`--collective-memory` has no effect"),
        ("--target gpu-h100 --emit executorch=-", "`--emit executorch` makes no sense for gpu-h100"),
        ("--target tpu-v5e --emit tflite-micro=-", "`--emit tflite-micro` makes no sense for tpu-v5e"),
        ("--target gpu-h100 --emit c=net.c", "`--emit c` makes no sense for gpu-h100: C is for processors"),
        (
            "--target cpu --emit c=-",
            "the file must be NAME.c, where NAME can begin the names of C functions; `-` is not",
        ),
        (
            "--target cpu --emit c=net.c --cmsis-nn",
            "`--cmsis-nn` makes no sense for cpu, which is no Cortex-M: it is for mcu-cortex-m7,",
        ),
        ("--target cpu --emit c=my-net.c", "the file must be NAME.c"),
        ("--target cpu --emit c=a.c --emit c-header=a.h", "two results would be written to `a.h`"),
        ("--target cpu --emit tiles=-", "`--emit tiles` makes no sense for cpu: it has no tiles"),
    ] {
        for verb in ["plan", "compile"] {
            refused(&format!("{verb} {STEP} {flags}"), said);
        }
    }
    refused(&format!("compile {STEP} --target gpu-h100 --streaming"), "gpu-h100 has no tiles");
    refused(&format!("compile {STEP} --target cpu --ipus 4 --recompute"), "`--ipus` has no effect");
    refused(&format!("fit {STEP} --target cpu --allocator bfc"), "`--allocator` has no effect");
}

#[test]
fn flags_that_mean_nothing_beside_others_are_refused() {
    for (command, said) in [
        ("compile STEP --target cpu --timings --format json", "`--timings` has no effect here"),
        ("compile STEP --target cpu --frontier --explain-fusion", "`--explain-fusion` has no effect here"),
        (
            "compile STEP --target gpu-h100 --frontier --no-preallocate",
            "`--no-preallocate` has no effect here",
        ),
        (
            "plan STEP --around a0",
            "`--around` has no effect here: it configures the graph of `--emit dot=FILE`",
        ),
        (
            "plan STEP --target mcu-cortex-m7 --cmsis-nn",
            "`--cmsis-nn` has no effect here: it configures the C of `--emit c=FILE`",
        ),
        ("plan STEP --top 3 --format json", "`--top` has no effect here"),
        ("explain STEP a0 --group class", "`--group` has no effect here"),
        (
            "fit STEP --target gpu-h100 --memory-limit 1GiB --no-preallocate",
            "`--no-preallocate` has no effect here",
        ),
        (
            "run STEP --inputs x.npz --target cpu",
            "`--target` has no effect here: only `--arena` and `--optimize`",
        ),
        ("run STEP --inputs x.npz --pin 0=main", "`--pin` has no effect here"),
        ("opt STEP --stop-after 2", "--passes"),
        ("replay t.csv --limit 1GiB --memory-fraction 0.5", "`--memory-fraction` has no effect here"),
        ("replay t.csv --limit 1GiB --allocator platform --growth", "`--growth` has no effect here"),
        (
            "replay t.csv --limit 1GiB --pack-time 1",
            "`--pack-time` has no effect here: a trace is not planned",
        ),
    ] {
        refused(&command.replace("STEP", STEP), said);
    }
}

#[test]
fn numbers_of_bytes_have_a_unit() {
    for command in [
        "compile STEP --target cpu --memory-limit 16",
        "rewrite STEP --compiler xla-gpu --memory-limit 16",
        "fit STEP --target gpu-h100 --memory-limit 16",
        "replay t.csv --limit 16",
        "diff STEP STEP --fail-above 16",
    ] {
        refused(&command.replace("STEP", STEP), "`16` has no unit; write `16GiB`, `16MiB` or `16B`");
    }
}

#[test]
fn close_names_are_suggested() {
    for (command, meant) in [
        ("opt STEP --passes simplfy", "did you mean `simplify`?"),
        ("estimate STEP --compiler xla_gpu", "did you mean `xla-gpu`?"),
        ("plan STEP --emit layuot=-", "did you mean `layout`?"),
        ("plan STEP --pin 0=hst", "did you mean `host`?"),
        ("plan STEP --target gpu-h100 --allocator bfs", "did you mean `bfc`?"),
    ] {
        refused(&command.replace("STEP", STEP), meant);
    }
    let (message, status) = failure(&repository(""), &["plan", STEP, "--target", "gpu-h10"]);
    assert!(
        status == 1 && message.contains("there is no target `gpu-h10`; did you mean `gpu-h100`?"),
        "{message}"
    );
}
