//! SHA-256 digests and how they are computed here.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest, displayed and serialized as 64 hexadecimal digits, so it is also a safe file name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentDigest([u8; 32]);

impl ContentDigest {
    /// Hashes a list of parts, in the named domain. The length of each part is hashed, too, so different
    /// lists have different digests.
    pub fn from_parts<T: AsRef<[u8]>>(domain: &str, parts: impl IntoIterator<Item = T>) -> Self {
        let mut hasher = Hasher::new(domain);
        parts.into_iter().for_each(|part| hasher.part(part.as_ref()));
        hasher.finish()
    }

    /// Hashes bytes, like `sha256sum`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::raw();
        hasher.bytes(bytes);
        hasher.finish()
    }

    /// Returns the digest as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for ContentDigest {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "write 64 digits from 0 to 9 and a to f";
        // Uppercase digits would be a second spelling of the same digest.
        if text.len() != 64 || !text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(WRONG);
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).map_err(|_| WRONG)?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for ContentDigest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ContentDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Hashes parts one after the other.
#[derive(Debug, Clone)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Hashes raw bytes, like `sha256sum`.
    pub fn raw() -> Self {
        Self(Sha256::new())
    }

    /// Hashes parts in the named domain.
    pub fn new(domain: &str) -> Self {
        let mut hasher = Self(Sha256::new());
        hasher.part(domain.as_bytes());
        hasher
    }

    /// Adds a part and its length.
    pub fn part(&mut self, part: &[u8]) {
        self.number(part.len() as u64);
        self.0.update(part);
    }

    /// Adds a number.
    pub fn number(&mut self, number: u64) {
        self.0.update(number.to_be_bytes());
    }

    /// Adds bytes whose length is known from elsewhere.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of everything added.
    pub fn finish(self) -> ContentDigest {
        ContentDigest(self.0.finalize().into())
    }
}

impl std::io::Write for Hasher {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.bytes(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_boundaries_change_the_digest() {
        assert_ne!(ContentDigest::from_parts("x", ["ab", "c"]), ContentDigest::from_parts("x", ["a", "bc"]));
        assert_ne!(ContentDigest::from_parts("x", ["a"]), ContentDigest::from_parts("y", ["a"]));
        assert_ne!(ContentDigest::from_parts("x", ["", "a"]), ContentDigest::from_parts("x", ["a"]));
    }

    #[test]
    fn a_digest_has_one_spelling() {
        let digest = ContentDigest::from_parts("x", ["a"]);
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for wrong in [digest.to_string().to_uppercase(), "../..".to_owned(), "a".repeat(63), "é".repeat(32)]
        {
            assert!(wrong.parse::<ContentDigest>().is_err(), "{wrong}");
        }
    }
}
