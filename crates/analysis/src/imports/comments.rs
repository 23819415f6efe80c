//! Requirements declared in comments.
//!
//! - `# /// script` blocks with `dependencies` (PEP 723), as supported by uv, pipx, hatch and pdm.
//! - `# requires: a, b==1`, also `requirements:` and `dependencies:`, on one line.
//! - `# pip install a b==1`, also `pip3`, `python -m pip`, `uv pip`, and `!pip` and `%pip` lines of
//!   notebooks, up to the first option.
//!
//! A comment of the latter two kinds that does not parse as a list of requirements is treated as prose and
//! ignored.

use ruff_python_ast::token::{TokenKind, Tokens};
use ruff_text_size::Ranged;
use serde::Deserialize;

use super::{DeclaredRequirement, ImportOrigin, Requirement};
use crate::line_index::LineIndex;

/// Maximum length of a line of requirements; longer lines are prose.
const MAX_LINE_BYTES: usize = 1_000;

pub(super) fn declared_requirements(
    code: &str,
    tokens: &Tokens,
    lines: &LineIndex,
) -> Vec<DeclaredRequirement> {
    let mut declared = script_dependencies(code);
    for token in tokens {
        if !matches!(token.kind(), TokenKind::Comment | TokenKind::IpyEscapeCommand) {
            continue;
        }
        let Some(text) = code.get(token.start().to_usize()..token.end().to_usize()) else { continue };
        let line = lines.line_of(token.start().to_usize());
        declared.extend(parse_requirements_comment(text).into_iter().map(|text| DeclaredRequirement {
            text,
            line,
            how: ImportOrigin::Comment,
        }));
    }
    declared
}

#[derive(Deserialize)]
struct Script {
    #[serde(default)]
    dependencies: Vec<String>,
}

/// Returns the dependencies of the only `script` block; the specification makes a second one an error, so
/// neither counts.
fn script_dependencies(code: &str) -> Vec<DeclaredRequirement> {
    let mut blocks = script_blocks(code);
    let (Some((line, text)), None) = (blocks.next(), blocks.next()) else { return Vec::new() };
    let Ok(script) = toml::from_str::<Script>(&text) else { return Vec::new() };
    script
        .dependencies
        .into_iter()
        .map(|text| DeclaredRequirement { text, line, how: ImportOrigin::Script })
        .collect()
}

/// Returns the script blocks, each with its first line.
fn script_blocks(code: &str) -> impl Iterator<Item = (u32, String)> {
    let mut lines = (1..).zip(code.lines());
    std::iter::from_fn(move || {
        let (start, _) = lines.by_ref().find(|(_, line)| line.trim_end() == "# /// script")?;
        let mut text = String::new();
        // A block extends over consecutive comment lines and ends with the last `# ///` among them.
        let mut ended = None;
        for line in code.lines().skip(start as usize) {
            let Some(content) =
                line.strip_prefix('#').filter(|rest| rest.is_empty() || rest.starts_with(' '))
            else {
                break;
            };
            if content.trim_end() == " ///" {
                ended = Some(text.len());
            }
            text.push_str(content.strip_prefix(' ').unwrap_or(content));
            text.push('\n');
        }
        text.truncate(ended?);
        Some((start, text))
    })
}

/// Returns the requirements in a comment, or none if it is prose.
fn parse_requirements_comment(comment: &str) -> Vec<String> {
    let text = comment.trim_start_matches(['#', '!', '%', ' ', '$']).trim();
    if text.len() > MAX_LINE_BYTES {
        return Vec::new();
    }
    let items: Vec<&str> = if let Some(rest) = after_pip(text) {
        rest.split_whitespace().take_while(|word| !word.starts_with('-')).collect()
    } else if let Some(rest) = after_keyword(text) {
        rest.split(',').map(str::trim).filter(|item| !item.is_empty()).collect()
    } else {
        return Vec::new();
    };
    let items: Vec<String> =
        items.into_iter().map(|item| item.trim_matches(['"', '\'', '`']).to_owned()).collect();
    if items.iter().all(|item| Requirement::parse_python(item).is_ok()) { items } else { Vec::new() }
}

fn after_keyword(text: &str) -> Option<&str> {
    let (word, rest) = text.split_once(':')?;
    ["requires", "requirements", "dependencies"]
        .iter()
        .any(|known| word.eq_ignore_ascii_case(known))
        .then_some(rest)
}

fn after_pip(text: &str) -> Option<&str> {
    ["pip install ", "pip3 install ", "python -m pip install ", "python3 -m pip install ", "uv pip install "]
        .iter()
        .find_map(|start| text.strip_prefix(start))
}
