//! The kinds of providers that can be configured. Whoever wires the parts knows them; others see them through this port.

mod check;

use std::fmt::Debug;
use std::sync::Arc;

use belljar_analysis::imports::distance;
use serde_json::{Map, Value};

use crate::Error;
use crate::provider::Provider;

pub use check::{check, moved, secrets};

/// What is said about a provider: plain values by name.
pub type Settings = Map<String, Value>;

/// Stands for a secret wherever settings are shown; whoever sends it back keeps the secret where it goes to the same place
/// as before ([`moved`]).
pub const MASK: &str = "********";

/// All kinds.
pub trait Catalog: Debug + Send + Sync {
    /// Their names.
    fn names(&self) -> Vec<&'static str>;

    /// Whether one is there although nobody has configured it.
    fn stands(&self, name: &str) -> bool;

    /// The JSON Schema of its settings, an object of plain values in which secrets are `writeOnly`, and what decides where
    /// those are sent is `x-destination`.
    ///
    /// # Errors
    /// There is no such kind.
    fn schema(&self, name: &str) -> Result<Value, Error>;

    /// Makes one that was spoken to by nobody yet, of settings that fit the schema.
    ///
    /// # Errors
    /// Names the setting that is wrong, and never its value.
    fn build(&self, name: &str, settings: &Settings) -> Result<Arc<dyn Provider>, Error>;
}

/// A kind that nobody knows.
pub fn unknown(name: &str, known: &[&str]) -> Error {
    Error::Unsupported { field: "provider", message: no_such(name, known) }
}

/// The same in words.
pub(crate) fn no_such(name: &str, known: &[&str]) -> String {
    let meant = meant(name, known).map(|known| format!(" (did you mean '{known}'?)")).unwrap_or_default();
    format!("there is no provider '{}'{meant}; known: {}", name.escape_debug(), known.join(", "))
}

/// Whom somebody may have misspelt, by one letter of three and two at most.
fn meant<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let near = known.iter().filter(|known| known.len().abs_diff(name.len()) <= 2);
    let near = near.map(|known| (distance(name, known), *known));
    near.filter(|(apart, known)| *apart <= (known.len() / 3).min(2)).min().map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_recognised_and_another_is_not() {
        let known = ["agentrun", "docker", "e2b", "native"];
        for (name, wanted) in [
            ("dokcer", Some("docker")),
            ("Docker", Some("docker")),
            ("e2", Some("e2b")),
            ("agent-run", Some("agentrun")),
            ("b2", None),
            ("nope", None),
            ("", None),
        ] {
            assert_eq!(meant(name, &known), wanted, "{name}");
        }
    }
}
