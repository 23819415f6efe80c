//! Names of images: Docker references, paths, or `sealed`.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use oci_client::Reference;

use crate::error::ImageError;

const MAX_NAME_BYTES: usize = 1_024;

/// A normalized name: different spellings of one image are equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageName(String);

impl ImageName {
    /// The name of the image with copies of the host's own files.
    pub const SEALED: &'static str = "sealed";

    /// Parses a name. `python` becomes `docker.io/library/python:latest`. A name that starts with '/' is a
    /// path and stays unchanged.
    pub fn parse(text: &str) -> Result<Self, ImageError> {
        if text == Self::SEALED || text.starts_with('/') && text.len() <= MAX_NAME_BYTES {
            return Ok(Self(text.to_owned()));
        }
        Self::reference_of(text).map(|reference| Self(reference.whole()))
    }

    /// Creates the name of an archive or a folder on this machine.
    pub fn from_path(path: &Path) -> Result<Self, ImageError> {
        let wrong = |why: String| ImageError::Name {
            name: path.display().to_string().escape_debug().to_string(),
            why,
        };
        let real = path.canonicalize().map_err(|error| wrong(error.to_string()))?;
        let text = real.to_str().filter(|text| text.len() <= MAX_NAME_BYTES);
        text.map(|text| Self(text.to_owned()))
            .ok_or_else(|| wrong("its path is not UTF-8, or too long".to_owned()))
    }

    /// Returns the reference for a registry.
    pub(crate) fn reference(&self) -> Result<Reference, ImageError> {
        Self::reference_of(&self.0)
    }

    fn reference_of(text: &str) -> Result<Reference, ImageError> {
        let wrong = |why: String| ImageError::Name { name: text.escape_debug().to_string(), why };
        if text.len() > MAX_NAME_BYTES {
            return Err(wrong("it is too long".to_owned()));
        }
        text.parse().map_err(|error: oci_client::ParseError| wrong(error.to_string()))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ImageName {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        Self::parse(text)
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Shortened to its usual form.
        let short = self.0.strip_prefix("docker.io/").unwrap_or(&self.0);
        f.write_str(short.strip_prefix("library/").unwrap_or(short))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_normalized_like_docker_references() {
        let full = |text| ImageName::parse(text).unwrap().as_str().to_owned();
        assert_eq!(full("python"), "docker.io/library/python:latest");
        assert_eq!(full("python:3.12-slim"), "docker.io/library/python:3.12-slim");
        assert_eq!(full("docker.io/library/python:3.12-slim"), full("python:3.12-slim"));
        assert_eq!(full("me/tool:1"), "docker.io/me/tool:1");
        assert_eq!(full("127.0.0.1:5000/a/b"), "127.0.0.1:5000/a/b:latest");
        let digest = format!("x@sha256:{}", "a".repeat(64));
        assert_eq!(full(&digest), format!("docker.io/library/{digest}"));
        assert_eq!(full("sealed"), "sealed");
        assert_eq!(full("/srv/x.tar"), "/srv/x.tar");
        assert_eq!(ImageName::parse("python:3.12-slim").unwrap().to_string(), "python:3.12-slim");
        for bad in ["", "UPPER", "a b", "../x", "http://169.254.169.254/", "x:", "x@sha256:12"] {
            assert!(ImageName::parse(bad).is_err(), "{bad}");
        }
    }
}
