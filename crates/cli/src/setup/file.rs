//! Edits the configuration file. Everything else in it is preserved, including comments.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use belljar_engine::catalog::{self, ProviderSettings};
use serde_json::Value as Json;
use toml_edit::{Array, DocumentMut, Item, Table, Value};

use crate::env::Environment;
use crate::error::{CliError, quote_path};
use crate::os;
use crate::provider_kinds::ProviderKind;

/// Returns the file given by a flag or the environment, else the user's own.
pub(super) fn config_path(named: Option<PathBuf>, environment: &Environment) -> Result<PathBuf, CliError> {
    let user_file =
        || environment.config_home.as_ref().map(|folder| folder.join("belljar").join("belljar.toml"));
    named
        .or_else(|| environment.config.clone())
        .or_else(user_file)
        .ok_or_else(|| CliError::invalid("no home folder for the configuration; set --config FILE"))
}

/// Writes the provider settings atomically. A file with a secret is readable only for its owner.
pub(super) fn write(path: &Path, kind: &ProviderKind, settings: &ProviderSettings) -> Result<(), CliError> {
    let failed = |error: io::Error| CliError::host(format!("cannot write {}: {error}", quote_path(path)));
    let before = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(failed(error)),
    };
    let text = edit_document(&before, kind.name, settings)
        .map_err(|why| CliError::invalid(format!("{}: {why}; nothing was written", quote_path(path))))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    os::create_private_folder(folder).map_err(failed)?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    let secret = catalog::secret_names(&kind.schema()).iter().any(|secret| settings.contains_key(*secret));
    if let Ok(known) = fs::metadata(path)
        && !secret
    {
        file.as_file().set_permissions(known.permissions()).map_err(failed)?;
    }
    file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

fn edit_document(text: &str, name: &str, settings: &ProviderSettings) -> Result<String, String> {
    let mut document: DocumentMut = text.parse().map_err(|_| "not valid TOML".to_owned())?;
    let whole = || "[providers] is not a table".to_owned();
    let mut made = Table::new();
    made.set_implicit(true);
    let providers =
        document.entry("providers").or_insert(Item::Table(made)).as_table_mut().ok_or_else(whole)?;
    providers.insert("usual", toml_edit::value(name));
    let instead = providers.get(name).and_then(|table| table.get("instead")).cloned();
    let mut table = Table::new();
    for (setting, json) in settings {
        if let Some(value) = plain(json) {
            table.insert(setting, Item::Value(value));
        }
    }
    if let Some(instead) = instead {
        table.insert("instead", instead);
    }
    providers.insert(name, Item::Table(table));
    Ok(document.to_string())
}

/// Converts a setting to TOML; null counts as absent.
fn plain(json: &Json) -> Option<Value> {
    match json {
        Json::Null | Json::Object(_) => None,
        Json::Bool(value) => Some((*value).into()),
        Json::Number(number) => number.as_i64().map(Value::from).or_else(|| number.as_f64().map(Value::from)),
        Json::String(text) => Some(text.as_str().into()),
        Json::Array(items) => Some(items.iter().filter_map(plain).collect::<Array>().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn other_content_of_the_file_is_preserved() {
        let before = "# mine\n[warm]\nmode = \"off\" # quiet\n[providers.docker]\nimage = \"old\"\npool = 1\ninstead = [\"native\"]\n";
        let settings = json!({"image": "new", "pull": true, "runtime": null}).as_object().unwrap().clone();
        let text = edit_document(before, "docker", &settings).unwrap();
        assert!(text.starts_with("# mine\n[warm]\nmode = \"off\" # quiet\n"), "{text}");
        let read: toml::Table = text.parse().unwrap();
        assert_eq!(read["providers"]["usual"].as_str(), Some("docker"));
        let wanted = "image = \"new\"\npull = true\ninstead = [\"native\"]\n".parse::<toml::Table>().unwrap();
        assert_eq!(read["providers"]["docker"].as_table(), Some(&wanted));
        let fresh: toml::Table =
            edit_document("", "native", &ProviderSettings::new()).unwrap().parse().unwrap();
        assert_eq!(fresh["providers"]["usual"].as_str(), Some("native"));
        assert!(edit_document("[providers\n", "native", &ProviderSettings::new()).is_err());
    }
}
