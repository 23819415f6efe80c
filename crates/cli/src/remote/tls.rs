//! HTTPS to a server. Trusts the system's certificate authorities, which its administrator keeps current, and
//! those in `BELLJAR_CA_CERT`.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error, RootCertStore};

use crate::env::Environment;
use crate::error::{CliError, quote_path};
use crate::input;

/// The server's name, and the certificate authorities to verify it with.
#[derive(Clone)]
pub(super) struct TlsTarget {
    name: ServerName<'static>,
    connector: TlsConnector,
}

impl std::fmt::Debug for TlsTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Secure").field(&self.name).finish()
    }
}

impl TlsTarget {
    pub(super) fn new(host: &str, environment: &Environment) -> Result<Self, CliError> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| CliError::invalid(format!("--server: '{host}' is not a valid host name")))?;
        let mut roots = RootCertStore::empty();
        // System certificates that cannot be read are not trusted; verification then fails with an error.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if let Some(path) = &environment.ca_cert {
            trust(path, &mut roots)?;
        }
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| CliError::host(format!("prepare TLS: {error}")))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { name, connector: Arc::new(config).into() })
    }

    pub(super) async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.connector.connect(self.name.clone(), stream).await
    }
}

fn trust(path: &Path, roots: &mut RootCertStore) -> Result<(), CliError> {
    let refused = |why: String| CliError::invalid(format!("BELLJAR_CA_CERT: {why}"));
    let unusable = |why: String| refused(format!("{}: {why}", quote_path(path)));
    let pem = input::pem(path).map_err(|failure| refused(failure.message))?;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| unusable(error.to_string()))?;
        roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    if CertificateDer::pem_slice_iter(&pem).next().is_none() {
        return Err(unusable("contains no '-----BEGIN CERTIFICATE-----'; convert it to PEM".to_owned()));
    }
    Ok(())
}

/// Describes a connection error, and how to fix it if that is known.
pub(super) fn describe_error(error: &io::Error) -> String {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
    match cause {
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
            "its certificate is signed by an unknown authority; set BELLJAR_CA_CERT to a PEM file of that \
             authority"
                .to_owned()
        }
        Some(Error::InvalidCertificate(why)) => format!("its certificate is invalid: {why}"),
        Some(Error::InvalidMessage(_)) => "the server does not speak TLS on this port".to_owned(),
        _ => error.to_string(),
    }
}
