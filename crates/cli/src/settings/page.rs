//! Generates `docs/settings.md` from the table.

use std::fmt::Write as _;

use belljar_engine::limits::HostCapacity;

use super::Settings;
use super::setting::{LocalFile, Setting};
use super::table::GROUPS;
use crate::config::Config;
use crate::env::Environment;

const HEAD: &str = "\
# Settings

A command-line flag overrides an environment variable, which overrides the configuration file, which overrides the default.
`belljar config show` prints every setting with its value and where it comes from; `--json` prints the same for a program.

    $ BELLJAR_SERVER_DRAIN=1m belljar config show
     SETTING        VALUE           FROM
     server.listen  127.0.0.1:7117  default
     server.drain   1m              BELLJAR_SERVER_DRAIN
     server.queue   64              /etc/belljar/belljar.toml:server.queue
     …

The name of a setting is its key in the file: `server.drain` is `drain` in the table `[server]` of
[`belljar.toml`](../examples/belljar.toml). One file is read: the one that `--config` or `BELLJAR_CONFIG` names, else
`~/.config/belljar/belljar.toml`, else `/etc/belljar/belljar.toml`. An unknown key is an error; a `BELLJAR_*` variable that looks misspelled
is a warning. An invalid value fails every command, but one of `[server]` fails only `belljar serve` and `belljar config show`.
Values in a file and in a variable:

| type | in a file | in a variable |
|---|---|---|
| size | `\"512M\"`, `\"1.5G\"` or a number of bytes | `512M` |
| time | `\"30s\"`, `\"500ms\"`, `\"2m\"` or a number of seconds | `30s` |
| milliseconds | a number of milliseconds, or `\"30s\"` | `30s`; a bare number is in seconds |
| bytes | a number of bytes, or `\"512M\"` | `512M` |
| list | `[\"a\", \"b\"]` | `a,b` |
| table | a TOML table | an inline table: `{ a = \"b\" }` |

A `belljar.toml` in the current folder may have come with the code that is to run, so it is not trusted unless `--config` or
`BELLJAR_CONFIG` names it. It can only add profiles, and only with the settings marked ◦. It is refused if it has anything else, but `preimports` are
only ignored.
";

const FOOT: &str = "
## Other variables

| variable | effect |
|---|---|
| `XDG_CONFIG_HOME`, `XDG_STATE_HOME`, `XDG_CACHE_HOME`, `HOME` | the user's folders for configuration, data and caches |
| `DOCKER_HOST` | address of the Docker daemon, if `providers.docker.host` is not set |
| `DOCKER_CONFIG` | folder of `docker login`'s credentials, which image pulls use |
";

/// Returns the page as Markdown.
fn page() -> String {
    let defaults = Settings::new(Environment::default(), Config::for_machine(HostCapacity::default()));
    let mut page = HEAD.to_owned();
    for group in &*GROUPS {
        let _ = write!(page, "\n## {}\n\n", group.title);
        if !group.about.is_empty() {
            let _ = write!(page, "{}\n\n", group.about);
        }
        page.push_str(
            "| setting | type | default | variable | flag | meaning |\n|---|---|---|---|---|---|\n",
        );
        for row in &group.rows {
            page.push_str(&line(row, &defaults));
        }
    }
    page + FOOT
}

fn line(row: &Setting, defaults: &Settings) -> String {
    let code = |text: &str| format!("`{text}`");
    let name = row.name.replace('*', "NAME");
    let mark = if row.local == LocalFile::Allowed { " ◦" } else { "" };
    let shown = row.show(defaults);
    let default = match (row.documented, &*shown) {
        (Some(text), _) => text.to_owned(),
        (None, "") => String::new(),
        (None, shown) => code(shown),
    };
    let aliases = row.aliases.iter().map(|(name, unit)| match *unit {
        "s" => format!("`{name}` (seconds)"),
        "M" => format!("`{name}` (MB)"),
        "h" => format!("`{name}` (hours)"),
        _ => code(name),
    });
    let fallback = row.fallback.map(|name| format!("`{name}` if the file does not set it"));
    let variables: Vec<_> =
        row.variable.as_deref().map(code).into_iter().chain(aliases).chain(fallback).collect();
    let flag = row.flag.map(code).unwrap_or_default();
    let secret = if row.secret && row.type_name != "secret" { ", secret" } else { "" };
    let cells = [
        format!("`{name}`{mark}"),
        format!("{}{secret}", row.type_name),
        default,
        variables.join(", "),
        flag,
        row.about.to_string(),
    ];
    format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
}

#[test]
fn settings_docs_are_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md");
    if std::env::var_os("BELLJAR_WRITE_DOCS").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == page(), "docs/settings.md is out of date; BELLJAR_WRITE_DOCS=1 regenerates it");
}
