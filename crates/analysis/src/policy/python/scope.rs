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
];

/// `builtins.eval` is `eval`, and `posix.system` is `os.system`.
pub(crate) fn canonical(path: &str) -> String {
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
