//! Query strings: known names only, each at most once. `metadata.KEY` may have any number of keys.

use axum::extract::RawQuery;

use crate::error::Error;

/// Maximum length: fits the longest possible path with every byte written as `%41`.
const MAX_QUERY_BYTES: usize = 16 << 10;

/// Decoded names and values.
#[derive(Debug)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// Parses a query string that may contain only `known` names. A name that ends in a dot is a prefix.
    pub(crate) fn parse(RawQuery(raw): RawQuery, known: &[&str]) -> Result<Self, Error> {
        let raw = raw.unwrap_or_default();
        if raw.len() > MAX_QUERY_BYTES {
            return Err(invalid("is too long".to_owned()));
        }
        let mut pairs: Vec<(String, String)> = Vec::new();
        for pair in raw.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            let fits = |known: &&str| **known == name || (known.ends_with('.') && name.starts_with(*known));
            if !known.iter().any(fits) {
                return Err(invalid(format!("unknown parameter '{}'", name.escape_debug())));
            }
            if pairs.iter().any(|(other, _)| *other == name) {
                return Err(invalid(format!("parameter '{}' is given twice", name.escape_debug())));
            }
            pairs.push((name, value));
        }
        Ok(Self(pairs))
    }

    /// Returns the value of a name; an empty value counts as absent.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// Returns whether the name is present, even without a value.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    /// Returns the value of a name, parsed.
    pub(crate) fn parsed<T: std::str::FromStr>(&self, name: &'static str) -> Result<Option<T>, Error>
    where
        T::Err: std::fmt::Display,
    {
        let parse = |text: &str| {
            text.parse().map_err(|error| Error::Invalid { field: name, message: format!("{error}") })
        };
        self.get(name).map(parse).transpose()
    }

    /// Returns all names that start with a prefix, without that prefix, and their values.
    pub(crate) fn with_prefix(&self, prefix: &str) -> Vec<(String, String)> {
        let own =
            |(name, value): &(String, String)| Some((name.strip_prefix(prefix)?.to_owned(), value.clone()));
        self.0.iter().filter_map(own).collect()
    }
}

fn invalid(message: String) -> Error {
    Error::Invalid { field: "query", message }
}

/// Decodes `%41` and `+`.
fn decode(text: &str) -> Result<String, Error> {
    let wrong = || invalid("has an invalid '%' escape".to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        bytes.push(match first {
            b'+' => b' ',
            b'%' => {
                let (digits, tail) = tail.split_at_checked(2).ok_or_else(wrong)?;
                rest = tail;
                let digits = std::str::from_utf8(digits).map_err(|_| wrong())?;
                u8::from_str_radix(digits, 16).map_err(|_| wrong())?
            }
            other => *other,
        });
    }
    String::from_utf8(bytes).map_err(|_| invalid("is not UTF-8".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Query, Error> {
        Query::parse(RawQuery(Some(text.to_owned())), &["limit", "metadata."])
    }

    #[test]
    fn names_are_checked_and_values_decoded() {
        let query = parse("limit=5&metadata.a%20b=x+y&metadata.z=%C3%A9").unwrap();
        assert_eq!(query.parsed::<u32>("limit").unwrap(), Some(5));
        let metadata = [("a b", "x y"), ("z", "é")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(query.with_prefix("metadata."), metadata);
        assert!(parse("limt=5").unwrap_err().to_string().contains("unknown parameter 'limt'"));
        for wrong in ["limit=1&limit=2", "limit=%", "limit=%4", "limit=%zz", "metadata.a=%ff"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert!(parse("limit=x").unwrap().parsed::<u32>("limit").is_err());
    }
}
