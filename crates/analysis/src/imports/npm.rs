//! Requirements in npm's syntax: `lodash@^4`, `@scope/x@1`.

use super::requirement::invalid_requirement;
use super::specifier::is_name;
use super::{Error, PackageRegistry, Requirement};

const MAX_VERSION_BYTES: usize = 256;

/// Parses `name[@version]`.
pub(super) fn requirement(text: &str) -> Result<Requirement, Error> {
    let text = text.trim();
    if text.starts_with('-') {
        return Err(invalid_requirement(
            text,
            "starts with '-', but options are not accepted; list package names only",
        ));
    }
    let at = text.char_indices().skip(1).find(|(_, c)| *c == '@').map(|(at, _)| at);
    let (name, version) = at.map_or((text, None), |at| (&text[..at], Some(&text[at + 1..])));
    requirement_from_parts(text, name, version.unwrap_or_default())
}

/// Parses a name and a version that are already separate, as in `package.json`.
pub(super) fn requirement_from_parts(text: &str, name: &str, version: &str) -> Result<Requirement, Error> {
    if !is_name(name) {
        return Err(invalid_requirement(
            text,
            "is not a package name; write, for example, lodash@^4 or @scope/name",
        ));
    }
    let mut requirement = Requirement::any_version(PackageRegistry::Npm, name);
    let version = version.trim();
    // `npm:other@1`, `file:…`, `git+ssh:…`, `user/repository`: not this package of the registry.
    if version.contains([':', '/']) {
        if version.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(invalid_requirement(text, "has a URL with whitespace in it"));
        }
        requirement.direct_url = Some(version.to_owned());
        return Ok(requirement);
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "^~<>=|*.- +".contains(c);
    if version.len() > MAX_VERSION_BYTES || version.starts_with('-') || !version.chars().all(plain) {
        return Err(invalid_requirement(text, "has an invalid version; write, for example, ^4 or 1.2.3"));
    }
    requirement.version = version.to_owned();
    Ok(requirement)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_versions() {
        for (text, wanted) in [
            ("lodash", ("lodash", "")),
            ("lodash@^4", ("lodash", "^4")),
            ("@scope/x@1", ("@scope/x", "1")),
            ("@scope/x", ("@scope/x", "")),
            ("a@>=1 <2 || 3.x", ("a", ">=1 <2 || 3.x")),
            ("a@next", ("a", "next")),
            ("a@", ("a", "")),
        ] {
            let requirement = requirement(text).unwrap();
            assert_eq!((requirement.name.as_str(), requirement.version.as_str()), wanted, "{text}");
        }
        for direct in ["a@git+ssh://x", "a@file:../b", "a@npm:b@1", "a@user/repo", "a@https://x/y.tgz"] {
            assert!(requirement(direct).unwrap().direct_url.is_some(), "{direct}");
        }
        for bad in [
            "",
            "-g",
            "--registry=x",
            "./x",
            "/x",
            "https://x/y",
            "a b",
            "@scope",
            "a@$(x)",
            "a@1;b",
            "a@-g",
            "a@x:\ny",
        ] {
            assert!(requirement(bad).is_err(), "{bad}");
        }
    }
}
