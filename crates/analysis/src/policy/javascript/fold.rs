//! Folds expressions to values without running them, as far as possible.

use std::rc::Rc;

use oxc_ast::ast::{
    Argument, BinaryExpression, BinaryOperator, CallExpression, ChainElement, Expression,
    StaticMemberExpression, TemplateLiteral,
};

use super::super::fact::{MAX_FOLDED_BYTES, decode_base64, replace_bounded};
use super::JavaScriptAnalyzer;

/// Maximum depth of destructuring patterns.
pub(super) const MAX_PATTERN_DEPTH: usize = 24;

/// Longest name that is resolved, in bytes; no rule's name is nearly as long.
const MAX_NAME_BYTES: usize = 256;

/// A value as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum JavaScriptValue {
    /// A global or a name in a module; a call appends `()`.
    Path(String),
    Text(Rc<String>),
    Unknown,
}

/// Strips the prefix: `node:fs/promises` → `fs/promises`.
pub(super) fn strip_node_prefix(name: &str) -> String {
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
    while path.len() <= 2 * MAX_NAME_BYTES
        && let Some((from, to)) = SAME.iter().find(|(from, _)| path.starts_with(from))
    {
        path.replace_range(..from.len(), to);
    }
    path
}

/// Appends to a text unless it would exceed the maximum length.
fn append(whole: &mut String, part: &str) -> Option<()> {
    (whole.len() + part.len() <= MAX_FOLDED_BYTES).then(|| whole.push_str(part))
}

/// Returns the path for a module name that was folded from text.
fn module_value(name: &str) -> JavaScriptValue {
    if name.len() <= MAX_NAME_BYTES {
        JavaScriptValue::Path(strip_node_prefix(name))
    } else {
        JavaScriptValue::Unknown
    }
}

impl JavaScriptAnalyzer {
    pub(super) fn lookup(&self, name: &str) -> JavaScriptValue {
        let budget = &self.allowance.budget;
        let mut scopes = self.scopes.iter().rev().take_while(|_| budget.spend(1));
        let known = scopes.find_map(|scope| scope.get(name));
        known.cloned().unwrap_or_else(|| JavaScriptValue::Path(name.to_owned()))
    }

    /// Folds an expression; the result is cached until a binding changes.
    pub(super) fn value(&self, expr: &Expression<'_>) -> JavaScriptValue {
        let address = std::ptr::from_ref(expr).addr();
        if let Some((generation, value)) = self.folded.borrow().get(&address)
            && *generation == self.generation
        {
            return value.clone();
        }
        if !self.allowance.budget.spend(1) {
            return JavaScriptValue::Unknown;
        }
        let value = self.fold(expr);
        self.folded.borrow_mut().insert(address, (self.generation, value.clone()));
        value
    }

    pub(super) fn text(&self, expr: &Expression<'_>) -> Option<Rc<String>> {
        match self.value(expr) {
            JavaScriptValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns a folded text, or an unknown value if it is too long or the budget is exhausted.
    fn bounded_text(&self, text: String) -> JavaScriptValue {
        let fits = text.len() <= MAX_FOLDED_BYTES && self.allowance.budget.spend_bytes(text.len());
        if fits { JavaScriptValue::Text(Rc::new(text)) } else { JavaScriptValue::Unknown }
    }

    fn fold_template(&self, template: &TemplateLiteral<'_>) -> Option<String> {
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
    fn fold_sum(&self, sum: &BinaryExpression<'_>) -> Option<String> {
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

    fn fold(&self, expr: &Expression<'_>) -> JavaScriptValue {
        let known =
            |text: Option<String>| text.map_or(JavaScriptValue::Unknown, |text| self.bounded_text(text));
        match expr {
            Expression::Identifier(name) => self.lookup(name.name.as_str()),
            Expression::StringLiteral(text) if text.value.len() > MAX_FOLDED_BYTES => {
                JavaScriptValue::Unknown
            }
            Expression::StringLiteral(text) => self.bounded_text(text.value.to_string()),
            Expression::TemplateLiteral(template) => known(self.fold_template(template)),
            Expression::BinaryExpression(sum) if sum.operator == BinaryOperator::Addition => {
                known(self.fold_sum(sum))
            }
            Expression::StaticMemberExpression(access) => {
                member(self.value(&access.object), access.property.name.as_str())
            }
            Expression::ComputedMemberExpression(access) => match self.value(&access.expression) {
                JavaScriptValue::Text(name) => member(self.value(&access.object), &name),
                _ => JavaScriptValue::Unknown,
            },
            Expression::ParenthesizedExpression(inner) => self.value(&inner.expression),
            Expression::AwaitExpression(inner) => self.value(&inner.argument),
            Expression::TSAsExpression(inner) => self.value(&inner.expression),
            Expression::TSNonNullExpression(inner) => self.value(&inner.expression),
            // `(0, eval)("…")`
            Expression::SequenceExpression(list) => {
                list.expressions.last().map_or(JavaScriptValue::Unknown, |last| self.value(last))
            }
            Expression::ImportExpression(import) => match self.value(&import.source) {
                JavaScriptValue::Text(name) => module_value(&name),
                _ => JavaScriptValue::Unknown,
            },
            Expression::NewExpression(new) => self.value(&new.callee).after_call(),
            Expression::CallExpression(call) => self.fold_call(call),
            Expression::ChainExpression(chain) => match &chain.expression {
                ChainElement::CallExpression(call) => self.fold_call(call),
                ChainElement::StaticMemberExpression(access) => {
                    member(self.value(&access.object), access.property.name.as_str())
                }
                _ => JavaScriptValue::Unknown,
            },
            _ => JavaScriptValue::Unknown,
        }
    }

    fn fold_call(&self, call: &CallExpression<'_>) -> JavaScriptValue {
        let first = call.arguments.first().and_then(Argument::as_expression);
        let first = first.map_or(JavaScriptValue::Unknown, |argument| self.value(argument));
        if let Expression::StaticMemberExpression(method) = &call.callee {
            if let Some(text) = self.fold_method(method, call) {
                return self.bounded_text(text);
            }
            // `Buffer.from(text, "base64").toString()`
            if method.property.name == "toString" {
                let of = self.value(&method.object);
                if matches!(of, JavaScriptValue::Text(_)) {
                    return of;
                }
            }
        }
        let JavaScriptValue::Path(path) = self.value(&call.callee) else { return JavaScriptValue::Unknown };
        let second = || {
            let second = call.arguments.get(1).and_then(Argument::as_expression)?;
            Some(self.value(second)).filter(|value| matches!(value, JavaScriptValue::Text(_)))
        };
        match (path.as_str(), first) {
            ("module.createRequire", _) => JavaScriptValue::Path("require".to_owned()),
            ("process.getBuiltinModule", JavaScriptValue::Text(name)) => module_value(&name),
            ("require.call", _) => match second() {
                Some(JavaScriptValue::Text(name)) => module_value(&name),
                _ => JavaScriptValue::Unknown,
            },
            ("Reflect.get", of @ JavaScriptValue::Path(_)) => match second() {
                Some(JavaScriptValue::Text(name)) => member(of, &name),
                _ => JavaScriptValue::Unknown,
            },
            (path, _) if path.ends_with(".bind") => {
                JavaScriptValue::Path(path.trim_end_matches(".bind").to_owned())
            }
            ("require", JavaScriptValue::Text(name)) => module_value(&name),
            ("atob", JavaScriptValue::Text(text)) => {
                decode_base64(&text).map_or(JavaScriptValue::Unknown, |text| self.bounded_text(text))
            }
            ("Buffer.from", JavaScriptValue::Text(text)) => {
                let encoding = call.arguments.get(1).and_then(Argument::as_expression);
                match encoding.and_then(|encoding| self.text(encoding)).as_ref().map(|by| by.as_str()) {
                    Some("base64") => {
                        decode_base64(&text).map_or(JavaScriptValue::Unknown, |text| self.bounded_text(text))
                    }
                    None | Some("utf8" | "utf-8") => JavaScriptValue::Text(text),
                    Some(_) => JavaScriptValue::Unknown,
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
                letters.map_or(JavaScriptValue::Unknown, |text| self.bounded_text(text))
            }
            _ => JavaScriptValue::Path(path).after_call(),
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
                    return reversed_text(&method.object, text).filter(|_| by.is_empty());
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
                replace_bounded(&text(&method.object)?, &from, &to)
            }
            _ => None,
        }
    }
}

/// Returns the reversed text for `"…".split("").reverse()`.
fn reversed_text(
    expr: &Expression<'_>,
    text: impl Fn(&Expression<'_>) -> Option<Rc<String>>,
) -> Option<String> {
    let whole = text(receiver_of(receiver_of(expr, "reverse")?, "split")?)?;
    Some(whole.chars().rev().collect())
}

/// Returns the object on which a method with this name is called.
fn receiver_of<'a>(expr: &'a Expression<'a>, name: &str) -> Option<&'a Expression<'a>> {
    let Expression::CallExpression(call) = expr else { return None };
    let Expression::StaticMemberExpression(access) = &call.callee else { return None };
    (access.property.name == name).then_some(&access.object)
}

pub(super) fn member(of: JavaScriptValue, name: &str) -> JavaScriptValue {
    match of {
        JavaScriptValue::Path(path) if path.len() < MAX_NAME_BYTES && name.len() <= MAX_NAME_BYTES => {
            JavaScriptValue::Path(canonical(format!("{path}.{name}")))
        }
        _ => JavaScriptValue::Unknown,
    }
}

impl JavaScriptValue {
    fn after_call(self) -> Self {
        match self {
            Self::Path(path) if path.len() < MAX_NAME_BYTES => Self::Path(format!("{path}()")),
            _ => Self::Unknown,
        }
    }
}
