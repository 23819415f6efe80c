//! Expands words with quotes, variables and substitutions, as far as their values are known.

use brush_parser::ast;
use brush_parser::word::{
    self, Parameter, ParameterExpr, ParameterTransformOp, WordPiece, WordPieceWithSource,
};
use brush_parser::{Parser, ParserOptions};

use super::super::fact::{CodePattern, FactKind, MAX_FOLDED_BYTES, decode_base64};
use super::ShellAnalyzer;

/// Data in a pipe.
#[derive(Debug, Default, Clone)]
pub(crate) struct PipeData {
    /// The text, if known.
    pub(crate) text: Option<String>,
    pub(crate) downloaded: bool,
    pub(crate) decoded: bool,
}

impl PipeData {
    /// Returns the output of a program that reads this data.
    pub(crate) fn through_program(self, words: &[Option<String>]) -> Self {
        let name = words.first().and_then(|word| word.as_deref()).map(super::command::base_name);
        let known: Option<Vec<&str>> = words.iter().skip(1).map(|word| word.as_deref()).collect();
        let has = |wanted: &[&str]| words.iter().flatten().any(|word| wanted.contains(&word.as_str()));
        match name {
            Some("echo") => {
                let text = known.map(|words| {
                    let shown: Vec<_> =
                        words.into_iter().filter(|word| !matches!(*word, "-n" | "-e" | "-ne")).collect();
                    shown.join(" ")
                });
                Self { text, ..Self::default() }
            }
            Some("printf") => {
                let text = known.and_then(|words| match words.as_slice() {
                    [text] if !text.contains('%') => Some(unescaped(text)),
                    ["%s" | "%s\\n", text] => Some((*text).to_owned()),
                    _ => None,
                });
                Self { text, ..Self::default() }
            }
            Some("base64" | "base32") if has(&["-d", "-D", "--decode", "-di"]) => {
                Self { text: self.text.as_deref().and_then(decode_base64), decoded: true, ..self }
            }
            Some("xxd") if has(&["-r", "-p", "-rp"]) => {
                Self { text: self.text.as_deref().and_then(unhex), decoded: true, ..self }
            }
            Some("rev") => Self {
                text: self.text.map(|text| text.trim_end().chars().rev().collect()),
                decoded: true,
                ..self
            },
            Some("curl" | "wget" | "fetch") => Self { downloaded: true, ..Self::default() },
            Some("cat" | "tee") => self,
            Some("gunzip" | "gzip" | "zcat" | "openssl") => Self { text: None, decoded: true, ..self },
            _ => Self { text: None, ..self },
        }
    }
}

fn unescaped(text: &str) -> String {
    text.replace("\\n", "\n").replace("\\t", "\t").replace("\\\\", "\\")
}

fn unhex(text: &str) -> Option<String> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    String::from_utf8(digits.chunks(2).map(pair).collect::<Option<Vec<_>>>()?).ok()
}

/// Splits the expansion of a command name, which may be several words.
pub(crate) fn split_command_name(word: Option<String>) -> Vec<Option<String>> {
    match word {
        Some(text) if text.contains(char::is_whitespace) => {
            text.split_whitespace().map(|part| Some(part.to_owned())).collect()
        }
        // `{rm,-rf,/}`
        Some(text) if text.starts_with('{') && text.ends_with('}') && text.contains(',') => {
            text[1..text.len() - 1].split(',').map(|part| Some(part.to_owned())).collect()
        }
        word => vec![word],
    }
}

impl ShellAnalyzer {
    /// Expands a word, and analyzes its substitutions.
    pub(crate) fn expand_word(&mut self, word: &ast::Word) -> Option<String> {
        let at = self.offset_of(word);
        if !self.allowance.budget.spend_bytes(word.value.len()) {
            return None;
        }
        // Fast path for words without special characters.
        if !word.value.contains(['$', '`', '\'', '"', '\\', '~']) {
            return Some(word.value.clone());
        }
        let pieces = word::parse(&word.value, &ParserOptions::default()).ok()?;
        self.expand_pieces(&pieces, at)
    }

    pub(crate) fn expanded_text(&mut self, text: &ast::Word) -> Option<String> {
        let at = self.offset_of(text);
        let pieces = word::parse_heredoc(&text.value, &ParserOptions::default()).ok()?;
        self.expand_pieces(&pieces, at)
    }

    fn expand_pieces(&mut self, pieces: &[WordPieceWithSource], at: usize) -> Option<String> {
        // Expands every piece, even after an unknown one, because each may run something.
        let mut whole = Some(String::new());
        for piece in pieces {
            let part = self.expand_piece(&piece.piece, at);
            let bytes = part.as_ref().map_or(0, String::len);
            if !self.allowance.budget.spend_bytes(bytes) {
                return None;
            }
            whole = whole.zip(part).and_then(|(mut whole, part)| {
                (whole.len() + part.len() <= MAX_FOLDED_BYTES).then(|| whole.push_str(&part))?;
                Some(whole)
            });
        }
        whole
    }

    fn expand_piece(&mut self, piece: &WordPiece, at: usize) -> Option<String> {
        match piece {
            WordPiece::Text(text) | WordPiece::SingleQuotedText(text) => Some(text.clone()),
            WordPiece::AnsiCQuotedText(text) => Some(decode_ansi_c(text)),
            WordPiece::DoubleQuotedSequence(pieces) | WordPiece::GettextDoubleQuotedSequence(pieces) => {
                self.expand_pieces(pieces, at)
            }
            WordPiece::TildeExpansion(_) => Some("~".to_owned()),
            WordPiece::EscapeSequence(text) => Some(text.strip_prefix('\\').unwrap_or(text).to_owned()),
            WordPiece::ParameterExpansion(expr) => self.expand_parameter(expr, at),
            WordPiece::CommandSubstitution(code) | WordPiece::BackquotedCommandSubstitution(code) => {
                let rooted = self.in_root_directory;
                self.analyze_in_this_shell(code, at);
                self.in_root_directory = rooted;
                self.substitution_output(code, at)
            }
            WordPiece::ArithmeticExpression(sum) => {
                self.visit_substitutions(&sum.value, at);
                None
            }
        }
    }

    /// Analyzes the substitutions in a text that the shell evaluates.
    pub(crate) fn visit_substitutions(&mut self, text: &str, at: usize) {
        // Text that cannot be parsed does not run either.
        if !self.allowance.budget.spend(text.len()) {
            return;
        }
        if let Ok(pieces) = word::parse(text, &ParserOptions::default()) {
            self.expand_pieces(&pieces, at);
        }
    }

    fn expand_parameter(&mut self, expr: &ParameterExpr, at: usize) -> Option<String> {
        match expr {
            ParameterExpr::Parameter { parameter: Parameter::Named(name), indirect: false } => {
                match name.as_str() {
                    // Whitespace by default, and often used in place of it.
                    "IFS" => Some(" ".to_owned()),
                    "HOME" => Some(self.variables.get(name).cloned().unwrap_or(Some("~".to_owned()))?),
                    _ => self.variables.get(name).cloned().flatten(),
                }
            }
            ParameterExpr::Parameter {
                parameter: Parameter::Special(_) | Parameter::Positional(_), ..
            } => None,
            ParameterExpr::UseDefaultValues { parameter: Parameter::Named(name), default_value, .. } => {
                let known = self.variables.get(name).cloned().flatten();
                known.or_else(|| default_value.clone())
            }
            // `${x@P}` runs the substitutions in its text.
            ParameterExpr::Transform { parameter, op: ParameterTransformOp::PromptExpand, .. } => {
                let text = match parameter {
                    Parameter::Named(name) => self.variables.get(name).cloned().flatten(),
                    _ => None,
                };
                match text {
                    Some(text) => self.visit_substitutions(&text, at),
                    None => self.report(at, FactKind::Pattern(CodePattern::UnknownCode("${…@P}"))),
                }
                None
            }
            _ => None,
        }
    }

    /// Computes the output of a substituted command if it is a pipe of plain text.
    fn substitution_output(&mut self, code: &str, at: usize) -> Option<String> {
        if self.remaining_substitution_depth == 0 || !self.allowance.budget.spend(code.len()) {
            return None;
        }
        let program = Parser::new(code.as_bytes(), &ParserOptions::default()).parse_program().ok()?;
        let [list] = program.complete_commands.as_slice() else { return None };
        let [ast::CompoundListItem(commands, _)] = list.0.as_slice() else { return None };
        if !commands.additional.is_empty() {
            return None;
        }
        let mut flow = PipeData::default();
        for command in &commands.first.seq {
            let ast::Command::Simple(simple) = command else { return None };
            let words = self.plain_words(simple)?;
            flow = flow.through_program(&words);
        }
        if flow.decoded && flow.text.is_some() {
            self.report(at, FactKind::Pattern(CodePattern::DecodedCode));
        }
        flow.text.map(|text| text.trim_end_matches('\n').to_owned())
    }

    pub(crate) fn plain_words(&mut self, simple: &ast::SimpleCommand) -> Option<Vec<Option<String>>> {
        use ast::CommandPrefixOrSuffixItem as Item;
        let name = simple.word_or_name.as_ref()?;
        self.remaining_substitution_depth -= 1;
        let mut words = vec![self.expand_word(name)];
        for item in simple.suffix.iter().flat_map(|suffix| &suffix.0) {
            if let Item::Word(word) | Item::AssignmentWord(_, word) = item {
                words.push(self.expand_word(word));
            }
        }
        self.remaining_substitution_depth += 1;
        Some(words)
    }
}

/// Decodes `$'\x72m'`.
fn decode_ansi_c(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((plain, escape)) = rest.split_once('\\') {
        out.push_str(plain);
        let number = |digits: &str, radix| u32::from_str_radix(digits, radix).ok().and_then(char::from_u32);
        let (letter, used) = match escape.as_bytes() {
            [b'x', ..] => {
                let digits = escape[1..].bytes().take(2).take_while(u8::is_ascii_hexdigit).count();
                (number(&escape[1..=digits], 16), 1 + digits)
            }
            [b'0'..=b'7', ..] => {
                let digits = escape.bytes().take(3).take_while(|b| (b'0'..=b'7').contains(b)).count();
                (number(&escape[..digits], 8), digits)
            }
            [b'n', ..] => (Some('\n'), 1),
            [b't', ..] => (Some('\t'), 1),
            _ => (escape.chars().next(), escape.chars().next().map_or(0, char::len_utf8)),
        };
        out.extend(letter);
        rest = &escape[used..];
    }
    out + rest
}
