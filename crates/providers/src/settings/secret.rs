//! A word that nobody is to see by accident.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A key or a password. It cannot be printed; whoever needs it says so.
///
/// It is serialised as it is, because whoever stores settings has to: what is shown to people is the store's part.
/// Settings that decide where it is sent are `x-destination` in their schema: it is not kept where one of them changes.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(transparent, extend("writeOnly" = true, "format" = "password"))]
pub struct Secret(String);

impl Secret {
    /// The word itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_not_printed_and_its_schema_says_so() {
        let secret: Secret = serde_json::from_str("\"sesame\"").unwrap();
        assert_eq!((format!("{secret:?}").as_str(), secret.reveal()), ("Secret(…)", "sesame"));
        let schema = serde_json::to_value(schemars::schema_for!(Secret)).unwrap();
        assert_eq!((&schema["type"], &schema["writeOnly"]), (&"string".into(), &true.into()));
        assert_eq!(schema["format"], "password");
    }
}
