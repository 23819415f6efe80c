//! What an expression is, as far as that can be said without running it.

use ruff_python_ast::{self as ast, Expr, Operator};

use super::super::fact::{MAX_TEXT, base64_text};
use super::scope::{Scopes, Value, canonical};

/// How far down an expression is looked into. It bounds the work as well: each part has so many parents at most.
const MAX_DEPTH: usize = 24;

/// Folds an expression.
pub(crate) fn value(expr: &Expr, scopes: &Scopes) -> Value {
    fold(expr, scopes, MAX_DEPTH)
}

fn text(expr: &Expr, scopes: &Scopes) -> Option<String> {
    match value(expr, scopes) {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

fn fold(expr: &Expr, scopes: &Scopes, depth: usize) -> Value {
    let Some(depth) = depth.checked_sub(1) else { return Value::Other };
    match expr {
        Expr::Name(name) => scopes.value(name.id.as_str()),
        Expr::Attribute(attribute) => member(fold(&attribute.value, scopes, depth), attribute.attr.as_str()),
        Expr::StringLiteral(literal) => bounded(literal.value.to_str().to_owned()),
        Expr::BytesLiteral(literal) => {
            String::from_utf8(literal.value.bytes().collect()).map_or(Value::Other, bounded)
        }
        Expr::FString(string) => f_string(string, scopes, depth),
        Expr::NumberLiteral(ast::ExprNumberLiteral { value: ast::Number::Int(number), .. }) => {
            number.as_i64().map_or(Value::Other, Value::Number)
        }
        Expr::BinOp(operation) => binary(operation, scopes, depth),
        Expr::Call(call) => called(call, scopes, depth),
        Expr::Subscript(subscript) => subscripted_value(subscript, scopes, depth),
        Expr::Named(named) => fold(&named.value, scopes, depth),
        Expr::If(choice) => first_known([&*choice.body, &*choice.orelse], scopes, depth),
        Expr::BoolOp(choice) => first_known(&choice.values, scopes, depth),
        _ => Value::Other,
    }
}

/// Of several that it may be, the first of which something is known.
fn first_known<'a>(choices: impl IntoIterator<Item = &'a Expr>, scopes: &Scopes, depth: usize) -> Value {
    let values = choices.into_iter().take(8).map(|choice| fold(choice, scopes, depth));
    values.into_iter().find(|value| *value != Value::Other).unwrap_or(Value::Other)
}

/// Whether a call asks for an attribute of its first argument by a name that is known, and so hands on nothing else.
pub(crate) fn looks_up(call: &ast::ExprCall, scopes: &Scopes) -> bool {
    let [Expr::Name(_), name, ..] = &*call.arguments.args else { return false };
    let by = matches!(&*call.func, Expr::Name(by) if by.id == "hasattr")
        || value(&call.func, scopes) == Value::Path("getattr".to_owned());
    by && text(name, scopes).is_some()
}

/// `"sys%s" % "tem"` and `"{}tem".format("sys")`: holes are filled in their order, and nothing else is understood.
fn filled(pattern: &str, hole: &str, parts: &[Expr], scopes: &Scopes, depth: usize) -> Value {
    let mut whole = pattern.to_owned();
    for part in parts.iter().take(64) {
        let Value::Text(part) = fold(part, scopes, depth) else { return Value::Other };
        whole = whole.replacen(hole, &part, 1);
    }
    if whole.contains(hole) { Value::Other } else { bounded(whole) }
}

fn bounded(text: String) -> Value {
    if text.len() <= MAX_TEXT { Value::Text(text) } else { Value::Other }
}

fn member(of: Value, name: &str) -> Value {
    match of {
        Value::Path(path) if path.len() < 256 => Value::Path(canonical(&format!("{path}.{name}"))),
        _ => Value::Other,
    }
}

fn f_string(string: &ast::ExprFString, scopes: &Scopes, depth: usize) -> Value {
    let mut whole = String::new();
    for part in &string.value {
        match part {
            ast::FStringPart::Literal(literal) => whole.push_str(&literal.value),
            ast::FStringPart::FString(string) => {
                for element in &string.elements {
                    match element {
                        ast::InterpolatedStringElement::Literal(literal) => whole.push_str(&literal.value),
                        ast::InterpolatedStringElement::Interpolation(hole) => {
                            match fold(&hole.expression, scopes, depth) {
                                Value::Text(text) => whole.push_str(&text),
                                Value::Number(number) => whole.push_str(&number.to_string()),
                                _ => return Value::Other,
                            }
                        }
                    }
                }
            }
        }
    }
    bounded(whole)
}

fn binary(operation: &ast::ExprBinOp, scopes: &Scopes, depth: usize) -> Value {
    let left = fold(&operation.left, scopes, depth);
    if let (Value::Text(pattern), Operator::Mod) = (&left, operation.op) {
        let parts = match &*operation.right {
            Expr::Tuple(tuple) => &tuple.elts[..],
            one => std::slice::from_ref(one),
        };
        return filled(pattern, "%s", parts, scopes, depth);
    }
    let right = fold(&operation.right, scopes, depth);
    match (left, operation.op, right) {
        (Value::Text(left), Operator::Add, Value::Text(right)) => bounded(left + &right),
        (Value::Number(left), Operator::Add, Value::Number(right)) => number(left.checked_add(right)),
        (Value::Number(left), Operator::Sub, Value::Number(right)) => number(left.checked_sub(right)),
        (Value::Number(left), Operator::BitXor, Value::Number(right)) => Value::Number(left ^ right),
        _ => Value::Other,
    }
}

fn number(number: Option<i64>) -> Value {
    number.map_or(Value::Other, Value::Number)
}

/// `x += "tem"`.
pub(crate) fn grown(assign: &ast::StmtAugAssign, scopes: &Scopes) -> Value {
    match (value(&assign.target, scopes), assign.op, value(&assign.value, scopes)) {
        (Value::Text(left), Operator::Add, Value::Text(right)) => bounded(left + &right),
        _ => Value::Other,
    }
}

fn called(call: &ast::ExprCall, scopes: &Scopes, depth: usize) -> Value {
    let arguments = &call.arguments.args;
    let first = || arguments.first().map_or(Value::Other, |argument| fold(argument, scopes, depth));
    if let Expr::Attribute(method) = &*call.func
        && let Value::Text(of) = fold(&method.value, scopes, depth)
    {
        return text_method(&of, method.attr.as_str(), arguments, scopes, depth);
    }
    let Value::Path(path) = fold(&call.func, scopes, depth) else { return Value::Other };
    match (path.as_str(), first()) {
        ("__import__" | "importlib.import_module", Value::Text(module)) => Value::Path(module),
        ("getattr", Value::Path(of)) => match arguments.get(1).map(|name| fold(name, scopes, depth)) {
            Some(Value::Text(name)) => member(Value::Path(of), &name),
            _ => Value::Other,
        },
        ("object.__getattribute__", Value::Path(of)) => {
            match arguments.get(1).map(|name| fold(name, scopes, depth)) {
                Some(Value::Text(name)) => member(Value::Path(of), &name),
                _ => Value::Other,
            }
        }
        ("sys.modules.get" | "sys.modules.pop" | "sys.modules.__getitem__", Value::Text(module)) => {
            Value::Path(module)
        }
        (path, Value::Text(name)) if path.ends_with(".__getattribute__") => {
            member(Value::Path(path.trim_end_matches(".__getattribute__").to_owned()), &name)
        }
        ("vars", Value::Path(of)) => Value::Path(format!("{of}.__dict__")),
        ("chr", Value::Number(code)) => {
            let letter = u32::try_from(code).ok().and_then(char::from_u32);
            letter.map_or(Value::Other, |letter| Value::Text(letter.to_string()))
        }
        ("str" | "bytes", Value::Text(text)) => Value::Text(text),
        ("base64.b64decode" | "base64.standard_b64decode", Value::Text(text)) => {
            base64_text(&text).map_or(Value::Other, Value::Text)
        }
        ("bytes.fromhex", Value::Text(text)) => unhex(&text).map_or(Value::Other, Value::Text),
        ("codecs.decode", Value::Text(text)) => match arguments.get(1).map(|by| fold(by, scopes, depth)) {
            Some(Value::Text(by)) if by.starts_with("rot") => Value::Text(rot13(&text)),
            _ => Value::Other,
        },
        (path, _) if path.len() < 256 => Value::Path(format!("{path}()")),
        _ => Value::Other,
    }
}

fn text_method(of: &str, name: &str, arguments: &[Expr], scopes: &Scopes, depth: usize) -> Value {
    match (name, arguments) {
        ("join", [Expr::List(ast::ExprList { elts, .. }) | Expr::Tuple(ast::ExprTuple { elts, .. })]) => {
            let mut parts = Vec::new();
            for part in elts.iter().take(1_024) {
                let Value::Text(part) = fold(part, scopes, depth) else { return Value::Other };
                parts.push(part);
            }
            bounded(parts.join(of))
        }
        ("decode" | "encode" | "strip" | "format", []) | ("decode" | "encode", [_]) => {
            Value::Text(of.to_owned())
        }
        ("format", parts) => filled(of, "{}", parts, scopes, depth),
        ("lower", []) => Value::Text(of.to_lowercase()),
        ("replace", [from, to]) => match (fold(from, scopes, depth), fold(to, scopes, depth)) {
            (Value::Text(from), Value::Text(to)) if !from.is_empty() => bounded(of.replace(&from, &to)),
            _ => Value::Other,
        },
        _ => Value::Other,
    }
}

/// `"…"[::-1]`, `globals()["eval"]`, `vars(os)["system"]`, `sys.modules["os"]`.
fn subscripted_value(subscript: &ast::ExprSubscript, scopes: &Scopes, depth: usize) -> Value {
    let of = fold(&subscript.value, scopes, depth);
    if let (Value::Text(text), Expr::Slice(slice)) = (&of, &*subscript.slice) {
        let backwards = matches!(slice.step.as_deref(), Some(Expr::UnaryOp(step))
            if step.op == ast::UnaryOp::USub && fold(&step.operand, scopes, depth) == Value::Number(1));
        let whole = slice.lower.is_none() && slice.upper.is_none();
        return if backwards && whole { Value::Text(text.chars().rev().collect()) } else { Value::Other };
    }
    let (Value::Path(of), Value::Text(key)) = (of, fold(&subscript.slice, scopes, depth)) else {
        return Value::Other;
    };
    match of.as_str() {
        "globals()" | "locals()" | "vars()" | "__builtins__" | "__dict__" => match scopes.value(&key) {
            Value::Other => Value::Path(canonical(&key)),
            known => known,
        },
        "sys.modules" => Value::Path(key),
        other => match other.strip_suffix(".__dict__") {
            Some(module) => member(Value::Path(module.to_owned()), &key),
            None => Value::Other,
        },
    }
}

/// Whether a resolved name came out of a dictionary.
pub(crate) fn subscripted(expr: &Expr) -> bool {
    matches!(expr, Expr::Subscript(_))
}

/// Whether a call picks something by a name that was put together.
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

/// Arguments as far as they are known; keywords are `name=value`.
pub(crate) fn arguments(arguments: &ast::Arguments, scopes: &Scopes) -> Vec<Option<String>> {
    let positional = arguments.args.iter().take(16).map(|argument| shown(argument, scopes));
    let keywords = arguments.keywords.iter().take(16).map(|keyword| {
        let name = keyword.arg.as_ref()?;
        Some(format!("{}={}", name, shown(&keyword.value, scopes)?))
    });
    positional.chain(keywords).collect()
}

fn shown(expr: &Expr, scopes: &Scopes) -> Option<String> {
    match (expr, value(expr, scopes)) {
        (Expr::BooleanLiteral(literal), _) => Some(if literal.value { "True" } else { "False" }.to_owned()),
        (_, Value::Text(text)) => Some(text),
        (_, Value::Number(number)) => Some(number.to_string()),
        _ => None,
    }
}

/// `subprocess.run(["rm", "-rf", "/"])` → the words of the command.
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
