//! The schemas of what the verbs write as JSON. Plans, layouts, tiles and targets have theirs with their types.

use memplan::advice::explain::Overview;
use memplan::advice::fit::Fit;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};

use crate::budget;
use crate::diff::DiffFile;
use crate::estimate::EstimateFile;
use crate::explain::Named;
use crate::frontier::FrontierFile;
use crate::passes::Listed;
use crate::plan::Left;
use crate::targets::Described;
use crate::{replay, rewrite, tflite};

/// The name of each document, and its schema.
pub fn schemas() -> Vec<(&'static str, Schema)> {
    vec![
        ("budget", schema::<budget::Document<'_>>()),
        ("diff", schema::<DiffFile<'_>>()),
        ("estimate", schema::<EstimateFile<'_>>()),
        ("explain", schema::<Overview>()),
        ("explain_value", schema::<Named>()),
        ("fit", schema::<Fit>()),
        ("frontier", schema::<FrontierFile<'_>>()),
        ("pack", schema::<memplan::pack::Report>()),
        ("passes", schema::<Listed>()),
        ("replay", schema::<replay::Document<'_>>()),
        ("resident", schema::<Left<'_>>()),
        ("rewrite", schema::<rewrite::Document>()),
        ("targets", schema::<Vec<Described>>()),
        ("tflite", schema::<tflite::Document<'_>>()),
    ]
}

/// The schema of what is written, where keys may be left out.
fn schema<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12().for_serialize().into_generator().into_root_schema_for::<T>()
}
