//! TLS with one certificate, which can be replaced while the server runs. A connection keeps the certificate
//! with which it began. Certificates are read elsewhere and passed in.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

use crate::error::Error;

/// The certificate and private key used for new connections.
pub struct Tls(RwLock<Arc<ServerConfig>>);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(…)")
    }
}

impl Tls {
    /// Creates a TLS configuration from a PEM certificate chain, server certificate first, and a PEM private
    /// key.
    ///
    /// # Errors
    /// One of them cannot be parsed, or the key does not belong to the certificate.
    pub fn new(certificate: &[u8], key: &[u8]) -> Result<Self, Error> {
        Ok(Self(RwLock::new(config(certificate, key)?)))
    }

    /// Replaces certificate and key. Open connections keep the old ones.
    ///
    /// # Errors
    /// As for [`Tls::new`]; the old certificate and key then stay in use.
    pub fn replace(&self, certificate: &[u8], key: &[u8]) -> Result<(), Error> {
        let config = config(certificate, key)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)).into()
    }
}

fn config(certificate: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, Error> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(|error| refused("certificate", &format!("cannot be parsed: {error}")))?;
    if chain.is_empty() {
        let advice = "has no '-----BEGIN CERTIFICATE-----'; use PEM, with the server's own certificate first";
        return Err(refused("certificate", advice));
    }
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|_| refused("key", "has no readable '-----BEGIN PRIVATE KEY-----'; use PEM, unencrypted"))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| unusable(&error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn unusable(error: &rustls::Error) -> Error {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            refused("key", "does not match the certificate; use the key the certificate was issued for")
        }
        rustls::Error::InvalidCertificate(_) => refused("certificate", &format!("cannot be used: {error}")),
        _ => refused("key", &format!("cannot be used: {error}")),
    }
}

fn refused(field: &'static str, message: &str) -> Error {
    Error::Invalid { field, message: message.to_owned() }
}
