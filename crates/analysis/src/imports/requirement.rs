//! A requirement as written by a person: `requests[socks]==2.28.0; python_version < "3.12"` (PEP 508) or
//! `lodash@^4`.

use std::fmt;

use super::{Error, PackageRegistry, npm};

/// Maximum length of a requirement, in bytes.
const MAX_REQUIREMENT_BYTES: usize = 1_000;

/// Deepest parentheses of a marker.
const MAX_MARKER_DEPTH: u32 = 16;

/// A validated and normalized requirement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    /// Registry of the package.
    pub registry: PackageRegistry,
    /// Name of the package, in the registry's spelling.
    pub name: String,
    /// Extras, sorted.
    pub extras: Vec<String>,
    /// Version specifier, such as `==2.28.0` or `^4`; empty for any version.
    pub version: String,
    /// Environment marker, validated but not evaluated.
    pub marker: Option<String>,
    /// Digests that the files must match, such as `sha256:…`.
    pub hashes: Vec<String>,
    /// URL to install from instead of a registry.
    pub direct_url: Option<String>,
}

impl Requirement {
    /// Parses a requirement in the registry's syntax.
    pub fn parse(registry: PackageRegistry, text: &str) -> Result<Self, Error> {
        match registry {
            PackageRegistry::Pypi => Self::parse_python(text),
            PackageRegistry::Npm => npm::requirement(text),
        }
    }

    /// Returns a requirement for any version of a package.
    pub(super) fn any_version(registry: PackageRegistry, name: &str) -> Self {
        let name = match registry {
            PackageRegistry::Pypi => normalize_name(name),
            PackageRegistry::Npm => name.to_owned(),
        };
        let (extras, hashes) = (Vec::new(), Vec::new());
        Self { registry, name, extras, version: String::new(), marker: None, hashes, direct_url: None }
    }

    /// Parses a PEP 508 requirement.
    pub(super) fn parse_python(text: &str) -> Result<Self, Error> {
        let refuse = |why| Err(invalid_requirement(text, why));
        if text.len() > MAX_REQUIREMENT_BYTES || text.chars().any(char::is_control) {
            return refuse("is not a requirement; write, for example, requests==2.28.0");
        }
        if text.trim_start().starts_with('-') {
            return refuse("starts with '-', but options are not accepted; list package names only");
        }
        if is_location(text) {
            return refuse("is a path, URL or repository; only package names are accepted");
        }
        let mut rest = Cursor(text.trim());
        let name = rest.take(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        let ends_well = |name: &str| name.ends_with(|c: char| c.is_ascii_alphanumeric());
        if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !ends_well(name) {
            return refuse("has no valid package name; write, for example, requests==2.28.0");
        }
        let mut requirement = Self::any_version(PackageRegistry::Pypi, name);
        if rest.eat('[') {
            requirement.extras = parse_extras(&mut rest).ok_or_else(|| {
                invalid_requirement(text, "has extras that are unclosed or not valid names")
            })?;
        }
        if rest.eat('@') {
            let (address, marker) = rest.0.split_once(" ;").map_or((rest.0, None), |(a, m)| (a, Some(m)));
            requirement.direct_url = Some(address.trim().to_owned()).filter(|address| address.contains(':'));
            if requirement.direct_url.is_none() {
                return refuse("has no URL after '@'");
            }
            rest = Cursor(marker.unwrap_or_default());
        } else {
            requirement.version = parse_versions(&mut rest).ok_or_else(|| {
                invalid_requirement(text, "has an invalid version; write, for example, ==2.28.0 or >=2,<3")
            })?;
            rest.skip();
            if !rest.0.is_empty() && !rest.eat(';') {
                return refuse("has unexpected text after its version");
            }
        }
        let marker = rest.0.trim();
        if !marker.is_empty() {
            if !is_marker(marker) {
                return refuse("has an invalid marker; write, for example, ; python_version < \"3.12\"");
            }
            requirement.marker = Some(marker.to_owned());
        }
        Ok(requirement)
    }
}

impl fmt::Display for Requirement {
    /// Formats the requirement as an installer accepts it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if !self.extras.is_empty() {
            write!(f, "[{}]", self.extras.join(","))?;
        }
        match (&self.direct_url, self.registry) {
            (Some(address), PackageRegistry::Pypi) => write!(f, " @ {address}")?,
            (Some(address), PackageRegistry::Npm) => write!(f, "@{address}")?,
            (None, PackageRegistry::Npm) if !self.version.is_empty() => write!(f, "@{}", self.version)?,
            (None, _) => f.write_str(&self.version)?,
        }
        self.marker.iter().try_for_each(|marker| write!(f, " ; {marker}"))
    }
}

/// Normalizes the spelling of a Python package name (PEP 503).
pub(super) fn normalize_name(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '-' | '_' | '.' if out.ends_with('-') => {}
            '-' | '_' | '.' => out.push('-'),
            c => out.push(c.to_ascii_lowercase()),
        }
    }
    out
}

pub(super) fn invalid_requirement(text: &str, why: &'static str) -> Error {
    Error::Requirement { text: text.chars().take(200).collect(), why }
}

/// Returns whether the text names a file, URL or repository instead of a package.
fn is_location(text: &str) -> bool {
    let head = text.split(['@', ';', '[', ' ']).next().unwrap_or(text);
    head.contains(['/', '\\', ':'])
        || head.starts_with(['.', '~'])
        || [".whl", ".tar.gz", ".zip"].iter().any(|end| head.ends_with(end))
}

/// The unread rest of the text.
struct Cursor<'a>(&'a str);

impl<'a> Cursor<'a> {
    fn skip(&mut self) {
        self.0 = self.0.trim_start();
    }

    fn take(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        self.skip();
        let (taken, rest) = self.0.split_at(self.0.find(|c| !wanted(c)).unwrap_or(self.0.len()));
        self.0 = rest;
        taken
    }

    fn eat(&mut self, wanted: char) -> bool {
        self.skip();
        let rest = self.0.strip_prefix(wanted);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }
}

fn parse_extras(rest: &mut Cursor<'_>) -> Option<Vec<String>> {
    let (inside, after) = rest.0.split_once(']')?;
    rest.0 = after;
    let mut extras = Vec::new();
    for extra in inside.split(',').map(str::trim).filter(|_| !inside.trim().is_empty()) {
        let plain = extra.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        extras.push(normalize_name(
            Some(extra).filter(|extra| plain && !extra.is_empty() && !extra.starts_with('-'))?,
        ));
    }
    extras.sort();
    Some(extras)
}

/// `>=2, <3` → `>=2,<3`; also in parentheses.
fn parse_versions(rest: &mut Cursor<'_>) -> Option<String> {
    let bracketed = rest.eat('(');
    let mut all = Vec::new();
    loop {
        let op = rest.take(|c| "=<>!~".contains(c));
        if op.is_empty() && all.is_empty() {
            break;
        }
        if !["===", "==", "~=", "!=", "<=", ">=", "<", ">"].contains(&op) {
            return None;
        }
        let version = rest.take(|c| c.is_ascii_alphanumeric() || ".*+!_-".contains(c));
        if !version.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return None;
        }
        all.push(format!("{op}{version}"));
        if !rest.eat(',') {
            break;
        }
    }
    (!bracketed || rest.eat(')')).then(|| all.join(","))
}

/// Variables that a marker may use (PEP 508).
const MARKER_VARIABLES: [&str; 12] = [
    "os_name",
    "sys_platform",
    "platform_machine",
    "platform_python_implementation",
    "platform_release",
    "platform_system",
    "platform_version",
    "python_version",
    "python_full_version",
    "implementation_name",
    "implementation_version",
    "extra",
];

fn is_marker(text: &str) -> bool {
    let mut rest = Cursor(text);
    parse_marker(&mut rest, 0).is_some() && rest.0.trim().is_empty()
}

/// Parses comparisons combined with `and`, `or` and parentheses.
fn parse_marker(rest: &mut Cursor<'_>, depth: u32) -> Option<()> {
    if depth > MAX_MARKER_DEPTH {
        return None;
    }
    loop {
        if rest.eat('(') {
            parse_marker(rest, depth + 1)?;
            rest.eat(')').then_some(())?;
        } else {
            parse_operand(rest)?;
            let op = rest.take(|c| "=<>!~".contains(c));
            if op.is_empty() {
                match parse_word(rest) {
                    "in" => {}
                    "not" => (parse_word(rest) == "in").then_some(())?,
                    _ => return None,
                }
            } else if !["===", "==", "~=", "!=", "<=", ">=", "<", ">"].contains(&op) {
                return None;
            }
            parse_operand(rest)?;
        }
        let before = rest.0;
        if !matches!(parse_word(rest), "and" | "or") {
            rest.0 = before;
            return Some(());
        }
    }
}

fn parse_word<'a>(rest: &mut Cursor<'a>) -> &'a str {
    rest.take(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn parse_operand(rest: &mut Cursor<'_>) -> Option<()> {
    rest.skip();
    let Some(quote) = rest.0.chars().next().filter(|c| matches!(c, '"' | '\'')) else {
        return MARKER_VARIABLES.contains(&parse_word(rest)).then_some(());
    };
    let (_, after) = rest.0[1..].split_once(quote)?;
    rest.0 = after;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_are_normalized() {
        for (text, wanted) in [
            ("requests", "requests"),
            (" Requests == 2.28.0 ", "requests==2.28.0"),
            ("Flask_SQLAlchemy>=2, <4", "flask-sqlalchemy>=2,<4"),
            ("uvicorn[Standard, watch_files]", "uvicorn[standard,watch-files]"),
            ("ruamel.yaml~=0.17", "ruamel-yaml~=0.17"),
            ("a (>=1.0)", "a>=1.0"),
            ("a[]", "a"),
            ("torch==2.1.0+cpu", "torch==2.1.0+cpu"),
            ("a===1!2.0.post1", "a===1!2.0.post1"),
            ("django!=4.*", "django!=4.*"),
            ("tomli>=1; python_version < '3.11'", "tomli>=1 ; python_version < '3.11'"),
            (
                "a ; (os_name == 'nt' or extra=='x') and 'a' not in sys_platform",
                "a ; (os_name == 'nt' or extra=='x') and 'a' not in sys_platform",
            ),
            (
                "a @ https://example.com/a.whl ; os_name=='nt'",
                "a @ https://example.com/a.whl ; os_name=='nt'",
            ),
        ] {
            assert_eq!(
                Requirement::parse_python(text).map(|r| r.to_string()).as_deref(),
                Ok(wanted),
                "{text}"
            );
        }
    }

    #[test]
    fn invalid_requirements_are_refused() {
        for text in [
            "",
            "-r other.txt",
            "--index-url=https://x",
            " -e .",
            "./local",
            "../x",
            "/abs",
            "~/x",
            "git+https://github.com/a/b",
            "https://example.com/a.whl",
            "file:///a",
            "C:\\x",
            "pkg.whl",
            "a b",
            "a==",
            "a=1",
            "a==1 2",
            "a[x",
            "a[-x]",
            "a[x y]",
            "a; import os",
            "a; os_name",
            "a; unknown == '1'",
            "a; os_name == 'x",
            "a @",
            "a @ nowhere",
            "a\n--pre",
            "a==1 --hash=x",
            "_a",
            "a-",
            "\u{e9}t\u{e9}",
            "a(>=1",
        ] {
            assert!(Requirement::parse_python(text).is_err(), "{text:?}");
        }
        let deep = format!("a; {}os_name=='x'{}", "(".repeat(400), ")".repeat(400));
        assert!(Requirement::parse_python(&deep).is_err());
    }
}
