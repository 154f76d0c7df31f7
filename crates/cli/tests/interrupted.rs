//! Runs that are ended from outside: at any moment, a file is complete or unchanged.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::repository;

/// How often a run is ended by each signal.
const TIMES: u32 = 12;

#[test]
fn files_are_whole_whenever_a_run_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let start = Instant::now();
    assert!(start_run(folder.path()).wait().unwrap().success());
    let whole_run = start.elapsed();
    let files = ["report.json", "plan.json", "module.hlo"].map(|name| folder.path().join(name));
    let whole = files.each_ref().map(|path| std::fs::read(path).unwrap());
    let (mut ended, mut seen) = (0, [0, 0, 0]);
    for signal in ["INT", "KILL", "TERM"] {
        for time in 0..TIMES {
            // What was there before is absent, or something old.
            let old: Option<&[u8]> = if time % 2 == 0 { None } else { Some(b"old") };
            for path in &files {
                std::fs::remove_file(path).unwrap_or_default();
                old.iter().for_each(|old| std::fs::write(path, old).unwrap());
            }
            let mut child = start_run(folder.path());
            // More often towards the end, where files are written.
            let share = 1.1 - 0.6 * (f64::from(time) / f64::from(TIMES)).powi(2);
            std::thread::sleep(Duration::from_secs_f64(whole_run.as_secs_f64() * share));
            let sent = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).output();
            sent.unwrap();
            ended += u32::from(!child.wait().unwrap().success());
            for ((path, whole), seen) in files.iter().zip(&whole).zip(&mut seen) {
                let found = std::fs::read(path).ok();
                let is_whole = found.as_deref() == Some(whole);
                *seen += u32::from(is_whole);
                assert!(is_whole || found.as_deref() == old, "SIG{signal}: {} is half there", path.display());
            }
        }
    }
    eprintln!("{ended} of {} runs were ended; files were written in {seen:?}", 3 * TIMES);
}

/// A run that writes three files.
fn start_run(folder: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_memplan"))
        .current_dir(folder)
        .arg("compile")
        .arg(repository("examples/attention.hlo.txt"))
        .args(["--target", "gpu-h100", "--format", "json", "-o", "report.json"])
        .args(["--emit", "plan=plan.json", "--emit", "hlo=module.hlo"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
