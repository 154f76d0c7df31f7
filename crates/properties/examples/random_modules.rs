//! Sends random modules through everything (`programs::check_all`), or through each lever of `rewrite` alone
//! (`programs::check_levers`), for hours, and can be stopped and resumed at any time.
//!
//! ```text
//! usage: random_modules RECORD.tsv [--levers] [--until-clean N] [--first SEED]
//! ```
//!
//! Seeds are taken in turn from `--first` (0 unless said), on one thread, until N modules in a row (100,000 unless said)
//! show nothing. The record gets a line for every thousand modules (`done`, first seed, modules, CPU seconds, and how many
//! modules each lever changed for which compiler) and for each finding (`wrong`, seed, what); a run goes on after the last
//! thousand of the record. After a mistake is mended, `done` lines stay, and its seed is a case of the tests.

#![allow(clippy::print_stdout, reason = "what it is for")]

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::panic;
use std::sync::Mutex;

use memplan_properties::programs::{TARGETS, check_all, check_levers, of_seed};

const MODULES_PER_LINE: u64 = 1000;

/// Where the last panic was, which the payload of a panic does not say.
static LAST_PANIC: Mutex<String> = Mutex::new(String::new());

fn main() {
    const USAGE: &str = "usage: random_modules RECORD.tsv [--levers] [--until-clean N] [--first SEED]";
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect(USAGE);
    let (mut until_clean, mut first, mut levers) = (100_000, 0, false);
    while let Some(option) = arguments.next() {
        let mut number = || arguments.next().and_then(|value| value.parse().ok()).expect(USAGE);
        match option.as_str() {
            "--levers" => levers = true,
            "--until-clean" => until_clean = number(),
            "--first" => first = number(),
            _ => panic!("{USAGE}"),
        }
    }
    panic::set_hook(Box::new(|info| {
        *LAST_PANIC.lock().expect("no panic while it is held") = info.to_string()
    }));

    let (mut next, mut clean) = resumed(&std::fs::read_to_string(&path).unwrap_or_default(), first);
    let mut record =
        OpenOptions::new().create(true).append(true).open(&path).expect("the record can be written");
    while clean < until_clean {
        let begin = cpu_seconds();
        let mut changed: BTreeMap<String, u64> = BTreeMap::new();
        for seed in next..next + MODULES_PER_LINE {
            match checked(seed, levers) {
                Ok(levers) => {
                    clean += 1;
                    levers.into_iter().for_each(|lever| *changed.entry(lever).or_default() += 1);
                }
                Err(what) => {
                    clean = 0;
                    write(&mut record, &format!("wrong\t{seed}\t{}", what.replace(['\n', '\t'], " ")));
                }
            }
        }
        let changed: Vec<String> = changed.iter().map(|(lever, n)| format!("{lever} {n}")).collect();
        let seconds = cpu_seconds() - begin;
        write(
            &mut record,
            &format!("done\t{next}\t{MODULES_PER_LINE}\t{seconds:.1}\t{}", changed.join(", ")),
        );
        next += MODULES_PER_LINE;
    }
    println!("{clean} modules in a row show nothing; the next seed is {next}");
}

/// The next seed after those of a record, and how many modules in a row showed nothing.
fn resumed(record: &str, first: u64) -> (u64, u64) {
    let mut next = first;
    let mut last_wrong = None;
    let mut begin = u64::MAX;
    for line in record.lines() {
        let mut fields = line.split('\t');
        let kind = fields.next();
        let number = |field: Option<&str>| field.and_then(|text| text.parse::<u64>().ok());
        match (kind, number(fields.next())) {
            (Some("done"), Some(seed)) if seed >= first => {
                begin = begin.min(seed);
                next = next.max(seed + number(fields.next()).unwrap_or(0));
            }
            (Some("wrong"), Some(seed)) => last_wrong = last_wrong.max(Some(seed)),
            _ => {}
        }
    }
    let clean_from = last_wrong.map_or(begin, |seed| begin.max(seed + 1));
    (next, next.saturating_sub(clean_from))
}

/// The levers that changed the module of a seed, each with a compiler, or what does not hold.
fn checked(seed: u64, levers: bool) -> Result<Vec<String>, String> {
    let outcome = panic::catch_unwind(|| match levers {
        true => check_levers(&of_seed(seed)).map(|pulled| {
            pulled.into_iter().map(|(compiler, lever)| format!("{compiler} {lever}")).collect()
        }),
        false => check_all(&of_seed(seed), &TARGETS).map(|()| Vec::new()),
    });
    outcome.unwrap_or_else(|_| Err(LAST_PANIC.lock().expect("no panic while it is held").clone()))
}

fn write(record: &mut File, line: &str) {
    writeln!(record, "{line}").expect("the record can be written");
    println!("{line}");
}

/// Seconds that this process has had of a CPU; 0 where the system does not say.
fn cpu_seconds() -> f64 {
    let status = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = status.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |index: usize| fields.get(index).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
    // User and system time, the 14th and 15th field of all, in hundredths of a second on every Linux.
    (ticks(11) + ticks(12)) / 100.0
}
