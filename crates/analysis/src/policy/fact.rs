//! Facts that front ends report about code: resolved names and commands, with positions.

use super::PolicyLanguage;

/// Something that the code does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CodeFact {
    /// Offset of its first byte.
    pub(crate) at: usize,
    /// Language whose rules apply to it: code may contain code in another language.
    pub(crate) language: PolicyLanguage,
    pub(crate) kind: FactKind,
}

/// Kinds of facts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FactKind {
    /// A module is imported.
    Import(String),
    /// A resolved name is used; called, if there are arguments. A keyword argument is `name=value`.
    Name { path: String, arguments: Option<Vec<Option<String>>> },
    /// A method of an unknown object is called, or an attribute that is notable by itself is read.
    Member(String),
    /// A shell command: the last component of its path, and its arguments as far as they are known.
    Command { name: String, words: Vec<Option<String>> },
    /// A redirection writes to a file.
    FileWrite(String),
    /// A pattern that spans several nodes, or a problem with the code as a whole.
    Pattern(CodePattern),
}

/// Patterns that span several nodes, and problems with the code as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CodePattern {
    /// A function that starts itself twice, or a loop that forks without end.
    ForkBomb,
    /// Code that cannot be determined is executed.
    UnknownCode(&'static str),
    /// A download is piped directly into an interpreter.
    PipedDownload,
    /// Decoded text is executed.
    DecodedCode,
    /// A name is assembled from parts.
    AssembledName(String),
    /// The code cannot be parsed.
    SyntaxError(String),
    /// The code was not analyzed: too long, nested too deeply or too complex.
    NotAnalyzed(&'static str),
}

impl FactKind {
    /// Returns roughly how many bytes the fact stores.
    pub(crate) fn stored_bytes(&self) -> usize {
        let all = |texts: &[Option<String>]| texts.iter().flatten().map(String::len).sum::<usize>();
        match self {
            Self::Import(text) | Self::Member(text) | Self::FileWrite(text) => text.len(),
            Self::Name { path, arguments } => path.len() + arguments.as_deref().map_or(0, all),
            Self::Command { name, words } => name.len() + all(words),
            Self::Pattern(CodePattern::AssembledName(text) | CodePattern::SyntaxError(text)) => text.len(),
            Self::Pattern(_) => 0,
        }
    }
}

/// Longest text that is folded, in bytes.
pub(crate) const MAX_FOLDED_BYTES: usize = 16 << 10;

/// Replaces every `from` with `to`; returns `None` if the result would exceed [`MAX_FOLDED_BYTES`].
pub(crate) fn replace_bounded(text: &str, from: &str, to: &str) -> Option<String> {
    if from.is_empty() {
        return None;
    }
    let times = text.matches(from).count();
    let length = (text.len() - times * from.len()).saturating_add(times.saturating_mul(to.len()));
    (length <= MAX_FOLDED_BYTES).then(|| text.replace(from, to))
}

/// Decodes base64 text.
pub(crate) fn decode_base64(text: &str) -> Option<String> {
    use base64::Engine as _;
    let packed: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let engine = base64::engine::general_purpose::STANDARD_NO_PAD;
    let bytes = engine.decode(packed.trim_end_matches('=')).ok()?;
    String::from_utf8(bytes).ok().filter(|text| text.len() <= MAX_FOLDED_BYTES)
}
