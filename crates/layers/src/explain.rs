//! Shortens installer output to the relevant part and removes secrets from it.

/// Maximum length of an explanation, in characters.
const MAX_CHARS: usize = 600;

/// Prefixes of lines that do not help the caller.
const NOISE: &[&str] = &[
    "warn",
    "hint: ",
    "note:",
    "notice",
    "[notice]",
    "resolving",
    "resolved",
    "saved lockfile",
    "bun install",
    "bun add",
    "npm error code",
    "npm error a complete log",
    "npm error     ",
    "npm warn",
    "looking in ",
    "collecting",
    "using cached",
    "downloading",
    "npm error note that you can also install",
    "npm error the following",
];

/// Returns the relevant part of an installer's output.
pub(crate) fn shortened(output: &str) -> String {
    let told: Vec<String> = output.lines().filter_map(relevant_line).collect();
    let text = told.join(" ");
    let text = without_secrets(text.trim());
    if text.is_empty() {
        return "the installer failed without saying why".to_owned();
    }
    match text.char_indices().nth(MAX_CHARS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

/// Returns the end of a build's output, where the error is.
pub(crate) fn end_of(output: &str) -> String {
    let plain: String = output.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let text = without_secrets(&plain.split_whitespace().collect::<Vec<_>>().join(" "));
    if text.is_empty() {
        return "it failed without saying why".to_owned();
    }
    match text.char_indices().rev().nth(MAX_CHARS - 1) {
        Some((at, _)) if at > 0 => format!("…{}", &text[at..]),
        _ => text,
    }
}

fn relevant_line(line: &str) -> Option<String> {
    // Removes the box-drawing characters of uv and the names of the tools.
    let plain: String = line.chars().filter(|c| !c.is_control() && !"×╰─▶│├".contains(*c)).collect();
    let lower = plain.trim_end().to_lowercase();
    if lower.is_empty() || NOISE.iter().any(|noise| lower.trim_start().starts_with(noise)) {
        return None;
    }
    let mut text = plain.trim();
    for prefix in ["error: ", "ERROR: ", "npm error "] {
        text = text.strip_prefix(prefix).unwrap_or(text);
    }
    Some(text.split_whitespace().collect::<Vec<_>>().join(" ")).filter(|text| !text.is_empty())
}

/// Removes user names and passwords from URLs.
pub(crate) fn without_secrets(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let end = after.find(|c: char| c == '/' || c.is_whitespace()).unwrap_or(after.len());
        rest = match after[..end].rfind('@') {
            Some(secret) => &after[secret + 1..],
            None => after,
        };
    }
    out.push_str(rest);
    out
}

/// Returns whether the installer failed to reach its registry, rather than being refused by it.
pub(crate) fn is_unreachable(output: &str) -> bool {
    let lower = output.to_lowercase();
    let signs = [
        "failed to fetch",
        "dns error",
        "connection refused",
        "connectionrefused",
        "connect error",
        "tcp connect",
        "timed out",
        "enotfound",
        "econnrefused",
        "eai_again",
        "etimedout",
        "network is unreachable",
        "failed to connect",
        "temporary failure in name resolution",
        "newconnectionerror",
        "no such host",
        "unable to connect",
        "cannot connect to proxy",
        "tunnel connection failed",
        "tunneling socket could not be established",
        "certificate",
    ];
    signs.iter().any(|sign| lower.contains(sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relevant_lines_are_kept() {
        let uv = "  × No solution found when resolving dependencies:\n  ╰─▶ Because nope was not found in the package registry and you\n      require nope, we can conclude that your requirements are unsatisfiable.\n";
        assert_eq!(
            shortened(uv),
            "No solution found when resolving dependencies: Because nope was not found in the package registry and you \
             require nope, we can conclude that your requirements are unsatisfiable."
        );
        let npm = "npm error code E404\nnpm error 404 Not Found - GET https://ann:secret@npm.example/nope - Not found\nnpm error A complete log of this run can be found in: /home\n";
        assert_eq!(shortened(npm), "404 Not Found - GET https://npm.example/nope - Not found");
        assert!(shortened(&"word ".repeat(1_000)).chars().count() <= MAX_CHARS + 1);
        assert_eq!(shortened("\n"), "the installer failed without saying why");
    }

    #[test]
    fn the_end_of_build_output_is_kept() {
        assert_eq!(end_of("running build\n  error: \u{1b}no compiler\n"), "running build error: no compiler");
        let long = end_of(&format!("{} the end", "ä ".repeat(1_000)));
        assert!(long.starts_with('…') && long.ends_with("the end") && long.chars().count() == MAX_CHARS + 1);
        assert_eq!(end_of(" \n"), "it failed without saying why");
    }

    #[test]
    fn passwords_are_removed() {
        for (text, plain) in [
            ("at https://u:p@x.example/simple/ now", "at https://x.example/simple/ now"),
            ("https://x.example/a@b", "https://x.example/a@b"),
            ("http://tok@en@h", "http://h"),
        ] {
            assert_eq!(without_secrets(text), plain);
        }
    }
}
