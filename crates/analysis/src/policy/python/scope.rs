//! Scopes and bindings of names.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use ruff_python_ast::Expr;

use crate::budget::Budget;

/// A value as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PythonValue {
    /// A dotted name that starts at a module or built-in; a call appends `()`.
    Path(String),
    Text(Rc<String>),
    Number(i64),
    Unknown,
}

/// Built-in names that rules and folding know.
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

/// Attributes that expose interpreter internals, on any object.
pub(crate) const INTERNAL_ATTRIBUTES: &[&str] = &[
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

/// Modules that other modules import and so expose: `pathlib.os`, `random._os`.
const REEXPORTED_MODULES: &[&str] = &["os", "sys", "builtins", "importlib", "subprocess", "ctypes"];

/// Returns the canonical form of a name: `builtins.eval` is `eval`, `posix.system` is `os.system`, and
/// `pathlib.os` is `os`.
pub(crate) fn canonical(path: &str) -> String {
    if let Some((of, name)) = path.rsplit_once('.')
        && let Some(held) = REEXPORTED_MODULES.iter().find(|held| **held == name.trim_start_matches('_'))
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
struct PythonScope {
    names: HashMap<String, PythonValue>,
    /// Modules whose names are all bound here: `from os import *`.
    star_imports: Vec<String>,
    outer: Option<usize>,
    class: bool,
    /// Names that this scope declares global.
    globals: HashSet<String>,
}

/// All scopes of a module, and the values of the expressions folded in them.
#[derive(Debug)]
pub(crate) struct PythonScopes {
    all: Vec<PythonScope>,
    current: usize,
    pub(super) budget: Budget,
    /// Counts changes of bindings, because a change can invalidate folded values.
    generation: u64,
    /// Values by the address of their expression, which does not move. Each expression is folded once per
    /// generation, so folding a chain of n calls takes n steps.
    folded: RefCell<HashMap<usize, (u64, PythonValue)>>,
}

impl PythonScopes {
    pub(crate) fn new(budget: Budget) -> Self {
        let folded = RefCell::default();
        Self { all: vec![PythonScope::default()], current: 0, budget, generation: 0, folded }
    }

    /// Returns the cached value of an expression, if it is still valid.
    pub(super) fn cached(&self, expr: &Expr) -> Option<PythonValue> {
        let folded = self.folded.borrow();
        let (generation, value) = folded.get(&address(expr))?;
        (*generation == self.generation).then(|| value.clone())
    }

    /// Caches the value of an expression.
    pub(super) fn cache(&self, expr: &Expr, value: &PythonValue) {
        self.folded.borrow_mut().insert(address(expr), (self.generation, value.clone()));
    }

    pub(crate) fn current(&self) -> usize {
        self.current
    }

    pub(crate) fn enter(&mut self, scope: usize) {
        self.current = scope;
    }

    /// Adds a scope for a function defined here. Methods do not see the names of their class.
    pub(crate) fn add_function_scope<'a>(&mut self, parameters: impl Iterator<Item = &'a str>) -> usize {
        let mut outer = self.current;
        while self.all[outer].class {
            outer = self.all[outer].outer.unwrap_or(0);
        }
        let names = parameters.map(|name| (name.to_owned(), PythonValue::Unknown)).collect();
        self.all.push(PythonScope { names, outer: Some(outer), ..PythonScope::default() });
        self.all.len() - 1
    }

    /// Enters a new class scope, and returns the outer one.
    pub(crate) fn enter_class(&mut self) -> usize {
        let outer = self.current;
        self.all.push(PythonScope { outer: Some(outer), class: true, ..PythonScope::default() });
        self.current = self.all.len() - 1;
        outer
    }

    /// Binds a name. A known value is kept if another branch (`except ImportError: os = None`) binds the name
    /// to an unknown one.
    pub(crate) fn bind(&mut self, name: &str, value: PythonValue) {
        let known = self.all[self.current].names.get(name);
        if known == Some(&value)
            || (value == PythonValue::Unknown && matches!(known, Some(PythonValue::Path(_))))
        {
            return;
        }
        self.rebind(name, value);
    }

    /// Declares names global in the current scope.
    pub(crate) fn declare_global<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        self.all[self.current].globals.extend(names.map(str::to_owned));
    }

    /// Returns whether the name is declared global here, so that already analyzed code may use its new value.
    pub(crate) fn is_global(&self, name: &str) -> bool {
        self.all[self.current].globals.contains(name)
    }

    /// Rebinds a name, discarding its known value.
    pub(crate) fn rebind(&mut self, name: &str, value: PythonValue) {
        self.all[self.current].names.insert(name.to_owned(), value);
        self.generation += 1;
    }

    /// Removes a text from a name that is about to be rebound, so that it can grow in place.
    pub(super) fn take_text(&mut self, name: &str) -> Option<Rc<String>> {
        self.generation += 1;
        match self.all[self.current].names.remove(name) {
            Some(PythonValue::Text(text)) => Some(text),
            Some(other) => {
                self.all[self.current].names.insert(name.to_owned(), other);
                None
            }
            None => None,
        }
    }

    pub(crate) fn import_all(&mut self, module: &str) {
        self.all[self.current].star_imports.push(module.to_owned());
        self.generation += 1;
    }

    pub(crate) fn value(&self, name: &str) -> PythonValue {
        let mut scope = Some(self.current);
        let mut opened = None;
        while let Some(at) = scope {
            if !self.budget.spend(1) {
                return PythonValue::Unknown;
            }
            let PythonScope { names, star_imports: modules, outer, .. } = &self.all[at];
            if let Some(value) = names.get(name) {
                return value.clone();
            }
            opened = opened.or(modules.last());
            scope = *outer;
        }
        match opened {
            _ if BUILT_IN.contains(&name) => PythonValue::Path(name.to_owned()),
            Some(module) => PythonValue::Path(canonical(&format!("{module}.{name}"))),
            None => PythonValue::Unknown,
        }
    }
}

fn address(expr: &Expr) -> usize {
    std::ptr::from_ref(expr).addr()
}
