//! Analyzes JavaScript and TypeScript: resolves names through imports, `require`, assignments and scopes, on
//! oxc's syntax tree.

mod fold;
mod visit;

use std::cell::RefCell;
use std::collections::HashMap;

use oxc_allocator::Allocator;
use oxc_ast::ast::{Argument, BindingPattern, Expression, StaticMemberExpression};
use oxc_ast_visit::Visit;
use oxc_parser::Parser;
use oxc_span::{GetSpan, SourceType};

use self::fold::{JavaScriptValue, member, strip_node_prefix};
use super::PolicyLanguage;
use super::analyze::{self, AnalysisBudget};
use super::fact::{CodeFact, CodePattern, FactKind};
use super::shell;

/// Returns the facts about JavaScript or TypeScript code.
pub(crate) fn facts(code: &str, typescript: bool, allowance: AnalysisBudget) -> Vec<CodeFact> {
    let allocator = Allocator::default();
    let kind = if typescript { SourceType::ts() } else { SourceType::unambiguous().with_jsx(true) };
    let parse = |kind| Parser::new(&allocator, code, kind).parse();
    let mut parsed = parse(kind);
    if typescript && !parsed.diagnostics.is_empty() {
        let tags = parse(SourceType::tsx());
        parsed = if tags.diagnostics.is_empty() { tags } else { parsed };
    }
    let mut reader = JavaScriptAnalyzer::new(allowance);
    if let Some(error) = parsed.diagnostics.first() {
        let at = error.labels.first().map_or(0, |label| label.offset());
        reader.report(at, FactKind::Pattern(CodePattern::SyntaxError(error.message.to_string())));
    }
    reader.visit_program(&parsed.program);
    reader.facts
}

const SHELL_FUNCTIONS: &[&str] = &["child_process.exec", "child_process.execSync"];
const PROGRAM_FUNCTIONS: &[&str] = &[
    "child_process.spawn",
    "child_process.spawnSync",
    "child_process.execFile",
    "child_process.execFileSync",
];

struct JavaScriptAnalyzer {
    facts: Vec<CodeFact>,
    scopes: Vec<HashMap<String, JavaScriptValue>>,
    allowance: AnalysisBudget,
    /// Number of calls so far that start another process.
    forks: usize,
    /// Counts changes of bindings, because a change can invalidate folded values.
    generation: u64,
    /// Values by the address of their expression, which does not move. Each expression is folded once per
    /// generation, so folding a chain of n calls takes n steps.
    folded: RefCell<HashMap<usize, (u64, JavaScriptValue)>>,
}

impl JavaScriptAnalyzer {
    fn new(allowance: AnalysisBudget) -> Self {
        let (scopes, folded) = (vec![HashMap::new()], RefCell::default());
        Self { facts: Vec::new(), scopes, allowance, forks: 0, generation: 0, folded }
    }

    fn report(&mut self, at: u32, kind: FactKind) {
        // Facts lost to an exhausted budget are reported once, for the whole program.
        if !self.allowance.budget.spend_bytes(kind.stored_bytes()) {
            return;
        }
        self.facts.push(CodeFact { at: at as usize, language: PolicyLanguage::JavaScript, kind });
    }

    fn bind(&mut self, name: &str, value: JavaScriptValue) {
        if let Some(scope) = self.scopes.last_mut()
            && scope.get(name) != Some(&value)
        {
            scope.insert(name.to_owned(), value);
            self.generation += 1;
        }
    }

    /// Binds the names of a pattern to parts of a value.
    fn bind_pattern(&mut self, pattern: &BindingPattern<'_>, value: &JavaScriptValue, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        match pattern {
            BindingPattern::BindingIdentifier(name) => self.bind(name.name.as_str(), value.clone()),
            BindingPattern::ObjectPattern(object) => {
                for property in &object.properties {
                    let part = property
                        .key
                        .static_name()
                        .map_or(JavaScriptValue::Unknown, |key| member(value.clone(), &key));
                    self.bind_pattern(&property.value, &part, depth);
                }
            }
            BindingPattern::ArrayPattern(array) => {
                for element in array.elements.iter().flatten() {
                    self.bind_pattern(element, &JavaScriptValue::Unknown, depth);
                }
            }
            BindingPattern::AssignmentPattern(assignment) => {
                self.bind_pattern(&assignment.left, value, depth)
            }
        }
    }

    fn arguments(&self, arguments: &[Argument<'_>]) -> Vec<Option<String>> {
        arguments
            .iter()
            .take(16)
            .map(|argument| argument.as_expression().and_then(|expr| self.copy_text(expr)))
            .collect()
    }

    /// Copies a text to store it in a fact.
    fn copy_text(&self, expr: &Expression<'_>) -> Option<String> {
        let text = self.text(expr)?;
        self.allowance.budget.spend_bytes(text.len()).then(|| String::clone(&text))
    }

    fn report_call(&mut self, path: String, arguments: &[Argument<'_>], at: u32) {
        // `f.call(this, …)` calls `f`, and so does `f.apply`, with unknown arguments.
        if let Some(function) = path.strip_suffix(".call") {
            return self.report_call(function.to_owned(), arguments.get(1..).unwrap_or_default(), at);
        }
        if let Some(function) = path.strip_suffix(".apply") {
            return self.report_call(function.to_owned(), &[], at);
        }
        let known = self.arguments(arguments);
        let first = known.first().cloned().flatten();
        if path == "process.getBuiltinModule" {
            let what = first
                .clone()
                .map_or(FactKind::Pattern(CodePattern::UnknownCode("getBuiltinModule")), FactKind::Import);
            self.report(at, what);
        }
        if path == "require" {
            match &first {
                Some(name) => {
                    self.report(at, FactKind::Import(strip_node_prefix(name)));
                    if !matches!(
                        arguments.first(),
                        Some(Argument::StringLiteral(_) | Argument::Identifier(_))
                    ) {
                        self.report(at, FactKind::Pattern(CodePattern::AssembledName(name.clone())));
                    }
                }
                None => self.report(at, FactKind::Pattern(CodePattern::UnknownCode("require"))),
            }
        }
        if let Some(command) = first {
            if SHELL_FUNCTIONS.contains(&path.as_str()) {
                let inside =
                    analyze::analyze_nested(&command, PolicyLanguage::Shell, at as usize, &self.allowance);
                self.facts.extend(inside);
            } else if PROGRAM_FUNCTIONS.contains(&path.as_str()) {
                let rest = match arguments.get(1) {
                    Some(Argument::ArrayExpression(array)) => array
                        .elements
                        .iter()
                        .take(64)
                        .map(|word| word.as_expression().and_then(|word| self.copy_text(word)))
                        .collect(),
                    _ => Vec::new(),
                };
                let words = std::iter::once(Some(command)).chain(rest).collect();
                self.facts.extend(shell::program_facts(words, at as usize, &self.allowance));
            }
        }
        self.forks += usize::from(matches!(path.as_str(), "child_process.fork" | "child_process.spawn"));
        self.report(at, FactKind::Name { path, arguments: Some(known) });
    }

    fn visit_callee(&mut self, callee: &Expression<'_>, arguments: &[Argument<'_>]) {
        let at = callee.span().start;
        match (self.value(callee), callee) {
            (JavaScriptValue::Path(path), _) => {
                if matches!(callee, Expression::ComputedMemberExpression(_)) {
                    self.report(at, FactKind::Pattern(CodePattern::AssembledName(path.clone())));
                }
                self.report_call(path, arguments, at);
                self.visit_inner_calls(callee);
            }
            (_, Expression::StaticMemberExpression(access)) => {
                self.report_unknown_method(access.property.name.as_str(), &access.object, at);
                self.visit_expression(&access.object);
            }
            (_, Expression::ComputedMemberExpression(access)) => {
                if let Some(name) = self.text(&access.expression) {
                    self.report_unknown_method(&name, &access.object, at);
                }
                self.visit_expression(callee);
            }
            _ => self.visit_expression(callee),
        }
    }

    /// Reports a method of an unknown object. A function's `constructor` is `Function`.
    fn report_unknown_method(&mut self, name: &str, object: &Expression<'_>, at: u32) {
        let function = |expr: &Expression<'_>| match expr.get_inner_expression() {
            Expression::StaticMemberExpression(inner) => inner.property.name == "constructor",
            Expression::ComputedMemberExpression(inner) => {
                self.text(&inner.expression).is_some_and(|name| name.as_str() == "constructor")
            }
            Expression::FunctionExpression(_) | Expression::ArrowFunctionExpression(_) => true,
            _ => false,
        };
        let name = if name == "constructor" && function(object) { "constructor.constructor" } else { name };
        self.report(at, FactKind::Member(name.to_owned()));
    }

    /// Visits calls inside a resolved name.
    fn visit_inner_calls(&mut self, expr: &Expression<'_>) {
        match expr {
            Expression::Identifier(_) => {}
            Expression::StaticMemberExpression(access) => {
                self.report_special_property(access);
                self.visit_inner_calls(&access.object);
            }
            Expression::ComputedMemberExpression(access) => {
                self.visit_inner_calls(&access.object);
                self.visit_expression(&access.expression);
            }
            other => self.visit_expression(other),
        }
    }

    /// Reports notable properties of any object.
    fn report_special_property(&mut self, access: &StaticMemberExpression<'_>) {
        let name = access.property.name.as_str();
        if matches!(name, "__proto__" | "mainModule") {
            self.report(access.span.start, FactKind::Member(name.to_owned()));
        }
    }

    fn report_use(&mut self, value: JavaScriptValue, at: u32) {
        if let JavaScriptValue::Path(path) = value {
            self.report(at, FactKind::Name { path, arguments: None });
        }
    }
}
