//! Folds expressions to values without running them, as far as possible.

use std::rc::Rc;

use oxc_ast::ast::{
    Argument, BinaryExpression, BinaryOperator, CallExpression, ChainElement, Expression,
    StaticMemberExpression, TemplateLiteral,
};

use super::super::fact::{MAX_TEXT, base64_text, replaced};
use super::Reader;

/// Maximum depth of destructuring patterns.
pub(super) const MAX_DEPTH: usize = 24;

/// Longest name that is resolved, in bytes; no rule's name is nearly as long.
const MAX_NAME: usize = 256;

/// A value as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// A global or a name in a module; a call appends `()`.
    Path(String),
    Text(Rc<String>),
    Other,
}

/// Strips the prefix: `node:fs/promises` → `fs/promises`.
pub(super) fn module(name: &str) -> String {
    name.strip_prefix("node:").unwrap_or(name).to_owned()
}

/// Returns the canonical form of a name: `globalThis.eval` is `eval`; `fs/promises.rm` and `fs.promises.rm`
/// are `fs.rm`.
pub(super) fn canonical(mut path: String) -> String {
    const SAME: [(&str, &str); 10] = [
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
    ];
    // Each iteration shortens the name; a name too long to be resolved is left unchanged.
    while path.len() <= 2 * MAX_NAME
        && let Some((from, to)) = SAME.iter().find(|(from, _)| path.starts_with(from))
    {
        path.replace_range(..from.len(), to);
    }
    path
}

/// Appends to a text unless it would exceed the maximum length.
fn append(whole: &mut String, part: &str) -> Option<()> {
    (whole.len() + part.len() <= MAX_TEXT).then(|| whole.push_str(part))
}

/// Returns the path for a module name that was folded from text.
fn named_module(name: &str) -> Value {
    if name.len() <= MAX_NAME { Value::Path(module(name)) } else { Value::Other }
}

impl Reader {
    pub(super) fn lookup(&self, name: &str) -> Value {
        let budget = &self.allowance.budget;
        let mut scopes = self.scopes.iter().rev().take_while(|_| budget.spend(1));
        let known = scopes.find_map(|scope| scope.get(name));
        known.cloned().unwrap_or_else(|| Value::Path(name.to_owned()))
    }

    /// Folds an expression; the result is cached until a binding changes.
    pub(super) fn value(&self, expr: &Expression<'_>) -> Value {
        let address = std::ptr::from_ref(expr).addr();
        if let Some((generation, value)) = self.folded.borrow().get(&address)
            && *generation == self.generation
        {
            return value.clone();
        }
        if !self.allowance.budget.spend(1) {
            return Value::Other;
        }
        let value = self.fold(expr);
        self.folded.borrow_mut().insert(address, (self.generation, value.clone()));
        value
    }

    pub(super) fn text(&self, expr: &Expression<'_>) -> Option<Rc<String>> {
        match self.value(expr) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns a folded text, or an unknown value if it is too long or the budget is exhausted.
    fn bounded(&self, text: String) -> Value {
        let fits = text.len() <= MAX_TEXT && self.allowance.budget.spend_bytes(text.len());
        if fits { Value::Text(Rc::new(text)) } else { Value::Other }
    }

    fn template(&self, template: &TemplateLiteral<'_>) -> Option<String> {
        let mut whole = String::new();
        for (index, quasi) in template.quasis.iter().enumerate() {
            append(&mut whole, quasi.value.cooked.as_ref().map_or("", |text| text.as_str()))?;
            if let Some(hole) = template.expressions.get(index) {
                append(&mut whole, &self.text(hole)?)?;
            }
        }
        Some(whole)
    }

    /// Folds `a + b + c` at once: folding each sum separately would copy ever longer texts.
    fn sum(&self, sum: &BinaryExpression<'_>) -> Option<String> {
        let (mut first, mut others) = (&sum.left, vec![&sum.right]);
        while let Expression::BinaryExpression(inner) = first
            && inner.operator == BinaryOperator::Addition
        {
            others.push(&inner.right);
            first = &inner.left;
            if !self.allowance.budget.spend(1) {
                return None;
            }
        }
        let mut whole = String::clone(&*self.text(first)?);
        for other in others.into_iter().rev() {
            append(&mut whole, &self.text(other)?)?;
        }
        Some(whole)
    }

    fn fold(&self, expr: &Expression<'_>) -> Value {
        let known = |text: Option<String>| text.map_or(Value::Other, |text| self.bounded(text));
        match expr {
            Expression::Identifier(name) => self.lookup(name.name.as_str()),
            Expression::StringLiteral(text) if text.value.len() > MAX_TEXT => Value::Other,
            Expression::StringLiteral(text) => self.bounded(text.value.to_string()),
            Expression::TemplateLiteral(template) => known(self.template(template)),
            Expression::BinaryExpression(sum) if sum.operator == BinaryOperator::Addition => {
                known(self.sum(sum))
            }
            Expression::StaticMemberExpression(access) => {
                member(self.value(&access.object), access.property.name.as_str())
            }
            Expression::ComputedMemberExpression(access) => match self.value(&access.expression) {
                Value::Text(name) => member(self.value(&access.object), &name),
                _ => Value::Other,
            },
            Expression::ParenthesizedExpression(inner) => self.value(&inner.expression),
            Expression::AwaitExpression(inner) => self.value(&inner.argument),
            Expression::TSAsExpression(inner) => self.value(&inner.expression),
            Expression::TSNonNullExpression(inner) => self.value(&inner.expression),
            // `(0, eval)("…")`
            Expression::SequenceExpression(list) => {
                list.expressions.last().map_or(Value::Other, |last| self.value(last))
            }
            Expression::ImportExpression(import) => match self.value(&import.source) {
                Value::Text(name) => named_module(&name),
                _ => Value::Other,
            },
            Expression::NewExpression(new) => self.value(&new.callee).called(),
            Expression::CallExpression(call) => self.fold_call(call),
            Expression::ChainExpression(chain) => match &chain.expression {
                ChainElement::CallExpression(call) => self.fold_call(call),
                ChainElement::StaticMemberExpression(access) => {
                    member(self.value(&access.object), access.property.name.as_str())
                }
                _ => Value::Other,
            },
            _ => Value::Other,
        }
    }

    fn fold_call(&self, call: &CallExpression<'_>) -> Value {
        let first = call.arguments.first().and_then(Argument::as_expression);
        let first = first.map_or(Value::Other, |argument| self.value(argument));
        if let Expression::StaticMemberExpression(method) = &call.callee {
            if let Some(text) = self.fold_method(method, call) {
                return self.bounded(text);
            }
            // `Buffer.from(text, "base64").toString()`
            if method.property.name == "toString" {
                let of = self.value(&method.object);
                if matches!(of, Value::Text(_)) {
                    return of;
                }
            }
        }
        let Value::Path(path) = self.value(&call.callee) else { return Value::Other };
        let second = || {
            let second = call.arguments.get(1).and_then(Argument::as_expression)?;
            Some(self.value(second)).filter(|value| matches!(value, Value::Text(_)))
        };
        match (path.as_str(), first) {
            ("module.createRequire", _) => Value::Path("require".to_owned()),
            ("process.getBuiltinModule", Value::Text(name)) => named_module(&name),
            ("require.call", _) => match second() {
                Some(Value::Text(name)) => named_module(&name),
                _ => Value::Other,
            },
            ("Reflect.get", of @ Value::Path(_)) => match second() {
                Some(Value::Text(name)) => member(of, &name),
                _ => Value::Other,
            },
            (path, _) if path.ends_with(".bind") => Value::Path(path.trim_end_matches(".bind").to_owned()),
            ("require", Value::Text(name)) => named_module(&name),
            ("atob", Value::Text(text)) => base64_text(&text).map_or(Value::Other, |text| self.bounded(text)),
            ("Buffer.from", Value::Text(text)) => {
                let encoding = call.arguments.get(1).and_then(Argument::as_expression);
                match encoding.and_then(|encoding| self.text(encoding)).as_ref().map(|by| by.as_str()) {
                    Some("base64") => base64_text(&text).map_or(Value::Other, |text| self.bounded(text)),
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
                letters.map_or(Value::Other, |text| self.bounded(text))
            }
            _ => Value::Path(path).called(),
        }
    }

    /// Folds `["a", "b"].join("")` and a few string methods.
    fn fold_method(&self, method: &StaticMemberExpression<'_>, call: &CallExpression<'_>) -> Option<String> {
        let text = |expr: &Expression<'_>| self.text(expr);
        let argument =
            |index: usize| call.arguments.get(index).and_then(Argument::as_expression).and_then(text);
        match method.property.name.as_str() {
            "join" => {
                let by = argument(0)?;
                let Expression::ArrayExpression(array) = &method.object else {
                    return reversed(&method.object, text).filter(|_| by.is_empty());
                };
                let mut whole = String::new();
                for (index, part) in array.elements.iter().take(1_024).enumerate() {
                    if index > 0 {
                        append(&mut whole, &by)?;
                    }
                    append(&mut whole, &part.as_expression().and_then(text)?)?;
                }
                Some(whole)
            }
            "concat" => {
                let mut whole = String::clone(&*text(&method.object)?);
                append(&mut whole, &argument(0)?)?;
                Some(whole)
            }
            "replace" | "replaceAll" => {
                let (from, to) = (argument(0)?, argument(1)?);
                replaced(&text(&method.object)?, &from, &to)
            }
            _ => None,
        }
    }
}

/// Returns the reversed text for `"…".split("").reverse()`.
fn reversed(expr: &Expression<'_>, text: impl Fn(&Expression<'_>) -> Option<Rc<String>>) -> Option<String> {
    let whole = text(method_of(method_of(expr, "reverse")?, "split")?)?;
    Some(whole.chars().rev().collect())
}

/// Returns the object on which a method with this name is called.
fn method_of<'a>(expr: &'a Expression<'a>, name: &str) -> Option<&'a Expression<'a>> {
    let Expression::CallExpression(call) = expr else { return None };
    let Expression::StaticMemberExpression(access) = &call.callee else { return None };
    (access.property.name == name).then_some(&access.object)
}

pub(super) fn member(of: Value, name: &str) -> Value {
    match of {
        Value::Path(path) if path.len() < MAX_NAME && name.len() <= MAX_NAME => {
            Value::Path(canonical(format!("{path}.{name}")))
        }
        _ => Value::Other,
    }
}

impl Value {
    fn called(self) -> Self {
        match self {
            Self::Path(path) if path.len() < MAX_NAME => Self::Path(format!("{path}()")),
            _ => Self::Other,
        }
    }
}
