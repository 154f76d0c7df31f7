//! Annotations at source lines, as SARIF 2.1: who holds the peak of a program.

use memplan::memory::Bytes;
use serde_json::{Value, json};

use super::{Found, growth, state};

/// The most annotations of one program.
const MOST: usize = 5;

/// A document with a result for each of the largest holders that have a source line.
pub(super) fn document(found: &[Found]) -> String {
    let results: Vec<Value> = found.iter().flat_map(results).collect();
    let rule = |id: &str, text: &str| json!({"id": id, "shortDescription": {"text": text}});
    let document = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "memplan",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": [
                    rule("memory/limit", "A program needs more memory than its limit"),
                    rule("memory/growth", "A program grew by more than allowed"),
                    rule("memory/peak", "A line holds much of a program's memory at its peak"),
                ],
            }},
            "results": results,
        }],
    });
    format!("{document:#}\n")
}

fn results(found: &Found) -> Vec<Value> {
    let (rule, level) = match (found.over_limit, found.grown) {
        (true, _) => ("memory/limit", "error"),
        (false, true) => ("memory/growth", "error"),
        (false, false) => ("memory/peak", "note"),
    };
    let placed = found.holders.iter().filter_map(|holder| {
        let (file, line) = holder["source"].as_str()?.rsplit_once(':')?;
        Some((holder, file, line.parse::<u32>().ok()?))
    });
    let result = |(holder, file, line): (&Value, &str, u32)| {
        let text = |key: &str| holder[key].as_str().unwrap_or_default();
        let bytes = Bytes(holder["bytes"].as_u64().unwrap_or(0));
        let message = format!(
            "{bytes} at the peak of {} ({}, {}; {}): {} {}, {}",
            found.name,
            found.total,
            growth(found),
            state(found),
            text("operation"),
            text("shape"),
            text("class"),
        );
        json!({
            "ruleId": rule,
            "level": level,
            "message": {"text": message},
            "locations": [{"physicalLocation": {
                "artifactLocation": {"uri": file, "uriBaseId": "%SRCROOT%"},
                "region": {"startLine": line},
            }}],
        })
    };
    placed.take(MOST).map(result).collect()
}
