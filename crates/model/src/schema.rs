//! A form of JSON Schema that generators of clients and validators of tools understand.

use serde_json::{Map, Value, json};

/// Turns a choice of words, each with its description, into an `enum`.
pub fn words_as_enum(schema: &mut Map<String, Value>) {
    let choices = schema.get("oneOf").and_then(Value::as_array).into_iter().flatten();
    let words: Option<Vec<Value>> = choices.map(|choice| choice.get("const").cloned()).collect();
    if let Some(words) = words.filter(|words| !words.is_empty()) {
        schema.remove("oneOf");
        schema.extend([("type".to_owned(), json!("string")), ("enum".to_owned(), words.into())]);
    }
}
