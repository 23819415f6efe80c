//! Names and link targets in archives, and their validation.

/// A validated name in an archive: relative, without `..`, and not the folder itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InnerPath<'a> {
    parts: Vec<&'a [u8]>,
}

impl<'a> InnerPath<'a> {
    /// Parses a name; returns `None` for the folder itself.
    ///
    /// # Errors
    /// Says why the name is refused.
    pub fn parse(name: &'a [u8], max_depth: usize) -> Result<Option<Self>, &'static str> {
        if name.starts_with(b"/") {
            return Err("absolute path");
        }
        if name.contains(&0) {
            return Err("path contains NUL");
        }
        let parts: Vec<&[u8]> =
            name.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").collect();
        if parts.contains(&b"..".as_slice()) {
            return Err("path leads out of the folder");
        }
        if parts.len() > max_depth {
            return Err("folders are nested too deeply");
        }
        Ok((!parts.is_empty()).then_some(Self { parts }))
    }

    /// Returns the parent folders and the last name.
    pub fn split(&self) -> (&[&'a [u8]], &'a [u8]) {
        match self.parts.split_last() {
            Some((name, folders)) => (folders, name),
            None => (&[], b"."),
        }
    }

    /// Returns all names, the top one first.
    pub fn parts(&self) -> &[&'a [u8]] {
        &self.parts
    }

    /// Returns the path for messages.
    pub fn display(&self) -> String {
        String::from_utf8_lossy(&self.parts.join(&b'/')).into_owned()
    }

    /// Returns whether a symlink at this path may have this target.
    pub fn may_link_to(&self, target: &[u8]) -> bool {
        link_stays_inside(target, self.split().0.len())
    }
}

/// Returns whether a symlink below this many folders can only lead into the top one. The ancestors of its
/// folder are folders and no links, so leading `..` are safe. A `..` after a name could follow another link,
/// and then lead anywhere.
pub fn link_stays_inside(target: &[u8], depth: usize) -> bool {
    if target.is_empty() || target.starts_with(b"/") || target.contains(&0) {
        return false;
    }
    let parts = target.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    let up = parts.clone().take_while(|part| *part == b"..").count();
    up <= depth && parts.skip(up).all(|part| part != b"..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaping_names_are_refused() {
        for name in ["/etc/passwd", "../a", "a/../../b", "a/..", "..", "a\0b", "//a", "a/b/c/d"] {
            assert!(InnerPath::parse(name.as_bytes(), 3).is_err(), "{name}");
        }
        assert_eq!(InnerPath::parse(b"./", 3), Ok(None));
        let path = InnerPath::parse(b"./a//b/c/", 3).unwrap().unwrap();
        assert_eq!(path.split(), ([b"a".as_slice(), b"b"].as_slice(), b"c".as_slice()));
    }

    #[test]
    fn links_stay_inside() {
        let link = InnerPath::parse(b"a/b/link", 3).unwrap().unwrap();
        for good in ["x", "x/y", "..", "../..", "../../z", "./x", "./../../a/b", "a/./b/", "."] {
            assert!(link.may_link_to(good.as_bytes()), "{good}");
        }
        for bad in ["", "/", "/etc", "../../..", "x/..", "up/../..", "../x/../y", "a\0b"] {
            assert!(!link.may_link_to(bad.as_bytes()), "{bad}");
        }
        assert!(link_stays_inside(b".", 0) && !link_stays_inside(b"..", 0));
    }

    proptest::proptest! {
        #[test]
        fn no_name_contains_a_parent_component(name in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64)) {
            if let Ok(Some(path)) = InnerPath::parse(&name, 128) {
                let free_of_ways_up = path.parts().iter().all(|part| {
                    !part.is_empty() && *part != b"." && *part != b".." && !part.contains(&b'/')
                });
                proptest::prop_assert!(free_of_ways_up);
            }
        }
    }
}
