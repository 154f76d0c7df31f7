//! Destinations of results: each is separate, but may be the input.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::{failure, memplan, repository};

const MODULE: &str =
    "HloModule m\n\nENTRY e {\n  p = f32[8]{0} parameter(0)\n  ROOT r = f32[8]{0} negate(p)\n}\n";

fn folder_with_module() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.hlo"), MODULE).unwrap();
    folder
}

/// Runs the command with something on its standard input.
fn memplan_reading(folder: &Path, args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_memplan"))
        .current_dir(folder)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may end before it reads.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

#[test]
fn two_results_for_one_place_are_wrong_usage() {
    let folder = folder_with_module();
    std::fs::write(folder.path().join("p.csv"), "id,lower,upper,size\na,0,2,4\n").unwrap();
    std::fs::write(folder.path().join("t.csv"), "event,id,size\nalloc,a,4\n").unwrap();
    let before = std::fs::read_dir(folder.path()).unwrap().count();
    for args in [
        &["plan", "m.hlo", "-o", "a", "--emit", "hlo=a"][..],
        &["plan", "m.hlo", "--emit", "hlo=a", "--emit", "plan=./a"],
        &[
            "compile",
            "m.hlo",
            "--target",
            "cpu",
            "--emit",
            "hlo=a",
            "--emit",
            "layout=nowhere/../a",
            "-o",
            "a",
        ],
        &["plan", "m.hlo", "--emit", "hlo=-"],
        &["plan", "m.hlo", "-o", "-", "--emit", "plan=-"],
        &["replay", "t.csv", "--limit", "1GiB", "--trace", "a", "-o", "a"],
        &["replay", "t.csv", "--limit", "1GiB", "--trace", "-"],
        &["pack", "p.csv", "-o", "-", "--format", "json"],
    ] {
        let (text, status) = failure(folder.path(), args);
        assert!(text.contains("two results would be written to "), "{args:?}: {text}");
        assert_eq!(status, 2, "{args:?}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), before, "nothing is written");
}

#[test]
#[cfg(unix)]
fn links_to_one_file_are_one_place_and_devices_are_many() {
    let folder = folder_with_module();
    std::fs::write(folder.path().join("a"), "before").unwrap();
    std::os::unix::fs::symlink("a", folder.path().join("b")).unwrap();
    let (text, status) = failure(folder.path(), &["plan", "m.hlo", "-o", "a", "--emit", "hlo=b"]);
    assert!(text.contains("two results would be written to `a`"), "{text}");
    assert_eq!(status, 2);
    let output = memplan(
        folder.path(),
        &["plan", "m.hlo", "-o", "/dev/null", "--emit", "hlo=/dev/null", "--emit", "plan=/dev/null"],
    );
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A result may go to standard output by name, when the report goes elsewhere.
#[test]
fn a_dash_is_standard_output() {
    let folder = folder_with_module();
    let output = memplan(folder.path(), &["plan", "m.hlo", "-o", "report", "--emit", "hlo=-"]);
    assert!(output.stdout.starts_with(b"HloModule m, is_scheduled=true"));
    assert!(!folder.path().join("-").exists());
}

#[test]
fn standard_input_can_be_read_once() {
    let folder = folder_with_module();
    let output = memplan_reading(folder.path(), &["check", "-", "-"], MODULE);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("standard input (`-`) is named twice"));
    let output = memplan_reading(folder.path(), &["opt", "-"], MODULE);
    assert!(output.status.success() && output.stdout.starts_with(b"HloModule m"));
}

/// The input is read whole before anything is written.
#[test]
fn results_may_replace_the_input() {
    let folder = folder_with_module();
    let path = folder.path().join("m.hlo");
    assert!(memplan(folder.path(), &["opt", "m.hlo", "-o", "m.hlo"]).status.success());
    let once = std::fs::read_to_string(&path).unwrap();
    assert!(once.starts_with("HloModule m"), "{once}");
    assert!(memplan(folder.path(), &["opt", "m.hlo", "-o", "m.hlo"]).status.success());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), once);
    let (_, status) = failure(folder.path(), &["opt", "m.hlo", "--passes", "nothing", "-o", "m.hlo"]);
    assert_eq!((status, std::fs::read_to_string(&path).unwrap()), (2, once));
}

#[test]
#[cfg(target_os = "linux")]
fn full_disks_are_said() {
    let folder = folder_with_module();
    for args in [
        &["opt", "m.hlo", "-o", "/dev/full"][..],
        &["plan", "m.hlo", "-o", "/dev/full"],
        &["plan", "m.hlo", "--emit", "plan=/dev/full"],
    ] {
        let (text, status) = failure(folder.path(), args);
        assert!(text.contains("cannot write `/dev/full`: No space left on device"), "{args:?}: {text}");
        assert_eq!(status, 1);
    }
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_memplan"));
    let child = command.current_dir(folder.path()).args(["plan", "m.hlo"]).stdout(full);
    let output = child.stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("cannot write the result: No space left on device"), "{text}");
    assert_eq!(output.status.code(), Some(1));
}

/// A file that grows over its limit is not there, and what was there before is.
#[test]
#[cfg(target_os = "linux")]
fn files_that_do_not_fit_are_not_there() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("out"), "before").unwrap();
    let module = repository("examples/attention.hlo.txt");
    // With the signal ignored, writing beyond the limit is an error, as on a full disk.
    let script = format!(
        "trap '' XFSZ; ulimit -f 1; exec {} plan {} --format json -o out",
        env!("CARGO_BIN_EXE_memplan"),
        module.display()
    );
    let output = Command::new("sh").current_dir(folder.path()).args(["-c", &script]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("cannot write `out`: File too large"), "{text}");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(std::fs::read_to_string(folder.path().join("out")).unwrap(), "before");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
}

/// Whoever reads a pipe may stop early; that is no failure.
#[test]
#[cfg(unix)]
fn closed_pipes_are_no_failure() {
    let module = repository("examples/attention.hlo.txt");
    for rest in ["--format json", "--format text", "--format json 2>&1"] {
        let script = format!(
            "{{ {} plan {} {rest}; echo status $? >&2; }} | head -c 1",
            env!("CARGO_BIN_EXE_memplan"),
            module.display()
        );
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((text.trim(), output.stdout.len()), ("status 0", 1), "{rest}");
    }
}
