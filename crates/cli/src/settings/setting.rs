//! A row of the table: one setting.

use std::borrow::Cow;
use std::ffi::OsString;
use std::sync::Arc;

use belljar_engine::Error;
use belljar_engine::catalog::{ProviderSettings, check_settings};
use serde_json::{Value, json};

use super::kind::{Kind, Raw};
use super::{HIDDEN, PREFIX, Settings};
use crate::provider::parse_setting;

/// One setting.
#[derive(Default)]
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "some fields are for docs/settings.md, which a test writes")
)]
pub(crate) struct Setting {
    /// Its name, and its key in a file.
    pub(super) name: Cow<'static, str>,
    pub(super) about: Cow<'static, str>,
    pub(super) type_name: String,
    /// A valid value, unless the errors of its type contain one.
    example: &'static str,
    /// Whether only a variable or a flag sets it, not a file.
    pub(super) variable_only: bool,
    /// How the setting is treated if the `belljar.toml` of the current folder has it.
    pub(super) local: LocalFile,
    pub(super) secret: bool,
    /// Whether only a server needs it: other commands work even if it is invalid.
    pub(super) server_only: bool,
    pub(super) variable: Option<String>,
    /// Other variables with the same meaning, each with the unit of its numbers.
    pub(super) aliases: &'static [(&'static str, &'static str)],
    /// Variable that applies if neither the file nor another variable sets it.
    pub(super) fallback: Option<&'static str>,
    pub(super) flag: Option<&'static str>,
    /// The default, if the value is absent by default.
    pub(super) default: Option<String>,
    /// The default in the documentation, if it depends on the machine.
    pub(super) documented: Option<&'static str>,
    /// None for a part of a section that a file has any number of, such as `profiles.NAME`.
    access: Option<Access>,
    check: Option<CheckField>,
}

/// The treatment of a setting in a `belljar.toml` that may have come with the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum LocalFile {
    /// The file is refused.
    #[default]
    Refused,
    /// The setting is ignored with a warning.
    Ignored,
    /// The setting applies.
    Allowed,
}

type ReadField = dyn Fn(&mut Settings, &Raw) -> Result<(), String> + Send + Sync;
type ShowField = dyn Fn(&Settings) -> String + Send + Sync;
type CheckField = fn(&Settings) -> Result<(), String>;

/// How a setting is read and shown.
struct Access {
    read: Box<ReadField>,
    show: Box<ShowField>,
}

impl Setting {
    /// Creates a setting with a type of its own.
    pub(super) fn new(
        name: impl Into<Cow<'static, str>>,
        about: impl Into<Cow<'static, str>>,
        (type_name, example): (String, &'static str),
        read: impl Fn(&mut Settings, &Raw) -> Result<(), String> + Send + Sync + 'static,
        show: impl Fn(&Settings) -> String + Send + Sync + 'static,
    ) -> Self {
        let section = Self::section(name, type_name, about);
        Self {
            example,
            variable: Some(format!("{PREFIX}{}", section.name.to_ascii_uppercase().replace('.', "_"))),
            access: Some(Access { read: Box::new(read), show: Box::new(show) }),
            ..section
        }
    }

    /// Creates a setting that is a field.
    pub(super) fn field<T: 'static>(
        name: &'static str,
        kind: Kind<T>,
        field_mut: fn(&mut Settings) -> &mut T,
        field: fn(&Settings) -> &T,
        about: &'static str,
    ) -> Self {
        let type_of = (kind.name.clone(), kind.example);
        let kind = Arc::new(kind);
        let shown = Arc::clone(&kind);
        let read = move |settings: &mut Settings, raw: &Raw| {
            *field_mut(settings) = kind.parse(raw)?;
            Ok(())
        };
        Self::new(name, about, type_of, read, move |settings| shown.show(field(settings)))
    }

    /// Creates a part of a section that a file has any number of.
    pub(super) fn section(
        name: impl Into<Cow<'static, str>>,
        type_name: impl Into<String>,
        about: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { name: name.into(), about: about.into(), type_name: type_name.into(), ..Default::default() }
    }

    /// The file has no such key.
    pub(super) fn not_in_file(self) -> Self {
        Self { variable_only: true, ..self }
    }

    /// The treatment of the setting in the `belljar.toml` of the current folder.
    pub(super) fn local(self, local: LocalFile) -> Self {
        Self { local, ..self }
    }

    /// Lets commands other than `serve` work even if the value is invalid.
    pub(super) fn server_only(self) -> Self {
        Self { server_only: true, ..self }
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
        self.access.is_none()
    }

    /// Returns whether it has this key in a file.
    pub(super) fn has_key(&self, key: &[&str]) -> bool {
        !self.variable_only && self.name.split('.').count() == key.len() && self.is_below(key)
    }

    /// Returns whether its key starts with these names.
    pub(super) fn is_below(&self, above: &[&str]) -> bool {
        let mut names = self.name.split('.');
        !self.variable_only
            && above.iter().all(|wanted| names.next().is_some_and(|name| name == "*" || name == *wanted))
    }

    /// Returns the variable that sets it, and the variable's value. Numbers of an alias get their unit.
    pub(super) fn variable_in(
        &self,
        get: impl Fn(&str) -> Option<OsString>,
    ) -> Option<(&str, Result<Raw, String>)> {
        let main = self.variable.as_deref().map(|name| (name, ""));
        main.into_iter().chain(self.aliases.iter().copied()).find_map(|(name, unit)| {
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
        let read = self.access.as_ref().map_or(Ok(()), |access| (access.read)(settings, raw));
        read.and_then(|()| self.check.map_or(Ok(()), |check| check(settings))).map_err(|why| {
            match self.example {
                "" => why,
                example => format!("{why}; write for example {example}"),
            }
        })
    }

    /// Shows its current value; nothing for an absent one.
    pub(super) fn show(&self, settings: &Settings) -> String {
        let value = self.access.as_ref().map(|access| (access.show)(settings)).unwrap_or_default();
        if value.is_empty() { self.default.clone().unwrap_or_default() } else { value }
    }

    /// Returns the settings of a provider, from the schema of its kind.
    pub(super) fn of_provider(
        provider: &'static str,
        schema: &Value,
        fallbacks: &'static [(&'static str, &'static str)],
    ) -> Vec<Self> {
        let properties = schema["properties"].as_object().into_iter().flatten();
        let rows = properties.filter(|(_, property)| property["readOnly"] != true).map(|(name, property)| {
            let fallback = fallbacks.iter().find(|(_, setting)| setting == name);
            Self {
                secret: property["writeOnly"] == true,
                fallback: fallback.map(|(variable, _)| *variable),
                default: property.get("default").map(show_json).filter(|default| !default.is_empty()),
                ..Self::of_schema(provider, name.clone(), property.clone())
            }
        });
        let instead = Self::new(
            format!("providers.{provider}.instead"),
            "Providers to use while this one fails, in order.",
            ("list".to_owned(), ""),
            move |settings, raw| {
                settings.provider(provider).instead = raw.items()?;
                Ok(())
            },
            move |settings| {
                let config = settings.config.providers.configs.get(provider);
                config.map(|config| config.instead.join(", ")).unwrap_or_default()
            },
        );
        rows.chain([instead]).collect()
    }

    /// Returns a setting of a provider, from its schema.
    fn of_schema(provider: &'static str, name: String, schema: Value) -> Self {
        let about = schema["description"].as_str().unwrap_or_default().replace('\n', " ");
        let of_list = schema["type"].as_array().and_then(|types| types.first());
        let type_name = match of_list.unwrap_or(&schema["type"]).as_str() {
            Some("string") | None => "text",
            Some("integer" | "number") => "number",
            Some("boolean") => "true or false",
            Some("array") => "list",
            Some(other) => other,
        };
        let type_name = type_name.to_owned();
        let (secret, shown) = (schema["writeOnly"] == true, name.clone());
        Self::new(
            format!("providers.{provider}.{name}"),
            about,
            (type_name, ""),
            move |settings, raw| {
                let value = read_provider(&name, &schema, raw)?;
                settings.provider(provider).settings.insert(name.clone(), value);
                Ok(())
            },
            move |settings| {
                let config = settings.config.providers.configs.get(provider);
                match config.and_then(|config| config.settings.get(&shown)) {
                    Some(_) if secret => HIDDEN.to_owned(),
                    value => value.map(show_json).unwrap_or_default(),
                }
            },
        )
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
