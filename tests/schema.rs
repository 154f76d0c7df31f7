//! Plans, layouts and targets as files: the repository has their schemas, and written files agree with them.

use std::path::Path;

use memplan::codegen::layout::{ProgramLayout, layout};
use memplan::hlo;
use memplan::ipu::{IpuOptions, TileDocument, plan_tiles};
use memplan::memory::{PlanFile, Target, TargetField};
use memplan::plan::ProgramCost;
use schemars::{Schema, schema_for};
use serde_json::Value;

use crate::agreement::disagreement;
use crate::support::plan_and_prove;

/// The documents that memplan writes and reads, and where their schemas are.
fn schemas() -> [(&'static str, Schema); 4] {
    [
        ("schema/plan.schema.json", schema_for!(PlanFile)),
        ("schema/layout.schema.json", schema_for!(ProgramLayout)),
        ("schema/tiles.schema.json", schema_for!(TileDocument)),
        ("schema/target.schema.json", schema_for!(Target)),
    ]
}

#[test]
fn schemas_are_up_to_date() {
    for (file, schema) in schemas() {
        up_to_date(file, &(serde_json::to_string_pretty(&schema).unwrap() + "\n"));
    }
}

/// After a change of a format: `MEMPLAN_UPDATE=1 cargo test --test main schema`.
#[track_caller]
fn up_to_date(file: &str, contents: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("MEMPLAN_UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, contents).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == contents,
        "{file} is not that of this version: MEMPLAN_UPDATE=1 cargo test --test main schema"
    );
}

/// The page about target files: every field, as the schema describes it.
#[test]
fn target_fields_are_documented() {
    let mut page = include_str!("../docs/targets.head.md").to_string();
    let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    Target::parse(example, "docs/targets.head.md").unwrap();
    page.push_str("\n| field | value | left out | meaning |\n|---|---|---|---|\n");
    for TargetField { path, kind, default, description } in Target::fields() {
        let default = default.map_or("**required**".to_string(), |default| match default.as_str() {
            "none" => String::new(),
            value => format!("`{value}`"),
        });
        page.push_str(&format!("| `{path}` | {kind} | {default} | {} |\n", description.replace('|', "\\|")));
    }
    up_to_date("docs/targets.md", &page);
}

/// A plan with loops, donations and constants is written, agrees with the schema, and is read back as it was.
#[test]
fn plan_files_agree_with_the_schema() {
    let schema = serde_json::to_value(schema_for!(PlanFile)).unwrap();
    for case in ["while_state", "donated_parameter", "constants", "async_copy"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/hlo/plan/{case}.hlo"));
        let mut module = hlo::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
        let planned = plan_and_prove(&mut module, &Target::find("toy").unwrap()).unwrap();
        let mut file = PlanFile::new(&module, &planned.schedule, &planned.plan);
        let cost = ProgramCost::new(&module, &planned.facts, &planned.plan, &Target::find("toy").unwrap());
        cost.note(&module, &planned.facts, &mut file);
        assert!(file.schedule.iter().any(|entry| entry.runs == Some(1.0)), "{case}: the entry runs once");
        let value = serde_json::to_value(&file).unwrap();
        assert_eq!(disagreement(&schema, &schema, &value), None, "{case}");
        let read: PlanFile = serde_json::from_value(value.clone()).unwrap();
        let (_, plan) = read.resolve(&module).unwrap();
        assert!(plan == planned.plan, "{case}: the plan is another one when read back");

        let mut broken = value.clone();
        broken["totals"]["temp"] = "many".into();
        assert!(disagreement(&schema, &schema, &broken).is_some(), "a string is no number of bytes");
        let mut broken = value;
        broken.as_object_mut().unwrap().remove("schedule");
        assert!(disagreement(&schema, &schema, &broken).is_some(), "the schedule is missing");
    }
}

/// A layout with a loop, transfers and constants agrees with its schema.
#[test]
fn layouts_agree_with_the_schema() {
    let schema = serde_json::to_value(schema_for!(ProgramLayout)).unwrap();
    let target = Target::find("tpu-v5e").unwrap();
    let mut module = hlo::parse(include_str!("hlo/layout/prefetch_in_loop.hlo")).unwrap();
    let planned = plan_and_prove(&mut module, &target).unwrap();
    let value = serde_json::to_value(layout(&module, &planned.facts, &target, &planned.plan)).unwrap();
    assert_eq!(disagreement(&schema, &schema, &value), None);

    for (pointer, wrong) in [
        ("/launches", Value::from("many")),
        ("/transfers/0/bytes", Value::from(-1)),
        ("/computations/0/launches/0/kind", Value::from("unknown")),
        ("/buffers/0/offset", Value::Null),
    ] {
        let mut broken = value.clone();
        *broken.pointer_mut(pointer).unwrap() = wrong;
        assert!(disagreement(&schema, &schema, &broken).is_some(), "{pointer}");
    }
}

/// What `--emit tiles=FILE` writes agrees with its schema.
#[test]
fn tiles_agree_with_the_schema() {
    let schema = serde_json::to_value(schema_for!(TileDocument)).unwrap();
    let target = Target::find("ipu-gc200").unwrap();
    let mut module = hlo::parse(include_str!("hlo/ipu/dot_cut_in_depth.hlo")).unwrap();
    let planned = plan_and_prove(&mut module, &target).unwrap();
    let plan = plan_tiles(&module, &planned.facts, &target, &IpuOptions::default()).unwrap();
    let value = serde_json::to_value(TileDocument::new(&module, &target, &[plan])).unwrap();
    assert_eq!(disagreement(&schema, &schema, &value), None);

    for (pointer, wrong) in [
        ("/chips", Value::from("many")),
        ("/chips/0/tensors/0/elements", Value::from(-1)),
        ("/chips/0/codelets/0/bytes", Value::Null),
        ("/tile_bytes", Value::Null),
    ] {
        let mut broken = value.clone();
        *broken.pointer_mut(pointer).unwrap() = wrong;
        assert!(disagreement(&schema, &schema, &broken).is_some(), "{pointer}");
    }
}

/// What `memplan targets --format json` writes agrees with the schema of target files.
#[test]
fn targets_agree_with_the_schema() {
    let schema = serde_json::to_value(schema_for!(Target)).unwrap();
    for target in Target::built_in() {
        let value = serde_json::to_value(&target).unwrap();
        assert_eq!(disagreement(&schema, &schema, &value), None, "{}", target.name);
    }
}
