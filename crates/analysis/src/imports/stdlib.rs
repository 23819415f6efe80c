//! Modules of Python's standard library, by version.

use std::collections::HashMap;
use std::sync::LazyLock;

/// A Python 3 minor version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PythonVersion(u8);

impl PythonVersion {
    /// Oldest and newest version in the table.
    pub const KNOWN: (Self, Self) = (Self(8), Self(14));

    /// Parses `3.12` or `3.12.1`; returns `None` for a version outside the table.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let minor = parts.next().filter(|major| *major == "3").and_then(|_| parts.next()?.parse().ok())?;
        Some(Self(minor)).filter(|version| (Self::KNOWN.0..=Self::KNOWN.1).contains(version))
    }

    /// Returns the minor version: 12 for 3.12.
    pub fn minor(self) -> u8 {
        self.0
    }

    /// Returns whether a top-level module is part of the standard library.
    pub(super) fn has(self, module: &str) -> bool {
        // Names with an underscore belong to the interpreter; packages cannot have them.
        module.starts_with('_')
            || STDLIB_MODULES.get(module).is_some_and(|(added, gone)| (*added..*gone).contains(&self.0))
    }
}

impl Default for PythonVersion {
    /// Returns the version in most common use.
    fn default() -> Self {
        Self(12)
    }
}

static STDLIB_MODULES: LazyLock<HashMap<&str, (u8, u8)>> = LazyLock::new(|| {
    let minor = |text: &str| text.strip_prefix("3.").and_then(|minor| minor.parse().ok());
    let rows = include_str!("../../data/python_stdlib.csv").lines().filter(|line| !line.starts_with('#'));
    rows.filter_map(|row| {
        let mut cells = row.split(',');
        let (name, added, gone) = (cells.next()?, cells.next()?, cells.next()?);
        Some((name, (minor(added).unwrap_or(0), minor(gone).unwrap_or(u8::MAX))))
    })
    .collect()
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_depend_on_the_python_version() {
        for (module, minor, exists) in [
            ("os", 8, true),
            ("tomllib", 10, false),
            ("tomllib", 11, true),
            ("distutils", 11, true),
            ("distutils", 12, false),
            ("telnetlib", 12, true),
            ("telnetlib", 13, false),
            ("zoneinfo", 8, false),
            ("annotationlib", 14, true),
            ("compression", 13, false),
            ("__future__", 12, true),
            ("numpy", 12, false),
        ] {
            assert_eq!(PythonVersion(minor).has(module), exists, "{module} in 3.{minor}");
        }
    }

    #[test]
    fn versions_outside_the_table_are_rejected() {
        assert_eq!(PythonVersion::parse("3.12.1"), Some(PythonVersion(12)));
        for bad in ["3", "2.7", "3.7", "3.15", "3.x", "", "4.10"] {
            assert_eq!(PythonVersion::parse(bad), None, "{bad}");
        }
    }
}
