//! Interprets commands: wrappers start other programs, and interpreters run code.

use brush_parser::ast;

use super::super::PolicyLanguage;
use super::super::fact::{CodePattern, FactKind};
use super::super::rules::commands;
use super::ShellAnalyzer;
use super::expand::PipeData;

type OwnedWords = Vec<Option<String>>;

/// Returns the last component of a path. `/proc/…/exe` is the shell itself.
pub(crate) fn base_name(path: &str) -> &str {
    match path.rsplit('/').next().unwrap_or(path) {
        "exe" if path.starts_with("/proc/") => "bash",
        name => name,
    }
}

/// Interpreters whose code is not analyzed.
const UNANALYZED_INTERPRETERS: &[&str] = &["perl", "ruby", "php"];

/// Returns the language that a program interprets, or `None` if it is not analyzed.
fn language_of(name: &str) -> Option<PolicyLanguage> {
    match name {
        "sh" | "bash" | "dash" | "zsh" | "ksh" | "ash" => Some(PolicyLanguage::Shell),
        "node" | "nodejs" | "bun" | "deno" => Some(PolicyLanguage::JavaScript),
        _ if name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.') == "python" => {
            Some(PolicyLanguage::Python)
        }
        _ => None,
    }
}

/// Returns whether the word after this flag is code.
fn takes_code_argument(flag: &str, language: PolicyLanguage) -> bool {
    match language {
        PolicyLanguage::JavaScript | PolicyLanguage::TypeScript => {
            matches!(flag, "-e" | "-p" | "-pe" | "--eval" | "--print" | "eval")
        }
        _ => flag.starts_with('-') && !flag.starts_with("--") && flag.ends_with('c'),
    }
}

/// Returns the text that a here-document passes to an interpreter.
pub(crate) fn here_document(
    simple: &ast::SimpleCommand,
    name: Option<&Option<String>>,
) -> Option<(PolicyLanguage, ast::Word)> {
    let language = language_of(name?.as_deref().map(base_name)?)?;
    let document = simple.suffix.iter().flat_map(|suffix| &suffix.0).find_map(|item| match item {
        ast::CommandPrefixOrSuffixItem::IoRedirect(ast::IoRedirect::HereDocument(_, document)) => {
            Some(document.doc.clone())
        }
        ast::CommandPrefixOrSuffixItem::IoRedirect(ast::IoRedirect::HereString(_, word)) => {
            let mut word = word.clone();
            word.value = word.value.trim_matches(['"', '\'']).to_owned();
            Some(word)
        }
        _ => None,
    });
    Some((language, document?))
}

impl ShellAnalyzer {
    /// Analyzes a program that is started with these words.
    pub(crate) fn visit_program(&mut self, mut words: OwnedWords, at: usize) {
        let mut expanded: Vec<String> = Vec::new();
        // Each wrapper takes at least one word, and each alias is expanded once.
        for _ in 0..16 {
            let bytes = words.iter().flatten().map(String::len).sum::<usize>();
            if !self.allowance.budget.spend_bytes(bytes + words.len()) {
                return;
            }
            let name = match words.first() {
                None => return,
                Some(None) => {
                    return self.report(at, FactKind::Pattern(CodePattern::UnknownCode("$command")));
                }
                // A glob pattern could match any program.
                Some(Some(name)) if name.contains(['*', '?']) => {
                    return self.report(at, FactKind::Pattern(CodePattern::UnknownCode("$command")));
                }
                Some(Some(name)) => base_name(name).to_owned(),
            };
            self.track_working_directory(&name, &mut words);
            if let Some(alias) = self.aliases.get(&name).filter(|_| !expanded.contains(&name)) {
                if !self.allowance.budget.spend_bytes(alias.len()) {
                    return;
                }
                let text: OwnedWords = alias.split_whitespace().map(|word| Some(word.to_owned())).collect();
                words.splice(..1, text);
                expanded.push(name);
                continue;
            }
            self.visit_command_words(&name, &words, at);
            let skipped = wrapper_word_count(&name, &words);
            if skipped == 0 || skipped >= words.len() {
                return;
            }
            let found = words.get(1).cloned().flatten().filter(|_| name == "find");
            words.drain(..skipped);
            match words.first() {
                // Handles `env -S "rm -rf /"` and `find / -exec rm -rf {} +`.
                Some(Some(line)) if name == "env" && line.contains(' ') => {
                    let line: OwnedWords =
                        line.split_whitespace().map(|word| Some(word.to_owned())).collect();
                    words.splice(..1, line);
                }
                _ => replace_word(&mut words, "{}", found),
            }
        }
    }

    /// Handles `cd / && rm -rf *`.
    fn track_working_directory(&mut self, name: &str, words: &mut OwnedWords) {
        if name == "cd" {
            let to = words.get(1).cloned().flatten();
            self.in_root_directory = to.is_some_and(|to| commands::is_root(&to));
        } else if self.in_root_directory {
            for word in ["*", ".", "./*", "./"] {
                replace_word(words, word, Some("/".to_owned()));
            }
        }
    }

    fn visit_command_words(&mut self, name: &str, words: &[Option<String>], at: usize) {
        let rest = &words[1..];
        if name == "alias" {
            for (alias, text) in rest.iter().flatten().filter_map(|word| word.split_once('=')) {
                self.aliases.insert(alias.to_owned(), text.to_owned());
            }
        }
        self.report(at, FactKind::Command { name: name.to_owned(), words: rest.to_vec() });
        match name {
            "eval" => self.visit_code(
                rest.iter().cloned().collect::<Option<Vec<_>>>().map(|all| all.join(" ")),
                "eval",
                at,
            ),
            "trap" if rest.len() > 1 && !matches!(rest[0].as_deref(), Some("-" | "" | "-p" | "-l")) => {
                self.visit_code(rest[0].clone(), "trap", at);
            }
            "let" => rest.iter().flatten().for_each(|sum| self.visit_substitutions(sum, at)),
            // An existing file is code like any other; a process substitution is unknown.
            "source" | "." if rest.first() == Some(&None) => {
                self.report(at, FactKind::Pattern(CodePattern::UnknownCode("source")));
            }
            "hash" => {
                if let [Some(flag), Some(path), Some(name)] = rest
                    && flag == "-p"
                {
                    self.aliases.insert(name.clone(), path.clone());
                }
            }
            "script" | "su" | "flock" | "watch" | "parallel" => self.visit_code_argument(name, rest, at),
            "export" | "declare" | "local" | "readonly" | "typeset" => {
                for (variable, value) in rest.iter().flatten().filter_map(|word| word.split_once('=')) {
                    self.variables.insert(variable.to_owned(), Some(value.to_owned()));
                }
            }
            "read" | "mapfile" | "readarray" | "unset" => {
                self.visit_code_argument(name, rest, at);
                for variable in rest.iter().flatten() {
                    self.variables.insert(variable.clone(), None);
                }
            }
            _ => self.visit_interpreter(name, rest, at),
        }
    }

    /// Handles programs that run a line in a shell: `script -c CODE`, `watch CODE`.
    fn visit_code_argument(&mut self, name: &str, words: &[Option<String>], at: usize) {
        let behind = |wanted: &str| words.iter().position(|word| word.as_deref() == Some(wanted));
        let line = match name {
            "watch" => Some(
                words.iter().flatten().filter(|word| !word.starts_with('-')).cloned().collect::<Vec<_>>(),
            ),
            "parallel" => behind(":::").map(|at| words[at + 1..].iter().flatten().cloned().collect()),
            _ => {
                let flag = if matches!(name, "mapfile" | "readarray") { "-C" } else { "-c" };
                behind(flag).and_then(|at| Some(vec![words.get(at + 1)?.clone()?]))
            }
        };
        if let Some(line) = line {
            self.analyze_in_this_shell(&line.join(" "), at);
        }
    }

    /// Handles `sh -c CODE`, `python -c CODE`, `node -e CODE`.
    fn visit_interpreter(&mut self, name: &str, words: &[Option<String>], at: usize) {
        let Some(language) = language_of(name) else { return };
        let announces =
            |word: &Option<String>| word.as_deref().is_some_and(|word| takes_code_argument(word, language));
        let Some(flag) = words.iter().position(announces) else { return };
        match words.get(flag + 1) {
            Some(Some(code)) => self.analyze_nested(code, language, at),
            Some(None) => {
                self.report(at, FactKind::Pattern(CodePattern::UnknownCode(unknown_code_label(language))))
            }
            None => {}
        }
    }

    fn visit_code(&mut self, code: Option<String>, by: &'static str, at: usize) {
        match code {
            Some(code) => self.analyze_in_this_shell(&code, at),
            None => self.report(at, FactKind::Pattern(CodePattern::UnknownCode(by))),
        }
    }

    /// Analyzes a program that reads from a pipe.
    pub(crate) fn visit_pipe_input(&mut self, words: &[Option<String>], flow: &PipeData, at: usize) {
        let skipped = match words.first() {
            Some(Some(name)) => wrapper_word_count(base_name(name), words),
            _ => return,
        };
        let Some(Some(name)) = words.get(skipped) else { return };
        let first = words.first().cloned().flatten();
        if let (Some("xargs"), Some(text)) = (first.as_deref(), &flow.text) {
            let given: OwnedWords = text.split_whitespace().map(|word| Some(word.to_owned())).collect();
            let mut whole = words[skipped..].to_vec();
            replace_word(&mut whole, "{}", given.first().cloned().flatten());
            whole.extend(given);
            self.visit_program(whole, at);
        }
        let name = base_name(name);
        let rest = &words[skipped + 1..];
        let is = |word: &Option<String>, wanted: &str| word.as_deref() == Some(wanted);
        let reads_code = rest.iter().any(|word| is(word, "-s"))
            || rest.iter().flatten().all(|word| word.starts_with('-') && word != "-c");
        let language = language_of(name);
        if (language.is_none() && !UNANALYZED_INTERPRETERS.contains(&name)) || !reads_code {
            return;
        }
        if flow.downloaded {
            self.report(at, FactKind::Pattern(CodePattern::PipedDownload));
        }
        if flow.decoded {
            self.report(at, FactKind::Pattern(CodePattern::DecodedCode));
        }
        match (language, &flow.text) {
            (Some(language), Some(text)) => self.analyze_nested(&text.clone(), language, at),
            (Some(PolicyLanguage::Shell), None) => {
                self.report(at, FactKind::Pattern(CodePattern::UnknownCode("| sh")))
            }
            _ => {}
        }
    }
}

/// Replaces every occurrence of a word, except in the first position.
fn replace_word(words: &mut OwnedWords, from: &str, to: Option<String>) {
    for word in words.iter_mut().skip(1).filter(|word| word.as_deref() == Some(from)) {
        word.clone_from(&to);
    }
}

fn unknown_code_label(language: PolicyLanguage) -> &'static str {
    match language {
        PolicyLanguage::Shell => "sh -c",
        PolicyLanguage::Python => "python -c",
        PolicyLanguage::JavaScript | PolicyLanguage::TypeScript => "node -e",
    }
}

/// Returns how many words precede the program that a wrapper starts; 0 if it starts none.
fn wrapper_word_count(name: &str, words: &[Option<String>]) -> usize {
    let word = |index: usize| words.get(index).and_then(|word| word.as_deref());
    let after_flags = |with_value: &[&str], assignments: bool| {
        let mut index = 1;
        while let Some(text) = word(index) {
            if with_value.contains(&text) {
                index += 2;
            } else if (text.starts_with('-') && text.len() > 1) || (assignments && text.contains('=')) {
                index += 1;
            } else {
                break;
            }
        }
        index
    };
    match name {
        "sudo" | "doas" => after_flags(&["-u", "-g", "-C", "-h"], true),
        "env" => after_flags(&["-u", "-C", "--unset", "--chdir"], true),
        "nohup" | "command" | "builtin" | "exec" | "setsid" | "time" | "stdbuf" | "busybox" | "unshare"
        | "catchsegv" => after_flags(&["-a"], false),
        "strace" | "ltrace" => after_flags(&["-o", "-e", "-p", "-s"], false),
        name if name.starts_with("ld-linux") || name.starts_with("ld-musl") => {
            after_flags(&["--library-path"], false)
        }
        "nice" | "ionice" => after_flags(&["-n", "-c"], false),
        "timeout" => after_flags(&["-s", "-k"], false) + 1,
        "xargs" => after_flags(&["-I", "-n", "-P", "-L", "-d", "-a", "-s"], false),
        "find" => {
            let starts = |text: &str| matches!(text, "-exec" | "-execdir" | "-ok");
            words.iter().position(|word| word.as_deref().is_some_and(starts)).map_or(0, |index| index + 1)
        }
        _ => 0,
    }
}

/// Detects `f() { f | f & }`: a function that unconditionally starts itself more than once.
pub(crate) fn is_fork_bomb(name: &str, body: &ast::CompoundCommand) -> bool {
    let list = match body {
        ast::CompoundCommand::BraceGroup(group) => &group.list,
        ast::CompoundCommand::Subshell(subshell) => &subshell.list,
        _ => return false,
    };
    let itself = |command: &ast::Command| {
        matches!(command, ast::Command::Simple(simple)
            if simple.word_or_name.as_ref().is_some_and(|word| word.value == name))
    };
    let (mut calls, mut background) = (0, false);
    for ast::CompoundListItem(commands, separator) in &list.0 {
        if !commands.additional.is_empty()
            || commands.first.seq.iter().any(|c| matches!(c, ast::Command::Compound(..)))
        {
            return false;
        }
        let here = commands.first.seq.iter().filter(|command| itself(command)).count();
        background |= here > 0 && matches!(separator, ast::SeparatorOperator::Async);
        background |= here > 1;
        calls += here;
    }
    calls > 1 && background
}
