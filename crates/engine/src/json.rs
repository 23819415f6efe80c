//! Parses JSON from callers: an object of bounded depth and size, with errors that have a position. Depth and
//! number of values are checked before anything is built, because a parsed value is larger than its text.

use serde::de::DeserializeOwned;

use crate::Error;

/// Maximum nesting depth of lists and objects, counting the outermost.
pub const MAX_DEPTH: usize = 64;
/// Maximum number of values, including nested ones. Two bytes of input can become a value of forty, so the
/// length of the input is no bound on memory.
pub const MAX_VALUES: usize = 1 << 18;

/// Parses an object, checking depth and number of values before building anything.
///
/// # Errors
/// Says what is invalid and where, and names unknown fields.
pub fn parse_object<T: DeserializeOwned>(json: &[u8]) -> Result<T, Error> {
    // serde would accept a list as the fields in order, which is never intended.
    if json.trim_ascii_start().first() != Some(&b'{') {
        return Err(Error::invalid("request", "is not a JSON object"));
    }
    check_shape(json)?;
    serde_json::from_slice(json).map_err(|error| parse_error(&error))
}

/// Checks depth and number of values, for callers with their own parser. Invalid JSON may be miscounted; the
/// parser refuses it.
///
/// # Errors
/// Says which bound is exceeded.
pub fn check_shape(json: &[u8]) -> Result<(), Error> {
    let (mut depth, mut values, mut in_string) = (0_usize, 1_usize, false);
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => in_string = !in_string,
            // An escaped character never ends a string.
            b'\\' if in_string => drop(bytes.next()),
            _ if in_string => {}
            b'[' | b'{' => (depth, values) = (depth + 1, values + 1),
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' => values += 1,
            _ => {}
        }
        if depth > MAX_DEPTH {
            let message = format!("lists and objects are nested deeper than {MAX_DEPTH}; flatten them");
            return Err(Error::invalid("request", message));
        }
        if values > MAX_VALUES {
            let message = format!("has more than {MAX_VALUES} values; put large data into a file");
            return Err(Error::invalid("request", message));
        }
    }
    Ok(())
}

/// Converts a parse error. The line is omitted if it is the first: a request of a batch is a single line.
fn parse_error(error: &serde_json::Error) -> Error {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let what = text.strip_suffix(&place).unwrap_or(&text);
    let kind = if error.is_data() { "" } else { "not JSON: " };
    let line = if error.line() > 1 { format!("line {}, ", error.line()) } else { String::new() };
    Error::invalid("request", format!("{kind}{what} ({line}column {})", error.column()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, Value};

    fn read(json: &str) -> Result<Map<String, Value>, String> {
        parse_object(json.as_bytes()).map_err(|error| error.to_string())
    }

    /// An object with nested lists, of this depth in all.
    fn nested(depth: usize) -> String {
        format!("{{\"a\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1))
    }

    #[test]
    fn deep_nesting_is_refused_early() {
        let refused = "request: lists and objects are nested deeper than 64; flatten them";
        assert!(read(&nested(MAX_DEPTH)).is_ok());
        assert_eq!(read(&nested(MAX_DEPTH + 1)).unwrap_err(), refused);
        assert_eq!(read(&"{\"a\":".repeat(1_000_000)).unwrap_err(), refused);
    }

    #[test]
    fn too_many_values_are_refused() {
        let list = |values: usize| format!("{{\"a\":[1{}]}}", ",1".repeat(values - 1));
        assert!(read(&list(MAX_VALUES - 3)).is_ok());
        for many in [list(MAX_VALUES), format!("{{\"a\":[{}[]]}}", "[],".repeat(MAX_VALUES / 2))] {
            let refused = read(&many).unwrap_err();
            assert_eq!(refused, "request: has more than 262144 values; put large data into a file");
        }
        assert!(read(&format!("{{\"a\":\"{}\"}}", ",".repeat(MAX_VALUES))).is_ok());
    }

    #[test]
    fn only_nesting_counts_as_depth() {
        let wide = format!("{{\"a\":[{}[]]}}", "[],{},".repeat(1_000).replace("{}", "{\"b\":{}}"));
        assert!(read(&wide).is_ok());
        for text in ["[", "{", "\\\"[", "\\\\\\\"[", "\\u005b"] {
            let quoted = format!("{{\"a\":\"{}\"}}", text.repeat(100));
            assert!(read(&quoted).is_ok(), "{text}");
        }
        // A string that ends after an escaped backslash has ended.
        let ended = format!("{{\"a\":[\"\\\\\",{}]}}", "[".repeat(100));
        assert!(read(&ended).unwrap_err().contains("deeper"));
        assert!(read(&format!("{{{}", "]".repeat(100))).unwrap_err().contains("not JSON"));
    }
}
