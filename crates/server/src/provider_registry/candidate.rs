//! A provider built from new settings, with its secrets separated from the settings that may be shown.

use std::fmt;
use std::sync::Arc;

use belljar_engine::catalog::{self, ProviderCatalog, ProviderSettings, SECRET_MASK};
use belljar_engine::provider::Provider;
use serde_json::Value;

use crate::error::Error;

/// A provider that was built, but not yet tested or used.
#[derive(Debug)]
pub(crate) struct ProviderCandidate {
    pub(crate) provider: Arc<dyn Provider>,
    /// Settings with every secret masked.
    pub(super) shown: ProviderSettings,
    pub(super) secrets: ProviderSettings,
    pub(crate) secret_mask: SecretMask,
}

/// Secret values that no message may contain.
#[derive(Clone, Default)]
pub(crate) struct SecretMask(Vec<String>);

impl SecretMask {
    /// Returns the text with all secrets masked.
    pub(crate) fn mask(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret, SECRET_MASK))
    }
}

impl fmt::Debug for SecretMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretMask(…)")
    }
}

impl ProviderCandidate {
    /// Builds a provider. A mask in `settings` stands for the secret in `known`.
    pub(super) fn new(
        catalog: &dyn ProviderCatalog,
        name: &str,
        schema: &Value,
        mut settings: ProviderSettings,
        known: ProviderSettings,
    ) -> Result<Self, Error> {
        let secret = catalog::secret_names(schema);
        for (field, value) in settings.iter_mut().filter(|(field, _)| secret.contains(&field.as_str())) {
            if *value != SECRET_MASK {
                continue;
            }
            *value = known.get(field).cloned().ok_or_else(|| {
                let message = format!("{field}: '{SECRET_MASK}' keeps a stored secret, but none is stored");
                Error::Invalid { field: "settings", message }
            })?;
        }
        catalog::check_settings(schema, &settings)?;
        settings.retain(|field, _| schema["properties"][field]["readOnly"] != true);
        let provider = catalog.build(name, &settings)?;
        let is_secret =
            |(field, value): &(&String, &Value)| secret.contains(&field.as_str()) && !value.is_null();
        let secrets: ProviderSettings =
            settings.iter().filter(is_secret).map(|(field, value)| (field.clone(), value.clone())).collect();
        let hidden = secrets.values().filter_map(Value::as_str).filter(|secret| !secret.is_empty());
        let hidden = SecretMask(hidden.map(str::to_owned).collect());
        for field in secrets.keys() {
            settings.insert(field.clone(), SECRET_MASK.into());
        }
        Ok(Self { provider, shown: settings, secrets, secret_mask: hidden })
    }
}
