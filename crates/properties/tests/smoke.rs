//! Every property, with every seed of its fuzz target unchanged, and with random changes. Findings of fuzzing that were
//! fixed are among the seeds.

use std::path::Path;

use memplan::{hlo, pack, stablehlo};
use memplan_properties::{files, programs};
use memplan_testkit::Random;

/// How often each seed is changed.
const CHANGES: usize = 20;

/// Where a fuzz target's seeds are; what it asks.
type Property = (&'static str, fn(&[u8]));

const PROPERTIES: &[Property] = &[
    ("parse_text", hlo::fuzzing::check_text),
    ("parse_proto", hlo::fuzzing::check_proto),
    ("stablehlo_text", stablehlo::fuzzing::check_text),
    ("stablehlo_bytecode", stablehlo::fuzzing::check_bytecode),
    ("pack", |bytes| _ = pack::fuzz::check(bytes)),
    ("target_file", files::target),
    ("npz", files::npz),
    ("trace", files::trace),
    ("plan_file", files::plan_file),
    ("placement", files::placement),
    ("program_text", programs::text),
    ("generated", programs::generated),
    ("broken_plan", programs::broken_plan),
];

#[test]
fn seeds_and_changes_of_them() {
    for (name, property) in PROPERTIES {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(name);
        let mut paths: Vec<_> =
            std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        assert!(!paths.is_empty(), "{name} has no seeds");
        for (number, path) in paths.iter().enumerate() {
            let seed = std::fs::read(path).unwrap();
            ask(name, *property, &seed, &path.display().to_string());
            let mut random = Random::new(number as u64);
            for change in 0..CHANGES {
                let changed = change_bytes(&seed, &mut random);
                ask(name, *property, &changed, &format!("change {change} of {}", path.display()));
            }
        }
    }
}

/// A panic comes with the bytes that led to it.
fn ask(name: &str, property: fn(&[u8]), bytes: &[u8], what: &str) {
    if std::panic::catch_unwind(|| property(bytes)).is_err() {
        panic!("{name} does not hold for {what}: {}", bytes.escape_ascii());
    }
}

/// Bytes removed, repeated, or replaced.
fn change_bytes(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 + random.below(4) {
        let from = random.below(bytes.len() + 1);
        let to = (from + random.below(8)).min(bytes.len());
        match random.below(4) {
            0 => drop(bytes.drain(from..to)),
            1 => bytes.extend_from_within(from..to),
            2 => bytes[from..to].fill(random.bits() as u8),
            _ => bytes.insert(from, random.bits() as u8),
        }
    }
    bytes
}
