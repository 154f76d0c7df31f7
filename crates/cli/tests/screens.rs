//! The screens of the verbs, 80 and 120 characters wide: no line is longer, and they are kept as snapshots to be looked
//! at.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::repository;

/// Where verbs of a test leave what is not for the screen.
const OUT: &str = "OUT";

/// What a verb shows on a screen of a width.
fn screen(width: usize, args: &[&str], folder: &Path) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_memplan"))
        .current_dir(repository(""))
        .env("COLUMNS", width.to_string())
        .args(within(args, folder))
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
}

/// Arguments with files in a folder for those in `OUT`.
fn within(args: &[&str], folder: &Path) -> Vec<PathBuf> {
    args.iter().map(|arg| arg.strip_prefix(OUT).map_or(arg.into(), |name| folder.join(&name[1..]))).collect()
}

/// A terminal of a size: what stands in it, and what has left it at the top, when a verb is done.
struct Terminal {
    /// The socket of a server of its own.
    socket: PathBuf,
}

impl Terminal {
    fn tmux(&self) -> Command {
        let mut tmux = Command::new("tmux");
        tmux.arg("-S").arg(&self.socket).args(["-f", "/dev/null"]);
        tmux.env_remove("COLUMNS").env_remove("NO_COLOR").current_dir(repository(""));
        tmux
    }

    /// None where there is no tmux.
    fn run(width: usize, args: &[&str], folder: &Path) -> Option<Terminal> {
        let terminal = Terminal { socket: folder.join(format!("{}{width}", args[0])) };
        let started = terminal
            .tmux()
            .args(["start-server", ";", "set", "-g", "history-limit", "10000", ";"])
            .args(["new-session", "-d", "-x", &width.to_string(), "-y", "24"])
            .args(["sh", "-c", "\"$0\" \"$@\"; tmux wait-for -S done; cat", env!("CARGO_BIN_EXE_memplan")])
            .args(within(args, folder))
            .status();
        if started.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            return None;
        }
        assert!(terminal.tmux().args(["wait-for", "done"]).status().unwrap().success());
        Some(terminal)
    }

    /// All lines without blanks at their ends, with colours where asked for.
    fn shows(&self, colors: bool) -> String {
        let mut capture = self.tmux();
        capture.args(["capture-pane", "-p", "-S", "-", "-E", "-"]).args(colors.then_some("-e"));
        lines(&String::from_utf8(capture.output().unwrap().stdout).unwrap())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux().arg("kill-server").status();
    }
}

/// Text without blanks at the ends of its lines, and without empty lines at its end.
fn lines(text: &str) -> String {
    let text: String = text.lines().map(|line| format!("{}\n", line.trim_end())).collect();
    text.trim_end().to_string()
}

/// The verbs, each with a program that shows all its parts.
const VERBS: [(&str, &[&str]); 11] = [
    ("plan", &["plan", "tests/corpus/lstm/gpu.hlo.txt", "--target", "gpu-h100"]),
    ("compile", &["compile", "tests/corpus/transformer_training_step/before.hlo.txt", "--target", "cpu"]),
    ("estimate", &["estimate", "tests/corpus/attention/before.hlo.txt", "--compiler", "xla-gpu"]),
    (
        "beside",
        &[
            "estimate",
            "tests/corpus/kmeans/before.hlo.txt",
            "--compiler",
            "xla-gpu",
            "--beside",
            "tests/corpus/kmeans/gpu.hlo.txt",
        ],
    ),
    (
        "fit",
        &[
            "fit",
            "tests/corpus/transformer_training_step/before.hlo.txt",
            "--target",
            "gpu-h100",
            "--memory-limit",
            "100KiB",
        ],
    ),
    ("explain", &["explain", "tests/corpus/lstm/gpu.hlo.txt", "--target", "gpu-h100"]),
    ("pack", &["pack", "tests/screens/problem.csv"]),
    ("replay", &["replay", "tests/corpus/attention/gpu.hlo.txt", "--target", "gpu-h100"]),
    ("diff", &["diff", "tests/hlo/diff/step.hlo", "tests/hlo/diff/remat.hlo"]),
    (
        "rewrite",
        &[
            "rewrite",
            "tests/corpus/transformer_training_step/before.hlo.txt",
            "--compiler",
            "xla-gpu",
            "-o",
            "OUT/rewritten.hlo",
        ],
    ),
    ("check", &["check", "tests/corpus/lstm/gpu.hlo.txt", "OUT/plan.json"]),
];

/// The plan that is checked.
const PLAN: [&str; 8] = [
    "plan",
    "tests/corpus/lstm/gpu.hlo.txt",
    "--target",
    "gpu-h100",
    "--format",
    "json",
    "-o",
    "OUT/plan.json",
];

#[test]
fn no_line_is_longer_than_the_screen() {
    let folder = tempfile::tempdir().unwrap();
    screen(80, &PLAN, folder.path());
    insta::with_settings!({
        snapshot_path => "../../../snapshots",
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        for (name, args) in VERBS {
            for width in [80, 120] {
                let text = screen(width, args, folder.path());
                for line in text.lines() {
                    assert!(line.chars().count() <= width, "{name} at {width}: {line}");
                }
                let text = without_search_time(&without_times(&text));
                insta::assert_snapshot!(format!("screen_{name}_{width}"), text);
            }
        }
    });
}

/// A terminal shows what a pipe gets, in colours: nothing wraps, and of what moved while it ran nothing is left.
#[test]
#[allow(clippy::print_stderr, reason = "people want to know that nothing was looked at")]
fn a_terminal_shows_the_same() {
    let folder = tempfile::tempdir().unwrap();
    screen(80, &PLAN, folder.path());
    let run =
        ("run", &["run", "tests/corpus/lstm/before.hlo.txt", "--inputs", "tests/corpus/lstm/inputs.npz"][..]);
    for (name, args) in VERBS.into_iter().chain([run]) {
        for width in [80, 120] {
            let Some(terminal) = Terminal::run(width, args, folder.path()) else {
                eprintln!("skipped: no tmux");
                return;
            };
            assert_eq!(
                without_search_time(&terminal.shows(false)),
                without_search_time(&lines(&screen(width, args, folder.path()))),
                "{name} at {width}"
            );
            let is_colored =
                ["plan", "compile", "estimate", "beside", "fit", "explain", "diff"].contains(&name);
            assert_eq!(terminal.shows(true).contains("\u{1b}[1m"), is_colored, "{name} at {width}");
        }
    }
}

/// The screen without what a run takes, which changes with every number of the cost model; that has tests of its own.
pub(crate) fn without_times(text: &str) -> String {
    let (mut is_time, mut is_table) = (false, text.trim_start().starts_with("stage "));
    let without_runs = |line: &str| {
        is_table &= !line.trim().is_empty();
        // The columns of a stage after its bytes: behind the heading, or the first percent sign.
        let end = line
            .find("a run")
            .or_else(|| line.find('%').map(|at| at + 1))
            .or_else(|| line.find("iB").map(|at| at + 2));
        match end {
            Some(end) if is_table => format!("{}\n", line[..end].trim_end()),
            _ => line.to_string(),
        }
    };
    let keep = |line: &&str| {
        is_time = line.starts_with("one run takes") || is_time && line.starts_with("  ");
        !is_time
    };
    text.split_inclusive('\n').filter(keep).map(without_runs).collect()
}

/// The screen without the seconds that a search for places took, which no two runs share.
pub(crate) fn without_search_time(text: &str) -> String {
    let steady = |line: &str| match line.rsplit_once(", ") {
        Some((nodes, _)) if line.starts_with("effort") => format!("{nodes}\n"),
        _ => line.to_string(),
    };
    text.split_inclusive('\n').map(steady).collect()
}

/// Colours are there when they are asked for, and change nothing else.
#[test]
fn colors_when_they_are_asked_for() {
    let (_, args) = VERBS[0];
    let folder = Path::new("");
    let plain = screen(80, args, folder);
    assert!(!plain.contains('\u{1b}'), "a pipe has no colours");
    let mut colored = screen(80, &[args, &["--color", "always"]].concat(), folder);
    assert!(colored.contains("\u{1b}[1m") && colored.contains("\u{1b}[31m"));
    while let Some(from) = colored.find('\u{1b}') {
        let to = colored[from..].find('m').unwrap();
        colored.replace_range(from..=from + to, "");
    }
    assert_eq!(colored, plain);
}
