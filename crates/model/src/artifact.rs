//! Artifacts: which files below `./artifacts` are collected, and why others are left out.

use serde::{Deserialize, Serialize};

/// Longest path of an artifact below `./artifacts`, in bytes.
pub const MAX_ARTIFACT_PATH_BYTES: usize = 1_024;
/// Number of folders that an artifact may be below `./artifacts`.
pub const MAX_ARTIFACT_DEPTH: usize = 16;
/// Maximum number of directory entries that are examined below `./artifacts`.
pub const MAX_ARTIFACT_ENTRIES: usize = 10_000;
/// Maximum number of files that are named when they are left out; others are counted.
pub const MAX_NAMED_SKIPS: usize = 20;

/// Limits on the artifacts of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactLimits {
    /// Maximum number of files.
    pub files: u32,
    /// Maximum size of each file, in bytes.
    pub file_bytes: u64,
    /// Maximum size of all files together, in bytes.
    pub total_bytes: u64,
}

impl ArtifactLimits {
    /// The default limits.
    pub const DEFAULT: Self = Self { files: 100, file_bytes: 32 << 20, total_bytes: 100 << 20 };
    /// The highest limits that can be set.
    pub const CEILING: Self = Self { files: 10_000, file_bytes: 1 << 30, total_bytes: 1 << 30 };
}

impl Default for ArtifactLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Why something below `./artifacts` is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipReason {
    /// The file is larger than a file may be.
    FileTooLarge,
    /// All files together would be too large.
    TotalTooLarge,
    /// There are too many files.
    TooManyFiles,
    /// A symbolic link.
    Link,
    /// A device, a pipe or a socket.
    SpecialFile,
    /// A name that is not UTF-8, has control characters or is too long.
    Name,
    /// Below too many folders.
    TooDeep,
    /// There are too many entries; the rest was not examined.
    TooManyEntries,
    /// The sandbox user may not read it, or it changed while it was read.
    Unreadable,
    /// The collection was interrupted; the rest is missing.
    Interrupted,
}

impl SkipReason {
    /// Every reason. The position is its code.
    const ALL: [Self; 10] = [
        Self::FileTooLarge,
        Self::TotalTooLarge,
        Self::TooManyFiles,
        Self::Link,
        Self::SpecialFile,
        Self::Name,
        Self::TooDeep,
        Self::TooManyEntries,
        Self::Unreadable,
        Self::Interrupted,
    ];

    /// Returns its code in binary messages.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Returns the reason with this code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// Something below `./artifacts` that is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedArtifact {
    /// Path below `./artifacts`, shortened, with control characters escaped. Empty for the folder itself.
    pub path: String,
    /// Why it is left out.
    pub reason: SkipReason,
}

/// Everything that is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SkippedArtifacts {
    /// The first ones.
    pub named: Vec<SkippedArtifact>,
    /// How many more there are.
    pub more: u64,
}

impl SkippedArtifacts {
    /// Adds something that is left out.
    pub fn add(&mut self, path: &[u8], reason: SkipReason) {
        if self.named.len() < MAX_NAMED_SKIPS {
            self.named.push(SkippedArtifact { path: shown_path(path), reason });
        } else {
            self.more += 1;
        }
    }
}

/// Applies the limits, file by file.
#[derive(Debug)]
pub struct ArtifactBudget {
    limits: ArtifactLimits,
    files: u32,
    bytes: u64,
    /// Artifacts left out so far.
    pub skipped: SkippedArtifacts,
}

impl ArtifactBudget {
    /// Creates an unused budget.
    pub fn new(limits: ArtifactLimits) -> Self {
        Self { limits, files: 0, bytes: 0, skipped: SkippedArtifacts::default() }
    }

    /// Returns whether a regular file is collected, and counts it. Otherwise, notes why it is left out.
    pub fn admit(&mut self, path: &str, size: u64) -> bool {
        let ArtifactLimits { files, file_bytes, total_bytes } = self.limits;
        let refusal = if !is_artifact_path(path) {
            SkipReason::Name
        } else if size > file_bytes {
            SkipReason::FileTooLarge
        } else if self.files >= files {
            SkipReason::TooManyFiles
        } else if size > total_bytes - self.bytes {
            SkipReason::TotalTooLarge
        } else {
            self.files += 1;
            self.bytes += size;
            return true;
        };
        self.skipped.add(path.as_bytes(), refusal);
        false
    }
}

/// Returns whether a path is valid for an artifact: relative, below `./artifacts`, and safe to show and to
/// save.
pub fn is_artifact_path(path: &str) -> bool {
    // U+FFFD stands for bytes that are not UTF-8.
    let is_bad = |letter: char| letter.is_control() || letter == '\u{fffd}';
    path.len() <= MAX_ARTIFACT_PATH_BYTES
        && path.split('/').count() <= MAX_ARTIFACT_DEPTH + 1
        && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
        && !path.contains(is_bad)
}

/// Returns a path for messages.
fn shown_path(path: &[u8]) -> String {
    const MAX_SHOWN_CHARS: usize = 200;
    let text = String::from_utf8_lossy(path);
    let escaped = text.chars().flat_map(|letter| {
        let escape = letter.is_control();
        let plain = (!escape).then_some(letter);
        plain.into_iter().chain(letter.escape_default().filter(move |_| escape))
    });
    let shown: String = escaped.take(MAX_SHOWN_CHARS).collect();
    if shown.chars().count() == MAX_SHOWN_CHARS { format!("{shown}…") } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_apply_in_order_and_leave_room_for_smaller_files() {
        let mut budget = ArtifactBudget::new(ArtifactLimits { files: 3, file_bytes: 10, total_bytes: 15 });
        let admitted = ["a", "b", "c", "d", "e"].map(|name| match name {
            "b" => budget.admit(name, 11),
            "c" => budget.admit(name, 9),
            _ => budget.admit(name, 7),
        });
        assert_eq!(admitted, [true, false, false, true, false]);
        let reasons: Vec<_> = budget.skipped.named.iter().map(|skipped| skipped.reason).collect();
        assert_eq!(reasons, [SkipReason::FileTooLarge, SkipReason::TotalTooLarge, SkipReason::TotalTooLarge]);
        assert!(budget.admit("empty", 0));
        assert!(!budget.admit("f", 0));
        assert_eq!(budget.skipped.named.last().unwrap().reason, SkipReason::TooManyFiles);
    }

    #[test]
    fn paths_are_relative_and_printable() {
        let deepest = format!("{}f", "d/".repeat(MAX_ARTIFACT_DEPTH));
        for path in ["a", ".hidden", "a b/c.bin", "ü/😀", "no-extension", &deepest] {
            assert!(is_artifact_path(path), "{path}");
        }
        let deep = format!("d/{deepest}");
        let long = "x".repeat(MAX_ARTIFACT_PATH_BYTES + 1);
        for path in
            ["", "/a", "../a", "a/../b", "a//b", "./a", "a/", "a\nb", "a\u{1b}[m", "\u{fffd}", &deep, &long]
        {
            assert!(!is_artifact_path(path), "{path:?}");
        }
    }

    #[test]
    fn names_of_what_is_left_out_are_bounded_and_printable() {
        let mut skipped = SkippedArtifacts::default();
        (0..50).for_each(|_| skipped.add(b"a\x1b[31m\xff", SkipReason::Name));
        assert_eq!((skipped.named.len(), skipped.more), (MAX_NAMED_SKIPS, 30));
        assert_eq!(skipped.named[0].path, "a\\u{1b}[31m\u{fffd}");
        assert!(shown_path(&[b'x'; 5_000]).chars().count() == 201);
    }

    #[test]
    fn codes_name_their_reasons() {
        for reason in SkipReason::ALL {
            assert_eq!(SkipReason::from_code(reason.code()), Some(reason));
        }
        assert_eq!(SkipReason::from_code(10), None);
    }
}
