//! Encryption of secrets that must be readable again: ChaCha20-Poly1305 under a key that is not in the
//! database.
//!
//! ```text
//! 1 │ key's id, 8 bytes │ nonce, 12 bytes │ sealed bytes and tag        bound to what they are about
//! ```

use std::fmt;
use std::str::FromStr;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use sha2::{Digest as _, Sha256};

use crate::error::Error;
use crate::secret::random_bytes;

const FORMAT_VERSION: u8 = 1;
const KEY_ID_BYTES: usize = 8;
const HEADER_BYTES: usize = 1 + KEY_ID_BYTES + NONCE_LEN;

/// Key that encrypts secrets. `Debug` does not print it.
pub struct SealingKey {
    key: LessSafeKey,
    /// Distinguishes this key from others.
    id: [u8; KEY_ID_BYTES],
}

/// Encrypted secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedSecrets(pub(crate) Vec<u8>);

impl SealingKey {
    /// Generates a key, as text.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn generate() -> Result<String, Error> {
        Ok(random_bytes::<32>()?.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Encrypts bytes. They only decrypt with the same `about`, which is authenticated but not stored.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn seal(&self, about: &str, plain: &[u8]) -> Result<SealedSecrets, Error> {
        // Random nonces of one key collide by chance only after about 2^48 messages.
        let nonce = random_bytes::<NONCE_LEN>()?;
        let mut sealed = [&[FORMAT_VERSION][..], &self.id, &nonce].concat();
        let mut bytes = plain.to_vec();
        let done = self.key.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(about.as_bytes()),
            &mut bytes,
        );
        done.map_err(|_| Error::invalid("secrets", "are too long"))?;
        sealed.append(&mut bytes);
        Ok(SealedSecrets(sealed))
    }

    /// Decrypts sealed bytes.
    ///
    /// # Errors
    /// They were sealed with another key or for another subject, or were changed since.
    pub fn open(&self, about: &str, SealedSecrets(sealed): &SealedSecrets) -> Result<Vec<u8>, Error> {
        let damaged = || Error::Damaged(format!("the secrets of {about} were changed after sealing"));
        let (head, body) = sealed.split_at_checked(HEADER_BYTES).ok_or_else(damaged)?;
        if head[0] != FORMAT_VERSION {
            return Err(damaged());
        }
        if head[1..=KEY_ID_BYTES] != self.id {
            return Err(Error::WrongSealingKey);
        }
        let nonce = Nonce::try_assume_unique_for_key(&head[1 + KEY_ID_BYTES..]).map_err(|_| damaged())?;
        let mut bytes = body.to_vec();
        let plain = self.key.open_in_place(nonce, Aad::from(about.as_bytes()), &mut bytes);
        plain.map(|plain| plain.to_vec()).map_err(|_| damaged())
    }
}

impl FromStr for SealingKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            let message = "the key must be 64 hexadecimal digits; generate one with: openssl rand -hex 32";
            Error::invalid("secrets", message)
        };
        let text = text.trim();
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16);
        let bytes = (0..64).step_by(2).map(byte).collect::<Result<Vec<u8>, _>>().map_err(|_| wrong())?;
        let key = UnboundKey::new(&CHACHA20_POLY1305, &bytes).map_err(|_| wrong())?;
        let mut id = [0; KEY_ID_BYTES];
        // Derived from a digest with its own prefix, so that the id reveals nothing about the key.
        id.copy_from_slice(&Sha256::digest([b"belljar sealing key ", &bytes[..]].concat())[..KEY_ID_BYTES]);
        Ok(Self { key: LessSafeKey::new(key), id })
    }
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealingKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> SealingKey {
        SealingKey::generate().unwrap().parse().unwrap()
    }

    #[test]
    fn sealed_secrets_open_only_with_their_key_and_subject() {
        let (key, other) = (key(), key());
        let sealed = key.seal("e2b", b"hunter2").unwrap();
        assert!(!sealed.0.windows(7).any(|bytes| bytes == b"hunter2"));
        assert_ne!(sealed, key.seal("e2b", b"hunter2").unwrap());
        assert_eq!(key.open("e2b", &sealed).unwrap(), b"hunter2");
        assert!(matches!(other.open("e2b", &sealed), Err(Error::WrongSealingKey)));
        assert!(matches!(key.open("docker", &sealed), Err(Error::Damaged(_))));
        for at in [0, HEADER_BYTES - 1, HEADER_BYTES, sealed.0.len() - 1] {
            let mut changed = sealed.clone();
            changed.0[at] ^= 1;
            assert!(matches!(key.open("e2b", &changed), Err(Error::Damaged(_))), "{at}");
        }
        assert!(matches!(key.open("e2b", &SealedSecrets(vec![FORMAT_VERSION])), Err(Error::Damaged(_))));
    }

    #[test]
    fn a_key_is_long_enough_and_does_not_print() {
        let text = SealingKey::generate().unwrap();
        let key: SealingKey = format!("{text}\n").parse().unwrap();
        assert_eq!(format!("{key:?}"), "SealingKey(…)");
        for wrong in ["", &text[2..], &format!("zz{}", &text[2..]), &format!("{text}00")] {
            let error = wrong.parse::<SealingKey>().unwrap_err().to_string();
            assert!(error.contains("64 hexadecimal digits") && !error.contains(&text[4..]), "{error}");
        }
    }
}
