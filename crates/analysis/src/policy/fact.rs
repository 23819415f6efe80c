//! What front ends say about code: resolved names and commands, at a place.

use super::Language;

/// Something that the code does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fact {
    /// Byte at which it begins.
    pub(crate) at: usize,
    /// Whose rules hold for it: code may have code of another language inside.
    pub(crate) language: Language,
    pub(crate) kind: Kind,
}

/// The forms in which it does it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A module is loaded.
    Import(String),
    /// A resolved name is used; called where arguments are there. A keyword argument is `name=value`.
    Name { path: String, arguments: Option<Vec<Option<String>>> },
    /// A method of something unknown is called, or an attribute that is special by itself is read.
    Member(String),
    /// A program of the shell, by the last part of its path, and its words as far as they are known.
    Command { name: String, words: Vec<Option<String>> },
    /// A file is written by a redirection.
    Write(String),
    /// What only the whole shows.
    Shape(Shape),
}

/// What only the whole shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A function that starts itself twice, or a loop that forks without an end.
    ForkBomb,
    /// Something that is not known is executed as code.
    UnknownCode(&'static str),
    /// A download goes straight into an interpreter.
    Download,
    /// Code came out of an encoding.
    Decoded,
    /// A name was put together from parts.
    Assembled(String),
    /// The parser did not understand.
    Syntax(String),
    /// It was not read: too long or nested too deep.
    Unread(&'static str),
}

impl Kind {
    /// Returns roughly how many bytes it keeps.
    pub(crate) fn bytes(&self) -> usize {
        let all = |texts: &[Option<String>]| texts.iter().flatten().map(String::len).sum::<usize>();
        match self {
            Self::Import(text) | Self::Member(text) | Self::Write(text) => text.len(),
            Self::Name { path, arguments } => path.len() + arguments.as_deref().map_or(0, all),
            Self::Command { name, words } => name.len() + all(words),
            Self::Shape(Shape::Assembled(text) | Shape::Syntax(text)) => text.len(),
            Self::Shape(_) => 0,
        }
    }
}

/// The longest text that is folded.
pub(crate) const MAX_TEXT: usize = 16 << 10;

/// Returns a text with every `from` replaced by `to`; nothing where that would be longer than is folded.
pub(crate) fn replaced(text: &str, from: &str, to: &str) -> Option<String> {
    if from.is_empty() {
        return None;
    }
    let times = text.matches(from).count();
    let length = (text.len() - times * from.len()).saturating_add(times.saturating_mul(to.len()));
    (length <= MAX_TEXT).then(|| text.replace(from, to))
}

/// Reads base64 as code would.
pub(crate) fn base64_text(text: &str) -> Option<String> {
    use base64::Engine as _;
    let packed: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let engine = base64::engine::general_purpose::STANDARD_NO_PAD;
    let bytes = engine.decode(packed.trim_end_matches('=')).ok()?;
    String::from_utf8(bytes).ok().filter(|text| text.len() <= MAX_TEXT)
}
