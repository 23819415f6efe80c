//! The key that encrypts providers' secrets: `BELLJAR_SECRETS_KEY`, else a file that the first start creates.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use belljar_store::{SealingKey, Store};

use super::ServeOptions;
use crate::env::Environment;
use crate::error::{CliError, quote_path};
use crate::os;

/// Name of the key file in the data folder, unless the configuration sets another file.
const FILE: &str = "secrets.key";
const VARIABLE: &str = "BELLJAR_SECRETS_KEY";

/// Returns the key, or why stored secrets cannot be decrypted. An invalid key prevents the start.
pub(super) async fn key(
    service: &ServeOptions,
    environment: &Environment,
    store: &Store,
) -> Result<Result<SealingKey, String>, CliError> {
    if let Some(text) = &environment.secrets_key {
        return parse(VARIABLE, text.reveal()).map(Ok);
    }
    let default = service.data_dir.join(FILE);
    let path = service.server.secrets_key.as_deref().unwrap_or(&default);
    match read(path) {
        Ok(text) => return parse(&quote_path(path), &text).map(Ok),
        Err(error) if error.kind() == io::ErrorKind::NotFound && service.server.secrets_key.is_none() => {}
        Err(error) => {
            return Err(CliError::invalid(format!(
                "cannot read the secrets key {}: {error}",
                quote_path(path)
            )));
        }
    }
    let failed = |error: belljar_store::Error| CliError::host(error.to_string());
    if store.providers().await.map_err(failed)?.iter().any(|version| version.content.sealed.is_some()) {
        return Ok(Err(format!(
            "the key that encrypted the secrets is missing; restore {FILE} in the data folder, or set \
             {VARIABLE}"
        )));
    }
    let text = SealingKey::generate().map_err(failed)?;
    write_key(path, &text).map_err(|error| {
        CliError::host(format!("cannot create the secrets key {}: {error}", quote_path(path)))
    })?;
    parse(&quote_path(path), &text).map(Ok)
}

fn parse(source: &str, text: &str) -> Result<SealingKey, CliError> {
    text.parse().map_err(|error: belljar_store::Error| CliError::invalid(format!("{source}: {error}")))
}

fn read(path: &Path) -> io::Result<String> {
    if os::permissions(&fs::metadata(path)?) & 0o077 != 0 {
        return Err(io::Error::other("other users may read it; change its permissions with: chmod 600"));
    }
    fs::read_to_string(path)
}

/// Writes the file atomically, readable only for its owner.
fn write_key(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    writeln!(file, "{text}")?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path)?;
    Ok(())
}
