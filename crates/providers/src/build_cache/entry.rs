//! One entry of the build cache: the files that a build left, and what it printed.
//!
//! ```text
//! magic, SHA-256 of key and body
//! body: output on stdout, output on stderr, then for each file: path, content; every part after its length (u64)
//! ```

use belljar_beneath::{ContentDigest, Hasher};
use belljar_engine::outcome::Artifact;

const MAGIC: &[u8] = b"belljar build 1\n";

/// Files and output of a build.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BuildOutput {
    /// The built files, by path below the output folder.
    pub(crate) files: Vec<Artifact>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl BuildOutput {
    /// Encodes an entry for this key.
    pub(super) fn encode(&self, key: &ContentDigest) -> Vec<u8> {
        let size: usize = self.files.iter().map(|file| file.content.len() + file.name.len() + 16).sum();
        let mut body = Vec::with_capacity(size + self.stdout.len() + self.stderr.len() + 16);
        let mut part = |bytes: &[u8]| {
            body.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            body.extend_from_slice(bytes);
        };
        part(&self.stdout);
        part(&self.stderr);
        for file in &self.files {
            part(file.name.as_bytes());
            part(&file.content);
        }
        let hash = hash(key, &body);
        [MAGIC, hash.as_bytes(), &body].concat()
    }

    /// Decodes an entry. Returns `None` unless every byte is as it was written for this key.
    pub(super) fn decode(key: &ContentDigest, entry: &[u8]) -> Option<Self> {
        let (stored, mut body) = entry.strip_prefix(MAGIC)?.split_first_chunk::<32>()?;
        if hash(key, body).as_bytes() != stored {
            return None;
        }
        let mut output =
            Self { stdout: take(&mut body)?.to_vec(), stderr: take(&mut body)?.to_vec(), files: Vec::new() };
        while !body.is_empty() {
            let name = std::str::from_utf8(take(&mut body)?).ok()?.to_owned();
            output.files.push(Artifact { name, content: take(&mut body)?.to_vec() });
        }
        Some(output)
    }
}

fn hash(key: &ContentDigest, body: &[u8]) -> ContentDigest {
    let mut hasher = Hasher::new("belljar build 1");
    hasher.part(key.as_bytes());
    hasher.part(body);
    hasher.finish()
}

fn take<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, rest) = bytes.split_first_chunk::<8>()?;
    let (part, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
    *bytes = rest;
    Some(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_whole_and_belong_to_their_key() {
        let (key, other) = (ContentDigest::from_bytes(b"a"), ContentDigest::from_bytes(b"b"));
        let file = |name: &str, content: &[u8]| Artifact { name: name.to_owned(), content: content.to_vec() };
        let output = BuildOutput {
            files: vec![file("program", b"\x7fELF"), file("a/b.class", b"")],
            stdout: b"out".to_vec(),
            stderr: Vec::new(),
        };
        let entry = output.encode(&key);
        assert_eq!(BuildOutput::decode(&key, &entry), Some(output));
        assert_eq!(BuildOutput::decode(&other, &entry), None);
        for at in 0..entry.len() {
            assert_eq!(BuildOutput::decode(&key, &entry[..at]), None, "cut at {at}");
            let mut changed = entry.clone();
            changed[at] ^= 1;
            assert_eq!(BuildOutput::decode(&key, &changed), None, "changed at {at}");
        }
        assert_eq!(BuildOutput::decode(&key, &[entry, vec![0]].concat()), None);
    }
}
