//! Which name means what, where.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use ruff_python_ast::Expr;

use crate::budget::Budget;

/// What is known of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// Something with a name that begins at a module or is built in; a call is `name()`.
    Path(String),
    Text(Rc<String>),
    Number(i64),
    Other,
}

/// Names that are there without an import, as far as rules and folding know them.
const BUILT_IN: &[&str] = &[
    "eval",
    "exec",
    "compile",
    "open",
    "__import__",
    "getattr",
    "setattr",
    "delattr",
    "globals",
    "locals",
    "vars",
    "input",
    "breakpoint",
    "chr",
    "bytes",
    "bytearray",
    "str",
    "int",
    "type",
    "object",
    "memoryview",
    "dir",
    "__builtins__",
    "__loader__",
    "exit",
    "quit",
    "range",
    "list",
    "get_ipython",
];

/// Attributes that lead into the interpreter, whatever they are attributes of.
pub(crate) const INSIDE: &[&str] = &[
    "__subclasses__",
    "__bases__",
    "__base__",
    "__mro__",
    "__globals__",
    "__self__",
    "__builtins__",
    "__code__",
    "__closure__",
    "gi_frame",
    "f_globals",
    "f_back",
    "cr_frame",
    "tb_frame",
    "__reduce__",
    "__reduce_ex__",
];

/// Modules that others import for themselves, and so hand out: `pathlib.os`, `random._os`.
const HELD: &[&str] = &["os", "sys", "builtins", "importlib", "subprocess", "ctypes"];

/// `builtins.eval` is `eval`, `posix.system` is `os.system`, and `pathlib.os` is `os`.
pub(crate) fn canonical(path: &str) -> String {
    if let Some((of, name)) = path.rsplit_once('.')
        && let Some(held) = HELD.iter().find(|held| **held == name.trim_start_matches('_'))
        && !of.contains('(')
        && path != "asyncio.subprocess"
    {
        return (*held).to_owned();
    }
    for (from, to) in
        [("builtins.", ""), ("__builtins__.", ""), ("posix.", "os."), ("nt.", "os."), ("io.open", "open")]
    {
        if let Some(rest) = path.strip_prefix(from) {
            return format!("{to}{rest}");
        }
    }
    path.to_owned()
}

#[derive(Debug, Default)]
struct Scope {
    names: HashMap<String, Value>,
    /// Modules whose names are all here: `from os import *`.
    opened: Vec<String>,
    outer: Option<usize>,
    class: bool,
    /// Names of the module's own that are bound here.
    globals: HashSet<String>,
}

/// All scopes of a module, and the values of the expressions that were folded in them.
#[derive(Debug)]
pub(crate) struct Scopes {
    all: Vec<Scope>,
    here: usize,
    pub(super) budget: Budget,
    /// Counts changes of bindings: a value that was folded before one may be another after it.
    generation: u64,
    /// Values by the address of their expression, which stays where it is. Each is folded once in a generation, so that folding
    /// a chain of n calls takes n steps.
    folded: RefCell<HashMap<usize, (u64, Value)>>,
}

impl Scopes {
    pub(crate) fn new(budget: Budget) -> Self {
        let folded = RefCell::default();
        Self { all: vec![Scope::default()], here: 0, budget, generation: 0, folded }
    }

    /// Returns what an expression was folded to, if that still holds.
    pub(super) fn folded(&self, expr: &Expr) -> Option<Value> {
        let folded = self.folded.borrow();
        let (generation, value) = folded.get(&address(expr))?;
        (*generation == self.generation).then(|| value.clone())
    }

    /// Keeps what an expression was folded to.
    pub(super) fn keep(&self, expr: &Expr, value: &Value) {
        self.folded.borrow_mut().insert(address(expr), (self.generation, value.clone()));
    }

    pub(crate) fn here(&self) -> usize {
        self.here
    }

    pub(crate) fn enter(&mut self, scope: usize) {
        self.here = scope;
    }

    /// A scope for a function that is written here. Names of a class are not seen in its methods.
    pub(crate) fn function<'a>(&mut self, parameters: impl Iterator<Item = &'a str>) -> usize {
        let mut outer = self.here;
        while self.all[outer].class {
            outer = self.all[outer].outer.unwrap_or(0);
        }
        let names = parameters.map(|name| (name.to_owned(), Value::Other)).collect();
        self.all.push(Scope { names, outer: Some(outer), ..Scope::default() });
        self.all.len() - 1
    }

    /// Enters a class, and gives back where it stands.
    pub(crate) fn class(&mut self) -> usize {
        let outer = self.here;
        self.all.push(Scope { outer: Some(outer), class: true, ..Scope::default() });
        self.here = self.all.len() - 1;
        outer
    }

    /// Binds a name. What is known of a name stays known where another branch (`except ImportError: os = None`) binds
    /// it to something unknown.
    pub(crate) fn bind(&mut self, name: &str, value: Value) {
        let known = self.all[self.here].names.get(name);
        if known == Some(&value) || (value == Value::Other && matches!(known, Some(Value::Path(_)))) {
            return;
        }
        self.replace(name, value);
    }

    /// From here on, these names are the module's.
    pub(crate) fn declare_global<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        self.all[self.here].globals.extend(names.map(str::to_owned));
    }

    /// Whether what is bound here is seen elsewhere, by whatever was read before.
    pub(crate) fn is_global(&self, name: &str) -> bool {
        self.all[self.here].globals.contains(name)
    }

    /// Binds a name anew, whatever was known.
    pub(crate) fn replace(&mut self, name: &str, value: Value) {
        self.all[self.here].names.insert(name.to_owned(), value);
        self.generation += 1;
    }

    /// Takes a text out of a name that is about to be bound anew, so that it can grow in place.
    pub(super) fn take_text(&mut self, name: &str) -> Option<Rc<String>> {
        self.generation += 1;
        match self.all[self.here].names.remove(name) {
            Some(Value::Text(text)) => Some(text),
            Some(other) => {
                self.all[self.here].names.insert(name.to_owned(), other);
                None
            }
            None => None,
        }
    }

    pub(crate) fn open(&mut self, module: &str) {
        self.all[self.here].opened.push(module.to_owned());
        self.generation += 1;
    }

    pub(crate) fn value(&self, name: &str) -> Value {
        let mut scope = Some(self.here);
        let mut opened = None;
        while let Some(at) = scope {
            if !self.budget.spend(1) {
                return Value::Other;
            }
            let Scope { names, opened: modules, outer, .. } = &self.all[at];
            if let Some(value) = names.get(name) {
                return value.clone();
            }
            opened = opened.or(modules.last());
            scope = *outer;
        }
        match opened {
            _ if BUILT_IN.contains(&name) => Value::Path(name.to_owned()),
            Some(module) => Value::Path(canonical(&format!("{module}.{name}"))),
            None => Value::Other,
        }
    }
}

fn address(expr: &Expr) -> usize {
    std::ptr::from_ref(expr).addr()
}
