//! What an expression is, as far as that can be said without running it.

use oxc_ast::ast::{
    Argument, BinaryOperator, CallExpression, ChainElement, Expression, StaticMemberExpression,
};

use super::super::fact::{MAX_TEXT, base64_text};
use super::Reader;

/// How far down an expression is looked into.
pub(super) const MAX_DEPTH: usize = 24;

/// What is known of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// A global or something in a module; a call is `name()`.
    Path(String),
    Text(String),
    Other,
}

/// `node:fs/promises` → `fs/promises`.
pub(super) fn module(name: &str) -> String {
    name.strip_prefix("node:").unwrap_or(name).to_owned()
}

/// `globalThis.eval` is `eval`; `fs/promises.rm` and `fs.promises.rm` are `fs.rm`.
pub(super) fn canonical(path: String) -> String {
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
    pub(super) fn lookup(&self, name: &str) -> Value {
        let known = self.scopes.iter().rev().find_map(|scope| scope.get(name));
        known.cloned().unwrap_or_else(|| Value::Path(name.to_owned()))
    }

    pub(super) fn value(&self, expr: &Expression<'_>) -> Value {
        self.fold(expr, MAX_DEPTH)
    }

    pub(super) fn text(&self, expr: &Expression<'_>) -> Option<String> {
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
                ChainElement::CallExpression(call) => self.fold_call(call, depth),
                ChainElement::StaticMemberExpression(access) => {
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
        let second = || {
            let second = call.arguments.get(1).and_then(Argument::as_expression)?;
            Some(self.fold(second, depth)).filter(|value| matches!(value, Value::Text(_)))
        };
        match (path.as_str(), first) {
            ("module.createRequire", _) => Value::Path("require".to_owned()),
            ("process.getBuiltinModule", Value::Text(name)) => Value::Path(module(&name)),
            ("require.call", _) => match second() {
                Some(Value::Text(name)) => Value::Path(module(&name)),
                _ => Value::Other,
            },
            ("Reflect.get", of @ Value::Path(_)) => match second() {
                Some(Value::Text(name)) => member(of, &name),
                _ => Value::Other,
            },
            (path, _) if path.ends_with(".bind") => Value::Path(path.trim_end_matches(".bind").to_owned()),
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
                let by = argument(0)?;
                let Expression::ArrayExpression(array) = &method.object else {
                    return reversed(&method.object, text).filter(|_| by.is_empty());
                };
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
}

/// The text of `"…".split("").reverse()`.
fn reversed(expr: &Expression<'_>, text: impl Fn(&Expression<'_>) -> Option<String>) -> Option<String> {
    let whole = text(method_of(method_of(expr, "reverse")?, "split")?)?;
    Some(whole.chars().rev().collect())
}

/// What a method of this name is called on.
fn method_of<'a>(expr: &'a Expression<'a>, name: &str) -> Option<&'a Expression<'a>> {
    let Expression::CallExpression(call) = expr else { return None };
    let Expression::StaticMemberExpression(access) = &call.callee else { return None };
    (access.property.name == name).then_some(&access.object)
}

pub(super) fn member(of: Value, name: &str) -> Value {
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
