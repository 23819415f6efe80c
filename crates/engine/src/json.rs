//! JSON as callers send it: an object, not too deep, and what is wrong with it has a place.

use serde::de::DeserializeOwned;

use crate::Error;

/// Lists and objects inside each other, the outermost included.
pub const MAX_DEPTH: usize = 64;
/// Values, those in lists and objects included. Two bytes can become a value of forty, so the length is no bound.
pub const MAX_VALUES: usize = 1 << 18;

/// Reads an object. Its depth and its number of values are checked before anything of it is built.
///
/// # Errors
/// Says what is wrong and where, with the name of a field that does not exist.
pub fn object<T: DeserializeOwned>(json: &[u8]) -> Result<T, Error> {
    // A list would be taken for the fields in their order, which nobody means.
    if json.trim_ascii_start().first() != Some(&b'{') {
        return Err(Error::invalid("request", "is not a JSON object"));
    }
    check_shape(json)?;
    serde_json::from_slice(json).map_err(|error| malformed(&error))
}

/// Checks depth and number of values, for those who parse themselves. What is no JSON may be counted wrongly, and is
/// refused by the parser.
///
/// # Errors
/// Says what there is too much of.
pub fn check_shape(json: &[u8]) -> Result<(), Error> {
    let (mut depth, mut values, mut in_string) = (0_usize, 1_usize, false);
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => in_string = !in_string,
            // Whatever is escaped ends no string.
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

/// The place is a column: a request in a batch is one line, and which one the caller knows.
fn malformed(error: &serde_json::Error) -> Error {
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
        object(json.as_bytes()).map_err(|error| error.to_string())
    }

    /// An object with lists in it, so deep altogether.
    fn nested(depth: usize) -> String {
        format!("{{\"a\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1))
    }

    #[test]
    fn what_is_too_deep_is_refused_at_its_depth() {
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
    fn only_what_nests_counts() {
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
