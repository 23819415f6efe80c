//! Lock files of JavaScript: `package-lock.json` and `bun.lock`.
//!
//! Either becomes the tree that `package-lock.json` has, which npm and bun both take. Only what decides about versions is
//! carried over. Addresses are not: a package comes from the registry that this machine goes by, with the hash of the lock.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::lock::Lock;
use super::manifest::broken;
use super::npm::pair;
use super::requirement::refusal;
use super::specifier::is_name;
use super::{Error, Registry, Requirement};

const EDGES: [&str; 3] = ["dependencies", "optionalDependencies", "peerDependencies"];
/// What else decides whether a package is for this machine, or needed at all.
const KEPT: [&str; 6] = ["os", "cpu", "libc", "optional", "peer", "peerDependenciesMeta"];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NpmLock {
    lockfile_version: Option<u64>,
    packages: Option<BTreeMap<String, Map<String, Value>>>,
}

pub(super) fn npm(file: &'static str, text: &str) -> Result<Lock, Error> {
    let read: NpmLock = serde_json::from_str(text).map_err(|error| broken(file, &error.to_string()))?;
    let version = read.lockfile_version.unwrap_or_default();
    let (Some(mut packages), 2 | 3) = (read.packages, version) else {
        return Err(broken(
            file,
            "is of a version that is not read; 'npm install' with npm 7 or later renews it",
        ));
    };
    let mut lock = Lock::new(file, Registry::Npm);
    let project = packages.remove("").unwrap_or_default();
    let set = |entry: &Map<String, Value>, name: &str| entry.get(name).and_then(Value::as_bool) == Some(true);
    for (place, entry) in packages {
        // What only its owner's work needs, and what lies in another package's archive.
        if set(&entry, "dev") || set(&entry, "inBundle") {
            continue;
        }
        let name = place.rsplit_once("node_modules/").map(|(_, name)| name.to_owned());
        let name =
            name.ok_or_else(|| refusal(&place, "is a folder of the project; packages only are taken"))?;
        let from = text_of(&entry, "resolved").filter(|from| !from.starts_with("https://"));
        let from =
            from.filter(|from| !from.starts_with("http://")).or(set(&entry, "link").then_some("link:"));
        add(&mut lock, &place, &name, from, &entry)?;
    }
    roots(&mut lock, &project)?;
    Ok(lock)
}

#[derive(Deserialize)]
struct BunLock {
    workspaces: BTreeMap<String, Map<String, Value>>,
    packages: BTreeMap<String, Vec<Value>>,
}

pub(super) fn bun(file: &'static str, text: &str) -> Result<Lock, Error> {
    let wrong = |error: serde_json::Error| broken(file, &error.to_string());
    let read: BunLock = serde_json::from_str(&without_trailing_commas(text)).map_err(wrong)?;
    let mut lock = Lock::new(file, Registry::Npm);
    for (key, parts) in &read.packages {
        let short = || refusal(key, "is not as bun writes it; make the lock anew");
        let exact = parts.first().and_then(Value::as_str).ok_or_else(short)?;
        let (real, version) =
            exact.rsplit_once('@').filter(|(name, _)| !name.is_empty()).ok_or_else(short)?;
        let place = place_of(key).ok_or_else(short)?;
        let mut entry = parts.iter().find_map(Value::as_object).cloned().unwrap_or_default();
        let hash = parts.last().and_then(Value::as_str).filter(|hash| hash.starts_with("sha512-"));
        entry.insert("version".to_owned(), version.into());
        entry.insert("name".to_owned(), real.into());
        entry.extend(hash.map(|hash| ("integrity".to_owned(), hash.into())));
        // `name@workspace:…`, `name@github:…`, `name@https://…`.
        let name = place.rsplit_once("node_modules/").map_or("", |(_, name)| name);
        let elsewhere = exact.find([':', '#']).map(|_| &exact[exact.find('@').unwrap_or(0)..]);
        add(&mut lock, &place, name, elsewhere, &entry)?;
    }
    let project = read.workspaces.get("").cloned().unwrap_or_default();
    roots(&mut lock, &project)?;
    Ok(lock)
}

/// `a/@b/c` → `node_modules/a/node_modules/@b/c`.
fn place_of(key: &str) -> Option<String> {
    let (mut place, mut parts) = (String::new(), key.split('/'));
    while let Some(part) = parts.next() {
        let name = if part.starts_with('@') { format!("{part}/{}", parts.next()?) } else { part.to_owned() };
        place = format!("{place}{}node_modules/{name}", if place.is_empty() { "" } else { "/" });
    }
    Some(place)
}

fn text_of<'a>(entry: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    entry.get(name).and_then(Value::as_str)
}

/// Takes in one package, checked.
fn add(
    lock: &mut Lock,
    place: &str,
    name: &str,
    elsewhere: Option<&str>,
    entry: &Map<String, Value>,
) -> Result<(), Error> {
    if let Some(from) = elsewhere {
        let mut root = Requirement::any(Registry::Npm, name);
        root.direct = Some(from.chars().filter(|c| !c.is_control() && !c.is_whitespace()).collect());
        lock.roots.push(root);
        return Ok(());
    }
    let parts = place.split("node_modules/").map(|part| part.trim_end_matches('/'));
    if !place.starts_with("node_modules/") || !parts.skip(1).all(is_name) {
        return Err(refusal(place, "is no place of a package"));
    }
    let version = text_of(entry, "version").unwrap_or_default();
    let exact = version.starts_with(|c: char| c.is_ascii_digit()) && !version.contains([' ', '|']);
    // A package may be installed under another name.
    let real = text_of(entry, "name").unwrap_or(name);
    let mut pin = pair(real, real, if exact { version } else { "" })?;
    if pin.version.is_empty() {
        return Err(refusal(place, "has no exact version; make the lock anew"));
    }
    let mut kept = Map::from_iter([("version".to_owned(), version.into())]);
    if real != name {
        kept.insert("name".to_owned(), real.into());
    }
    if let Some(hash) = text_of(entry, "integrity").filter(|hash| is_integrity(hash)) {
        kept.insert("integrity".to_owned(), hash.into());
        pin.hashes.push(hash.to_owned());
    }
    for kind in EDGES {
        if let Some(edges) = entry.get(kind) {
            kept.insert(kind.to_owned(), edges_of(place, edges)?);
        }
    }
    for name in KEPT {
        kept.extend(entry.get(name).map(|value| (name.to_owned(), listed(name, value))));
    }
    lock.tree.insert(place.to_owned(), kept.into());
    lock.pins.push(pin);
    Ok(())
}

/// Where bun writes one word, npm writes a list of words.
fn listed(name: &str, value: &Value) -> Value {
    match value {
        Value::String(_) if ["os", "cpu", "libc"].contains(&name) => Value::from(vec![value.clone()]),
        value => value.clone(),
    }
}

/// What a package needs: names and versions, but no addresses that an installer would go to.
fn edges_of(place: &str, edges: &Value) -> Result<Value, Error> {
    let edges: BTreeMap<String, String> = serde_json::from_value(edges.clone())
        .map_err(|_| refusal(place, "needs something that is no package; make the lock anew"))?;
    for (name, version) in &edges {
        let version = version.strip_prefix("npm:").unwrap_or(version);
        let version = version
            .strip_prefix('@')
            .map_or(version, |rest| rest.split_once('/').map_or(rest, |(_, rest)| rest));
        if !is_name(name) || version.contains([':', '/']) {
            return Err(refusal(
                place,
                "needs something from an address or a repository; packages only are taken",
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

/// What the project asks for, in the versions that the lock has.
fn roots(lock: &mut Lock, project: &Map<String, Value>) -> Result<(), Error> {
    for kind in ["dependencies", "optionalDependencies"] {
        for (name, stated) in project.get(kind).and_then(Value::as_object).into_iter().flatten() {
            let entry = lock.tree.get(&format!("node_modules/{name}"));
            let stated = stated.as_str().unwrap_or_default();
            let version =
                entry.and_then(|entry| entry.get("version")?.as_str()).filter(|_| !stated.contains(':'));
            lock.roots.push(pair(name, name, version.unwrap_or(stated))?);
        }
    }
    Ok(())
}

/// bun's lock is JSON with commas before closing brackets.
pub(super) fn without_trailing_commas(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut in_string, mut escaped) = (false, false);
    for c in text.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            '}' | ']' if !in_string => {
                let kept = out.trim_end().len();
                if out[..kept].ends_with(',') {
                    out.truncate(kept - 1);
                }
            }
            _ => {}
        }
        out.push(c);
    }
    out
}
