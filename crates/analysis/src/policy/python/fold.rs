//! Folds expressions to values without running them, as far as possible.

use std::rc::Rc;

use ruff_python_ast::{self as ast, Expr, Operator};

use super::super::fact::{MAX_TEXT, base64_text, replaced};
use super::scope::{Scopes, Value, canonical};

/// Longest name that is resolved, in bytes; no rule's name is nearly as long.
const MAX_NAME: usize = 256;

fn text(expr: &Expr, scopes: &Scopes) -> Option<Rc<String>> {
    match value(expr, scopes) {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

/// Folds an expression; the result is cached until a binding changes.
pub(crate) fn value(expr: &Expr, scopes: &Scopes) -> Value {
    if let Some(value) = scopes.folded(expr) {
        return value;
    }
    if !scopes.budget.spend(1) {
        return Value::Other;
    }
    let value = fold(expr, scopes);
    scopes.keep(expr, &value);
    value
}

fn fold(expr: &Expr, scopes: &Scopes) -> Value {
    match expr {
        Expr::Name(name) => scopes.value(name.id.as_str()),
        Expr::Attribute(attribute) => member(value(&attribute.value, scopes), attribute.attr.as_str()),
        Expr::StringLiteral(literal) if literal.value.len() > MAX_TEXT => Value::Other,
        Expr::StringLiteral(literal) => bounded(literal.value.to_str().to_owned(), scopes),
        Expr::BytesLiteral(literal) => String::from_utf8(literal.value.bytes().collect())
            .map_or(Value::Other, |text| bounded(text, scopes)),
        Expr::FString(string) => f_string(string, scopes),
        Expr::NumberLiteral(ast::ExprNumberLiteral { value: ast::Number::Int(number), .. }) => {
            number.as_i64().map_or(Value::Other, Value::Number)
        }
        Expr::BinOp(operation) => binary(operation, scopes),
        Expr::Call(call) => called(call, scopes),
        Expr::Subscript(subscript) => subscripted_value(subscript, scopes),
        Expr::Named(named) => value(&named.value, scopes),
        Expr::If(choice) => first_known([&*choice.body, &*choice.orelse], scopes),
        Expr::BoolOp(choice) => first_known(&choice.values, scopes),
        _ => Value::Other,
    }
}

/// Returns the first known value of several alternatives.
fn first_known<'a>(choices: impl IntoIterator<Item = &'a Expr>, scopes: &Scopes) -> Value {
    let mut values = choices.into_iter().take(8).map(|choice| value(choice, scopes));
    values.find(|value| *value != Value::Other).unwrap_or(Value::Other)
}

/// Returns whether a call looks up an attribute of its first argument by a known name, and so passes nothing
/// else on.
pub(crate) fn looks_up(call: &ast::ExprCall, scopes: &Scopes) -> bool {
    let [Expr::Name(_), name, ..] = &*call.arguments.args else { return false };
    let by = matches!(&*call.func, Expr::Name(by) if by.id == "hasattr")
        || value(&call.func, scopes) == Value::Path("getattr".to_owned());
    by && text(name, scopes).is_some()
}

/// Folds `"sys%s" % "tem"` and `"{}tem".format("sys")`. Placeholders are filled in order; no other format is
/// supported.
fn filled(pattern: &str, hole: &str, parts: &[Expr], scopes: &Scopes) -> Value {
    let (mut whole, mut rest) = (String::new(), pattern);
    for part in parts.iter().take(64) {
        let Value::Text(part) = value(part, scopes) else { return Value::Other };
        let Some((before, after)) = rest.split_once(hole) else { break };
        if !append(&mut whole, before) || !append(&mut whole, &part) {
            return Value::Other;
        }
        rest = after;
    }
    if rest.contains(hole) || !append(&mut whole, rest) { Value::Other } else { bounded(whole, scopes) }
}

/// Returns a folded text, or an unknown value if it is too long or the budget is exhausted.
fn bounded(text: String, scopes: &Scopes) -> Value {
    let fits = text.len() <= MAX_TEXT && scopes.budget.spend_bytes(text.len());
    if fits { Value::Text(Rc::new(text)) } else { Value::Other }
}

/// Appends to a text unless it would exceed the maximum length.
fn append(whole: &mut String, part: &str) -> bool {
    let fits = whole.len() + part.len() <= MAX_TEXT;
    if fits {
        whole.push_str(part);
    }
    fits
}

/// Returns the path for a name that was folded from text.
fn path(text: &str) -> Value {
    if text.len() <= MAX_NAME { Value::Path(text.to_owned()) } else { Value::Other }
}

fn member(of: Value, name: &str) -> Value {
    match of {
        Value::Path(path) if path.len() < MAX_NAME && name.len() <= MAX_NAME => {
            Value::Path(canonical(&format!("{path}.{name}")))
        }
        _ => Value::Other,
    }
}

fn f_string(string: &ast::ExprFString, scopes: &Scopes) -> Value {
    let mut whole = String::new();
    for part in &string.value {
        let known = match part {
            ast::FStringPart::Literal(literal) => append(&mut whole, &literal.value),
            ast::FStringPart::FString(string) => {
                string.elements.iter().all(|element| interpolated(&mut whole, element, scopes))
            }
        };
        if !known {
            return Value::Other;
        }
    }
    bounded(whole, scopes)
}

/// Appends a part of an f-string if it is known and fits.
fn interpolated(whole: &mut String, element: &ast::InterpolatedStringElement, scopes: &Scopes) -> bool {
    match element {
        ast::InterpolatedStringElement::Literal(literal) => append(whole, &literal.value),
        ast::InterpolatedStringElement::Interpolation(hole) => match value(&hole.expression, scopes) {
            Value::Text(text) => append(whole, &text),
            Value::Number(number) => append(whole, &number.to_string()),
            _ => false,
        },
    }
}

fn binary(operation: &ast::ExprBinOp, scopes: &Scopes) -> Value {
    if operation.op == Operator::Add {
        return sum(operation, scopes);
    }
    let left = value(&operation.left, scopes);
    if let (Value::Text(pattern), Operator::Mod) = (&left, operation.op) {
        let parts = match &*operation.right {
            Expr::Tuple(tuple) => &tuple.elts[..],
            one => std::slice::from_ref(one),
        };
        return filled(pattern, "%s", parts, scopes);
    }
    match (left, operation.op, value(&operation.right, scopes)) {
        (Value::Number(left), Operator::Sub, Value::Number(right)) => number(left.checked_sub(right)),
        (Value::Number(left), Operator::BitXor, Value::Number(right)) => Value::Number(left ^ right),
        _ => Value::Other,
    }
}

/// Folds `a + b + c` at once: folding each sum separately would copy ever longer texts.
fn sum(operation: &ast::ExprBinOp, scopes: &Scopes) -> Value {
    let (mut first, mut others) = (&*operation.left, vec![&*operation.right]);
    while let Expr::BinOp(ast::ExprBinOp { left, op: Operator::Add, right, .. }) = first {
        others.push(right);
        first = left;
        if !scopes.budget.spend(1) {
            return Value::Other;
        }
    }
    let others = others.into_iter().rev().map(|other| value(other, scopes));
    match value(first, scopes) {
        Value::Text(text) => {
            let mut whole = String::clone(&text);
            for other in others {
                let Value::Text(other) = other else { return Value::Other };
                if !append(&mut whole, &other) {
                    return Value::Other;
                }
            }
            bounded(whole, scopes)
        }
        Value::Number(first) => others
            .map(|other| if let Value::Number(other) = other { Some(other) } else { None })
            .try_fold(first, |sum, other| sum.checked_add(other?))
            .map_or(Value::Other, Value::Number),
        _ => Value::Other,
    }
}

fn number(number: Option<i64>) -> Value {
    number.map_or(Value::Other, Value::Number)
}

/// Folds `x += "tem"` by extending the text in place.
pub(crate) fn grown(name: &str, assign: &ast::StmtAugAssign, scopes: &mut Scopes) -> Value {
    let more = value(&assign.value, scopes);
    let (Operator::Add, Value::Text(more)) = (assign.op, more) else { return Value::Other };
    let text = match scopes.take_text(name) {
        Some(text) => Value::Text(text),
        None => scopes.value(name),
    };
    let Value::Text(mut text) = text else { return Value::Other };
    let fits = scopes.budget.spend_bytes(more.len()) && append(Rc::make_mut(&mut text), &more);
    if fits { Value::Text(text) } else { Value::Other }
}

fn called(call: &ast::ExprCall, scopes: &Scopes) -> Value {
    let arguments = &call.arguments.args;
    let first = || arguments.first().map_or(Value::Other, |argument| value(argument, scopes));
    if let Expr::Attribute(method) = &*call.func
        && let Value::Text(of) = value(&method.value, scopes)
    {
        return text_method(&of, method.attr.as_str(), arguments, scopes);
    }
    let Value::Path(function) = value(&call.func, scopes) else { return Value::Other };
    match (function.as_str(), first()) {
        ("__import__" | "importlib.import_module", Value::Text(module)) => path(&module),
        ("getattr", Value::Path(of)) => match arguments.get(1).map(|name| value(name, scopes)) {
            Some(Value::Text(name)) => member(Value::Path(of), &name),
            _ => Value::Other,
        },
        ("object.__getattribute__", Value::Path(of)) => {
            match arguments.get(1).map(|name| value(name, scopes)) {
                Some(Value::Text(name)) => member(Value::Path(of), &name),
                _ => Value::Other,
            }
        }
        ("sys.modules.get" | "sys.modules.pop" | "sys.modules.__getitem__", Value::Text(module)) => {
            path(&module)
        }
        (function, Value::Text(name)) if function.ends_with(".__getattribute__") => {
            member(Value::Path(function.trim_end_matches(".__getattribute__").to_owned()), &name)
        }
        ("vars", Value::Path(of)) => Value::Path(format!("{of}.__dict__")),
        ("chr", Value::Number(code)) => {
            let letter = u32::try_from(code).ok().and_then(char::from_u32);
            letter.map_or(Value::Other, |letter| bounded(letter.to_string(), scopes))
        }
        ("str" | "bytes", Value::Text(text)) => Value::Text(text),
        ("base64.b64decode" | "base64.standard_b64decode", Value::Text(text)) => {
            base64_text(&text).map_or(Value::Other, |text| bounded(text, scopes))
        }
        ("bytes.fromhex", Value::Text(text)) => {
            unhex(&text).map_or(Value::Other, |text| bounded(text, scopes))
        }
        ("codecs.decode", Value::Text(text)) => match arguments.get(1).map(|by| value(by, scopes)) {
            Some(Value::Text(by)) if by.starts_with("rot") => bounded(rot13(&text), scopes),
            _ => Value::Other,
        },
        (function, _) if function.len() < MAX_NAME => Value::Path(format!("{function}()")),
        _ => Value::Other,
    }
}

fn text_method(of: &Rc<String>, name: &str, arguments: &[Expr], scopes: &Scopes) -> Value {
    match (name, arguments) {
        ("join", [Expr::List(ast::ExprList { elts, .. }) | Expr::Tuple(ast::ExprTuple { elts, .. })]) => {
            let mut whole = String::new();
            for (index, part) in elts.iter().take(1_024).enumerate() {
                let Value::Text(part) = value(part, scopes) else { return Value::Other };
                if (index > 0 && !append(&mut whole, of)) || !append(&mut whole, &part) {
                    return Value::Other;
                }
            }
            bounded(whole, scopes)
        }
        ("decode" | "encode" | "strip" | "format", []) | ("decode" | "encode", [_]) => {
            Value::Text(Rc::clone(of))
        }
        ("format", parts) => filled(of, "{}", parts, scopes),
        ("lower", []) => bounded(of.to_lowercase(), scopes),
        ("replace", [from, to]) => match (value(from, scopes), value(to, scopes)) {
            (Value::Text(from), Value::Text(to)) => {
                replaced(of, &from, &to).map_or(Value::Other, |text| bounded(text, scopes))
            }
            _ => Value::Other,
        },
        _ => Value::Other,
    }
}

/// Folds `"…"[::-1]`, `globals()["eval"]`, `vars(os)["system"]`, `sys.modules["os"]`.
fn subscripted_value(subscript: &ast::ExprSubscript, scopes: &Scopes) -> Value {
    let of = value(&subscript.value, scopes);
    if let (Value::Text(text), Expr::Slice(slice)) = (&of, &*subscript.slice) {
        let backwards = matches!(slice.step.as_deref(), Some(Expr::UnaryOp(step))
            if step.op == ast::UnaryOp::USub && value(&step.operand, scopes) == Value::Number(1));
        let whole = slice.lower.is_none() && slice.upper.is_none();
        return if backwards && whole { bounded(text.chars().rev().collect(), scopes) } else { Value::Other };
    }
    let (Value::Path(of), Value::Text(key)) = (of, value(&subscript.slice, scopes)) else {
        return Value::Other;
    };
    match of.as_str() {
        "globals()" | "locals()" | "vars()" | "__builtins__" | "__dict__" => match scopes.value(&key) {
            Value::Other if key.len() > MAX_NAME => Value::Other,
            Value::Other => Value::Path(canonical(&key)),
            known => known,
        },
        "sys.modules" => path(&key),
        other => match other.strip_suffix(".__dict__") {
            Some(module) => member(Value::Path(module.to_owned()), &key),
            None => Value::Other,
        },
    }
}

/// Returns whether the expression is a subscript.
pub(crate) fn subscripted(expr: &Expr) -> bool {
    matches!(expr, Expr::Subscript(_))
}

/// Returns whether a call selects something by a name assembled from parts.
pub(crate) fn assembled(call: &ast::ExprCall, scopes: &Scopes) -> bool {
    let Value::Path(path) = value(&call.func, scopes) else { return false };
    let name = match path.as_str() {
        "__import__" | "importlib.import_module" | "eval" | "exec" => call.arguments.args.first(),
        "getattr" => call.arguments.args.get(1),
        _ => subscripted(&call.func).then_some(&*call.func),
    };
    let plain = |name: &Expr| match name {
        Expr::StringLiteral(literal) => !literal.value.is_implicit_concatenated(),
        Expr::Name(_) => true,
        _ => false,
    };
    name.is_some_and(|name| !plain(name) && (subscripted(name) || text(name, scopes).is_some()))
}

/// Returns the arguments as far as they are known; keyword arguments are `name=value`.
pub(crate) fn arguments(arguments: &ast::Arguments, scopes: &Scopes) -> Vec<Option<String>> {
    let positional = arguments.args.iter().take(16).map(|argument| shown(argument, scopes));
    let keywords = arguments.keywords.iter().take(16).map(|keyword| {
        let name = keyword.arg.as_ref()?;
        Some(format!("{}={}", name, shown(&keyword.value, scopes)?))
    });
    positional.chain(keywords).collect()
}

fn shown(expr: &Expr, scopes: &Scopes) -> Option<String> {
    // A fact stores a copy of each argument.
    let copy = |text: &str| scopes.budget.spend_bytes(text.len()).then(|| text.to_owned());
    match (expr, value(expr, scopes)) {
        (Expr::BooleanLiteral(literal), _) => Some(if literal.value { "True" } else { "False" }.to_owned()),
        (_, Value::Text(text)) => copy(&text),
        (_, Value::Number(number)) => Some(number.to_string()),
        _ => None,
    }
}

/// Returns the command of `subprocess.run(["rm", "-rf", "/"])` as words.
pub(crate) fn words(
    call: &ast::ExprCall,
    path: &str,
    processes: &[&str],
    scopes: &Scopes,
) -> Option<Vec<Option<String>>> {
    match call.arguments.args.first()? {
        Expr::List(ast::ExprList { elts, .. }) | Expr::Tuple(ast::ExprTuple { elts, .. }) => {
            processes.contains(&path).then(|| elts.iter().take(64).map(|word| shown(word, scopes)).collect())
        }
        _ => None,
    }
}

fn unhex(text: &str) -> Option<String> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    String::from_utf8(digits.chunks(2).map(pair).collect::<Option<Vec<_>>>()?).ok()
}

fn rot13(text: &str) -> String {
    let turn = |letter: char| match letter {
        'a'..='m' | 'A'..='M' => char::from(letter as u8 + 13),
        'n'..='z' | 'N'..='Z' => char::from(letter as u8 - 13),
        other => other,
    };
    text.chars().map(turn).collect()
}
