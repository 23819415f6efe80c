//! JSON that keeps its text, so that numbers keep their exact digits. A parsed value would round every number to
//! 64 bits.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Maximum nesting depth of lists and objects. Parsers of clients have limits of their own, the lowest at 128.
pub const MAX_DEPTH: usize = 100;
/// Maximum number of digits of an integer. Converting digits takes more than linear time, and the sender chooses
/// their number.
pub const MAX_INTEGER_DIGITS: usize = 100_000;
/// Maximum length of a key in the path of an error.
const MAX_SHOWN_KEY_BYTES: usize = 60;

/// Valid JSON without insignificant whitespace, which every parser of JSON can read: it has a bounded depth, no lone
/// surrogates, and no number beyond the range of a double.
#[derive(Clone)]
pub struct JsonText(Box<RawValue>);

impl JsonText {
    /// Checks and compacts JSON. `name` starts the path of a value in an error.
    ///
    /// # Errors
    /// Says what is invalid, and the path of the value.
    pub fn parse(name: &str, json: &[u8]) -> Result<Self, String> {
        let raw: &RawValue =
            serde_json::from_slice(json).map_err(|error| format!("{name} is not JSON: {error}"))?;
        Self::compact(name, raw)
    }

    fn compact(name: &str, raw: &RawValue) -> Result<Self, String> {
        let mut path = ValuePath { name, steps: Vec::new(), at_key: false };
        let mut text = String::with_capacity(raw.get().len());
        for token in tokens(raw.get()) {
            path.advance(token);
            check(token, &path)?;
            text.push_str(token.text());
        }
        RawValue::from_string(text).map(Self).map_err(|error| format!("{name} is not JSON: {error}"))
    }

    /// Returns the JSON.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Returns the text of a JSON string; `None` for any other value.
    pub fn to_text(&self) -> Option<String> {
        serde_json::from_str(self.as_str()).ok()
    }
}

impl Default for JsonText {
    fn default() -> Self {
        Self(RawValue::NULL.to_owned())
    }
}

impl fmt::Debug for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for JsonText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl PartialEq for JsonText {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

/// Compares with a parsed value.
impl PartialEq<Value> for JsonText {
    fn eq(&self, other: &Value) -> bool {
        serde_json::from_str::<Value>(self.as_str()).is_ok_and(|own| own == *other)
    }
}

impl Serialize for JsonText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl JsonSchema for JsonText {
    fn inline_schema() -> bool {
        Value::inline_schema()
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        Value::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Value::json_schema(generator)
    }
}

/// Arguments of `main`, by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Arguments(BTreeMap<String, JsonText>);

impl Deref for Arguments {
    type Target = BTreeMap<String, JsonText>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Arguments {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values = BTreeMap::<String, Box<RawValue>>::deserialize(deserializer)?;
        let compact = |(name, raw): (String, Box<RawValue>)| {
            let value = JsonText::compact(&format!("arguments.{name}"), &raw)?;
            Ok::<_, String>((name, value))
        };
        values.into_iter().map(compact).collect::<Result<_, _>>().map(Self).map_err(D::Error::custom)
    }
}

impl JsonSchema for Arguments {
    fn inline_schema() -> bool {
        Map::<String, Value>::inline_schema()
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        Map::<String, Value>::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Map::<String, Value>::json_schema(generator)
    }
}

/// Returns whether a value has a number that was an integer beyond 64 bits, or that looks like one. The depth of the
/// value is bounded by its parser.
pub fn has_rounded_integer(value: &Value) -> bool {
    match value {
        Value::Number(number) if number.is_f64() => {
            number.as_f64().is_some_and(|number| number.fract() == 0.0 && number.abs() >= 2_f64.powi(63))
        }
        Value::Array(values) => values.iter().any(has_rounded_integer),
        Value::Object(fields) => fields.values().any(has_rounded_integer),
        _ => false,
    }
}

/// A token of JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token<'a> {
    /// A bracket, brace, comma or colon.
    Punctuation(&'a str),
    /// A string with its quotes: a value or a key.
    Text(&'a str),
    /// A number.
    Number(&'a str),
    /// `true`, `false` or `null`.
    Word(&'a str),
}

impl<'a> Token<'a> {
    /// Returns the text of the token.
    pub fn text(self) -> &'a str {
        match self {
            Self::Punctuation(text) | Self::Text(text) | Self::Number(text) | Self::Word(text) => text,
        }
    }
}

/// Splits valid JSON into tokens, without whitespace.
pub fn tokens(json: &str) -> impl Iterator<Item = Token<'_>> {
    let mut rest = json;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches([' ', '\t', '\n', '\r']);
        let first = *rest.as_bytes().first()?;
        let len = match first {
            b'[' | b']' | b'{' | b'}' | b',' | b':' => 1,
            b'"' => string_len(rest),
            _ => rest.find([',', ']', '}', ' ', '\t', '\n', '\r']).unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at(len);
        rest = after;
        Some(match first {
            b'"' => Token::Text(token),
            b'-' | b'0'..=b'9' => Token::Number(token),
            b't' | b'f' | b'n' => Token::Word(token),
            _ => Token::Punctuation(token),
        })
    })
}

/// Returns the length of the string literal that a text starts with.
fn string_len(text: &str) -> usize {
    let mut bytes = text.bytes().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return at + 1,
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
    text.len()
}

fn check(token: Token<'_>, path: &ValuePath<'_>) -> Result<(), String> {
    let refused = |why: String| Err(format!("{path} {why}"));
    match token {
        Token::Punctuation(_) if path.steps.len() > MAX_DEPTH => {
            Err(format!("{} is nested deeper than {MAX_DEPTH} levels; flatten it", path.name))
        }
        Token::Text(literal) if has_lone_surrogate(literal) => refused(
            "has a lone surrogate, so it is not valid text; encode it, for example as base64".to_owned(),
        ),
        Token::Number(number) if number.contains(['.', 'e', 'E']) => match number.parse::<f64>() {
            Ok(double) if double.is_finite() => Ok(()),
            _ => refused("is a number beyond the range of a double; pass it as a string".to_owned()),
        },
        Token::Number(number) if number.len() > MAX_INTEGER_DIGITS => {
            refused(format!("is an integer of more than {MAX_INTEGER_DIGITS} digits; pass it as a string"))
        }
        _ => Ok(()),
    }
}

/// Returns whether an escaped surrogate in a string literal is not half of a pair.
fn has_lone_surrogate(literal: &str) -> bool {
    let mut rest = literal;
    while let Some(at) = rest.find('\\') {
        let escape = &rest[at..];
        let (high, after) = match code_unit(escape) {
            Some(unit) => (unit, &escape[6..]),
            None => {
                // Another escape, such as `\\` or `\n`.
                rest = escape.get(2..).unwrap_or_default();
                continue;
            }
        };
        rest = match (high, code_unit(after)) {
            (0xd800..=0xdbff, Some(0xdc00..=0xdfff)) => &after[6..],
            (0xd800..=0xdfff, _) => return true,
            _ => after,
        };
    }
    false
}

/// Returns the code unit of the `\uXXXX` that a text starts with.
fn code_unit(text: &str) -> Option<u16> {
    u16::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok()
}

/// Where a value is in a JSON text, such as `result.scores[3]`.
struct ValuePath<'a> {
    name: &'a str,
    steps: Vec<PathStep<'a>>,
    /// Whether the next string is a key.
    at_key: bool,
}

enum PathStep<'a> {
    Index(usize),
    /// A key, as its string literal.
    Key(&'a str),
}

impl<'a> ValuePath<'a> {
    fn advance(&mut self, token: Token<'a>) {
        match (token, self.steps.last_mut()) {
            (Token::Punctuation("["), _) => self.steps.push(PathStep::Index(0)),
            (Token::Punctuation("{"), _) => {
                self.steps.push(PathStep::Key("\"\""));
                self.at_key = true;
            }
            (Token::Punctuation("]" | "}"), _) => {
                self.steps.pop();
                self.at_key = false;
            }
            (Token::Punctuation(","), Some(PathStep::Index(index))) => *index += 1,
            (Token::Punctuation(","), Some(PathStep::Key(_))) => self.at_key = true,
            (Token::Text(literal), Some(PathStep::Key(key))) if self.at_key => {
                *key = literal;
                self.at_key = false;
            }
            _ => {}
        }
    }
}

impl fmt::Display for ValuePath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        for step in &self.steps {
            match step {
                PathStep::Index(index) => write!(f, "[{index}]")?,
                PathStep::Key(literal) => {
                    let key = literal.trim_matches('"');
                    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
                    if !key.is_empty() && key.len() <= MAX_SHOWN_KEY_BYTES && key.chars().all(plain) {
                        write!(f, ".{key}")?;
                    } else {
                        write!(f, "[\"{}\"]", &key[..key.floor_char_boundary(MAX_SHOWN_KEY_BYTES)])?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compact(json: &str) -> Result<String, String> {
        JsonText::parse("result", json.as_bytes()).map(|json| json.as_str().to_owned())
    }

    #[test]
    fn numbers_keep_their_digits() {
        let digits = "15511210043330985984000000";
        for number in [digits, "-18446744073709551617", "0.10", "1E+2", "-0.0", "1e308", &"9".repeat(5_000)] {
            assert_eq!(compact(number).as_deref(), Ok(number));
        }
        let arguments: Arguments = serde_json::from_str(&format!("{{\"n\": {digits}}}")).unwrap();
        assert_eq!(serde_json::to_string(&arguments).unwrap(), format!("{{\"n\":{digits}}}"));
    }

    #[test]
    fn whitespace_is_removed_outside_of_strings_only() {
        assert_eq!(
            compact(" { \"a b\" :\n[ 1 ,\t\"c \\\" d\\\\\" , null ] } ").as_deref(),
            Ok("{\"a b\":[1,\"c \\\" d\\\\\",null]}")
        );
    }

    #[test]
    fn errors_name_the_path_of_the_value() {
        let refused = |json: &str| compact(json).unwrap_err();
        assert!(refused(r#"{"a": 1, "b": [1, "\ud800"]}"#).starts_with("result.b[1] has a lone surrogate"));
        assert!(refused(r#"["\udc00\ud800"]"#).starts_with("result[0] has a lone surrogate"));
        assert!(
            refused(r#"{"x y": {"k": "\ud83dx"}}"#).starts_with("result[\"x y\"].k has a lone surrogate")
        );
        assert!(refused(r#"{"\ud800": 1}"#).contains("has a lone surrogate"));
        assert!(refused("[[1], 1e999]").starts_with("result[1] is a number beyond the range of a double"));
        assert!(
            refused(&"9".repeat(MAX_INTEGER_DIGITS + 1)).starts_with("result is an integer of more than")
        );
    }

    #[test]
    fn deep_nesting_is_refused() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(compact(&nested(MAX_DEPTH)).is_ok());
        assert!(compact(&nested(MAX_DEPTH + 1)).unwrap_err().contains("deeper than 100"));
        assert!(compact(&nested(1_000_000)).unwrap_err().contains("deeper than 100"));
    }

    #[test]
    fn pairs_and_other_escapes_are_text() {
        for json in [r#""\ud83d\ude00""#, r#""\\ud800""#, r#""\\\\\n\u0041""#, "\"ü\""] {
            assert_eq!(compact(json).as_deref(), Ok(json));
        }
    }

    #[test]
    fn invalid_json_is_refused() {
        for json in ["", "1 2", "{\"open\": ", "NaN", "[1,]", "'a'", "\u{feff}1"] {
            assert!(compact(json).unwrap_err().starts_with("result is not JSON"), "{json}");
        }
        assert!(JsonText::parse("result", b"\"\xff\"").unwrap_err().starts_with("result is not JSON"));
    }
}
