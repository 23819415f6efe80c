//! JavaScript and TypeScript: names are resolved through imports, `require`, assignments and scopes, on oxc's tree.

use std::cell::Cell;
use std::collections::HashMap;

use oxc_allocator::Allocator;
use oxc_ast::ast::{
    Argument, AssignmentExpression, AssignmentTarget, BinaryOperator, BindingPattern, CallExpression,
    CatchParameter, Class, ComputedMemberExpression, ExportAllDeclaration, Expression, FormalParameter,
    Function, IdentifierReference, ImportDeclaration, ImportDeclarationSpecifier, ImportExpression,
    NewExpression, StaticMemberExpression, VariableDeclarator, WhileStatement,
};
use oxc_ast_visit::{Visit, walk};
use oxc_parser::Parser;
use oxc_span::{GetSpan, SourceType};
use oxc_syntax::scope::{ScopeFlags, ScopeId};

use super::fact::{Fact, Kind, MAX_TEXT, Shape, base64_text};
use super::shell;

/// What the code does.
pub(crate) fn facts(code: &str, typescript: bool) -> Vec<Fact> {
    let allocator = Allocator::default();
    let kind = if typescript { SourceType::ts() } else { SourceType::unambiguous().with_jsx(true) };
    let parsed = Parser::new(&allocator, code, kind).parse();
    let mut reader = Reader { facts: Vec::new(), scopes: vec![HashMap::new()] };
    if let Some(error) = parsed.diagnostics.first() {
        let at = error.labels.first().map_or(0, |label| label.offset());
        reader
            .facts
            .push(Fact { at: at as usize, kind: Kind::Shape(Shape::Syntax(error.message.to_string())) });
    }
    reader.visit_program(&parsed.program);
    reader.facts
}

/// What is known of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    /// A global or something in a module; a call is `name()`.
    Path(String),
    Text(String),
    Other,
}

const MAX_DEPTH: usize = 24;
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
}

/// `node:fs/promises` → `fs/promises`.
fn module(name: &str) -> String {
    name.strip_prefix("node:").unwrap_or(name).to_owned()
}

/// `globalThis.eval` is `eval`; `fs/promises.rm` and `fs.promises.rm` are `fs.rm`.
fn canonical(path: String) -> String {
    for (from, to) in [
        ("globalThis.", ""),
        ("global.", ""),
        ("window.", ""),
        ("self.", ""),
        ("fs/promises.", "fs."),
        ("fs.promises.", "fs."),
        ("process.mainModule.require", "require"),
        ("module.require", "require"),
        ("child_process.default.", "child_process."),
        ("fs.default.", "fs."),
    ] {
        if let Some(rest) = path.strip_prefix(from) {
            return canonical(format!("{to}{rest}"));
        }
    }
    path
}

fn bounded(text: String) -> Value {
    if text.len() <= MAX_TEXT { Value::Text(text) } else { Value::Other }
}

impl Reader {
    fn say(&mut self, at: u32, kind: Kind) {
        self.facts.push(Fact { at: at as usize, kind });
    }

    fn bind(&mut self, name: &str, value: Value) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.to_owned(), value);
        }
    }

    fn lookup(&self, name: &str) -> Value {
        let known = self.scopes.iter().rev().find_map(|scope| scope.get(name));
        known.cloned().unwrap_or_else(|| Value::Path(name.to_owned()))
    }

    /// Binds what a pattern names to parts of a value.
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

    fn value(&self, expr: &Expression<'_>) -> Value {
        self.fold(expr, MAX_DEPTH)
    }

    fn text(&self, expr: &Expression<'_>) -> Option<String> {
        match self.value(expr) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    fn fold(&self, expr: &Expression<'_>, depth: usize) -> Value {
        let Some(depth) = depth.checked_sub(1) else { return Value::Other };
        match expr {
            Expression::Identifier(name) => self.lookup(name.name.as_str()),
            Expression::StringLiteral(text) => bounded(text.value.to_string()),
            Expression::TemplateLiteral(template) => {
                let mut whole = String::new();
                for (index, quasi) in template.quasis.iter().enumerate() {
                    whole.push_str(quasi.value.cooked.as_ref().map_or("", |text| text.as_str()));
                    match template.expressions.get(index).map(|hole| self.fold(hole, depth)) {
                        None => {}
                        Some(Value::Text(text)) => whole.push_str(&text),
                        Some(_) => return Value::Other,
                    }
                }
                bounded(whole)
            }
            Expression::BinaryExpression(sum) if sum.operator == BinaryOperator::Addition => {
                match (self.fold(&sum.left, depth), self.fold(&sum.right, depth)) {
                    (Value::Text(left), Value::Text(right)) => bounded(left + &right),
                    _ => Value::Other,
                }
            }
            Expression::StaticMemberExpression(access) => {
                member(self.fold(&access.object, depth), access.property.name.as_str())
            }
            Expression::ComputedMemberExpression(access) => match self.fold(&access.expression, depth) {
                Value::Text(name) => member(self.fold(&access.object, depth), &name),
                _ => Value::Other,
            },
            Expression::ParenthesizedExpression(inner) => self.fold(&inner.expression, depth),
            Expression::AwaitExpression(inner) => self.fold(&inner.argument, depth),
            Expression::TSAsExpression(inner) => self.fold(&inner.expression, depth),
            Expression::TSNonNullExpression(inner) => self.fold(&inner.expression, depth),
            // `(0, eval)("…")`
            Expression::SequenceExpression(list) => {
                list.expressions.last().map_or(Value::Other, |last| self.fold(last, depth))
            }
            Expression::ImportExpression(import) => match self.fold(&import.source, depth) {
                Value::Text(name) => Value::Path(module(&name)),
                _ => Value::Other,
            },
            Expression::NewExpression(new) => self.fold(&new.callee, depth).called(),
            Expression::CallExpression(call) => self.fold_call(call, depth),
            Expression::ChainExpression(chain) => match &chain.expression {
                oxc_ast::ast::ChainElement::CallExpression(call) => self.fold_call(call, depth),
                oxc_ast::ast::ChainElement::StaticMemberExpression(access) => {
                    member(self.fold(&access.object, depth), access.property.name.as_str())
                }
                _ => Value::Other,
            },
            _ => Value::Other,
        }
    }

    fn fold_call(&self, call: &CallExpression<'_>, depth: usize) -> Value {
        let first = call.arguments.first().and_then(Argument::as_expression);
        let first = first.map_or(Value::Other, |argument| self.fold(argument, depth));
        if let Expression::StaticMemberExpression(method) = &call.callee {
            if let Some(text) = self.fold_method(method, call, depth) {
                return bounded(text);
            }
            // `Buffer.from(text, "base64").toString()`
            if method.property.name == "toString" {
                let of = self.fold(&method.object, depth);
                if matches!(of, Value::Text(_)) {
                    return of;
                }
            }
        }
        let Value::Path(path) = self.fold(&call.callee, depth) else { return Value::Other };
        match (path.as_str(), first) {
            ("require", Value::Text(name)) => Value::Path(module(&name)),
            ("atob", Value::Text(text)) => base64_text(&text).map_or(Value::Other, Value::Text),
            ("Buffer.from", Value::Text(text)) => {
                let encoding = call.arguments.get(1).and_then(Argument::as_expression);
                match encoding.and_then(|encoding| self.text(encoding)).as_deref() {
                    Some("base64") => base64_text(&text).map_or(Value::Other, Value::Text),
                    None | Some("utf8" | "utf-8") => Value::Text(text),
                    Some(_) => Value::Other,
                }
            }
            ("String.fromCharCode", _) => {
                let letter = |argument: &Argument<'_>| match argument {
                    Argument::NumericLiteral(number) if (0.0..65_536.0).contains(&number.value) => {
                        char::from_u32(number.value as u32)
                    }
                    _ => None,
                };
                let letters: Option<String> = call.arguments.iter().take(1_024).map(letter).collect();
                letters.map_or(Value::Other, Value::Text)
            }
            _ => Value::Path(path).called(),
        }
    }

    /// `["a", "b"].join("")`, and a few methods of text.
    fn fold_method(
        &self,
        method: &StaticMemberExpression<'_>,
        call: &CallExpression<'_>,
        depth: usize,
    ) -> Option<String> {
        let depth = depth.checked_sub(1)?;
        let text = |expr: &Expression<'_>| match self.fold(expr, depth) {
            Value::Text(text) => Some(text),
            _ => None,
        };
        let argument =
            |index: usize| call.arguments.get(index).and_then(Argument::as_expression).and_then(text);
        match method.property.name.as_str() {
            "join" => {
                let Expression::ArrayExpression(array) = &method.object else { return None };
                let by = argument(0)?;
                let parts: Option<Vec<_>> = array
                    .elements
                    .iter()
                    .take(1_024)
                    .map(|part| part.as_expression().and_then(text))
                    .collect();
                Some(parts?.join(&by))
            }
            "concat" => Some(text(&method.object)? + &argument(0)?),
            "replace" | "replaceAll" => {
                let (from, to) = (argument(0)?, argument(1)?);
                (!from.is_empty()).then_some(text(&method.object)?.replace(&from, &to))
            }
            _ => None,
        }
    }

    fn arguments(&self, arguments: &[Argument<'_>]) -> Vec<Option<String>> {
        arguments
            .iter()
            .take(16)
            .map(|argument| argument.as_expression().and_then(|expr| self.text(expr)))
            .collect()
    }

    fn called(&mut self, path: String, arguments: &[Argument<'_>], at: u32) {
        let known = self.arguments(arguments);
        let first = known.first().cloned().flatten();
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
                self.facts.extend(shell::embedded(&command, at as usize));
            } else if PROGRAMS.contains(&path.as_str()) {
                let rest = match arguments.get(1) {
                    Some(Argument::ArrayExpression(array)) => array
                        .elements
                        .iter()
                        .take(64)
                        .map(|word| word.as_expression().and_then(|word| self.text(word)))
                        .collect(),
                    _ => Vec::new(),
                };
                let words = std::iter::once(Some(command)).chain(rest).collect();
                self.facts.extend(shell::program(words, at as usize));
            }
        }
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
                self.method(access, at);
                self.visit_expression(&access.object);
            }
            _ => self.visit_expression(callee),
        }
    }

    /// A method of something unknown. A function's `constructor` is `Function`.
    fn method(&mut self, access: &StaticMemberExpression<'_>, at: u32) {
        let function = |expr: &Expression<'_>| match expr.get_inner_expression() {
            Expression::StaticMemberExpression(inner) => inner.property.name == "constructor",
            Expression::FunctionExpression(_) | Expression::ArrowFunctionExpression(_) => true,
            _ => false,
        };
        let name = access.property.name.as_str();
        let name =
            if name == "constructor" && function(&access.object) { "constructor.constructor" } else { name };
        self.say(at, Kind::Member(name.to_owned()));
    }

    /// What a resolved name is made of may hold calls of its own.
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

    /// Properties that are special, whatever they are properties of.
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

fn member(of: Value, name: &str) -> Value {
    match of {
        Value::Path(path) if path.len() < 256 => Value::Path(canonical(format!("{path}.{name}"))),
        _ => Value::Other,
    }
}

impl Value {
    fn called(self) -> Self {
        match self {
            Self::Path(path) if path.len() < 256 => Self::Path(format!("{path}()")),
            _ => Self::Other,
        }
    }
}

impl<'a> Visit<'a> for Reader {
    fn enter_scope(&mut self, _: ScopeFlags, _: &Cell<Option<ScopeId>>) {
        self.scopes.push(HashMap::new());
    }

    fn leave_scope(&mut self) {
        self.scopes.pop();
    }

    fn visit_function(&mut self, function: &Function<'a>, flags: ScopeFlags) {
        if let Some(name) = &function.id {
            self.bind(name.name.as_str(), Value::Other);
        }
        walk::walk_function(self, function, flags);
    }

    fn visit_class(&mut self, class: &Class<'a>) {
        if let Some(name) = &class.id {
            self.bind(name.name.as_str(), Value::Other);
        }
        walk::walk_class(self, class);
    }

    fn visit_formal_parameter(&mut self, parameter: &FormalParameter<'a>) {
        self.bind_pattern(&parameter.pattern, &Value::Other, MAX_DEPTH);
        walk::walk_formal_parameter(self, parameter);
    }

    fn visit_catch_parameter(&mut self, parameter: &CatchParameter<'a>) {
        self.bind_pattern(&parameter.pattern, &Value::Other, MAX_DEPTH);
        walk::walk_catch_parameter(self, parameter);
    }

    fn visit_variable_declarator(&mut self, declarator: &VariableDeclarator<'a>) {
        walk::walk_variable_declarator(self, declarator);
        let value = declarator.init.as_ref().map_or(Value::Other, |init| self.value(init));
        self.bind_pattern(&declarator.id, &value, MAX_DEPTH);
    }

    fn visit_assignment_expression(&mut self, assignment: &AssignmentExpression<'a>) {
        walk::walk_assignment_expression(self, assignment);
        if let AssignmentTarget::AssignmentTargetIdentifier(name) = &assignment.left {
            let value = self.value(&assignment.right);
            let name = name.name.as_str();
            let scope = self.scopes.iter_mut().rev().find(|scope| scope.contains_key(name));
            match scope {
                Some(scope) => _ = scope.insert(name.to_owned(), value),
                None => self.bind(name, value),
            }
        }
    }

    fn visit_import_declaration(&mut self, import: &ImportDeclaration<'a>) {
        if import.import_kind.is_type() {
            return;
        }
        let name = module(import.source.value.as_str());
        self.say(import.span.start, Kind::Import(name.clone()));
        for specifier in import.specifiers.iter().flatten() {
            let (local, path) = match specifier {
                ImportDeclarationSpecifier::ImportSpecifier(one) => {
                    (&one.local, canonical(format!("{name}.{}", one.imported.name())))
                }
                ImportDeclarationSpecifier::ImportDefaultSpecifier(whole) => (&whole.local, name.clone()),
                ImportDeclarationSpecifier::ImportNamespaceSpecifier(whole) => (&whole.local, name.clone()),
            };
            self.bind(local.name.as_str(), Value::Path(path));
        }
    }

    fn visit_export_all_declaration(&mut self, export: &ExportAllDeclaration<'a>) {
        self.say(export.span.start, Kind::Import(module(export.source.value.as_str())));
    }

    fn visit_import_expression(&mut self, import: &ImportExpression<'a>) {
        match self.text(&import.source) {
            Some(name) => {
                self.say(import.span.start, Kind::Import(module(&name)));
                if !matches!(import.source, Expression::StringLiteral(_) | Expression::Identifier(_)) {
                    self.say(import.span.start, Kind::Shape(Shape::Assembled(name)));
                }
            }
            None => self.say(import.span.start, Kind::Shape(Shape::UnknownCode("import()"))),
        }
        walk::walk_import_expression(self, import);
    }

    fn visit_call_expression(&mut self, call: &CallExpression<'a>) {
        self.callee(&call.callee, &call.arguments);
        self.visit_arguments(&call.arguments);
    }

    fn visit_new_expression(&mut self, new: &NewExpression<'a>) {
        self.callee(&new.callee, &new.arguments);
        self.visit_arguments(&new.arguments);
    }

    fn visit_static_member_expression(&mut self, access: &StaticMemberExpression<'a>) {
        let name = access.property.name.as_str();
        self.special(access);
        let value = member(self.value(&access.object), name);
        let known = matches!(value, Value::Path(_));
        self.mention(value, access.span.start);
        if known { self.inner(&access.object) } else { self.visit_expression(&access.object) }
    }

    fn visit_computed_member_expression(&mut self, access: &ComputedMemberExpression<'a>) {
        if let Some(name) = self.text(&access.expression) {
            let value = member(self.value(&access.object), &name);
            self.mention(value, access.span.start);
        }
        self.inner(&access.object);
        self.visit_expression(&access.expression);
    }

    fn visit_identifier_reference(&mut self, name: &IdentifierReference<'a>) {
        let value = self.lookup(name.name.as_str());
        self.mention(value, name.span.start);
    }

    fn visit_while_statement(&mut self, statement: &WhileStatement<'a>) {
        let before = self.facts.len();
        walk::walk_while_statement(self, statement);
        let endless = matches!(&statement.test, Expression::BooleanLiteral(literal) if literal.value);
        let forks = |fact: &Fact| {
            matches!(&fact.kind, Kind::Name { path, arguments: Some(_) }
                if matches!(path.as_str(), "child_process.fork" | "child_process.spawn"))
        };
        if endless && self.facts[before..].iter().any(forks) {
            self.say(statement.span.start, Kind::Shape(Shape::ForkBomb));
        }
    }
}
