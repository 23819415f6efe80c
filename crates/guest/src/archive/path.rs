//! Names in archives, and their validation.

use super::ArchiveError;

/// Maximum nesting depth.
const MAX_DEPTH: usize = 128;

/// A validated name in an archive: relative, without `..`, and not the folder itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InnerPath<'a> {
    parts: Vec<&'a [u8]>,
}

impl<'a> InnerPath<'a> {
    /// Parses a name; returns `None` for the folder itself.
    pub(super) fn parse(name: &'a [u8]) -> Result<Option<Self>, ArchiveError> {
        let bad = |why| ArchiveError::Hostile { entry: to_text(name), why };
        if name.starts_with(b"/") {
            return Err(bad("absolute path"));
        }
        if name.contains(&0) {
            return Err(bad("path contains NUL"));
        }
        let parts: Vec<&[u8]> =
            name.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
        if parts.contains(&b"..".as_slice()) {
            return Err(bad("path leads out of the folder"));
        }
        if parts.len() > MAX_DEPTH {
            return Err(bad("folders are nested too deeply"));
        }
        Ok((!parts.is_empty()).then_some(Self { parts }))
    }

    /// Returns the parent folders and the last name.
    pub(super) fn split(&self) -> (&[&'a [u8]], &'a [u8]) {
        match self.parts.split_last() {
            Some((name, folders)) => (folders, name),
            None => (&[], b"."),
        }
    }

    pub(super) fn parts(&self) -> &[&'a [u8]] {
        &self.parts
    }

    pub(super) fn display(&self) -> String {
        to_text(&self.parts.join(&b'/'))
    }

    /// Returns whether a symlink at this path may have this target: `..` only at the start, and not beyond
    /// the folder. A `..` after a name could follow another link, and then lead anywhere.
    pub(super) fn may_link_to(&self, target: &[u8]) -> bool {
        if target.is_empty() || target.starts_with(b"/") || target.contains(&0) {
            return false;
        }
        let mut up = 0;
        let mut down = false;
        for part in target.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
            match part {
                b".." if down => return false,
                b".." => up += 1,
                _ => down = true,
            }
        }
        up < self.parts.len()
    }
}

pub(super) fn to_text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaping_names_are_refused() {
        for name in ["/etc/passwd", "../a", "a/../../b", "a/..", "..", "a\0b", "//a"] {
            assert!(InnerPath::parse(name.as_bytes()).is_err(), "{name}");
        }
        assert_eq!(InnerPath::parse(b"./").unwrap(), None);
        let path = InnerPath::parse(b"./a//b/c").unwrap().unwrap();
        assert_eq!(path.split(), ([b"a".as_slice(), b"b"].as_slice(), b"c".as_slice()));
    }

    #[test]
    fn links_stay_inside() {
        let link = InnerPath::parse(b"a/b/link").unwrap().unwrap();
        for good in ["x", "x/y", "..", "../..", "../../z", "./x"] {
            assert!(link.may_link_to(good.as_bytes()), "{good}");
        }
        for bad in ["", "/", "/etc", "../../..", "x/..", "up/../..", "../x/../y"] {
            assert!(!link.may_link_to(bad.as_bytes()), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_name_contains_a_parent_component(name in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64)) {
            if let Ok(Some(path)) = InnerPath::parse(&name) {
                let free_of_ways_up = path.parts().iter().all(|part| {
                    !part.is_empty() && *part != b"." && *part != b".." && !part.contains(&b'/')
                });
                proptest::prop_assert!(free_of_ways_up);
            }
        }
    }
}
