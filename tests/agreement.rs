//! Whether a JSON document is what a schema says.

use serde_json::Value;

/// Where a value is not what a schema says: the keywords that derived schemas of plain data use.
pub(crate) fn disagreement(root: &Value, schema: &Value, value: &Value) -> Option<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.trim_start_matches('#')).expect("references lead somewhere");
        return disagreement(root, target, value);
    }
    for combination in ["anyOf", "oneOf"] {
        if let Some(choices) = schema[combination].as_array()
            && choices.iter().all(|choice| disagreement(root, choice, value).is_some())
        {
            return Some(format!("{value} is none of {choices:?}"));
        }
    }
    if let Some(choices) = schema["enum"].as_array()
        && !choices.contains(value)
    {
        return Some(format!("{value} is not one of {choices:?}"));
    }
    if let Some(only) = schema.get("const")
        && only != value
    {
        return Some(format!("{value} is not {only}"));
    }
    let is_of_type = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        _ => false,
    };
    let types: Vec<&str> = match &schema["type"] {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !types.is_empty() && !types.iter().any(|name| is_of_type(name)) {
        return Some(format!("{value} is not {types:?}"));
    }
    if let (Some(minimum), Some(number)) = (schema["minimum"].as_f64(), value.as_f64())
        && number < minimum
    {
        return Some(format!("{number} is below {minimum}"));
    }
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(key) = required.into_iter().find(|key| value.is_object() && value.get(key).is_none()) {
        return Some(format!("{key} is missing"));
    }
    let properties = schema["properties"].as_object().into_iter().flatten();
    let mut parts: Vec<(&Value, &Value)> =
        properties.filter_map(|(key, schema)| Some((schema, value.get(key)?))).collect();
    if schema["items"].is_object() {
        parts.extend(value.as_array().into_iter().flatten().map(|item| (&schema["items"], item)));
    }
    parts.into_iter().find_map(|(schema, value)| disagreement(root, schema, value))
}
