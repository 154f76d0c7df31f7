//! The fields of target files, from their schema, for documentation and for errors.

use serde_json::Value;

use crate::Target;

/// A field of target files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetField {
    /// Keys with dots between them, `[]` behind a list: `spaces[].capacity`.
    pub path: String,
    /// Its kind of value, with the unit if all fields of the kind have the same one: `a number of bytes`.
    pub kind: String,
    /// The default as JSON; `None`: it is required, if the table that contains it is present.
    pub default: Option<String>,
    /// Its description.
    pub description: String,
}

impl Target {
    /// All fields of a target file: required ones first, then by name; the fields of a table after it.
    pub fn fields() -> Vec<TargetField> {
        let schema = schemars::schema_for!(Target).to_value();
        let mut fields = Vec::new();
        list_fields(&schema, &schema, "", &mut fields);
        fields
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
            // The default of a table repeats its fields' defaults.
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
