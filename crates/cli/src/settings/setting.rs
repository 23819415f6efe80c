//! A row of the table: one setting.

use std::borrow::Cow;
use std::ffi::OsString;

use belljar_engine::Error;
use belljar_engine::catalog::{ProviderSettings, check_settings};
use serde_json::{Value, json};

use super::kind::Raw;
use super::{HIDDEN, Settings};
use crate::provider::parse_setting;

/// One setting.
pub(crate) struct Setting {
    /// Its name, and its key in a file.
    pub(super) name: Cow<'static, str>,
    #[cfg_attr(not(test), expect(dead_code, reason = "for docs/settings.md, which a test writes"))]
    pub(super) about: Cow<'static, str>,
    #[cfg_attr(not(test), expect(dead_code, reason = "for docs/settings.md"))]
    pub(super) type_name: String,
    /// A valid value, unless the errors of its type contain one.
    example: &'static str,
    pub(super) in_file: bool,
    /// How the setting is treated if the `belljar.toml` of the current folder has it.
    pub(super) local: LocalFile,
    pub(super) secret: bool,
    pub(super) variable: Option<String>,
    /// Other variables with the same meaning, each with the unit of its numbers.
    pub(super) aliases: &'static [(&'static str, &'static str)],
    /// Variable that applies if neither the file nor another variable sets it.
    pub(super) fallback: Option<&'static str>,
    #[cfg_attr(not(test), expect(dead_code, reason = "for docs/settings.md"))]
    pub(super) flag: Option<&'static str>,
    /// The default, if the value is absent by default.
    pub(super) default: Option<String>,
    /// The default in the documentation, if it depends on the machine.
    #[cfg_attr(not(test), expect(dead_code, reason = "for docs/settings.md"))]
    pub(super) documented: Option<&'static str>,
    access: Access,
    check: Option<CheckField>,
}

/// The treatment of a setting in a `belljar.toml` that may have come with the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LocalFile {
    /// The file is refused.
    Refused,
    /// The setting is ignored with a warning.
    Ignored,
    /// The setting applies.
    Allowed,
}

type ReadField = fn(&mut Settings, &Raw) -> Result<(), String>;
type ShowField = fn(&Settings) -> String;
type CheckField = fn(&Settings) -> Result<(), String>;

/// How a setting is read and shown.
pub(super) enum Access {
    /// A field of the settings.
    Field(ReadField, ShowField),
    /// A setting of a provider, with its JSON Schema.
    Provider { provider: &'static str, name: String, schema: Value },
    /// The providers that replace this one while it fails.
    Fallbacks { provider: &'static str },
    /// Part of a section that a file has any number of, such as `profiles.NAME`.
    Section,
}

impl Setting {
    pub(super) fn new(
        name: impl Into<Cow<'static, str>>,
        about: impl Into<Cow<'static, str>>,
        type_name: String,
        example: &'static str,
        access: Access,
    ) -> Self {
        let name = name.into();
        let variable = match access {
            Access::Section => None,
            _ => Some(format!("BELLJAR_{}", name.to_ascii_uppercase().replace('.', "_"))),
        };
        Self {
            name,
            about: about.into(),
            type_name,
            example,
            in_file: true,
            local: LocalFile::Refused,
            secret: false,
            variable,
            aliases: &[],
            fallback: None,
            flag: None,
            default: None,
            documented: None,
            access,
            check: None,
        }
    }

    /// The file has no such key.
    pub(super) fn not_in_file(self) -> Self {
        Self { in_file: false, ..self }
    }

    /// The treatment of the setting in the `belljar.toml` of the current folder.
    pub(super) fn local(self, local: LocalFile) -> Self {
        Self { local, ..self }
    }

    pub(super) fn secret(self) -> Self {
        Self { secret: true, ..self }
    }

    /// Leaves the unit out of the variable's name, because its value has one.
    pub(super) fn unit_in_name(self) -> Self {
        let name = self.variable.as_deref().unwrap_or_default();
        let short = name.strip_suffix("_MS").or_else(|| name.strip_suffix("_BYTES")).unwrap_or(name);
        Self { variable: Some(short.to_owned()), ..self }
    }

    pub(super) fn aliases(self, aliases: &'static [(&'static str, &'static str)]) -> Self {
        Self { aliases, ..self }
    }

    pub(super) fn flag(self, flag: &'static str) -> Self {
        Self { flag: Some(flag), ..self }
    }

    pub(super) fn default(self, value: impl Into<String>) -> Self {
        Self { default: Some(value.into()), ..self }
    }

    pub(super) fn documented(self, default: &'static str) -> Self {
        Self { documented: Some(default), ..self }
    }

    /// Checks the value after it is read.
    pub(super) fn check(self, check: CheckField) -> Self {
        Self { check: Some(check), ..self }
    }

    /// Returns whether it is part of a section that a file has any number of.
    pub(super) fn is_section(&self) -> bool {
        matches!(self.access, Access::Section)
    }

    /// Returns whether it has this key in a file.
    pub(super) fn has_key(&self, key: &[&str]) -> bool {
        self.in_file && self.name.split('.').count() == key.len() && self.is_below(key)
    }

    /// Returns whether its key starts with these names.
    pub(super) fn is_below(&self, above: &[&str]) -> bool {
        let mut names = self.name.split('.');
        self.in_file
            && above.iter().all(|wanted| names.next().is_some_and(|name| name == "*" || name == *wanted))
    }

    /// Returns the variable that sets it, and the variable's value. Numbers of an alias get their unit.
    pub(super) fn variable_in(
        &self,
        get: impl Fn(&str) -> Option<OsString>,
    ) -> Option<(&str, Result<Raw, String>)> {
        let own = self.variable.as_deref().map(|name| (name, ""));
        own.into_iter().chain(self.aliases.iter().copied()).find_map(|(name, unit)| {
            let mut text = get(name)?;
            if unit.is_empty() {
                return Some((name, Ok(Raw::Text(text))));
            }
            let number = text.to_str().and_then(|text| text.trim().parse::<f64>().ok());
            if !number.is_some_and(|number| number.is_finite() && number > 0.0) {
                let shown = text.to_string_lossy();
                return Some((
                    name,
                    Err(format!("'{}' is not a number above zero, such as 30", shown.escape_debug())),
                ));
            }
            text.push(unit);
            Some((name, Ok(Raw::Text(text))))
        })
    }

    /// Reads a value into the settings. An error states what is wrong with it and shows a valid one.
    pub(super) fn read(&self, settings: &mut Settings, raw: &Raw) -> Result<(), String> {
        let read = match &self.access {
            Access::Field(read, _) => read(settings, raw),
            Access::Provider { provider, name, schema } => read_provider(name, schema, raw)
                .map(|value| drop(settings.provider(provider).settings.insert(name.clone(), value))),
            Access::Fallbacks { provider } => {
                raw.items().map(|names| settings.provider(provider).instead = names)
            }
            Access::Section => Ok(()),
        };
        read.and_then(|()| self.check.map_or(Ok(()), |check| check(settings))).map_err(|why| {
            match self.example {
                "" => why,
                example => format!("{why}; write for example {example}"),
            }
        })
    }

    /// Shows its current value; nothing for an absent one.
    pub(super) fn show(&self, settings: &Settings) -> String {
        let configured = |provider| settings.config.providers.configs.get(provider);
        let value = match &self.access {
            Access::Field(_, show) => show(settings),
            Access::Provider { provider, name, .. } => {
                match configured(*provider).and_then(|config| config.settings.get(name)) {
                    Some(_) if self.secret => HIDDEN.to_owned(),
                    value => value.map(show_json).unwrap_or_default(),
                }
            }
            Access::Fallbacks { provider } => {
                configured(*provider).map(|config| config.instead.join(", ")).unwrap_or_default()
            }
            Access::Section => String::new(),
        };
        if value.is_empty() { self.default.clone().unwrap_or_default() } else { value }
    }

    /// Returns the settings of a provider, from the schema of its kind.
    pub(super) fn of_provider(
        provider: &'static str,
        schema: &Value,
        fallbacks: &'static [(&'static str, &'static str)],
    ) -> Vec<Self> {
        let properties = schema["properties"].as_object().into_iter().flatten();
        let row = |(name, property): (&String, &Value)| {
            let about = property["description"].as_str().unwrap_or_default().replace('\n', " ");
            let type_name = match property["type"].as_array() {
                Some(types) => types.first().and_then(Value::as_str),
                None => property["type"].as_str(),
            };
            let type_name = match type_name {
                Some("string") | None => "text",
                Some("integer" | "number") => "number",
                Some("boolean") => "true or false",
                Some("array") => "list",
                Some(other) => other,
            };
            let access = Access::Provider { provider, name: name.clone(), schema: property.clone() };
            let key = format!("providers.{provider}.{name}");
            let row = Self::new(key, about, type_name.to_owned(), "", access);
            let fallback =
                fallbacks.iter().find(|(_, setting)| setting == name).map(|(variable, _)| *variable);
            Self {
                secret: property["writeOnly"] == true,
                fallback,
                default: property.get("default").map(show_json).filter(|default| !default.is_empty()),
                ..row
            }
        };
        let rows = properties.filter(|(_, property)| property["readOnly"] != true).map(row);
        let about = "Providers to use while this one fails, in order.";
        let fallbacks = Self::new(
            format!("providers.{provider}.instead"),
            about,
            "list".to_owned(),
            "",
            Access::Fallbacks { provider },
        );
        rows.chain([fallbacks]).collect()
    }
}

/// Parses a provider's setting. Messages never contain the value, which may be a secret.
fn read_provider(name: &str, schema: &Value, raw: &Raw) -> Result<Value, String> {
    let value = match raw {
        Raw::Text(_) => parse_setting(schema, &raw.text()?),
        Raw::Toml(value) => serde_json::to_value(value).map_err(|_| "is not a plain value".to_owned())?,
    };
    let alone = ProviderSettings::from_iter([(name.to_owned(), value.clone())]);
    match check_settings(&json!({"properties": {name: schema}}), &alone) {
        Ok(()) => Ok(value),
        Err(Error::Invalid { message, .. }) => {
            Err(message.strip_prefix(&format!("{name}: ")).unwrap_or(&message).to_owned())
        }
        Err(other) => Err(other.to_string()),
    }
}

fn show_json(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(show_json).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}
