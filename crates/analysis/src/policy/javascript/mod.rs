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

use self::fold::{Value, member, module};
use super::Language;
use super::fact::{Fact, Kind, Shape};
use super::guard::{self, Allowance};
use super::shell;

/// Returns the facts about JavaScript or TypeScript code.
pub(crate) fn facts(code: &str, typescript: bool, allowance: Allowance) -> Vec<Fact> {
    let allocator = Allocator::default();
    let kind = if typescript { SourceType::ts() } else { SourceType::unambiguous().with_jsx(true) };
    let parse = |kind| Parser::new(&allocator, code, kind).parse();
    let mut parsed = parse(kind);
    if typescript && !parsed.diagnostics.is_empty() {
        let tags = parse(SourceType::tsx());
        parsed = if tags.diagnostics.is_empty() { tags } else { parsed };
    }
    let mut reader = Reader::new(allowance);
    if let Some(error) = parsed.diagnostics.first() {
        let at = error.labels.first().map_or(0, |label| label.offset());
        reader.say(at, Kind::Shape(Shape::Syntax(error.message.to_string())));
    }
    reader.visit_program(&parsed.program);
    reader.facts
}

const SHELLS: &[&str] = &["child_process.exec", "child_process.execSync"];
const PROGRAMS: &[&str] = &[
    "child_process.spawn",
    "child_process.spawnSync",
    "child_process.execFile",
    "child_process.execFileSync",
];

struct Reader {
    facts: Vec<Fact>,
    scopes: Vec<HashMap<String, Value>>,
    allowance: Allowance,
    /// Number of calls so far that start another process.
    forks: usize,
    /// Counts changes of bindings, because a change can invalidate folded values.
    generation: u64,
    /// Values by the address of their expression, which does not move. Each expression is folded once per
    /// generation, so folding a chain of n calls takes n steps.
    folded: RefCell<HashMap<usize, (u64, Value)>>,
}

impl Reader {
    fn new(allowance: Allowance) -> Self {
        let (scopes, folded) = (vec![HashMap::new()], RefCell::default());
        Self { facts: Vec::new(), scopes, allowance, forks: 0, generation: 0, folded }
    }

    fn say(&mut self, at: u32, kind: Kind) {
        // Facts lost to an exhausted budget are reported once, for the whole program.
        if !self.allowance.budget.spend_bytes(kind.bytes()) {
            return;
        }
        self.facts.push(Fact { at: at as usize, language: Language::JavaScript, kind });
    }

    fn bind(&mut self, name: &str, value: Value) {
        if let Some(scope) = self.scopes.last_mut()
            && scope.get(name) != Some(&value)
        {
            scope.insert(name.to_owned(), value);
            self.generation += 1;
        }
    }

    /// Binds the names of a pattern to parts of a value.
    fn bind_pattern(&mut self, pattern: &BindingPattern<'_>, value: &Value, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        match pattern {
            BindingPattern::BindingIdentifier(name) => self.bind(name.name.as_str(), value.clone()),
            BindingPattern::ObjectPattern(object) => {
                for property in &object.properties {
                    let part =
                        property.key.static_name().map_or(Value::Other, |key| member(value.clone(), &key));
                    self.bind_pattern(&property.value, &part, depth);
                }
            }
            BindingPattern::ArrayPattern(array) => {
                for element in array.elements.iter().flatten() {
                    self.bind_pattern(element, &Value::Other, depth);
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
            .map(|argument| argument.as_expression().and_then(|expr| self.copied(expr)))
            .collect()
    }

    /// Copies a text to store it in a fact.
    fn copied(&self, expr: &Expression<'_>) -> Option<String> {
        let text = self.text(expr)?;
        self.allowance.budget.spend_bytes(text.len()).then(|| String::clone(&text))
    }

    fn called(&mut self, path: String, arguments: &[Argument<'_>], at: u32) {
        // `f.call(this, …)` calls `f`, and so does `f.apply`, with unknown arguments.
        if let Some(function) = path.strip_suffix(".call") {
            return self.called(function.to_owned(), arguments.get(1..).unwrap_or_default(), at);
        }
        if let Some(function) = path.strip_suffix(".apply") {
            return self.called(function.to_owned(), &[], at);
        }
        let known = self.arguments(arguments);
        let first = known.first().cloned().flatten();
        if path == "process.getBuiltinModule" {
            let what =
                first.clone().map_or(Kind::Shape(Shape::UnknownCode("getBuiltinModule")), Kind::Import);
            self.say(at, what);
        }
        if path == "require" {
            match &first {
                Some(name) => {
                    self.say(at, Kind::Import(module(name)));
                    if !matches!(
                        arguments.first(),
                        Some(Argument::StringLiteral(_) | Argument::Identifier(_))
                    ) {
                        self.say(at, Kind::Shape(Shape::Assembled(name.clone())));
                    }
                }
                None => self.say(at, Kind::Shape(Shape::UnknownCode("require"))),
            }
        }
        if let Some(command) = first {
            if SHELLS.contains(&path.as_str()) {
                let inside = guard::inside(&command, Language::Shell, at as usize, &self.allowance);
                self.facts.extend(inside);
            } else if PROGRAMS.contains(&path.as_str()) {
                let rest = match arguments.get(1) {
                    Some(Argument::ArrayExpression(array)) => array
                        .elements
                        .iter()
                        .take(64)
                        .map(|word| word.as_expression().and_then(|word| self.copied(word)))
                        .collect(),
                    _ => Vec::new(),
                };
                let words = std::iter::once(Some(command)).chain(rest).collect();
                self.facts.extend(shell::program(words, at as usize, &self.allowance));
            }
        }
        self.forks += usize::from(matches!(path.as_str(), "child_process.fork" | "child_process.spawn"));
        self.say(at, Kind::Name { path, arguments: Some(known) });
    }

    fn callee(&mut self, callee: &Expression<'_>, arguments: &[Argument<'_>]) {
        let at = callee.span().start;
        match (self.value(callee), callee) {
            (Value::Path(path), _) => {
                if matches!(callee, Expression::ComputedMemberExpression(_)) {
                    self.say(at, Kind::Shape(Shape::Assembled(path.clone())));
                }
                self.called(path, arguments, at);
                self.inner(callee);
            }
            (_, Expression::StaticMemberExpression(access)) => {
                self.method(access.property.name.as_str(), &access.object, at);
                self.visit_expression(&access.object);
            }
            (_, Expression::ComputedMemberExpression(access)) => {
                if let Some(name) = self.text(&access.expression) {
                    self.method(&name, &access.object, at);
                }
                self.visit_expression(callee);
            }
            _ => self.visit_expression(callee),
        }
    }

    /// Reports a method of an unknown object. A function's `constructor` is `Function`.
    fn method(&mut self, name: &str, object: &Expression<'_>, at: u32) {
        let function = |expr: &Expression<'_>| match expr.get_inner_expression() {
            Expression::StaticMemberExpression(inner) => inner.property.name == "constructor",
            Expression::ComputedMemberExpression(inner) => {
                self.text(&inner.expression).is_some_and(|name| name.as_str() == "constructor")
            }
            Expression::FunctionExpression(_) | Expression::ArrowFunctionExpression(_) => true,
            _ => false,
        };
        let name = if name == "constructor" && function(object) { "constructor.constructor" } else { name };
        self.say(at, Kind::Member(name.to_owned()));
    }

    /// Visits calls inside a resolved name.
    fn inner(&mut self, expr: &Expression<'_>) {
        match expr {
            Expression::Identifier(_) => {}
            Expression::StaticMemberExpression(access) => {
                self.special(access);
                self.inner(&access.object);
            }
            Expression::ComputedMemberExpression(access) => {
                self.inner(&access.object);
                self.visit_expression(&access.expression);
            }
            other => self.visit_expression(other),
        }
    }

    /// Reports notable properties of any object.
    fn special(&mut self, access: &StaticMemberExpression<'_>) {
        let name = access.property.name.as_str();
        if matches!(name, "__proto__" | "mainModule") {
            self.say(access.span.start, Kind::Member(name.to_owned()));
        }
    }

    fn mention(&mut self, value: Value, at: u32) {
        if let Value::Path(path) = value {
            self.say(at, Kind::Name { path, arguments: None });
        }
    }
}
