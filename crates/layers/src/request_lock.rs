//! Applies the versions and hashes of a request's own lock file to a resolution.
//!
//! The installer gets the lock's pins as constraints (Python), or as a `package-lock.json` without URLs (npm
//! and bun). Its result must match the versions and hashes of the lock.

use belljar_analysis::imports::{LockFile, PackageRegistry, Requirement};
use belljar_engine::packages::PackagesError;
use serde_json::{Value, json};

use crate::store::ExactPackage;

/// Restricts packages to the hashes of the lock file, where it has some. Packages that the lock file does not
/// contain stay as resolved.
pub(crate) fn restrict_to_lock(
    lock: &LockFile,
    packages: Vec<ExactPackage>,
) -> Result<Vec<ExactPackage>, PackagesError> {
    let refuse = |name: &str, why: &str| {
        Err(PackagesError::Unresolvable(format!("'{name}' {why} {}; regenerate the lock file", lock.file)))
    };
    let mut held = packages.clone();
    for package in &mut held {
        let pins: Vec<_> = lock.pins.iter().filter(|pin| is_of(lock.registry, pin, &package.name)).collect();
        let pin = pins.iter().find(|pin| version(&pin.version) == version(&package.version));
        let Some(pin) = pin else {
            // npm can install a second version for a package that is not in the lock file.
            let there = |other: &ExactPackage| {
                other.name == package.name
                    && pins.iter().any(|pin| version(&pin.version) == version(&other.version))
            };
            match pins.is_empty() || packages.iter().any(there) {
                true => continue,
                false => return refuse(&package.name, "does not resolve to the version in"),
            }
        };
        if !pin.hashes.is_empty() {
            package.hashes.retain(|hash| pin.hashes.contains(hash));
        }
        if package.hashes.is_empty() {
            return refuse(&package.name, "has other files in the registry than in");
        }
    }
    Ok(held)
}

fn is_of(registry: PackageRegistry, pin: &Requirement, name: &str) -> bool {
    pin.name == name || Requirement::parse(registry, name).is_ok_and(|one| one.name == pin.name)
}

/// Normalizes a version: `==1.0` and `1.0.0` are equal.
fn version(text: &str) -> &str {
    text.trim_start_matches('=').trim_end_matches(".0")
}

/// Returns pip constraints for the versions of a lock file and for these packages.
pub(crate) fn constraints(lock: Option<&LockFile>, packages: &[ExactPackage]) -> String {
    let lines = lock.into_iter().flat_map(|lock| &lock.pins).map(|pin| {
        let marker = pin.marker.as_ref().map_or(String::new(), |marker| format!(" ; {marker}"));
        format!("{}{}{marker}\n", pin.name, pin.version)
    });
    lines.chain(packages.iter().map(|one| format!("{}=={}\n", one.name, one.version))).collect()
}

/// Creates a `package-lock.json` from which npm and bun start.
pub(crate) fn package_lock_json(lock: &LockFile, manifest: &Value) -> String {
    let mut packages = lock.tree.clone();
    packages.insert(String::new(), manifest.clone());
    json!({"name": "layer", "lockfileVersion": 3, "requires": true, "packages": packages}).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str, hashes: &[&str]) -> ExactPackage {
        let hashes = hashes.iter().map(|hash| (*hash).to_owned()).collect();
        ExactPackage { name: name.to_owned(), version: version.to_owned(), hashes }
    }

    #[test]
    fn packages_are_restricted_to_hashes_and_versions_of_the_lock() {
        let (good, bad) = (format!("sha256:{}", "a".repeat(64)), format!("sha256:{}", "b".repeat(64)));
        let text = format!(
            r#"{{"default": {{"pyyaml": {{"version": "==6.0", "hashes": ["{good}"]}}, "six": {{"version": "==1.17.0"}}}}}}"#
        );
        let lock = LockFile::parse_file("Pipfile.lock", &text).unwrap().unwrap();
        let resolved = vec![
            package("PyYAML", "6.0", &[&good, &bad]),
            package("six", "1.17.0", &["x"]),
            package("new", "1", &["y"]),
        ];
        let held = restrict_to_lock(&lock, resolved).unwrap();
        assert_eq!(held[0].hashes, std::slice::from_ref(&good));
        assert_eq!((held[1].hashes.len(), held[2].hashes.len()), (1, 1));
        let why = |packages| restrict_to_lock(&lock, packages).unwrap_err().to_string();
        assert!(why(vec![package("pyyaml", "6.0", &[&bad])]).contains("other files"));
        assert!(why(vec![package("pyyaml", "6.1", &[&good])]).contains("version in Pipfile.lock"));
        let profile = [package("numpy", "2.0", &[])];
        assert_eq!(constraints(Some(&lock), &profile), "pyyaml==6.0\nsix==1.17.0\nnumpy==2.0\n");
    }

    #[test]
    fn npm_may_have_a_second_version_of_a_package() {
        let text = r#"{"lockfileVersion": 3, "packages": {"": {}, "node_modules/a": {"version": "1.0.0", "integrity": "sha512-x"}}}"#;
        let lock = LockFile::parse_file("package-lock.json", text).unwrap().unwrap();
        let one = || package("a", "1.0.0", &["sha512-x"]);
        assert!(restrict_to_lock(&lock, vec![one(), package("a", "2.0.0", &["sha512-y"])]).is_ok());
        assert!(restrict_to_lock(&lock, vec![package("a", "2.0.0", &["sha512-y"])]).is_err());
        assert!(restrict_to_lock(&lock, vec![package("a", "1.0.0", &["sha512-y"])]).is_err());
    }
}
