//! A provider built from new settings, with its secrets separated from the settings that may be shown.

use std::fmt;
use std::sync::Arc;

use belljar_engine::catalog::{self, Catalog, MASK, Settings};
use belljar_engine::provider::Provider;
use serde_json::Value;

use crate::error::Error;

/// A provider that was built, but not yet tested or used.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) provider: Arc<dyn Provider>,
    /// Settings with every secret masked.
    pub(super) shown: Settings,
    pub(super) secrets: Settings,
    pub(crate) hidden: Hidden,
}

/// Secret values that no message may contain.
#[derive(Clone, Default)]
pub(crate) struct Hidden(Vec<String>);

impl Hidden {
    /// Returns the text with all secrets masked.
    pub(crate) fn cover(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret, MASK))
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden(…)")
    }
}

impl Candidate {
    /// Builds a provider. A mask in `settings` stands for the secret in `known`.
    pub(super) fn new(
        catalog: &dyn Catalog,
        name: &str,
        schema: &Value,
        mut settings: Settings,
        known: Settings,
    ) -> Result<Self, Error> {
        let secret = catalog::secrets(schema);
        for (field, value) in settings.iter_mut().filter(|(field, _)| secret.contains(&field.as_str())) {
            if *value != MASK {
                continue;
            }
            *value = known.get(field).cloned().ok_or_else(|| {
                let message = format!("{field}: '{MASK}' keeps a stored secret, but none is stored");
                Error::Invalid { field: "settings", message }
            })?;
        }
        catalog::check(schema, &settings)?;
        settings.retain(|field, _| schema["properties"][field]["readOnly"] != true);
        let provider = catalog.build(name, &settings)?;
        let is_secret =
            |(field, value): &(&String, &Value)| secret.contains(&field.as_str()) && !value.is_null();
        let secrets: Settings =
            settings.iter().filter(is_secret).map(|(field, value)| (field.clone(), value.clone())).collect();
        let hidden = secrets.values().filter_map(Value::as_str).filter(|secret| !secret.is_empty());
        let hidden = Hidden(hidden.map(str::to_owned).collect());
        for field in secrets.keys() {
            settings.insert(field.clone(), MASK.into());
        }
        Ok(Self { provider, shown: settings, secrets, hidden })
    }
}
