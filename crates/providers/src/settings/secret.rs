//! A setting that must not be printed by accident.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A key or a password. It cannot be printed; code that needs the text calls [`Secret::reveal`].
///
/// It serializes to its plain text, because storing settings requires that; hiding it from users is the
/// store's task. Settings that determine where it is sent are marked `x-destination` in the schema: when one
/// of them changes, the secret is not kept.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(transparent, extend("writeOnly" = true, "format" = "password"))]
pub struct Secret(String);

impl Secret {
    /// Returns the text.
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
    fn secrets_are_not_printed_and_are_write_only_in_the_schema() {
        let secret: Secret = serde_json::from_str("\"sesame\"").unwrap();
        assert_eq!((format!("{secret:?}").as_str(), secret.reveal()), ("Secret(…)", "sesame"));
        let schema = serde_json::to_value(schemars::schema_for!(Secret)).unwrap();
        assert_eq!((&schema["type"], &schema["writeOnly"]), (&"string".into(), &true.into()));
        assert_eq!(schema["format"], "password");
    }
}
