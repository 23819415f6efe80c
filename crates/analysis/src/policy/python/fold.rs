//! Folds expressions to values without running them, as far as possible.

use std::rc::Rc;

use ruff_python_ast::{self as ast, Expr, Operator};

use super::super::fact::{MAX_FOLDED_BYTES, decode_base64, replace_bounded};
use super::scope::{PythonScopes, PythonValue, canonical};

/// Longest name that is resolved, in bytes; no rule's name is nearly as long.
const MAX_PATH_BYTES: usize = 256;

fn text(expr: &Expr, scopes: &PythonScopes) -> Option<Rc<String>> {
    match value(expr, scopes) {
        PythonValue::Text(text) => Some(text),
        _ => None,
    }
}

/// Folds an expression; the result is cached until a binding changes.
pub(crate) fn value(expr: &Expr, scopes: &PythonScopes) -> PythonValue {
    if let Some(value) = scopes.cached(expr) {
        return value;
    }
    if !scopes.budget.spend(1) {
        return PythonValue::Unknown;
    }
    let value = fold(expr, scopes);
    scopes.cache(expr, &value);
    value
}

fn fold(expr: &Expr, scopes: &PythonScopes) -> PythonValue {
    match expr {
        Expr::Name(name) => scopes.value(name.id.as_str()),
        Expr::Attribute(attribute) => member(value(&attribute.value, scopes), attribute.attr.as_str()),
        Expr::StringLiteral(literal) if literal.value.len() > MAX_FOLDED_BYTES => PythonValue::Unknown,
        Expr::StringLiteral(literal) => bounded_text(literal.value.to_str().to_owned(), scopes),
        Expr::BytesLiteral(literal) => String::from_utf8(literal.value.bytes().collect())
            .map_or(PythonValue::Unknown, |text| bounded_text(text, scopes)),
        Expr::FString(string) => fold_f_string(string, scopes),
        Expr::NumberLiteral(ast::ExprNumberLiteral { value: ast::Number::Int(number), .. }) => {
            number.as_i64().map_or(PythonValue::Unknown, PythonValue::Number)
        }
        Expr::BinOp(operation) => fold_binary(operation, scopes),
        Expr::Call(call) => fold_call(call, scopes),
        Expr::Subscript(subscript) => fold_subscript(subscript, scopes),
        Expr::Named(named) => value(&named.value, scopes),
        Expr::If(choice) => first_known([&*choice.body, &*choice.orelse], scopes),
        Expr::BoolOp(choice) => first_known(&choice.values, scopes),
        _ => PythonValue::Unknown,
    }
}

/// Returns the first known value of several alternatives.
fn first_known<'a>(choices: impl IntoIterator<Item = &'a Expr>, scopes: &PythonScopes) -> PythonValue {
    let mut values = choices.into_iter().take(8).map(|choice| value(choice, scopes));
    values.find(|value| *value != PythonValue::Unknown).unwrap_or(PythonValue::Unknown)
}

/// Returns whether a call looks up an attribute of its first argument by a known name, and so passes nothing
/// else on.
pub(crate) fn is_attribute_lookup(call: &ast::ExprCall, scopes: &PythonScopes) -> bool {
    let [Expr::Name(_), name, ..] = &*call.arguments.args else { return false };
    let by = matches!(&*call.func, Expr::Name(by) if by.id == "hasattr")
        || value(&call.func, scopes) == PythonValue::Path("getattr".to_owned());
    by && text(name, scopes).is_some()
}

/// Folds `"sys%s" % "tem"` and `"{}tem".format("sys")`. Placeholders are filled in order; no other format is
/// supported.
fn fill_placeholders(pattern: &str, hole: &str, parts: &[Expr], scopes: &PythonScopes) -> PythonValue {
    let (mut whole, mut rest) = (String::new(), pattern);
    for part in parts.iter().take(64) {
        let PythonValue::Text(part) = value(part, scopes) else { return PythonValue::Unknown };
        let Some((before, after)) = rest.split_once(hole) else { break };
        if !append(&mut whole, before) || !append(&mut whole, &part) {
            return PythonValue::Unknown;
        }
        rest = after;
    }
    if rest.contains(hole) || !append(&mut whole, rest) {
        PythonValue::Unknown
    } else {
        bounded_text(whole, scopes)
    }
}

/// Returns a folded text, or an unknown value if it is too long or the budget is exhausted.
fn bounded_text(text: String, scopes: &PythonScopes) -> PythonValue {
    let fits = text.len() <= MAX_FOLDED_BYTES && scopes.budget.spend_bytes(text.len());
    if fits { PythonValue::Text(Rc::new(text)) } else { PythonValue::Unknown }
}

/// Appends to a text unless it would exceed the maximum length.
fn append(whole: &mut String, part: &str) -> bool {
    let fits = whole.len() + part.len() <= MAX_FOLDED_BYTES;
    if fits {
        whole.push_str(part);
    }
    fits
}

/// Returns the path for a name that was folded from text.
fn path_value(text: &str) -> PythonValue {
    if text.len() <= MAX_PATH_BYTES { PythonValue::Path(text.to_owned()) } else { PythonValue::Unknown }
}

fn member(of: PythonValue, name: &str) -> PythonValue {
    match of {
        PythonValue::Path(path) if path.len() < MAX_PATH_BYTES && name.len() <= MAX_PATH_BYTES => {
            PythonValue::Path(canonical(&format!("{path}.{name}")))
        }
        _ => PythonValue::Unknown,
    }
}

fn fold_f_string(string: &ast::ExprFString, scopes: &PythonScopes) -> PythonValue {
    let mut whole = String::new();
    for part in &string.value {
        let known = match part {
            ast::FStringPart::Literal(literal) => append(&mut whole, &literal.value),
            ast::FStringPart::FString(string) => {
                string.elements.iter().all(|element| append_interpolation(&mut whole, element, scopes))
            }
        };
        if !known {
            return PythonValue::Unknown;
        }
    }
    bounded_text(whole, scopes)
}

/// Appends a part of an f-string if it is known and fits.
fn append_interpolation(
    whole: &mut String,
    element: &ast::InterpolatedStringElement,
    scopes: &PythonScopes,
) -> bool {
    match element {
        ast::InterpolatedStringElement::Literal(literal) => append(whole, &literal.value),
        ast::InterpolatedStringElement::Interpolation(hole) => match value(&hole.expression, scopes) {
            PythonValue::Text(text) => append(whole, &text),
            PythonValue::Number(number) => append(whole, &number.to_string()),
            _ => false,
        },
    }
}

fn fold_binary(operation: &ast::ExprBinOp, scopes: &PythonScopes) -> PythonValue {
    if operation.op == Operator::Add {
        return fold_sum(operation, scopes);
    }
    let left = value(&operation.left, scopes);
    if let (PythonValue::Text(pattern), Operator::Mod) = (&left, operation.op) {
        let parts = match &*operation.right {
            Expr::Tuple(tuple) => &tuple.elts[..],
            one => std::slice::from_ref(one),
        };
        return fill_placeholders(pattern, "%s", parts, scopes);
    }
    match (left, operation.op, value(&operation.right, scopes)) {
        (PythonValue::Number(left), Operator::Sub, PythonValue::Number(right)) => {
            number(left.checked_sub(right))
        }
        (PythonValue::Number(left), Operator::BitXor, PythonValue::Number(right)) => {
            PythonValue::Number(left ^ right)
        }
        _ => PythonValue::Unknown,
    }
}

/// Folds `a + b + c` at once: folding each sum separately would copy ever longer texts.
fn fold_sum(operation: &ast::ExprBinOp, scopes: &PythonScopes) -> PythonValue {
    let (mut first, mut others) = (&*operation.left, vec![&*operation.right]);
    while let Expr::BinOp(ast::ExprBinOp { left, op: Operator::Add, right, .. }) = first {
        others.push(right);
        first = left;
        if !scopes.budget.spend(1) {
            return PythonValue::Unknown;
        }
    }
    let others = others.into_iter().rev().map(|other| value(other, scopes));
    match value(first, scopes) {
        PythonValue::Text(text) => {
            let mut whole = String::clone(&text);
            for other in others {
                let PythonValue::Text(other) = other else { return PythonValue::Unknown };
                if !append(&mut whole, &other) {
                    return PythonValue::Unknown;
                }
            }
            bounded_text(whole, scopes)
        }
        PythonValue::Number(first) => others
            .map(|other| if let PythonValue::Number(other) = other { Some(other) } else { None })
            .try_fold(first, |sum, other| sum.checked_add(other?))
            .map_or(PythonValue::Unknown, PythonValue::Number),
        _ => PythonValue::Unknown,
    }
}

fn number(number: Option<i64>) -> PythonValue {
    number.map_or(PythonValue::Unknown, PythonValue::Number)
}

/// Folds `x += "tem"` by extending the text in place.
pub(crate) fn fold_append(name: &str, assign: &ast::StmtAugAssign, scopes: &mut PythonScopes) -> PythonValue {
    let more = value(&assign.value, scopes);
    let (Operator::Add, PythonValue::Text(more)) = (assign.op, more) else { return PythonValue::Unknown };
    let text = match scopes.take_text(name) {
        Some(text) => PythonValue::Text(text),
        None => scopes.value(name),
    };
    let PythonValue::Text(mut text) = text else { return PythonValue::Unknown };
    let fits = scopes.budget.spend_bytes(more.len()) && append(Rc::make_mut(&mut text), &more);
    if fits { PythonValue::Text(text) } else { PythonValue::Unknown }
}

fn fold_call(call: &ast::ExprCall, scopes: &PythonScopes) -> PythonValue {
    let arguments = &call.arguments.args;
    let first = || arguments.first().map_or(PythonValue::Unknown, |argument| value(argument, scopes));
    if let Expr::Attribute(method) = &*call.func
        && let PythonValue::Text(of) = value(&method.value, scopes)
    {
        return fold_text_method(&of, method.attr.as_str(), arguments, scopes);
    }
    let PythonValue::Path(function) = value(&call.func, scopes) else { return PythonValue::Unknown };
    match (function.as_str(), first()) {
        ("__import__" | "importlib.import_module", PythonValue::Text(module)) => path_value(&module),
        ("getattr", PythonValue::Path(of)) => match arguments.get(1).map(|name| value(name, scopes)) {
            Some(PythonValue::Text(name)) => member(PythonValue::Path(of), &name),
            _ => PythonValue::Unknown,
        },
        ("object.__getattribute__", PythonValue::Path(of)) => {
            match arguments.get(1).map(|name| value(name, scopes)) {
                Some(PythonValue::Text(name)) => member(PythonValue::Path(of), &name),
                _ => PythonValue::Unknown,
            }
        }
        ("sys.modules.get" | "sys.modules.pop" | "sys.modules.__getitem__", PythonValue::Text(module)) => {
            path_value(&module)
        }
        (function, PythonValue::Text(name)) if function.ends_with(".__getattribute__") => {
            member(PythonValue::Path(function.trim_end_matches(".__getattribute__").to_owned()), &name)
        }
        ("vars", PythonValue::Path(of)) => PythonValue::Path(format!("{of}.__dict__")),
        ("chr", PythonValue::Number(code)) => {
            let letter = u32::try_from(code).ok().and_then(char::from_u32);
            letter.map_or(PythonValue::Unknown, |letter| bounded_text(letter.to_string(), scopes))
        }
        ("str" | "bytes", PythonValue::Text(text)) => PythonValue::Text(text),
        ("base64.b64decode" | "base64.standard_b64decode", PythonValue::Text(text)) => {
            decode_base64(&text).map_or(PythonValue::Unknown, |text| bounded_text(text, scopes))
        }
        ("bytes.fromhex", PythonValue::Text(text)) => {
            unhex(&text).map_or(PythonValue::Unknown, |text| bounded_text(text, scopes))
        }
        ("codecs.decode", PythonValue::Text(text)) => match arguments.get(1).map(|by| value(by, scopes)) {
            Some(PythonValue::Text(by)) if by.starts_with("rot") => bounded_text(rot13(&text), scopes),
            _ => PythonValue::Unknown,
        },
        (function, _) if function.len() < MAX_PATH_BYTES => PythonValue::Path(format!("{function}()")),
        _ => PythonValue::Unknown,
    }
}

fn fold_text_method(of: &Rc<String>, name: &str, arguments: &[Expr], scopes: &PythonScopes) -> PythonValue {
    match (name, arguments) {
        ("join", [Expr::List(ast::ExprList { elts, .. }) | Expr::Tuple(ast::ExprTuple { elts, .. })]) => {
            let mut whole = String::new();
            for (index, part) in elts.iter().take(1_024).enumerate() {
                let PythonValue::Text(part) = value(part, scopes) else { return PythonValue::Unknown };
                if (index > 0 && !append(&mut whole, of)) || !append(&mut whole, &part) {
                    return PythonValue::Unknown;
                }
            }
            bounded_text(whole, scopes)
        }
        ("decode" | "encode" | "strip" | "format", []) | ("decode" | "encode", [_]) => {
            PythonValue::Text(Rc::clone(of))
        }
        ("format", parts) => fill_placeholders(of, "{}", parts, scopes),
        ("lower", []) => bounded_text(of.to_lowercase(), scopes),
        ("replace", [from, to]) => match (value(from, scopes), value(to, scopes)) {
            (PythonValue::Text(from), PythonValue::Text(to)) => replace_bounded(of, &from, &to)
                .map_or(PythonValue::Unknown, |text| bounded_text(text, scopes)),
            _ => PythonValue::Unknown,
        },
        _ => PythonValue::Unknown,
    }
}

/// Folds `"…"[::-1]`, `globals()["eval"]`, `vars(os)["system"]`, `sys.modules["os"]`.
fn fold_subscript(subscript: &ast::ExprSubscript, scopes: &PythonScopes) -> PythonValue {
    let of = value(&subscript.value, scopes);
    if let (PythonValue::Text(text), Expr::Slice(slice)) = (&of, &*subscript.slice) {
        let backwards = matches!(slice.step.as_deref(), Some(Expr::UnaryOp(step))
            if step.op == ast::UnaryOp::USub && value(&step.operand, scopes) == PythonValue::Number(1));
        let whole = slice.lower.is_none() && slice.upper.is_none();
        return if backwards && whole {
            bounded_text(text.chars().rev().collect(), scopes)
        } else {
            PythonValue::Unknown
        };
    }
    let (PythonValue::Path(of), PythonValue::Text(key)) = (of, value(&subscript.slice, scopes)) else {
        return PythonValue::Unknown;
    };
    match of.as_str() {
        "globals()" | "locals()" | "vars()" | "__builtins__" | "__dict__" => match scopes.value(&key) {
            PythonValue::Unknown if key.len() > MAX_PATH_BYTES => PythonValue::Unknown,
            PythonValue::Unknown => PythonValue::Path(canonical(&key)),
            known => known,
        },
        "sys.modules" => path_value(&key),
        other => match other.strip_suffix(".__dict__") {
            Some(module) => member(PythonValue::Path(module.to_owned()), &key),
            None => PythonValue::Unknown,
        },
    }
}

/// Stands for an assembled name whose text is not known.
const UNKNOWN_NAME: &str = "a name";

/// Returns whether the expression is a subscript.
pub(crate) fn is_subscript(expr: &Expr) -> bool {
    matches!(expr, Expr::Subscript(_))
}

/// Returns the name by which a call selects something, if it is assembled from parts; it may be unknown.
pub(crate) fn assembled_name(call: &ast::ExprCall, scopes: &PythonScopes) -> Option<String> {
    let PythonValue::Path(path) = value(&call.func, scopes) else { return None };
    let name = match path.as_str() {
        "__import__" | "importlib.import_module" | "eval" | "exec" => call.arguments.args.first(),
        "getattr" => call.arguments.args.get(1),
        _ => is_subscript(&call.func).then_some(&*call.func),
    };
    let plain = |name: &Expr| match name {
        Expr::StringLiteral(literal) => !literal.value.is_implicit_concatenated(),
        Expr::Name(_) => true,
        _ => false,
    };
    let name = name.filter(|name| !plain(name))?;
    match value(name, scopes) {
        PythonValue::Path(path) if is_subscript(name) => Some(path),
        _ if is_subscript(name) || text(name, scopes).is_some() => {
            Some(literal_text(name, scopes).unwrap_or_else(|| UNKNOWN_NAME.to_owned()))
        }
        _ => None,
    }
}

/// Returns the arguments as far as they are known; keyword arguments are `name=value`.
pub(crate) fn arguments(arguments: &ast::Arguments, scopes: &PythonScopes) -> Vec<Option<String>> {
    let positional = arguments.args.iter().take(16).map(|argument| literal_text(argument, scopes));
    let keywords = arguments.keywords.iter().take(16).map(|keyword| {
        let name = keyword.arg.as_ref()?;
        Some(format!("{}={}", name, literal_text(&keyword.value, scopes)?))
    });
    positional.chain(keywords).collect()
}

fn literal_text(expr: &Expr, scopes: &PythonScopes) -> Option<String> {
    // A fact stores a copy of each argument.
    let copy = |text: &str| scopes.budget.spend_bytes(text.len()).then(|| text.to_owned());
    match (expr, value(expr, scopes)) {
        (Expr::BooleanLiteral(literal), _) => Some(if literal.value { "True" } else { "False" }.to_owned()),
        (_, PythonValue::Text(text)) => copy(&text),
        (_, PythonValue::Number(number)) => Some(number.to_string()),
        _ => None,
    }
}

/// Returns the command of `subprocess.run(["rm", "-rf", "/"])` as words.
pub(crate) fn command_words(
    call: &ast::ExprCall,
    path: &str,
    processes: &[&str],
    scopes: &PythonScopes,
) -> Option<Vec<Option<String>>> {
    match call.arguments.args.first()? {
        Expr::List(ast::ExprList { elts, .. }) | Expr::Tuple(ast::ExprTuple { elts, .. }) => processes
            .contains(&path)
            .then(|| elts.iter().take(64).map(|word| literal_text(word, scopes)).collect()),
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
