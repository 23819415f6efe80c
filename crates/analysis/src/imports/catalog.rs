//! Built-in tables of names: the package that provides a module, and the well-known packages.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

use super::PackageRegistry;
use super::requirement::normalize_name;

static PACKAGES_BY_MODULE: LazyLock<HashMap<&str, &str>> = LazyLock::new(|| {
    rows(include_str!("../../data/python_imports.csv")).filter_map(|row| row.split_once(',')).collect()
});
static PYPI: LazyLock<HashSet<&str>> =
    LazyLock::new(|| rows(include_str!("../../data/pypi_names.txt")).collect());
static NPM: LazyLock<HashSet<&str>> =
    LazyLock::new(|| rows(include_str!("../../data/npm_names.txt")).collect());

fn rows(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|line| !line.starts_with('#') && !line.is_empty())
}

/// Returns whether a package is well known, by its normalized name.
pub(super) fn is_known(registry: PackageRegistry, package: &str) -> bool {
    well_known_packages(registry).contains(package)
}

/// Returns all well-known packages.
pub(super) fn well_known_packages(registry: PackageRegistry) -> &'static HashSet<&'static str> {
    match registry {
        PackageRegistry::Pypi => &PYPI,
        PackageRegistry::Npm => &NPM,
    }
}

/// Returns the modules whose package has another name.
pub(super) fn modules_with_renamed_packages() -> impl Iterator<Item = (&'static str, &'static str)> {
    PACKAGES_BY_MODULE.iter().map(|(module, package)| (*module, *package))
}

/// Returns the package of a dotted module: by its longest prefix in the table, else by its first component if
/// that is a known package. Also returns how many components the match covers.
pub(super) fn package_of(module: &str) -> Option<(String, usize)> {
    let of_row = prefixes(module)
        .find_map(|(prefix, parts)| Some((PACKAGES_BY_MODULE.get(prefix)?.to_string(), parts)));
    of_row.or_else(|| {
        let top = normalize_name(module.split('.').next().unwrap_or(module));
        PYPI.contains(top.as_str()).then_some((top, 1))
    })
}

/// Returns `a.b.c`, `a.b`, `a`, each with its number of components.
pub(super) fn prefixes(module: &str) -> impl Iterator<Item = (&str, usize)> {
    let parts = module.split('.').count();
    let mut rest = Some(module);
    (0..parts).filter_map(move |shorter| {
        let prefix = rest?;
        rest = prefix.rsplit_once('.').map(|(front, _)| front);
        Some((prefix, parts - shorter))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted_unique_and_well_formed() {
        for text in [
            include_str!("../../data/python_imports.csv"),
            include_str!("../../data/pypi_names.txt"),
            include_str!("../../data/npm_names.txt"),
            include_str!("../../data/python_stdlib.csv"),
        ] {
            let rows: Vec<_> = rows(text).map(|row| row.split(',').next().unwrap_or(row)).collect();
            assert!(rows.len() > 200, "{}", rows.len());
            for pair in rows.windows(2) {
                assert!(pair[0] < pair[1], "{} before {}", pair[0], pair[1]);
            }
        }
        assert!(PYPI.len() >= 1_000 && NPM.len() >= 1_000);
        for (module, package) in modules_with_renamed_packages() {
            assert!(PYPI.contains(package), "{module}: {package} is not among the names");
        }
        assert!(PYPI.iter().all(|name| normalize_name(name) == **name));
    }

    #[test]
    fn the_longest_matching_row_wins() {
        for (module, wanted) in [
            ("cv2", Some(("opencv-python-headless", 1))),
            ("google.cloud.storage.blob", Some(("google-cloud-storage", 3))),
            ("google.protobuf.message", Some(("protobuf", 2))),
            ("google.cloud", None),
            ("google", None),
            ("azure.storage.blob", Some(("azure-storage-blob", 3))),
            ("numpy.random", Some(("numpy", 1))),
            ("flask_cors", Some(("flask-cors", 1))),
            ("flask.cors", Some(("flask", 1))),
            ("nobody_knows_this", None),
        ] {
            let found = package_of(module);
            assert_eq!(found.as_ref().map(|(name, parts)| (name.as_str(), *parts)), wanted, "{module}");
        }
    }
}
