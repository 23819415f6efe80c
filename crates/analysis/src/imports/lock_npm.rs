//! Lock files of JavaScript: `package-lock.json` and `bun.lock`.
//!
//! Both are converted to the package tree of a `package-lock.json`, which npm and bun both accept. Only
//! fields that determine versions are copied. URLs are not: packages come from the registry that this machine
//! uses, and must match the lock's hash.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::lock::LockFile;
use super::manifest::invalid_manifest;
use super::npm::requirement_from_parts;
use super::requirement::invalid_requirement;
use super::specifier::is_name;
use super::{Error, PackageRegistry, Requirement};

const DEPENDENCY_FIELDS: [&str; 3] = ["dependencies", "optionalDependencies", "peerDependencies"];
/// Further fields that decide whether a package is installed on this machine.
const COPIED_FIELDS: [&str; 6] = ["os", "cpu", "libc", "optional", "peer", "peerDependenciesMeta"];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NpmLock {
    lockfile_version: Option<u64>,
    packages: Option<BTreeMap<String, Map<String, Value>>>,
}

pub(super) fn parse_npm(file: &'static str, text: &str) -> Result<LockFile, Error> {
    let read: NpmLock =
        serde_json::from_str(text).map_err(|error| invalid_manifest(file, &error.to_string()))?;
    let version = read.lockfile_version.unwrap_or_default();
    let (Some(mut packages), 2 | 3) = (read.packages, version) else {
        return Err(invalid_manifest(
            file,
            "has an unsupported version; 'npm install' with npm 7 or later updates it",
        ));
    };
    let mut lock = LockFile::new(file, PackageRegistry::Npm);
    let project = packages.remove("").unwrap_or_default();
    let set = |entry: &Map<String, Value>, name: &str| entry.get(name).and_then(Value::as_bool) == Some(true);
    for (path, entry) in packages {
        // Skips development dependencies, and packages bundled in another package's archive.
        if set(&entry, "dev") || set(&entry, "inBundle") {
            continue;
        }
        let name = path.rsplit_once("node_modules/").map(|(_, name)| name.to_owned());
        let name = name.ok_or_else(|| {
            invalid_requirement(&path, "is a folder of the project; only packages are accepted")
        })?;
        let from = string_field(&entry, "resolved").filter(|from| !from.starts_with("https://"));
        let from =
            from.filter(|from| !from.starts_with("http://")).or(set(&entry, "link").then_some("link:"));
        add_package(&mut lock, &path, &name, from, &entry)?;
    }
    add_roots(&mut lock, &project)?;
    Ok(lock)
}

#[derive(Deserialize)]
struct BunLock {
    workspaces: BTreeMap<String, Map<String, Value>>,
    packages: BTreeMap<String, Vec<Value>>,
}

pub(super) fn parse_bun(file: &'static str, text: &str) -> Result<LockFile, Error> {
    let wrong = |error: serde_json::Error| invalid_manifest(file, &error.to_string());
    let read: BunLock = serde_json::from_str(&without_trailing_commas(text)).map_err(wrong)?;
    let mut lock = LockFile::new(file, PackageRegistry::Npm);
    for (key, parts) in &read.packages {
        let short = || invalid_requirement(key, "is not an entry that bun writes; regenerate the lock file");
        let exact = parts.first().and_then(Value::as_str).ok_or_else(short)?;
        let (real, version) =
            exact.rsplit_once('@').filter(|(name, _)| !name.is_empty()).ok_or_else(short)?;
        let path = install_path(key).ok_or_else(short)?;
        let mut entry = parts.iter().find_map(Value::as_object).cloned().unwrap_or_default();
        let hash = parts.last().and_then(Value::as_str).filter(|hash| hash.starts_with("sha512-"));
        entry.insert("version".to_owned(), version.into());
        entry.insert("name".to_owned(), real.into());
        entry.extend(hash.map(|hash| ("integrity".to_owned(), hash.into())));
        // `name@workspace:…`, `name@github:…`, `name@https://…`.
        let name = path.rsplit_once("node_modules/").map_or("", |(_, name)| name);
        let elsewhere = exact.find([':', '#']).map(|_| &exact[exact.find('@').unwrap_or(0)..]);
        add_package(&mut lock, &path, name, elsewhere, &entry)?;
    }
    let project = read.workspaces.get("").cloned().unwrap_or_default();
    add_roots(&mut lock, &project)?;
    Ok(lock)
}

/// `a/@b/c` → `node_modules/a/node_modules/@b/c`.
fn install_path(key: &str) -> Option<String> {
    let (mut path, mut parts) = (String::new(), key.split('/'));
    while let Some(part) = parts.next() {
        let name = if part.starts_with('@') { format!("{part}/{}", parts.next()?) } else { part.to_owned() };
        path = format!("{path}{}node_modules/{name}", if path.is_empty() { "" } else { "/" });
    }
    Some(path)
}

fn string_field<'a>(entry: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    entry.get(name).and_then(Value::as_str)
}

/// Validates and adds one package.
fn add_package(
    lock: &mut LockFile,
    path: &str,
    name: &str,
    elsewhere: Option<&str>,
    entry: &Map<String, Value>,
) -> Result<(), Error> {
    if let Some(from) = elsewhere {
        let mut root = Requirement::any_version(PackageRegistry::Npm, name);
        root.direct_url = Some(from.chars().filter(|c| !c.is_control() && !c.is_whitespace()).collect());
        lock.roots.push(root);
        return Ok(());
    }
    let parts = path.split("node_modules/").map(|part| part.trim_end_matches('/'));
    if !path.starts_with("node_modules/") || !parts.skip(1).all(is_name) {
        return Err(invalid_requirement(path, "is not an install path of a package"));
    }
    let version = string_field(entry, "version").unwrap_or_default();
    let exact = version.starts_with(|c: char| c.is_ascii_digit()) && !version.contains([' ', '|']);
    // A package may be installed under an alias.
    let real = string_field(entry, "name").unwrap_or(name);
    let mut pin = requirement_from_parts(real, real, if exact { version } else { "" })?;
    if pin.version.is_empty() {
        return Err(invalid_requirement(path, "has no exact version; regenerate the lock file"));
    }
    let mut package = Map::from_iter([("version".to_owned(), version.into())]);
    if real != name {
        package.insert("name".to_owned(), real.into());
    }
    if let Some(hash) = string_field(entry, "integrity").filter(|hash| is_integrity(hash)) {
        package.insert("integrity".to_owned(), hash.into());
        pin.hashes.push(hash.to_owned());
    }
    for kind in DEPENDENCY_FIELDS {
        if let Some(edges) = entry.get(kind) {
            package.insert(kind.to_owned(), dependency_map(path, edges)?);
        }
    }
    for name in COPIED_FIELDS {
        package.extend(entry.get(name).map(|value| (name.to_owned(), as_npm_list(name, value))));
    }
    lock.tree.insert(path.to_owned(), package.into());
    lock.pins.push(pin);
    Ok(())
}

/// Wraps a single word in a list: npm writes a list where bun writes one word.
fn as_npm_list(name: &str, value: &Value) -> Value {
    match value {
        Value::String(_) if ["os", "cpu", "libc"].contains(&name) => Value::from(vec![value.clone()]),
        value => value.clone(),
    }
}

/// Returns a package's dependencies: names and versions, but no URLs that an installer would open.
fn dependency_map(path: &str, edges: &Value) -> Result<Value, Error> {
    let edges: BTreeMap<String, String> = serde_json::from_value(edges.clone()).map_err(|_| {
        invalid_requirement(path, "depends on something that is not a package; regenerate the lock file")
    })?;
    for (name, version) in &edges {
        let version = version.strip_prefix("npm:").unwrap_or(version);
        let version = version
            .strip_prefix('@')
            .map_or(version, |rest| rest.split_once('/').map_or(rest, |(_, rest)| rest));
        if !is_name(name) || version.contains([':', '/']) {
            return Err(invalid_requirement(
                path,
                "depends on a URL or repository; only packages are accepted",
            ));
        }
    }
    Ok(edges.into_iter().map(|(name, version)| (name, Value::from(version))).collect::<Map<_, _>>().into())
}

fn is_integrity(hash: &str) -> bool {
    hash.strip_prefix("sha512-").is_some_and(|digest| {
        digest.len() <= 100
            && digest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte))
    })
}

/// Adds the project's direct dependencies, in the versions of the lock.
fn add_roots(lock: &mut LockFile, project: &Map<String, Value>) -> Result<(), Error> {
    for kind in ["dependencies", "optionalDependencies"] {
        for (name, stated) in project.get(kind).and_then(Value::as_object).into_iter().flatten() {
            let entry = lock.tree.get(&format!("node_modules/{name}"));
            let stated = stated.as_str().unwrap_or_default();
            let version =
                entry.and_then(|entry| entry.get("version")?.as_str()).filter(|_| !stated.contains(':'));
            lock.roots.push(requirement_from_parts(name, name, version.unwrap_or(stated))?);
        }
    }
    Ok(())
}

/// Removes commas before closing brackets, which bun's lock has and JSON forbids.
pub(super) fn without_trailing_commas(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut in_string, mut escaped) = (false, false);
    for c in text.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            '}' | ']' if !in_string => {
                let package = out.trim_end().len();
                if out[..package].ends_with(',') {
                    out.truncate(package - 1);
                }
            }
            _ => {}
        }
        out.push(c);
    }
    out
}
