//! Detects the language of code when none is given.

use std::path::Path;

use belljar_engine::language::Language;

/// Detects the language by the file's extension, else by the code's `#!` line.
pub(crate) fn detect(path: &Path, code: &[u8]) -> Option<&'static Language> {
    path.file_name()
        .and_then(|name| name.to_str())
        .and_then(Language::from_file_name)
        .or_else(|| from_shebang(code))
}

/// Parses a `#!` line: `#!/usr/bin/env -S python3.12 -u` → python.
fn from_shebang(code: &[u8]) -> Option<&'static Language> {
    let line = code.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let program = line
        .split_whitespace()
        .map(|word| word.rsplit('/').next().unwrap_or(word))
        .find(|word| *word != "env" && !word.starts_with('-') && !word.contains('='))?;
    let name = program.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-'));
    Language::from_name(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_name_takes_precedence_over_the_shebang() {
        let found =
            |path: &str, code: &str| detect(Path::new(path), code.as_bytes()).map(|language| language.name);
        assert_eq!(found("a.js", "#!/usr/bin/python3\n"), Some("javascript"));
        for (line, name) in [
            ("#!/usr/bin/env python3", "python"),
            ("#!/usr/bin/env -S LANG=C python3.12 -u", "python"),
            ("#! /usr/bin/node", "javascript"),
            ("#!/bin/bash -e", "bash"),
            ("#!/bin/sh\r", "bash"),
            ("#!/usr/bin/ruby", "ruby"),
            ("#!/usr/bin/perl -w", "perl"),
            ("#!/usr/bin/php8.2", "php"),
            ("#!/usr/bin/lua5.4", "lua"),
            ("#!/usr/bin/Rscript", "r"),
        ] {
            assert_eq!(found("tool", &format!("{line}\nx\n")), Some(name), "{line}");
        }
        for nothing in ["", "print(1)", "#!", "#!/usr/bin/env", "#!/usr/bin/awk -f", "#!/bin/\u{e9}"] {
            assert_eq!(found("tool", nothing), None, "{nothing}");
        }
    }
}
