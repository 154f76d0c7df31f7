//! How fast HLO text is read and written: `cargo bench -p memplan-hlo --bench parse`.
//!
//! One line per file of the corpus (see `memplan_testkit::corpus`), or per file named as an argument: size, then megabytes per second of reading and of writing, the best of several runs.
//! `scripts/parse_speed.py` prints XLA's parser beside it.

#![allow(clippy::print_stdout, reason = "a benchmark talks to a person")]

use std::{
    fs,
    hint::black_box,
    path::PathBuf,
    time::{Duration, Instant},
};

use memplan_testkit::{FORMS, corpus};

fn main() {
    let named: Vec<PathBuf> =
        std::env::args_os().skip(1).map(PathBuf::from).filter(|path| path.is_file()).collect();
    let all = || corpus().iter().flat_map(|program| FORMS.map(|form| program.text_path(form))).collect();
    let files = if named.is_empty() { all() } else { named };
    let (mut bytes, mut reading, mut writing) = (0, Duration::ZERO, Duration::ZERO);
    for path in files {
        let source = fs::read_to_string(&path).expect("the file is readable");
        let module = memplan_hlo::parse(&source).expect("the file is HLO");
        let read = best(|| drop(black_box(memplan_hlo::parse(black_box(&source)))));
        let write = best(|| drop(black_box(memplan_hlo::print(black_box(&module)))));
        line(&path.display().to_string(), source.len(), read, write);
        (bytes, reading, writing) = (bytes + source.len(), reading + read, writing + write);
    }
    line("all", bytes, reading, writing);
}

fn line(name: &str, bytes: usize, read: Duration, write: Duration) {
    let speed = |time: Duration| bytes as f64 / 1e6 / time.as_secs_f64();
    println!("{name}\t{bytes} bytes\tread {:.0} MB/s\twrite {:.0} MB/s", speed(read), speed(write));
}

/// The shortest of several runs, at least three and at most as many as fit a fifth of a second.
fn best(mut run: impl FnMut()) -> Duration {
    let begin = Instant::now();
    let mut best = Duration::MAX;
    for i in 0.. {
        if i >= 3 && begin.elapsed() > Duration::from_millis(200) {
            break;
        }
        let start = Instant::now();
        run();
        best = best.min(start.elapsed());
    }
    best
}
