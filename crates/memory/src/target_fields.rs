//! The fields of target files as their schema describes them, for documentation and for errors; and where in a file a
//! field is.

use std::ops::Range;

use indexmap::IndexMap;
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::Target;

/// A field of target files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetField {
    /// Keys with dots between them, `[]` behind a list: `spaces[].capacity`.
    pub path: String,
    /// What it can be, with its unit where all fields of the kind have the same one: `a number of bytes`.
    pub kind: String,
    /// What it is when it is left out, as JSON; none: it has to be there, where the table around it is.
    pub default: Option<String>,
    /// What it means.
    pub description: String,
}

impl Target {
    /// All fields that a target file can have: those that have to be there first, then by name; the fields of a table
    /// after it.
    pub fn fields() -> Vec<TargetField> {
        let schema = schemars::schema_for!(Target).to_value();
        let mut fields = Vec::new();
        list_fields(&schema, &schema, "", &mut fields);
        fields
    }

    /// Where the values of a target file come from: the comment behind each, or else the one behind the header of its
    /// table, by path with indices (`spaces[1].capacity`), in the order of the file.
    pub fn sources(text: &str) -> IndexMap<String, String> {
        let behind = |line: &str| line.split_once('#').map(|(_, comment)| comment.trim().to_string());
        let mut headers: Vec<(usize, Option<String>)> = Vec::new();
        let mut offset = 0;
        for line in text.split_inclusive('\n') {
            // No key in a header has a `#`.
            if line.starts_with('[') {
                headers.push((offset, behind(line)));
            }
            offset += line.len();
        }
        let sources = leaves(text).into_iter().filter_map(|(path, span)| {
            let own = text[span.end..].lines().next().and_then(behind);
            let above = headers.partition_point(|(header, _)| *header <= span.start);
            let of_table = || above.checked_sub(1).and_then(|header| headers[header].1.clone());
            Some((path, own.or_else(of_table)?))
        });
        sources.collect()
    }
}

fn list_fields(root: &Value, table: &Value, prefix: &str, fields: &mut Vec<TargetField>) {
    let Some(properties) = table["properties"].as_object() else { return };
    let is_required =
        |key: &String| table["required"].as_array().is_some_and(|keys| keys.iter().any(|k| k == key));
    let mut properties: Vec<_> = properties.iter().collect();
    properties.sort_by_key(|(key, _)| (!is_required(key), *key));
    for (key, property) in properties {
        let of = resolve(root, property);
        let (path, inner) = match of["items"].is_object() {
            true => (format!("{prefix}{key}[]"), resolve(root, &of["items"])),
            false => (format!("{prefix}{key}"), of),
        };
        fields.push(TargetField {
            kind: kind(property, of),
            // The default of a table repeats those of its fields.
            default: (!is_required(key)).then(|| match &property["default"] {
                Value::Null | Value::Object(_) | Value::Array(_) => "none".to_string(),
                value => value.to_string(),
            }),
            description: property["description"]
                .as_str()
                .unwrap_or_default()
                .replace('\n', " ")
                .replace("`None`", "left out"),
            path: path.clone(),
        });
        list_fields(root, inner, &format!("{path}."), fields);
    }
}

/// The schema that a reference leads to, through what says that there may be none.
fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    if let Some(reference) = reference(schema) {
        return root.pointer(reference.trim_start_matches('#')).expect("references lead somewhere");
    }
    schema
}

fn reference(schema: &Value) -> Option<&str> {
    let choices = schema["anyOf"].as_array().into_iter().flatten();
    std::iter::once(schema).chain(choices).find_map(|schema| schema["$ref"].as_str())
}

fn kind(property: &Value, of: &Value) -> String {
    match reference(property).and_then(|reference| reference.rsplit('/').next()) {
        Some("Bytes") => return "a number of bytes".into(),
        Some("Alignment") => return "a number of bytes, a power of two".into(),
        Some("MemorySpaceId") => return "the number of a memory space".into(),
        _ => {}
    }
    let variants = of["oneOf"].as_array().into_iter().flatten().filter_map(|choice| choice["const"].as_str());
    let variants: Vec<String> = variants.map(|variant| format!("`{variant}`")).collect();
    let types = match &of["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).find(|name| *name != "null"),
        name => name.as_str(),
    };
    match types {
        _ if !variants.is_empty() => format!("one of {}", variants.join(", ")),
        Some("object") if of["additionalProperties"].is_object() => "a table of numbers".into(),
        Some("object") => "a table".into(),
        Some("array") => "a list of tables".into(),
        Some("integer") => "a whole number".into(),
        Some("boolean") => "true or false".into(),
        Some("number") => "a number".into(),
        Some("string") => "a text".into(),
        _ => "a value".into(),
    }
}

/// Where a field is in a TOML document, by keys and list indices between dots; of a field that is not there, where the
/// innermost table is that it would be in.
pub(crate) fn span_of(text: &str, field: &str) -> Option<Range<usize>> {
    let table = DeTable::parse(text).ok()?;
    let mut span = None;
    let mut value: Option<&Spanned<DeValue<'_>>> = None;
    for key in field.split('.') {
        let next = match value.map(Spanned::get_ref) {
            None => table.get_ref().get(key),
            Some(DeValue::Table(table)) => table.get(key),
            Some(DeValue::Array(array)) => key.parse::<usize>().ok().and_then(|i| array.get(i)),
            Some(_) => None,
        };
        let Some(next) = next else { break };
        span = Some(next.span());
        value = Some(next);
    }
    span
}

/// The values of a TOML document that are no tables or lists, in order, each with its path as [`TargetField`] writes it
/// but list indices in the brackets, `spaces[1].capacity`, and where it is, from its key on where it has one.
pub(crate) fn leaves(text: &str) -> Vec<(String, Range<usize>)> {
    let mut leaves = Vec::new();
    if let Ok(table) = DeTable::parse(text) {
        list_leaves(table.get_ref(), "", &mut leaves);
    }
    leaves.sort_by_key(|(_, span)| span.start);
    leaves
}

/// As deep as documents nest, which the parser bounds.
fn list_leaves(table: &DeTable<'_>, prefix: &str, leaves: &mut Vec<(String, Range<usize>)>) {
    for (key, value) in table {
        list_leaf(value, format!("{prefix}{}", key.get_ref()), key.span().start, leaves);
    }
}

fn list_leaf(
    value: &Spanned<DeValue<'_>>,
    path: String,
    start: usize,
    leaves: &mut Vec<(String, Range<usize>)>,
) {
    match value.get_ref() {
        DeValue::Table(table) => list_leaves(table, &format!("{path}."), leaves),
        DeValue::Array(array) => {
            for (i, value) in array.iter().enumerate() {
                list_leaf(value, format!("{path}[{i}]"), value.span().start, leaves);
            }
        }
        _ => leaves.push((path, start..value.span().end)),
    }
}
