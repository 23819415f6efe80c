//! Rules for Python.

mod code;
mod files;
mod introspection;
mod network;
mod process;

use super::{PolicyRule, shared};

pub(crate) static RULES: &[&[PolicyRule]] =
    &[process::RULES, code::RULES, network::RULES, files::RULES, introspection::RULES, SHARED];

static SHARED: &[PolicyRule] = &[
    shared::unknown_import(
        "PY-UNKNOWN-IMPORT",
        &["__import__(x)", "import importlib as i\ni.import_module(name)"],
        &["__import__('json')", "import json"],
    ),
    shared::fork_bomb(
        "PY-FORK-BOMB",
        &["import os\nwhile True:\n    os.fork()", "from os import fork as f\nwhile 1: f()"],
        &["import os\nwhile True:\n    pid = os.fork()\n    if pid: break", "while True:\n    step()"],
    ),
    shared::assembled(
        "PY-ASSEMBLED",
        &[
            "__import__('o' + 's')",
            "import os\ngetattr(os, 'sys' 'tem')",
            "exec(''.join(['a', 'b']))",
            "eval(chr(49))",
            "import base64\nexec(base64.b64decode('cHJpbnQoMSk='))",
            "globals()['ev' + 'al']",
        ],
        &["getattr(x, 'name')", "name = 'a' + 'b'", "__import__('json')", "'a' 'b'.join([])"],
    ),
    shared::listed_module(
        "PY-LISTED-MODULE",
        &["import os", "from http.client import HTTPConnection", "__import__('soc' + 'ket')"],
        &["import json", "import osmnx", "x = 'import os'"],
    ),
    shared::listed_call(
        "PY-LISTED-CALL",
        &["open('a')", "eval('1')", "getattr(x, 'a')"],
        &["1 + 2", "df.rename(x)", "import re\nre.compile('a')", "xs.remove(1)"],
    ),
    shared::syntax("PY-SYNTAX", &["def f(:", "print 'a'"], &["print('a')"]),
    shared::unread("PY-UNREAD", &["x = [[[]]]"]),
];
