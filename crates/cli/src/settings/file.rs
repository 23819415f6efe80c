//! `belljar.toml`: which files are read, and what an untrusted one may set.
//!
//! One trusted file is read: `--config FILE`, else `BELLJAR_CONFIG`, else the user's own
//! (`$XDG_CONFIG_HOME/belljar/belljar.toml`), else the machine's (`/etc/belljar/belljar.toml`).
//!
//! A `belljar.toml` in the current folder is not trusted. It may have come with the very code that is to run,
//! and its owner proves nothing: a clone belongs to the user who cloned it. So, unless `--config` or
//! `BELLJAR_CONFIG` named a file, it is read on top and may only *add* profiles, which do nothing until a
//! request names them, with the settings that the table allows. It cannot replace a profile, mount host
//! folders, choose an image, open the network, change the ceiling, keep anything warm, or decide about packages
//! and policies; trying to is an error. Packages and variables of its profiles count as a request's own, and
//! their preimports are ignored. Naming the file (`--config belljar.toml`) trusts it like any other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use belljar_analysis::policy::{Policies, PolicySpec};
use belljar_engine::catalog::closest_name;
use belljar_engine::profile::Profile;
use serde::Deserialize;
use toml::Value;
use toml::de::{DeTable, DeValue};

use super::kind::Raw;
use super::setting::{LocalFile, Setting};
use super::{Files, Given, HIDDEN, Origin, Settings, ShownSetting, table};
use crate::error::{CliError, quote_path};
use crate::say;

const NAME: &str = "belljar.toml";
const MACHINE: &str = "/etc/belljar/belljar.toml";
const MAX_BYTES: u64 = 1 << 20;

/// Sections that a file has any number of. The rest of a file is read by the table.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Sections {
    profiles: BTreeMap<String, Profile>,
    policies: BTreeMap<String, PolicySpec>,
}

/// A file that was read.
struct ConfigFile<'a> {
    path: &'a Path,
    text: &'a str,
    table: toml::Table,
}

/// A table or a setting of a file.
struct Entry<'a> {
    key: Vec<&'a str>,
    /// None for a table.
    setting: Option<(&'static Setting, &'a Value)>,
}

impl Settings {
    /// Reads the files into the settings; single values that are not given already go to `given`.
    pub(super) fn read_files(
        &mut self,
        files: Files,
        given: &mut BTreeMap<&'static str, Given>,
    ) -> Result<(), CliError> {
        if files == Files::Ignored {
            return Ok(());
        }
        if let Some(path) = self.environment.config.clone() {
            if files == Files::Optional && !path.exists() {
                return Ok(());
            }
            let text = read(&path).map_err(|error| unreadable(&path, &error))?;
            return self.read_trusted(&path, &text, given);
        }
        let person = self.environment.config_home.as_ref().map(|folder| folder.join("belljar").join(NAME));
        if let Some((path, text)) = first_existing([person, Some(PathBuf::from(MACHINE))])? {
            self.read_trusted(&path, &text, given)?;
        }
        match first_existing([Some(PathBuf::from(NAME)), None])? {
            Some((path, text)) => self.read_untrusted(&path, &text),
            None => Ok(()),
        }
    }

    pub(super) fn read_trusted(
        &mut self,
        path: &Path,
        text: &str,
        given: &mut BTreeMap<&'static str, Given>,
    ) -> Result<(), CliError> {
        let file = ConfigFile::parse(path, text)?;
        for Entry { key, setting } in file.entries()? {
            match (&*key, setting) {
                // An empty table configures a provider with its default settings.
                (["providers", provider], None) => drop(self.provider(provider)),
                (_, None) => {}
                (_, Some((row, value))) if row.is_section() => self.add_entries(path, &key, row, value),
                (_, Some((row, value))) => {
                    let origin = Origin::File(path.to_owned());
                    given.entry(&row.name).or_insert(Given { raw: Raw::Toml(value.clone()), origin });
                }
            }
        }
        let sections = file.sections()?;
        for (name, profile) in sections.profiles {
            self.config.profiles.insert(name, profile);
        }
        self.config.policies = Policies::with(sections.policies)
            .map_err(|error| CliError::invalid(format!("{}: {error}", quote_path(path))))?;
        Ok(())
    }

    pub(super) fn read_untrusted(&mut self, path: &Path, text: &str) -> Result<(), CliError> {
        let refuse = |what: &str| {
            Err(CliError::invalid(format!(
                "{} in the current folder {what}, which an untrusted file may not; if you trust it, run \
                 with --config {NAME}",
                quote_path(path)
            )))
        };
        let file = ConfigFile::parse(path, text)?;
        for Entry { key, setting } in file.entries()? {
            let shown = key.join(".").escape_debug().to_string();
            match (&*key, setting.map_or_else(|| local_use(&key), |(row, _)| row.local)) {
                (["profiles", name], _) if self.config.profiles.get(name).is_ok() => {
                    return refuse(&format!("replaces profile '{}'", name.escape_debug()));
                }
                (_, LocalFile::Refused) => return refuse(&format!("sets {shown}")),
                (_, LocalFile::Ignored) => say::warning(&format!(
                    "{shown} is ignored, because {} in the current folder may have come with the code; move it to \
                     your own configuration, or run with --config {NAME} if you trust the file",
                    quote_path(path)
                )),
                (_, LocalFile::Allowed) => {
                    if let Some((row, value)) = setting {
                        self.add_entries(path, &key, row, value);
                    }
                }
            }
        }
        for (name, profile) in file.sections()?.profiles {
            self.config.profiles.insert(name, Profile { came_with_code: true, ..profile });
        }
        Ok(())
    }

    /// Records the values of a section for `belljar config show`.
    fn add_entries(&mut self, path: &Path, key: &[&str], row: &Setting, value: &Value) {
        let name = key.join(".");
        if let Value::Table(table) = value {
            for (below, value) in table {
                self.add_entries(path, &[key, &[below]].concat(), row, value);
            }
            return;
        }
        let value = match value {
            _ if row.secret => HIDDEN.to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let origin = Origin::File(path.to_owned()).shown(&name);
        self.entries.retain(|entry| entry.name != name);
        self.entries.push(ShownSetting { name, value, origin });
    }
}

/// Returns what a local file may do with a table: it is refused if nothing below may be set.
fn local_use(key: &[&str]) -> LocalFile {
    let mut below = table::rows().filter(|row| row.is_below(key));
    if below.any(|row| row.local != LocalFile::Refused) { LocalFile::Allowed } else { LocalFile::Refused }
}

impl<'a> ConfigFile<'a> {
    fn parse(path: &'a Path, text: &'a str) -> Result<Self, CliError> {
        let table = text.parse().map_err(|error| syntax_error(path, text, &error))?;
        Ok(Self { path, text, table })
    }

    /// Parses profiles and policies.
    fn sections(&self) -> Result<Sections, CliError> {
        toml::from_str(self.text).map_err(|error| syntax_error(self.path, self.text, &error))
    }

    /// Returns every table and every setting. An unknown one is an error.
    fn entries(&self) -> Result<Vec<Entry<'_>>, CliError> {
        let mut entries = Vec::new();
        self.add_table(&[], &self.table, &mut entries)?;
        Ok(entries)
    }

    fn add_table<'b>(
        &self,
        above: &[&'b str],
        table: &'b toml::Table,
        entries: &mut Vec<Entry<'b>>,
    ) -> Result<(), CliError> {
        for (name, value) in table {
            let key = [above, &[name]].concat();
            if let Some(row) = table::rows().find(|row| row.has_key(&key)) {
                entries.push(Entry { key, setting: Some((row, value)) });
                continue;
            }
            if !table::rows().any(|row| row.is_below(&key)) {
                return Err(self.wrong(&key, &unknown(above, name, value.is_table())));
            }
            let Value::Table(table) = value else {
                return Err(self.wrong(&key, &format!("'{}' must be a table", key.join(".").escape_debug())));
            };
            entries.push(Entry { key: key.clone(), setting: None });
            self.add_table(&key, table, entries)?;
        }
        Ok(())
    }

    /// Returns an error about a key.
    fn wrong(&self, key: &[&str], why: &str) -> CliError {
        let table = DeTable::parse(self.text).ok();
        let span = table.and_then(|table| span_of(table.get_ref(), key));
        let line = line_at(self.text, span);
        CliError::invalid(format!("{}, line {line}: {why}", quote_path(self.path)))
    }
}

/// Returns where a key is in a file.
fn span_of(table: &DeTable<'_>, key: &[&str]) -> Option<Range<usize>> {
    let (first, rest) = key.split_first()?;
    let (name, value) = table.iter().find(|(name, _)| name.get_ref() == first)?;
    match value.get_ref() {
        DeValue::Table(below) if !rest.is_empty() => span_of(below, rest),
        _ => Some(name.span()),
    }
}

fn line_at(text: &str, span: Option<Range<usize>>) -> usize {
    span.map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count())
}

/// Explains an unknown key, with the closest known name.
fn unknown(above: &[&str], name: &str, is_table: bool) -> String {
    let key = [above, &[name]].concat().join(".");
    let is_variable = |row: &&Setting| {
        let rest = row.name.strip_prefix(&*key).filter(|_| row.variable_only);
        rest.is_some_and(|rest| if is_table { rest.starts_with('.') } else { rest.is_empty() })
    };
    if let Some(variable) = table::rows().find(is_variable).and_then(|row| row.variable.as_deref()) {
        return format!("'{key}' is not read from a file; set {variable}");
    }
    let below = table::rows().filter(|row| row.is_below(above));
    let known: BTreeSet<&str> = below.filter_map(|row| row.name.split('.').nth(above.len())).collect();
    let known: Vec<_> = known.into_iter().collect();
    // A name without its unit, or a key of another table.
    let longer = || known.iter().copied().find(|known| name.len() > 2 && known.starts_with(name));
    let elsewhere =
        || table::rows().find(|row| !row.variable_only && row.name.rsplit('.').next() == Some(name));
    let key = key.escape_debug();
    match closest_name(name, &known).or_else(longer).or_else(|| elsewhere().map(|row| &*row.name)) {
        Some(meant) => format!("unknown setting '{key}'; did you mean '{meant}'?"),
        None => format!("unknown setting '{key}'; known here: {}", known.join(", ")),
    }
}

/// Describes an error on one line; the parser's own display quotes several lines of the file.
fn syntax_error(path: &Path, text: &str, error: &toml::de::Error) -> CliError {
    let line = line_at(text, error.span());
    CliError::invalid(format!("{}, line {line}: {}", quote_path(path), say::printable(error.message())))
}

/// Returns the first of these files that exists, with its text.
fn first_existing(paths: [Option<PathBuf>; 2]) -> Result<Option<(PathBuf, String)>, CliError> {
    for path in paths.into_iter().flatten() {
        // These paths are defaults, so anything but a regular file is ignored; a pipe would block.
        if !path.is_file() {
            continue;
        }
        let text = read(&path).map_err(|error| unreadable(&path, &error))?;
        return Ok(Some((path, text)));
    }
    Ok(None)
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(io::Error::other("larger than 1 MB"));
    }
    Ok(text)
}

fn unreadable(path: &Path, error: &io::Error) -> CliError {
    CliError::invalid(format!("cannot read the configuration file {}: {error}", quote_path(path)))
}
