//! The server's TLS certificate: two files, read at start and reloaded on SIGHUP.

use std::path::PathBuf;
use std::sync::Arc;

use belljar_server::Tls;

use crate::error::{CliError, quote_path};
use crate::input;
use crate::os::Hangups;

/// Paths of the certificate and its private key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    certificate: PathBuf,
    key: PathBuf,
}

impl TlsFiles {
    /// Requires both files or none.
    pub(super) fn from_paths(
        certificate: Option<PathBuf>,
        key: Option<PathBuf>,
    ) -> Result<Option<Self>, CliError> {
        let missing = |given, other| {
            Err(CliError::invalid(format!("{given} also needs {other}; TLS needs both, as PEM files")))
        };
        match (certificate, key) {
            (Some(certificate), Some(key)) => Ok(Some(Self { certificate, key })),
            (Some(_), None) => missing("--tls-cert", "--tls-key"),
            (None, Some(_)) => missing("--tls-key", "--tls-cert"),
            (None, None) => Ok(None),
        }
    }

    /// Reads the files at start.
    pub(super) fn load(self) -> Result<ServedCertificate, CliError> {
        let (certificate, key) = self.read()?;
        let tls = Tls::new(&certificate, &key).map_err(|error| self.unusable(&error))?;
        Ok(ServedCertificate { files: self, tls: Arc::new(tls) })
    }

    fn read(&self) -> Result<(Vec<u8>, Vec<u8>), CliError> {
        let named = |flag: &str, failure: CliError| CliError::invalid(format!("{flag}: {}", failure.message));
        Ok((
            input::pem(&self.certificate).map_err(|failure| named("--tls-cert", failure))?,
            input::pem(&self.key).map_err(|failure| named("--tls-key", failure))?,
        ))
    }

    fn unusable(&self, error: &belljar_server::Error) -> CliError {
        let (certificate, key) = (quote_path(&self.certificate), quote_path(&self.key));
        CliError::invalid(format!("cannot use certificate {certificate} with key {key}: {error}"))
    }
}

/// A certificate in use.
#[derive(Debug)]
pub(super) struct ServedCertificate {
    files: TlsFiles,
    tls: Arc<Tls>,
}

impl ServedCertificate {
    pub(super) fn tls(&self) -> Arc<Tls> {
        Arc::clone(&self.tls)
    }

    fn reload(&self) -> Result<(), CliError> {
        let (certificate, key) = self.files.read()?;
        self.tls.replace(&certificate, &key).map_err(|error| self.files.unusable(&error))
    }
}

/// Reloads the files on every SIGHUP, forever. Unusable files change nothing. Without a certificate there is
/// nothing to reload, but SIGHUP must not end the server.
pub(super) async fn reload_on_hangup(certificate: Option<ServedCertificate>, mut hangups: Hangups) {
    loop {
        hangups.next().await;
        match certificate.as_ref().map(ServedCertificate::reload) {
            Some(Ok(())) => tracing::info!("certificate reloaded"),
            Some(Err(CliError { message, .. })) => {
                tracing::error!(detail = message, "cannot reload the certificate; keeping the current one");
            }
            None => tracing::info!("SIGHUP received, but there is no certificate to reload"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_and_key_are_required_together() {
        let file = || Some(PathBuf::from("f.pem"));
        assert_eq!(TlsFiles::from_paths(None, None).unwrap(), None);
        assert!(TlsFiles::from_paths(file(), file()).unwrap().is_some());
        for (certificate, key) in [(file(), None), (None, file())] {
            let message = TlsFiles::from_paths(certificate, key).unwrap_err().message;
            assert!(message.contains("TLS needs both"), "{message}");
        }
    }
}
