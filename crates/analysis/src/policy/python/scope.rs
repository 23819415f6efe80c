//! Which name means what, where.

use std::collections::HashMap;

/// What is known of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    /// Something with a name that begins at a module or is built in; a call is `name()`.
    Path(String),
    Text(String),
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
    globals: Vec<String>,
}

/// All scopes of a module.
#[derive(Debug)]
pub(crate) struct Scopes {
    all: Vec<Scope>,
    here: usize,
}

impl Scopes {
    pub(crate) fn new() -> Self {
        Self { all: vec![Scope::default()], here: 0 }
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
        let names = &mut self.all[self.here].names;
        match names.get(name) {
            Some(Value::Path(_)) if value == Value::Other => {}
            _ => {
                names.insert(name.to_owned(), value);
            }
        }
    }

    /// From here on, these names are the module's.
    pub(crate) fn declare_global<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        self.all[self.here].globals.extend(names.map(str::to_owned));
    }

    /// Whether what is bound here is seen elsewhere, by whatever was read before.
    pub(crate) fn is_global(&self, name: &str) -> bool {
        self.all[self.here].globals.iter().any(|global| global == name)
    }

    /// Binds a name anew, whatever was known.
    pub(crate) fn replace(&mut self, name: &str, value: Value) {
        self.all[self.here].names.insert(name.to_owned(), value);
    }

    pub(crate) fn open(&mut self, module: &str) {
        self.all[self.here].opened.push(module.to_owned());
    }

    pub(crate) fn value(&self, name: &str) -> Value {
        let mut scope = Some(self.here);
        let mut opened = None;
        while let Some(at) = scope {
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
