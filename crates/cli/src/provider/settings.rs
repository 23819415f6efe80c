//! Parses settings as typed into the types of their schema.

use std::io::Read;
use std::str::FromStr;

use belljar_engine::catalog::ProviderSettings;
use serde_json::Value;

use crate::error::CliError;

/// Maximum size of a value read from a file.
const MAX_VALUE_BYTES: u64 = 64 << 10;

/// A setting as typed: `KEY=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TypedSetting {
    pub(crate) key: String,
    value: String,
}

impl FromStr for TypedSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or("use KEY=VALUE")?;
        Ok(Self { key: key.to_owned(), value: value.to_owned() })
    }
}

impl TypedSetting {
    /// Applies it to settings; an empty value removes the setting.
    pub(crate) fn apply_to(self, settings: &mut ProviderSettings, schema: &Value) -> Result<(), CliError> {
        let Self { key, value } = self;
        let value = match value.strip_prefix('@') {
            Some(path) => read(path)
                .map_err(|error| CliError::invalid(format!("{key}: cannot read '{path}': {error}")))?,
            None => value,
        };
        if value.is_empty() {
            settings.remove(&key);
        } else {
            let value = parse_setting(&schema["properties"][&key], &value);
            settings.insert(key, value);
        }
        Ok(())
    }
}

/// Parses a text as the type of a setting. Text of another type stays a string, which the schema then
/// refuses.
pub(crate) fn parse_setting(property: &Value, text: &str) -> Value {
    let is = |kind: &str| {
        property["type"] == kind || property["type"].as_array().is_some_and(|all| all.contains(&kind.into()))
    };
    if is("array") {
        return text.split(',').map(str::trim).collect();
    }
    let plain = is("integer") || is("number") || is("boolean");
    match serde_json::from_str::<Value>(text) {
        Ok(value) if plain && (value.is_number() || value.is_boolean()) => value,
        _ => Value::String(text.to_owned()),
    }
}

/// Reads a value from a file, without its final newline.
fn read(path: &str) -> std::io::Result<String> {
    let mut text = String::new();
    match path {
        "-" => std::io::stdin().lock().take(MAX_VALUE_BYTES).read_to_string(&mut text)?,
        path => std::fs::File::open(path)?.take(MAX_VALUE_BYTES).read_to_string(&mut text)?,
    };
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn typed_settings_follow_the_schema() {
        let schema = json!({"properties": {
            "pool": {"type": "integer"}, "pull": {"type": "boolean"}, "image": {"type": "string"},
            "runtime": {"type": ["string", "null"]}, "tags": {"type": "array"},
        }});
        let mut settings = json!({"runtime": "runsc", "image": "x"}).as_object().unwrap().clone();
        for text in ["pool=4", "pull=true", "image=3.12", "runtime=", "tags=a, b", "other=1"] {
            text.parse::<TypedSetting>().unwrap().apply_to(&mut settings, &schema).unwrap();
        }
        let wanted = json!({"pool": 4, "pull": true, "image": "3.12", "tags": ["a", "b"], "other": "1"});
        assert_eq!(Value::Object(settings), wanted);
        assert_eq!(
            parse_setting(&schema["properties"]["pool"], "many"),
            json!("many"),
            "the schema refuses it"
        );
        assert!("pool".parse::<TypedSetting>().is_err());
    }
}
