//! `advice::diff` on lists of who holds the peak, a file each under `tests/diff/`: `before` and `after` head holders of main
//! memory, `before NAME` those of another memory; a holder is `[COUNT x] SHAPE CLASS OPERATION [LINE]`.

use std::fmt::Write as _;

use memplan::advice::diff::{Diff, MemoryDiff, diff, signed};
use memplan::memory::PlanFile;
use serde_json::{Value, json};

#[test]
fn causes_are_found_among_holders() {
    insta::glob!("diff/*.txt", |path| {
        let text = std::fs::read_to_string(path).unwrap();
        let found = diff(&plan(&text, "before"), &plan(&text, "after"));
        insta::with_settings!({
            snapshot_path => "../snapshots",
            prepend_module_to_snapshot => false,
            omit_expression => true,
            input_file => path,
        }, {
            insta::assert_snapshot!("diff", shown(&found));
        });
    });
}

/// No time that grows with the square of a list that somebody made up.
#[test]
fn many_holders_of_one_name_are_paired() {
    let list = |extra: usize| -> String {
        let line = |i: usize| format!("  f32[{},{}] temporary add\n", i + extra, 7 * i + 3);
        (0..20_000).map(line).collect()
    };
    let text = format!("before\n{}after\n{}", list(1), list(2));
    let found = diff(&plan(&text, "before"), &plan(&text, "after"));
    assert!(!found.main.changes.is_empty());
}

fn plan(text: &str, side: &str) -> PlanFile {
    let holders = |memory: &str| -> Vec<Value> {
        let heading = format!("{side} {memory}");
        let lines = text.lines().skip_while(|line| line.trim() != heading.trim()).skip(1);
        lines.take_while(|line| line.starts_with(' ')).map(holder).collect()
    };
    let peak = |space: u32, holders: Vec<Value>| {
        let bytes: u64 = holders.iter().map(|holder| holder["bytes"].as_u64().unwrap()).sum();
        json!({"space": space, "time": 0, "instruction": "i", "bytes": bytes, "holders": holders, "curve": []})
    };
    let space = |space: u32, name: &str, bytes: &Value| json!({"space": space, "name": name, "capacity": null, "temp": bytes, "total": bytes, "temp_lower_bound": bytes});
    let main = peak(0, holders(""));
    let fast = peak(1, holders("vmem"));
    let mut spaces = vec![space(0, "hbm", &main["bytes"])];
    spaces.extend((fast["bytes"] != 0).then(|| space(1, "vmem", &fast["bytes"])));
    let mut totals =
        json!({"arguments": 0, "outputs": 0, "aliased": 0, "constants": 0, "fragmentation": 0, "padding": 0});
    for name in ["temp", "total", "peak_live", "temp_lower_bound"] {
        totals[name] = main["bytes"].clone();
    }
    let file = json!({
        "format": "memplan.plan", "version": 1, "module": "m", "fingerprint": "", "target": "toy", "totals": totals,
        "spaces": spaces, "schedule": [], "allocations": [], "values": [],
        "peak": main, "other_peaks": if fast["bytes"] != 0 { vec![fast] } else { vec![] },
    });
    serde_json::from_value(file).unwrap()
}

fn holder(line: &str) -> Value {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    let mut count = 1;
    if words[1] == "x" {
        count = words[0].parse().unwrap();
        words.drain(..2);
    }
    let (element, dimensions) = words[0].trim_end_matches(']').split_once('[').unwrap();
    let size: u64 = match element {
        "pred" => 1,
        "bf16" => 2,
        _ => 4,
    };
    let elements: u64 = dimensions.split(',').map(|size| size.parse::<u64>().unwrap()).product();
    json!({
        "bytes": count * size * elements, "count": count, "shape": words[0], "class": words[1], "operation": words[2],
        "source": words.get(3), "kept_by": "", "values": [],
    })
}

fn shown(diff: &Diff) -> String {
    let mut text = memory(&diff.main);
    for other in &diff.other_memories {
        write!(text, "\n{}\n{}", other.memory, memory(other)).unwrap();
    }
    text
}

fn memory(memory: &MemoryDiff) -> String {
    let mut text = String::new();
    for cause in &memory.causes {
        writeln!(text, "{:?} {}  {}", cause.kind, signed(cause.bytes), cause.what).unwrap();
    }
    text.push('\n');
    for change in &memory.changes {
        let held = |held: &Option<memplan::advice::diff::Held>| {
            held.as_ref().map_or("-".to_string(), |held| format!("{} x {}", held.count, held.shape))
        };
        let (before, after) = (held(&change.before), held(&change.after));
        writeln!(text, "{:?} {}: {before} -> {after}", change.matched, change.operation).unwrap();
    }
    text
}
