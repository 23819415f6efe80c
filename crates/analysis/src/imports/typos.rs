//! Finds the well-known package name that a misspelled one resembles. Impostor packages rely on such typos.

use super::PackageRegistry;
use super::catalog;
use super::requirement::normalize_name;

/// Returns the largest edit distance that counts as a typo, by length: short names have too many neighbors.
fn tolerance(length: usize) -> usize {
    match length {
        0..=4 => 0,
        5..=8 => 1,
        _ => 2,
    }
}

/// Returns the well-known package that an unknown name resembles.
pub(super) fn closest_known_name(registry: PackageRegistry, name: &str) -> Option<&'static str> {
    let name = normalize_name(name);
    let modules: Vec<_> = match registry {
        PackageRegistry::Pypi => {
            catalog::modules_with_renamed_packages().filter(|(module, _)| !module.contains('.')).collect()
        }
        PackageRegistry::Npm => Vec::new(),
    };
    let known = catalog::well_known_packages(registry).iter().map(|name| (*name, *name)).chain(modules);
    let near = known.filter_map(|(known, package)| Some((closeness(&name, known)?, package)));
    near.min().map(|(_, package)| package)
}

/// Returns the distance between two different names, or `None` if it is too large for a typo. Zero means
/// another spelling of the same name.
fn closeness(name: &str, known: &str) -> Option<usize> {
    let known = known.to_ascii_lowercase();
    if without_separators(name) == without_separators(&known)
        || without_affixes(name) == known
        || without_affixes(&known) == name
    {
        return Some(0);
    }
    let (a, b): (Vec<char>, Vec<char>) = (name.chars().collect(), known.chars().collect());
    let swapped = a.len() == b.len() && a.len() == 4 && is_adjacent_swap(&a, &b);
    let bound = tolerance(a.len().min(b.len())).max(usize::from(swapped));
    if bound == 0 || a.len().abs_diff(b.len()) > bound {
        return None;
    }
    Some(edit_distance(name, &known)).filter(|distance| *distance <= bound)
}

/// Removes separators, which people often omit or swap.
fn without_separators(name: &str) -> String {
    name.chars().filter(|c| !"-_./@".contains(*c)).collect()
}

/// Removes prefixes and suffixes that people often add to names.
fn without_affixes(name: &str) -> &str {
    let bare = ["python-", "python3-", "py-", "node-"]
        .iter()
        .find_map(|dress| name.strip_prefix(dress))
        .unwrap_or(name);
    ["-python", "-py", "-js", "-node"].iter().find_map(|dress| bare.strip_suffix(dress)).unwrap_or(bare)
}

fn is_adjacent_swap(a: &[char], b: &[char]) -> bool {
    let apart: Vec<_> = (0..a.len()).filter(|at| a[*at] != b[*at]).collect();
    matches!(apart[..], [x, y] if y == x + 1 && a[x] == b[y] && a[y] == b[x])
}

/// Returns the edit distance of two names, counting insertions, deletions, substitutions and swaps of
/// neighbors.
pub fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = change.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_are_recognized() {
        for (name, wanted) in [
            ("reqeusts", Some("requests")),
            ("request", Some("requests")),
            ("requestss", Some("requests")),
            ("nunpy", Some("numpy")),
            ("padnas", Some("pandas")),
            ("beautifulsop4", Some("beautifulsoup4")),
            ("tensorfolw", Some("tensorflow")),
            ("scikitlearn", Some("scikit-learn")),
            ("python-requests", Some("requests")),
            ("sklaern", Some("scikit-learn")),
            ("matplotlibb", Some("matplotlib")),
            ("acme-internal-tools", None),
            ("zzzzz", None),
            ("my_helper", None),
        ] {
            assert_eq!(closest_known_name(PackageRegistry::Pypi, name), wanted, "{name}");
        }
        for (name, wanted) in [
            ("loadsh", Some("lodash")),
            ("expres", Some("express")),
            ("crossenv", Some("cross-env")),
            ("acme-internal", None),
        ] {
            assert_eq!(closest_known_name(PackageRegistry::Npm, name), wanted, "{name}");
        }
    }

    #[test]
    fn distances() {
        assert_eq!(
            (edit_distance("abc", "abc"), edit_distance("abc", "acb"), edit_distance("", "ab")),
            (0, 1, 2)
        );
        assert_eq!((edit_distance("kitten", "sitting"), edit_distance("ab", "ba")), (3, 1));
    }
}
