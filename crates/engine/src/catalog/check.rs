//! Checks provider settings against their schema. Messages name the setting, never its value, which may be a
//! secret.

use serde_json::Value;

use super::ProviderSettings;
use crate::Error;

/// Checks settings against the subset of JSON Schema that provider schemas use.
///
/// # Errors
/// Names the setting and what it must be.
pub fn check_settings(schema: &Value, settings: &ProviderSettings) -> Result<(), Error> {
    let wrong = |name: &str, why: &str| Err(Error::invalid("settings", format!("{name}: {why}")));
    let empty = ProviderSettings::new();
    let known = schema["properties"].as_object().unwrap_or(&empty);
    for (name, value) in settings {
        let Some(property) = known.get(name) else {
            let names: Vec<&str> = known.keys().map(String::as_str).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return wrong(&name.escape_debug().to_string(), &format!("unknown setting; known: {known}"));
        };
        // Sending back an unchanged read-only value is allowed.
        if property["readOnly"] == true && property["const"] != *value {
            return wrong(name, "is read-only in this deployment");
        }
        if let Err(why) = check_value(property, value) {
            return wrong(name, &why);
        }
    }
    let needed = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    match needed.into_iter().find(|name| !settings.contains_key(*name)) {
        Some(name) => wrong(name, "is missing, and has no default"),
        None => Ok(()),
    }
}

/// Returns the names of the settings that are secrets.
pub fn secret_names(schema: &Value) -> Vec<&str> {
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties.filter(|(_, property)| property["writeOnly"] == true).map(|(name, _)| name.as_str()).collect()
}

/// Returns the first changed setting that would send secrets to a different destination.
pub fn changed_destination<'a>(
    schema: &'a Value,
    before: &ProviderSettings,
    after: &ProviderSettings,
) -> Option<&'a str> {
    let properties = schema["properties"].as_object().into_iter().flatten();
    let mut destinations = properties.filter(|(_, property)| property["x-destination"] == true);
    let differs =
        |name: &str, usual: &Value| before.get(name).unwrap_or(usual) != after.get(name).unwrap_or(usual);
    destinations.find(|(name, property)| differs(name, &property["default"])).map(|(name, _)| name.as_str())
}

fn check_value(schema: &Value, value: &Value) -> Result<(), String> {
    let types: Vec<&str> = match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        Value::String(one) => vec![one],
        _ => Vec::new(),
    };
    if !types.is_empty() && !types.iter().any(|kind| has_type(kind, value)) {
        return Err(format!("must be {}", types.join(" or ")));
    }
    let choices = allowed_values(schema);
    if !choices.is_empty() && !choices.contains(&value) {
        let shown: Vec<String> = choices.iter().map(ToString::to_string).collect();
        return Err(format!("must be one of {}", shown.join(", ")));
    }
    match value {
        Value::Number(number) => check_range(schema, number.as_f64(), ["minimum", "maximum"], ""),
        Value::String(text) => {
            let length = text.chars().count() as f64;
            check_range(schema, Some(length), ["minLength", "maxLength"], " characters")
        }
        Value::Array(items) => {
            check_range(schema, Some(items.len() as f64), ["minItems", "maxItems"], " items")?;
            items.iter().try_for_each(|item| check_value(&schema["items"], item))
        }
        _ => Ok(()),
    }
}

fn has_type(kind: &str, value: &Value) -> bool {
    match kind {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "null" => value.is_null(),
        _ => false,
    }
}

/// Returns the allowed values, if the schema lists them.
fn allowed_values(schema: &Value) -> Vec<&Value> {
    let listed = schema["enum"].as_array().into_iter().flatten();
    let described = schema["oneOf"].as_array().into_iter().flatten().filter_map(|one| one.get("const"));
    listed.chain(described).collect()
}

fn check_range(schema: &Value, value: Option<f64>, bounds: [&str; 2], unit: &str) -> Result<(), String> {
    let [least, most] = bounds.map(|bound| schema[bound].as_f64());
    match value {
        Some(value) if least.is_some_and(|least| value < least) => {
            Err(format!("must be at least {}{unit}", least.unwrap_or_default()))
        }
        Some(value) if most.is_some_and(|most| value > most) => {
            Err(format!("must be at most {}{unit}", most.unwrap_or_default()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(settings: Value) -> String {
        let schema = json!({
            "required": ["key"],
            "properties": {
                "key": {"type": "string", "writeOnly": true, "minLength": 4},
                "pool": {"type": "integer", "minimum": 0, "maximum": 64},
                "runtime": {"type": ["string", "null"]},
                "mode": {"oneOf": [{"const": "a"}, {"const": "b"}]},
                "tags": {"type": "array", "maxItems": 1, "items": {"type": "string"}},
                "daemon": {"type": "string", "readOnly": true, "const": "here"},
            },
        });
        assert_eq!(secret_names(&schema), ["key"]);
        let checked = check_settings(&schema, settings.as_object().unwrap());
        checked.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn errors_name_the_setting_and_not_its_value() {
        let good = json!({"key": "hunter2", "pool": 64, "runtime": null, "mode": "b", "tags": ["x"]});
        assert_eq!(said(good), "");
        assert_eq!(said(json!({"key": "hunter2", "daemon": "here"})), "");
        for (settings, message) in [
            (json!({}), "settings: key: is missing, and has no default"),
            (json!({"key": "k1"}), "settings: key: must be at least 4 characters"),
            (json!({"key": ["hunter2"]}), "settings: key: must be string"),
            (json!({"key": "hunter2", "pool": 65}), "settings: pool: must be at most 64"),
            (json!({"key": "hunter2", "pool": -1}), "settings: pool: must be at least 0"),
            (json!({"key": "hunter2", "pool": 1.5}), "settings: pool: must be integer"),
            (json!({"key": "hunter2", "runtime": 1}), "settings: runtime: must be string or null"),
            (json!({"key": "hunter2", "mode": "c"}), "settings: mode: must be one of \"a\", \"b\""),
            (json!({"key": "hunter2", "tags": [1]}), "settings: tags: must be string"),
            (json!({"key": "hunter2", "tags": ["x", "y"]}), "settings: tags: must be at most 1 items"),
            (json!({"key": "hunter2", "daemon": "x"}), "settings: daemon: is read-only in this deployment"),
        ] {
            assert_eq!(said(settings), message);
        }
        assert!(
            said(json!({"key": "hunter2", "kee": 1})).starts_with("settings: kee: unknown setting; known: ")
        );
    }

    #[test]
    fn a_changed_destination_is_detected() {
        let schema = json!({"properties": {
            "domain": {"type": "string", "x-destination": true, "default": "a.example"},
            "url": {"type": ["string", "null"], "x-destination": true},
            "pool": {"type": "integer"},
        }});
        let moved = |before: Value, after: Value| {
            changed_destination(&schema, before.as_object().unwrap(), after.as_object().unwrap())
        };
        assert_eq!(moved(json!({"pool": 1}), json!({"domain": "a.example", "url": null, "pool": 2})), None);
        assert_eq!(moved(json!({}), json!({"domain": "b.example"})), Some("domain"));
        assert_eq!(moved(json!({"domain": "b.example"}), json!({})), Some("domain"));
        assert_eq!(moved(json!({"url": "https://b.example"}), json!({"url": null})), Some("url"));
    }
}
