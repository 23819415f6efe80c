//! Manifest files that list requirements.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::requirement::invalid_requirement;
use super::{Error, LockFile, Requirement, npm};

/// Maximum number of requirements; no list for a sandbox is longer.
const MAX_MANIFEST_ENTRIES: usize = 2_000;

const MAX_MANIFEST_BYTES: usize = 1 << 20;

/// Parses a `requirements.txt`; returns each requirement with its line.
pub fn requirements_txt(text: &str) -> Result<Vec<(u32, Requirement)>, Error> {
    check_size("requirements.txt", text)?;
    let mut requirements = Vec::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let mut whole = line.to_owned();
        while whole.ends_with('\\') {
            whole.pop();
            match lines.next() {
                Some((_, next)) => whole.push_str(next),
                None => break,
            }
        }
        let entry = without_comment(&whole);
        if !entry.is_empty() {
            requirements.push((number, parse_entry(entry)?));
        }
    }
    check_entry_count("requirements.txt", requirements)
}

/// Strips a comment. A `#` begins one at the start of a line and after whitespace; elsewhere it is part of a
/// URL.
fn without_comment(line: &str) -> &str {
    let bytes = line.as_bytes();
    let begins = |at: &usize| bytes[*at] == b'#' && (*at == 0 || bytes[*at - 1].is_ascii_whitespace());
    let end = (0..bytes.len()).find(begins).unwrap_or(line.len());
    line[..end].trim()
}

fn parse_entry(entry: &str) -> Result<Requirement, Error> {
    let option = entry.split([' ', '=']).next().unwrap_or(entry);
    match option {
        "-r" | "--requirement" | "-c" | "--constraint" => {
            return Err(invalid_requirement(
                entry,
                "refers to another file, which is not read; copy its lines here",
            ));
        }
        "-e" | "--editable" => {
            return Err(invalid_requirement(
                entry,
                "installs from a folder, which is not supported; list packages only",
            ));
        }
        _ if option.starts_with('-') => {
            return Err(invalid_requirement(
                entry,
                "is an installer option, which is not supported; remove it",
            ));
        }
        _ => {}
    }
    let mut parts = entry.split("--hash=");
    let mut requirement = Requirement::parse_python(parts.next().unwrap_or_default())?;
    for hash in parts.map(str::trim) {
        if !is_hash(hash) {
            return Err(invalid_requirement(
                entry,
                "has an invalid hash; write, for example, --hash=sha256:…",
            ));
        }
        requirement.hashes.push(hash.to_owned());
    }
    Ok(requirement)
}

pub(super) fn is_hash(hash: &str) -> bool {
    let lengths = [("sha256", 64), ("sha384", 96), ("sha512", 128)];
    hash.split_once(':').is_some_and(|(name, digest)| {
        lengths.contains(&(name, digest.len())) && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[derive(Deserialize)]
struct Pyproject {
    project: Option<Project>,
}

#[derive(Deserialize)]
struct Project {
    #[serde(default)]
    dependencies: Vec<String>,
}

/// Parses `[project] dependencies` of a `pyproject.toml`.
pub fn pyproject(text: &str) -> Result<Vec<Requirement>, Error> {
    const NAME: &str = "pyproject.toml";
    check_size(NAME, text)?;
    let file: Pyproject = toml::from_str(text).map_err(|error| invalid_manifest(NAME, error.message()))?;
    let listed = file.project.map(|project| project.dependencies).unwrap_or_default();
    let listed = check_entry_count(NAME, listed)?;
    listed.iter().map(|text| Requirement::parse_python(text)).collect()
}

/// Parses `dependencies` of a `package.json`.
pub fn package_json(text: &str) -> Result<Vec<Requirement>, Error> {
    const NAME: &str = "package.json";
    check_size(NAME, text)?;
    let wrong = |error: serde_json::Error| invalid_manifest(NAME, &error.to_string());
    let mut file: Map<String, Value> = serde_json::from_str(text).map_err(wrong)?;
    let listed = file.remove("dependencies").unwrap_or_else(|| Map::new().into());
    let listed: BTreeMap<String, String> = serde_json::from_value(listed).map_err(wrong)?;
    let listed: Vec<_> = check_entry_count(NAME, listed.into_iter().collect())?;
    listed
        .iter()
        .map(|(name, version)| npm::requirement_from_parts(&format!("{name}@{version}"), name, version))
        .collect()
}

impl Requirement {
    /// Parses a manifest or lock file by its file name; of a lock, returns the direct requirements.
    pub fn parse_manifest(file: &str, text: &str) -> Option<Result<Vec<Self>, Error>> {
        match file {
            "pyproject.toml" => Some(pyproject(text)),
            "package.json" => Some(package_json(text)),
            _ if file.ends_with(".txt") && file.starts_with("requirements") => {
                Some(requirements_txt(text).map(|lines| lines.into_iter().map(|(_, one)| one).collect()))
            }
            _ => Some(LockFile::parse_file(file, text)?.map(|lock| lock.roots)),
        }
    }
}

fn check_size(name: &'static str, text: &str) -> Result<(), Error> {
    if text.len() > MAX_MANIFEST_BYTES { Err(invalid_manifest(name, "is larger than 1 MB")) } else { Ok(()) }
}

fn check_entry_count<T>(name: &'static str, entries: Vec<T>) -> Result<Vec<T>, Error> {
    if entries.len() > MAX_MANIFEST_ENTRIES {
        Err(invalid_manifest(name, "lists more than 2000 packages"))
    } else {
        Ok(entries)
    }
}

pub(super) fn invalid_manifest(name: &'static str, why: &str) -> Error {
    Error::Manifest { name, why: why.escape_debug().to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_files() {
        let digest = "0".repeat(64);
        let text = format!(
            "# header\n\nrequests==2.28.0  # why\nnumpy \\\n  >=1.20\nflask==2.0 \\\n    --hash=sha256:{digest} \\\n    --hash=sha256:{digest}\n"
        );
        let read = requirements_txt(&text).unwrap();
        let shown: Vec<_> =
            read.iter().map(|(line, one)| (*line, one.to_string(), one.hashes.len())).collect();
        let wanted = [(3, "requests==2.28.0", 0), (4, "numpy>=1.20", 0), (6, "flask==2.0", 2)];
        assert_eq!(shown, wanted.map(|(line, text, hashes)| (line, text.to_owned(), hashes)));
        for bad in [
            "-r base.txt",
            "-c constraints.txt",
            "--requirement=x",
            "-e .",
            "--index-url https://x",
            "a --hash=md5:00",
            "a --hash=sha256:zz",
            "git+https://x/y",
            "a==1 \\\n--pre",
        ] {
            assert!(requirements_txt(bad).is_err(), "{bad}");
        }
        assert!(requirements_txt("a\\").is_ok());
        assert!(requirements_txt(&"a\n".repeat(3_000)).is_err());
    }

    #[test]
    fn pyproject_and_package_json() {
        let text = "[project]\nname = 'x'\ndependencies = ['Requests>=2', 'a[b]']\n[tool.x]\ny = 1\n";
        let read: Vec<_> = pyproject(text).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(read, ["requests>=2", "a[b]"]);
        assert_eq!(pyproject("[tool.poetry]\n"), Ok(Vec::new()));
        assert!(pyproject("[project").is_err());
        let text = r#"{"name": "x", "dependencies": {"lodash": "^4", "@a/b": "1.x"}, "devDependencies": {"c": "1"}}"#;
        let read: Vec<_> = package_json(text).unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(read, ["@a/b@1.x", "lodash@^4"]);
        assert!(package_json("[]").is_err());
        assert!(package_json(r#"{"dependencies": {"-g": "1"}}"#).is_err());
    }
}
