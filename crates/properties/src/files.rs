//! Properties of any bytes read as a file: either the file can be used, or an error names the wrong position.

use std::io::{Cursor, Write};
use std::sync::LazyLock;

use memplan::check::check;
use memplan::hlo;
use memplan::interp::{self, npz};
use memplan::ipu::{IpuError, IpuOptions, Placement, plan_tiles};
use memplan::ir::{Literal, Module, fingerprint};
use memplan::memory::{Bytes, PlanFile, Target, TargetError};
use memplan::passes::LEGALIZE;
use memplan::plan::{PlanOptions, Planned, plan};
use memplan::pool::bfc::{Bfc, Options};
use memplan::pool::replay::{Outcome, Platform, replay};
use memplan::pool::trace::{Event, Trace};

use memplan_testkit::random_inputs;

use crate::{evaluate, plan_to_run, run_passes};

/// A small program with a loop, a donated parameter, and a tuple: what files are about here.
const PROGRAM: &str = include_str!("program.hlo");

/// The program, in the order of its plan, with its inputs and results.
struct Subject {
    module: Module,
    planned: Planned,
    inputs: Vec<Literal>,
    meant: Literal,
}

static SUBJECT: LazyLock<Subject> = LazyLock::new(|| {
    let mut module = hlo::parse(PROGRAM).expect("it is HLO");
    let planned = plan_to_run(&mut module, &toy()).expect("it has a plan");
    let inputs = random_inputs(&module, 7);
    let meant = evaluate(&module, &inputs).expect("it can be evaluated");
    Subject { module, planned, inputs, meant }
});

/// A target file: a machine for which a program can be planned, or an error within the text.
///
/// # Panics
/// When that is not so.
pub fn target(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match Target::parse(&text, "fuzzed.toml") {
        Ok(target) => {
            let mut module = SUBJECT.module.clone();
            module.is_scheduled = false;
            run_passes(&mut module, &[&LEGALIZE], &target).expect("passes ask nothing of a target");
            if let Ok(planned) = plan(&module, &target, &PlanOptions::default()) {
                check(&module, &planned.schedule, &target, &planned.plan).expect("the plan is right");
            }
        }
        Err(TargetError::File { span, message, help, .. }) => {
            assert!(text.get(span.clone()).is_some(), "{span:?} lies within the text: {message}");
            hlo::render_with_help(&message, help.as_deref(), span, "fuzzed.toml", &text);
        }
        Err(error) => panic!("{error} does not say where"),
    }
}

/// An archive of inputs, or the contents of its only array: literals that are written and read back, or an error.
///
/// # Panics
/// When that is not so.
pub fn npz(bytes: &[u8]) {
    let module =
        hlo::parse("HloModule m\nENTRY e {\n  ROOT p = f32[2,3] parameter(0)\n}").expect("it is HLO");
    let archive = match bytes.split_first() {
        Some((0, contents)) => archive_of(contents),
        _ => bytes.to_vec(),
    };
    let Ok(inputs) = npz::read_inputs(&module, Cursor::new(archive)) else { return };
    let mut written = Cursor::new(Vec::new());
    npz::write_outputs(&inputs[0], &mut written).expect("memory does not run full");
    let read = npz::read_outputs(&inputs[0], written).expect("what was written can be read");
    assert_eq!(read, inputs[0]);
}

/// The archive whose only array has these bytes, checksum included, which no fuzzer would find.
fn archive_of(contents: &[u8]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    zip.start_file("p0.npy", options).expect("memory does not run full");
    zip.write_all(contents).expect("memory does not run full");
    zip.finish().expect("memory does not run full").into_inner()
}

/// A trace: written and read it has the same events, and pools of all kinds serve it without giving a byte twice; or an
/// error.
///
/// # Panics
/// When that is not so.
pub fn trace(bytes: &[u8]) {
    let Ok(trace) = Trace::parse(bytes) else { return };
    let again = Trace::parse(trace.to_csv().as_bytes()).expect("own text can be read");
    assert_eq!(again.events(), trace.events(), "own text has the same events");
    let limit = Bytes(1 << (12 + bytes.len() % 32));
    let pools = [Options::preallocated(limit), Options::growing(limit), Options::two_ended(limit)];
    for options in pools {
        for timestamps in [false, true] {
            let mut pool = Bfc::new(Options { timestamps, release_regions: !timestamps, ..options });
            assert_disjoint(&trace, &replay(&mut pool, &trace, None).outcomes);
        }
    }
    assert_disjoint(&trace, &replay(&mut Platform::new(limit), &trace, None).outcomes);
}

/// No two requests that live together were given one byte.
fn assert_disjoint(trace: &Trace, outcomes: &[Outcome]) {
    let mut live = std::collections::BTreeMap::new();
    for timed in trace.events() {
        let (Event::Allocate(index) | Event::Free(index)) = timed.event else { continue };
        let Outcome::Served { address, .. } = outcomes[index.0] else { continue };
        let end = address + trace[index].request.bytes.0;
        if let Event::Free(_) = timed.event {
            live.remove(&address);
            continue;
        }
        let below = live.range(..end).next_back();
        assert!(below.is_none_or(|(_, &below)| below <= address), "bytes at {address} are given twice");
        live.insert(address, end);
    }
}

/// A plan file for the subject: a plan that the checker accepts runs and computes the right results.
///
/// # Panics
/// When that is not so.
pub fn plan_file(bytes: &[u8]) {
    let Subject { module, inputs, meant, .. } = &*SUBJECT;
    let Ok(mut file) = serde_json::from_slice::<PlanFile>(bytes) else { return };
    file.fingerprint = format!("{:016x}", fingerprint(module));
    let Ok((schedule, plan)) = file.resolve(module) else { return };
    if check(module, &schedule, &toy(), &plan).is_err() {
        return;
    }
    let again = PlanFile::new(module, &schedule, &plan);
    let read = serde_json::to_vec(&again).and_then(|text| serde_json::from_slice::<PlanFile>(&text));
    assert_eq!(read.expect("own text can be read"), again);
    // The evaluator needs working memory that nobody has to plan, and an arena may be large for no reason.
    let options = interp::Options { memory_limit: 1 << 24, ..interp::Options::default() };
    if let Ok(found) = interp::run_in_arena(module, &schedule, &plan, inputs, &options) {
        assert_eq!(found, *meant, "accepted, and computes something else");
    }
}

/// A placement file for a machine of tiles: it is valid, or there is an error within the text.
///
/// # Panics
/// When that is not so.
pub fn placement(bytes: &[u8]) {
    static TILES: LazyLock<Target> = LazyLock::new(|| {
        let mut target = Target::find("ipu-gc200").expect("the target is built in");
        target.tiles.as_mut().expect("it has tiles").count = 8;
        target
    });
    let text = String::from_utf8_lossy(bytes);
    let Subject { module, planned, .. } = &*SUBJECT;
    let error = match Placement::parse(&text) {
        Err(error) => error,
        Ok(placement) => {
            let options = IpuOptions { placement, ..IpuOptions::default() };
            match plan_tiles(module, &planned.facts, &TILES, &options) {
                Err(IpuError::Placement(error)) => error,
                Ok(_) => return,
                Err(error) => panic!("{error}"),
            }
        }
    };
    assert!(text.len() >= error.span.end && text.get(error.span.clone()).is_some(), "{error:?} in {text:?}");
}

fn toy() -> Target {
    Target::find("toy").expect("the target is built in")
}
