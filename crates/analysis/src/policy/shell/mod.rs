//! Analyzes shell scripts: which programs start with which arguments, after quotes, variables, aliases,
//! substitutions, pipes and wrappers, on brush's syntax tree.

mod command;
mod expand;

use std::collections::HashMap;

use brush_parser::ast::{self, CommandPrefixOrSuffixItem as Item, SourceLocation};
use brush_parser::{Parser, ParserOptions};

use super::Language;
use super::fact::{Fact, Kind, Shape};
use super::guard::{self, Allowance};
use super::rules::commands;
use crate::room;

const MAX_LEVELS: usize = 4;

/// Returns the facts about a shell script.
pub(crate) fn facts(code: &str, allowance: Allowance) -> Vec<Fact> {
    let mut reader = Reader::new(code, allowance);
    if let Err(why) = reader.script(code) {
        reader.say(0, Kind::Shape(Shape::Syntax(why)));
    }
    reader.facts
}

/// Returns the facts about a program that is started without a shell and without known input.
pub(crate) fn program(words: Vec<Option<String>>, at: usize, allowance: &Allowance) -> Vec<Fact> {
    let mut reader = Reader::new("", allowance.clone());
    reader.started(words, at);
    reader.facts
}

/// Returns the facts about a program that is started with these arguments and reads `input`.
pub(crate) fn command(words: &[String], input: Option<&str>, allowance: Allowance) -> Vec<Fact> {
    let words: Vec<_> = words.iter().cloned().map(Some).collect();
    let mut reader = Reader::new("", allowance);
    if let Some(input) = input {
        let flow = expand::Flow { text: Some(input.to_owned()), ..expand::Flow::default() };
        reader.fed(&words, &flow, 0);
    }
    reader.started(words, 0);
    reader.facts
}

pub(crate) struct Reader {
    facts: Vec<Fact>,
    /// Variables that were set; `None` for an unknown value.
    variables: HashMap<String, Option<String>>,
    aliases: HashMap<String, String>,
    /// Whether the working directory is `/`.
    rooted: bool,
    /// Byte offsets of characters; empty for ASCII code, where offsets are equal.
    bytes: Vec<usize>,
    /// Remaining depth to which the output of nested substitutions is computed.
    levels: usize,
    allowance: Allowance,
}

impl Reader {
    fn new(code: &str, allowance: Allowance) -> Self {
        let bytes =
            if code.is_ascii() { Vec::new() } else { code.char_indices().map(|(at, _)| at).collect() };
        let (variables, aliases) = (HashMap::new(), HashMap::new());
        Self { facts: Vec::new(), variables, aliases, rooted: false, bytes, levels: MAX_LEVELS, allowance }
    }

    fn say(&mut self, at: usize, kind: Kind) {
        // Facts lost to an exhausted budget are reported once, for the whole program.
        if !self.allowance.budget.spend_bytes(kind.bytes()) {
            return;
        }
        self.facts.push(Fact { at, language: Language::Shell, kind });
    }

    fn place(&self, node: &impl SourceLocation) -> usize {
        let index = node.location().map_or(0, |span| span.start.index);
        self.bytes.get(index).copied().unwrap_or(index)
    }

    fn script(&mut self, code: &str) -> Result<(), String> {
        if !self.allowance.budget.spend(code.len()) {
            return Ok(());
        }
        let program = Parser::new(code.as_bytes(), &ParserOptions::default()).parse_program();
        let program = program.map_err(|error| error.to_string())?;
        program.complete_commands.iter().for_each(|list| self.list(list));
        Ok(())
    }

    /// Analyzes code that another command runs in this shell, so that it uses and sets the same variables.
    fn inside(&mut self, code: &str, at: usize) {
        let Some(allowance) = self.allowance.inside(code.len()) else {
            return self.say(at, Kind::Shape(Shape::Unread("too much nested code")));
        };
        let outer = std::mem::replace(&mut self.allowance, allowance);
        let before = self.facts.len();
        // Syntax errors in nested code are not reported.
        if room::is_endless_shell(code) || room::with_room(code, || self.script(code)).is_err() {
            self.say(at, Kind::Shape(Shape::Unread("nested too deeply")));
        }
        self.facts[before..].iter_mut().for_each(|fact| fact.at = at);
        self.allowance = outer;
    }

    /// Analyzes code that an interpreter runs.
    fn run(&mut self, code: &str, language: Language, at: usize) {
        match language {
            Language::Shell => self.inside(code, at),
            _ => self.facts.extend(guard::inside(code, language, at, &self.allowance)),
        }
    }

    fn list(&mut self, list: &ast::CompoundList) {
        for ast::CompoundListItem(commands, _) in &list.0 {
            self.pipeline(&commands.first);
            for next in &commands.additional {
                let (ast::AndOr::And(pipeline) | ast::AndOr::Or(pipeline)) = next;
                self.pipeline(pipeline);
            }
        }
    }

    fn pipeline(&mut self, pipeline: &ast::Pipeline) {
        // Tracks the text in the pipe, if known, and where it came from.
        let mut flow = expand::Flow::default();
        for (index, command) in pipeline.seq.iter().enumerate() {
            let words = self.command(command);
            let at = self.place(command);
            // Each program in a pipe may produce another text.
            if !self.allowance.budget.spend_bytes(flow.text.as_ref().map_or(0, String::len)) {
                return;
            }
            if let Some(words) = words {
                if index > 0 {
                    self.fed(&words, &flow, at);
                }
                flow = flow.through(&words);
            } else {
                flow = expand::Flow::default();
            }
        }
    }

    /// Analyzes a command, and returns its words if it is a simple command.
    fn command(&mut self, command: &ast::Command) -> Option<Vec<Option<String>>> {
        if !self.allowance.budget.spend(1) {
            return None;
        }
        match command {
            ast::Command::Simple(simple) => return Some(self.simple(simple)),
            ast::Command::Compound(compound, redirects) => {
                self.compound(compound);
                self.redirects(redirects.as_ref());
            }
            ast::Command::Function(function) => self.function(function),
            ast::Command::ExtendedTest(..) => {}
        }
        None
    }

    fn function(&mut self, function: &ast::FunctionDefinition) {
        let name = function.fname.value.clone();
        let rooted = self.rooted;
        self.compound(&function.body.0);
        self.rooted = rooted;
        if command::multiplies(&name, &function.body.0) {
            let at = self.place(function);
            self.say(at, Kind::Shape(Shape::ForkBomb));
        }
    }

    fn compound(&mut self, compound: &ast::CompoundCommand) {
        use ast::CompoundCommand as C;
        match compound {
            C::BraceGroup(group) => self.list(&group.list),
            C::Subshell(subshell) => {
                let rooted = self.rooted;
                self.list(&subshell.list);
                self.rooted = rooted;
            }
            C::ForClause(clause) => {
                for word in clause.values.iter().flatten() {
                    self.word(word);
                }
                self.variables.insert(clause.variable_name.clone(), None);
                self.list(&clause.body.list);
            }
            C::ArithmeticForClause(clause) => self.list(&clause.body.list),
            C::CaseClause(clause) => {
                self.word(&clause.value);
                clause.cases.iter().filter_map(|case| case.cmd.as_ref()).for_each(|list| self.list(list));
            }
            C::IfClause(clause) => {
                self.list(&clause.condition);
                self.list(&clause.then);
                for other in clause.elses.iter().flatten() {
                    other.condition.iter().for_each(|list| self.list(list));
                    self.list(&other.body);
                }
            }
            C::WhileClause(clause) | C::UntilClause(clause) => {
                self.list(&clause.0);
                self.list(&clause.1.list);
            }
            C::Coprocess(coprocess) => _ = self.command(&coprocess.body),
            C::Arithmetic(_) => {}
        }
    }

    fn simple(&mut self, simple: &ast::SimpleCommand) -> Vec<Option<String>> {
        let at = self.place(simple);
        for item in simple.prefix.iter().flat_map(|prefix| &prefix.0) {
            self.item(item, at, simple.word_or_name.is_none());
        }
        let mut words = Vec::new();
        if let Some(name) = &simple.word_or_name {
            words.push(self.word(name));
        }
        for item in simple.suffix.iter().flat_map(|suffix| &suffix.0) {
            match item {
                Item::Word(word) | Item::AssignmentWord(_, word) => words.push(self.word(word)),
                Item::ProcessSubstitution(..) => {
                    self.item(item, at, false);
                    // A file with unknown content.
                    words.push(None);
                }
                Item::IoRedirect(_) => self.item(item, at, false),
            }
        }
        if let Some(first) = words.first_mut() {
            let first = expand::split(first.take());
            words.splice(..1, first);
        }
        if let Some((language, code)) = command::here_document(simple, words.first())
            && let Some(code) = self.expanded_text(&code)
        {
            self.run(&code, language, at);
        }
        self.started(words.clone(), at);
        words
    }

    fn item(&mut self, item: &Item, at: usize, keeps: bool) {
        match item {
            Item::AssignmentWord(assignment, _) => {
                let value = match &assignment.value {
                    ast::AssignmentValue::Scalar(word) => self.word(word),
                    ast::AssignmentValue::Array(_) => None,
                };
                if let ast::AssignmentName::VariableName(name) = &assignment.name {
                    let value = if assignment.append { None } else { value };
                    self.special_variable(name, value.as_deref(), at);
                    if keeps {
                        self.variables.insert(name.clone(), value);
                    }
                }
            }
            Item::IoRedirect(redirect) => self.redirect(redirect, at),
            Item::ProcessSubstitution(kind, subshell) => {
                self.list(&subshell.list);
                if matches!(kind, ast::ProcessSubstitutionKind::Write) {
                    self.written_to(&subshell.list, at);
                }
            }
            Item::Word(_) => {}
        }
    }

    /// Handles `tee >(bash)`: the text written there is unknown.
    fn written_to(&mut self, list: &ast::CompoundList, at: usize) {
        if let [ast::CompoundListItem(commands, _), ..] = list.0.as_slice()
            && let Some(ast::Command::Simple(simple)) = commands.first.seq.first()
            && self.levels > 0
            && let Some(words) = self.plain_words(simple)
        {
            self.fed(&words, &expand::Flow::default(), at);
        }
    }

    /// Reports variables that cause code to run: as their value, or in libraries that they name.
    fn special_variable(&mut self, name: &str, value: Option<&str>, at: usize) {
        match (name, value) {
            ("PROMPT_COMMAND", Some(code)) => self.inside(code, at),
            ("PS4" | "PS1", Some(text)) => self.substituted(text, at),
            ("PROMPT_COMMAND" | "BASH_ENV", _) => self.say(at, Kind::Shape(Shape::UnknownCode("BASH_ENV"))),
            ("LD_PRELOAD" | "LD_AUDIT", _) => {
                self.say(at, Kind::Command { name: name.to_owned(), words: Vec::new() });
            }
            _ => {}
        }
    }

    fn redirects(&mut self, redirects: Option<&ast::RedirectList>) {
        for redirect in redirects.iter().flat_map(|list| &list.0) {
            let at = self.place(redirect);
            self.redirect(redirect, at);
        }
    }

    fn redirect(&mut self, redirect: &ast::IoRedirect, at: usize) {
        use ast::IoFileRedirectKind as K;
        let target = match redirect {
            ast::IoRedirect::File(_, kind, ast::IoFileRedirectTarget::Filename(word)) => {
                let name = self.word(word);
                let writes = matches!(kind, K::Write | K::Append | K::Clobber | K::ReadAndWrite);
                // Reading from one of these also opens a connection.
                name.filter(|name| writes || commands::is_network_file(name))
            }
            ast::IoRedirect::File(_, _, ast::IoFileRedirectTarget::ProcessSubstitution(_, subshell)) => {
                self.list(&subshell.list);
                None
            }
            // `>& file` also writes a file; a number or `-` is harmless as a path.
            ast::IoRedirect::File(_, K::DuplicateOutput, ast::IoFileRedirectTarget::Duplicate(word))
            | ast::IoRedirect::OutputAndError(word, _) => self.word(word),
            _ => None,
        };
        if let Some(path) = target {
            self.say(at, Kind::Write(path));
        }
    }
}
