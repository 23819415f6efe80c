//! Maps JavaScript import specifiers to packages.

/// Modules built into the runtime, with and without `node:`. From Node 20's `module.builtinModules`.
const BUILT_IN: [&str; 43] = [
    "assert",
    "async_hooks",
    "buffer",
    "bun",
    "child_process",
    "cluster",
    "console",
    "constants",
    "crypto",
    "dgram",
    "diagnostics_channel",
    "dns",
    "domain",
    "events",
    "fs",
    "http",
    "http2",
    "https",
    "inspector",
    "module",
    "net",
    "os",
    "path",
    "perf_hooks",
    "process",
    "punycode",
    "querystring",
    "readline",
    "repl",
    "stream",
    "string_decoder",
    "sys",
    "timers",
    "tls",
    "trace_events",
    "tty",
    "url",
    "util",
    "v8",
    "vm",
    "wasi",
    "worker_threads",
    "zlib",
];

/// Returns the package of a specifier, and its version if the specifier has one: `npm:@a/b@1/c` → `@a/b`,
/// `1`. Returns `None` for a path, a URL, an alias of the project or a built-in module.
pub(super) fn package_of(specifier: &str) -> Option<(&str, Option<&str>)> {
    let bare = specifier.strip_prefix("npm:").map_or(specifier, |rest| rest.trim_start_matches('/'));
    let (name, rest) = split_name(bare)?;
    if !is_name(name) || (bare == specifier && rest.is_empty_or_path() && BUILT_IN.contains(&name)) {
        return None;
    }
    match rest.0.strip_prefix('@') {
        Some(version) => {
            let version = version.split('/').next().unwrap_or(version);
            let plain = |c: char| c.is_ascii_alphanumeric() || "^~<>=|*.- +".contains(c);
            (!version.is_empty() && version.chars().all(plain)).then_some((name, Some(version)))
        }
        None => Some((name, None)),
    }
}

/// The part after the name: nothing, `/path`, or `@version/path`.
struct SpecifierRest<'a>(&'a str);

impl SpecifierRest<'_> {
    fn is_empty_or_path(&self) -> bool {
        self.0.is_empty() || self.0.starts_with('/')
    }
}

fn split_name(bare: &str) -> Option<(&str, SpecifierRest<'_>)> {
    let from = match bare.strip_prefix('@') {
        Some(scoped) => scoped.find('/')? + 2,
        None => 0,
    };
    let end = bare[from..].find(['/', '@']).map_or(bare.len(), |at| from + at);
    Some((&bare[..end], SpecifierRest(&bare[end..])))
}

/// Returns whether a registry accepts the name. Only old packages have capital letters.
pub(super) fn is_name(name: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|first: char| first.is_ascii_alphanumeric())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-._~".contains(c))
    };
    name.len() <= 214
        && match name.strip_prefix('@').map(|scoped| scoped.split_once('/')) {
            Some(Some((scope, name))) => part(scope) && part(name),
            Some(None) => false,
            None => part(name),
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specifiers_become_packages() {
        for (specifier, wanted) in [
            ("lodash", Some(("lodash", None))),
            ("lodash/fp", Some(("lodash", None))),
            ("@scope/pkg", Some(("@scope/pkg", None))),
            ("@scope/pkg/deep/file.js", Some(("@scope/pkg", None))),
            ("npm:chalk@5", Some(("chalk", Some("5")))),
            ("npm:/chalk@5/source", Some(("chalk", Some("5")))),
            ("npm:@a/b@^1.2/c", Some(("@a/b", Some("^1.2")))),
            ("zod@3.22.4", Some(("zod", Some("3.22.4")))),
            ("highlight.js", Some(("highlight.js", None))),
            ("npm:events", Some(("events", None))),
            ("fs", None),
            ("fs/promises", None),
            ("node:test", None),
            ("bun:sqlite", None),
            ("./a", None),
            ("../a", None),
            ("/a", None),
            ("#internal", None),
            ("@/components/x", None),
            ("~/x", None),
            ("@scope", None),
            ("", None),
            ("@", None),
            ("https://esm.sh/lodash", None),
            ("jsr:@std/path", None),
            ("data:text/javascript,1", None),
            ("-g", None),
            ("a b", None),
            ("style-loader!x", None),
            ("lodash@", None),
            ("lodash@file:x", None),
        ] {
            assert_eq!(package_of(specifier), wanted, "{specifier}");
        }
    }
}
