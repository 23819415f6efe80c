//! Analyzes shell scripts: which programs start with which arguments, after quotes, variables, aliases,
//! substitutions, pipes and wrappers, on brush's syntax tree.

mod command;
mod expand;

use std::collections::HashMap;

use brush_parser::ast::{self, CommandPrefixOrSuffixItem as Item, SourceLocation};
use brush_parser::{Parser, ParserOptions};

use super::PolicyLanguage;
use super::analyze::{self, AnalysisBudget};
use super::fact::{CodeFact, CodePattern, FactKind};
use super::rules::commands;
use crate::parse_limits;

const MAX_SUBSTITUTION_DEPTH: usize = 4;

/// Returns the facts about a shell script.
pub(crate) fn facts(code: &str, allowance: AnalysisBudget) -> Vec<CodeFact> {
    let mut reader = ShellAnalyzer::new(code, allowance);
    if let Err(why) = reader.analyze_script(code) {
        reader.report(0, FactKind::Pattern(CodePattern::SyntaxError(why)));
    }
    reader.facts
}

/// Returns the facts about a program that is started without a shell and without known input.
pub(crate) fn program_facts(
    words: Vec<Option<String>>,
    at: usize,
    allowance: &AnalysisBudget,
) -> Vec<CodeFact> {
    let mut reader = ShellAnalyzer::new("", allowance.clone());
    reader.visit_program(words, at);
    reader.facts
}

/// Returns the facts about a program that is started with these arguments and reads `input`.
pub(crate) fn command_facts(
    words: &[String],
    input: Option<&str>,
    allowance: AnalysisBudget,
) -> Vec<CodeFact> {
    let words: Vec<_> = words.iter().cloned().map(Some).collect();
    let mut reader = ShellAnalyzer::new("", allowance);
    if let Some(input) = input {
        let flow = expand::PipeData { text: Some(input.to_owned()), ..expand::PipeData::default() };
        reader.visit_pipe_input(&words, &flow, 0);
    }
    reader.visit_program(words, 0);
    reader.facts
}

pub(crate) struct ShellAnalyzer {
    facts: Vec<CodeFact>,
    /// Variables that were set; `None` for an unknown value.
    variables: HashMap<String, Option<String>>,
    aliases: HashMap<String, String>,
    /// Whether the working directory is `/`.
    in_root_directory: bool,
    /// Byte offsets of characters; empty for ASCII code, where offsets are equal.
    byte_offsets: Vec<usize>,
    /// Remaining depth to which the output of nested substitutions is computed.
    remaining_substitution_depth: usize,
    allowance: AnalysisBudget,
}

impl ShellAnalyzer {
    fn new(code: &str, allowance: AnalysisBudget) -> Self {
        let bytes =
            if code.is_ascii() { Vec::new() } else { code.char_indices().map(|(at, _)| at).collect() };
        let (variables, aliases) = (HashMap::new(), HashMap::new());
        Self {
            facts: Vec::new(),
            variables,
            aliases,
            in_root_directory: false,
            byte_offsets: bytes,
            remaining_substitution_depth: MAX_SUBSTITUTION_DEPTH,
            allowance,
        }
    }

    fn report(&mut self, at: usize, kind: FactKind) {
        // Facts lost to an exhausted budget are reported once, for the whole program.
        if !self.allowance.budget.spend_bytes(kind.stored_bytes()) {
            return;
        }
        self.facts.push(CodeFact { at, language: PolicyLanguage::Shell, kind });
    }

    fn offset_of(&self, node: &impl SourceLocation) -> usize {
        let index = node.location().map_or(0, |span| span.start.index);
        self.byte_offsets.get(index).copied().unwrap_or(index)
    }

    fn analyze_script(&mut self, code: &str) -> Result<(), String> {
        if !self.allowance.budget.spend(code.len()) {
            return Ok(());
        }
        let program = Parser::new(code.as_bytes(), &ParserOptions::default()).parse_program();
        let program = program.map_err(|error| error.to_string())?;
        program.complete_commands.iter().for_each(|list| self.visit_list(list));
        Ok(())
    }

    /// Analyzes code that another command runs in this shell, so that it uses and sets the same variables.
    fn analyze_in_this_shell(&mut self, code: &str, at: usize) {
        let Some(allowance) = self.allowance.nested(code.len()) else {
            return self.report(at, FactKind::Pattern(CodePattern::NotAnalyzed("too much nested code")));
        };
        let outer = std::mem::replace(&mut self.allowance, allowance);
        let before = self.facts.len();
        // Syntax errors in nested code are not reported.
        if parse_limits::exceeds_shell_limits(code)
            || parse_limits::with_stack_for(code, || self.analyze_script(code)).is_err()
        {
            self.report(at, FactKind::Pattern(CodePattern::NotAnalyzed("nested too deeply")));
        }
        self.facts[before..].iter_mut().for_each(|fact| fact.at = at);
        self.allowance = outer;
    }

    /// Analyzes code that an interpreter runs.
    fn analyze_nested(&mut self, code: &str, language: PolicyLanguage, at: usize) {
        match language {
            PolicyLanguage::Shell => self.analyze_in_this_shell(code, at),
            _ => self.facts.extend(analyze::analyze_nested(code, language, at, &self.allowance)),
        }
    }

    fn visit_list(&mut self, list: &ast::CompoundList) {
        for ast::CompoundListItem(commands, _) in &list.0 {
            self.visit_pipeline(&commands.first);
            for next in &commands.additional {
                let (ast::AndOr::And(pipeline) | ast::AndOr::Or(pipeline)) = next;
                self.visit_pipeline(pipeline);
            }
        }
    }

    fn visit_pipeline(&mut self, pipeline: &ast::Pipeline) {
        // Tracks the text in the pipe, if known, and where it came from.
        let mut flow = expand::PipeData::default();
        for (index, command) in pipeline.seq.iter().enumerate() {
            let words = self.visit_command(command);
            let at = self.offset_of(command);
            // Each program in a pipe may produce another text.
            if !self.allowance.budget.spend_bytes(flow.text.as_ref().map_or(0, String::len)) {
                return;
            }
            if let Some(words) = words {
                if index > 0 {
                    self.visit_pipe_input(&words, &flow, at);
                }
                flow = flow.through_program(&words);
            } else {
                flow = expand::PipeData::default();
            }
        }
    }

    /// Analyzes a command, and returns its words if it is a simple command.
    fn visit_command(&mut self, command: &ast::Command) -> Option<Vec<Option<String>>> {
        if !self.allowance.budget.spend(1) {
            return None;
        }
        match command {
            ast::Command::Simple(simple) => return Some(self.visit_simple(simple)),
            ast::Command::Compound(compound, redirects) => {
                self.visit_compound(compound);
                self.visit_redirects(redirects.as_ref());
            }
            ast::Command::Function(function) => self.visit_function(function),
            ast::Command::ExtendedTest(..) => {}
        }
        None
    }

    fn visit_function(&mut self, function: &ast::FunctionDefinition) {
        let name = function.fname.value.clone();
        let rooted = self.in_root_directory;
        self.visit_compound(&function.body.0);
        self.in_root_directory = rooted;
        if command::is_fork_bomb(&name, &function.body.0) {
            let at = self.offset_of(function);
            self.report(at, FactKind::Pattern(CodePattern::ForkBomb));
        }
    }

    fn visit_compound(&mut self, compound: &ast::CompoundCommand) {
        use ast::CompoundCommand as C;
        match compound {
            C::BraceGroup(group) => self.visit_list(&group.list),
            C::Subshell(subshell) => {
                let rooted = self.in_root_directory;
                self.visit_list(&subshell.list);
                self.in_root_directory = rooted;
            }
            C::ForClause(clause) => {
                for word in clause.values.iter().flatten() {
                    self.expand_word(word);
                }
                self.variables.insert(clause.variable_name.clone(), None);
                self.visit_list(&clause.body.list);
            }
            C::ArithmeticForClause(clause) => self.visit_list(&clause.body.list),
            C::CaseClause(clause) => {
                self.expand_word(&clause.value);
                clause
                    .cases
                    .iter()
                    .filter_map(|case| case.cmd.as_ref())
                    .for_each(|list| self.visit_list(list));
            }
            C::IfClause(clause) => {
                self.visit_list(&clause.condition);
                self.visit_list(&clause.then);
                for other in clause.elses.iter().flatten() {
                    other.condition.iter().for_each(|list| self.visit_list(list));
                    self.visit_list(&other.body);
                }
            }
            C::WhileClause(clause) | C::UntilClause(clause) => {
                self.visit_list(&clause.0);
                self.visit_list(&clause.1.list);
            }
            C::Coprocess(coprocess) => _ = self.visit_command(&coprocess.body),
            C::Arithmetic(_) => {}
        }
    }

    fn visit_simple(&mut self, simple: &ast::SimpleCommand) -> Vec<Option<String>> {
        let at = self.offset_of(simple);
        for item in simple.prefix.iter().flat_map(|prefix| &prefix.0) {
            self.visit_item(item, at, simple.word_or_name.is_none());
        }
        let mut words = Vec::new();
        if let Some(name) = &simple.word_or_name {
            words.push(self.expand_word(name));
        }
        for item in simple.suffix.iter().flat_map(|suffix| &suffix.0) {
            match item {
                Item::Word(word) | Item::AssignmentWord(_, word) => words.push(self.expand_word(word)),
                Item::ProcessSubstitution(..) => {
                    self.visit_item(item, at, false);
                    // A file with unknown content.
                    words.push(None);
                }
                Item::IoRedirect(_) => self.visit_item(item, at, false),
            }
        }
        if let Some(first) = words.first_mut() {
            let first = expand::split_command_name(first.take());
            words.splice(..1, first);
        }
        if let Some((language, code)) = command::here_document(simple, words.first())
            && let Some(code) = self.expanded_text(&code)
        {
            self.analyze_nested(&code, language, at);
        }
        self.visit_program(words.clone(), at);
        words
    }

    fn visit_item(&mut self, item: &Item, at: usize, keeps: bool) {
        match item {
            Item::AssignmentWord(assignment, _) => {
                let value = match &assignment.value {
                    ast::AssignmentValue::Scalar(word) => self.expand_word(word),
                    ast::AssignmentValue::Array(_) => None,
                };
                if let ast::AssignmentName::VariableName(name) = &assignment.name {
                    let value = if assignment.append { None } else { value };
                    self.report_special_variable(name, value.as_deref(), at);
                    if keeps {
                        self.variables.insert(name.clone(), value);
                    }
                }
            }
            Item::IoRedirect(redirect) => self.visit_redirect(redirect, at),
            Item::ProcessSubstitution(kind, subshell) => {
                self.visit_list(&subshell.list);
                if matches!(kind, ast::ProcessSubstitutionKind::Write) {
                    self.visit_write_substitution(&subshell.list, at);
                }
            }
            Item::Word(_) => {}
        }
    }

    /// Handles `tee >(bash)`: the text written there is unknown.
    fn visit_write_substitution(&mut self, list: &ast::CompoundList, at: usize) {
        if let [ast::CompoundListItem(commands, _), ..] = list.0.as_slice()
            && let Some(ast::Command::Simple(simple)) = commands.first.seq.first()
            && self.remaining_substitution_depth > 0
            && let Some(words) = self.plain_words(simple)
        {
            self.visit_pipe_input(&words, &expand::PipeData::default(), at);
        }
    }

    /// Reports variables that cause code to run: as their value, or in libraries that they name.
    fn report_special_variable(&mut self, name: &str, value: Option<&str>, at: usize) {
        match (name, value) {
            ("PROMPT_COMMAND", Some(code)) => self.analyze_in_this_shell(code, at),
            ("PS4" | "PS1", Some(text)) => self.visit_substitutions(text, at),
            ("PROMPT_COMMAND" | "BASH_ENV", _) => {
                self.report(at, FactKind::Pattern(CodePattern::UnknownCode("BASH_ENV")))
            }
            ("LD_PRELOAD" | "LD_AUDIT", _) => {
                self.report(at, FactKind::Command { name: name.to_owned(), words: Vec::new() });
            }
            _ => {}
        }
    }

    fn visit_redirects(&mut self, redirects: Option<&ast::RedirectList>) {
        for redirect in redirects.iter().flat_map(|list| &list.0) {
            let at = self.offset_of(redirect);
            self.visit_redirect(redirect, at);
        }
    }

    fn visit_redirect(&mut self, redirect: &ast::IoRedirect, at: usize) {
        use ast::IoFileRedirectKind as K;
        let target = match redirect {
            ast::IoRedirect::File(_, kind, ast::IoFileRedirectTarget::Filename(word)) => {
                let name = self.expand_word(word);
                let writes = matches!(kind, K::Write | K::Append | K::Clobber | K::ReadAndWrite);
                // Reading from one of these also opens a connection.
                name.filter(|name| writes || commands::is_network_file(name))
            }
            ast::IoRedirect::File(_, _, ast::IoFileRedirectTarget::ProcessSubstitution(_, subshell)) => {
                self.visit_list(&subshell.list);
                None
            }
            // `>& file` also writes a file; a number or `-` is harmless as a path.
            ast::IoRedirect::File(_, K::DuplicateOutput, ast::IoFileRedirectTarget::Duplicate(word))
            | ast::IoRedirect::OutputAndError(word, _) => self.expand_word(word),
            _ => None,
        };
        if let Some(path) = target {
            self.report(at, FactKind::FileWrite(path));
        }
    }
}
