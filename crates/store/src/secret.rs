//! Secrets, digests and random numbers.

use std::fmt;
use std::hint::black_box;

use rusqlite::ToSql;
use rusqlite::types::{FromSql, FromSqlResult, ToSqlOutput, ValueRef};
use sha2::{Digest as _, Sha256};

use crate::error::Error;

/// Returns random bytes from the system.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Error::Random(error.to_string()))?;
    Ok(bytes)
}

/// Text of an API key. `Debug` does not print it.
#[derive(Clone)]
pub struct KeySecret(String);

impl KeySecret {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns the text, to show it once.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A SHA-256 digest. Plain SHA-256 is enough for keys: they are 256 random bits, so they cannot be guessed by
/// trial.
#[derive(Debug, Clone, Copy)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Computes the digest of `bytes`.
    pub fn compute(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Returns whether the digests are equal, in constant time.
    pub fn matches(&self, other: &Digest) -> bool {
        let differing = self.0.iter().zip(&other.0).fold(0, |seen, (a, b)| black_box(seen | (a ^ b)));
        differing == 0
    }
}

impl ToSql for Digest {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.0.as_slice().into())
    }
}

impl FromSql for Digest {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        <[u8; 32]>::column_result(value).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_compare_every_byte() {
        let digest = Digest::compute(b"key");
        assert!(digest.matches(&Digest::compute(b"key")));
        for at in 0..32 {
            let mut other = digest;
            other.0[at] ^= 1;
            assert!(!digest.matches(&other), "{at}");
        }
    }

    #[test]
    fn a_secret_does_not_print() {
        let secret = KeySecret::new("hunter2".to_owned());
        assert!(!format!("{secret:?}").contains("hunter2"));
        assert_eq!(secret.reveal(), "hunter2");
    }
}
