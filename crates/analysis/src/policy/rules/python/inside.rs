//! The interpreter's inside, and what hides.

use super::super::super::python::INSIDE;
use super::super::{Category::*, Rule, Severity::*, When};

pub(super) static RULES: &[Rule] = &[
    Rule {
        id: "PY-INSIDE",
        category: Introspection,
        severity: High,
        message: "`.{}` leads into the interpreter",
        suggestion: "use what the object offers by its public names",
        when: &[When::Member(INSIDE)],
        matches: &["().__class__.__bases__[0].__subclasses__()", "f.__globals__['x']"],
        leaves: &["x.__class__.__name__", "class A:\n    def __init__(self): pass"],
    },
    Rule {
        id: "PY-FRAMES",
        category: Introspection,
        severity: Medium,
        message: "`{}` looks at other functions' variables",
        suggestion: "pass what is needed as an argument",
        when: &[When::Name(&[
            "sys._getframe",
            "sys._current_frames",
            "inspect.currentframe",
            "inspect.stack",
            "gc.get_objects",
            "gc.get_referrers",
            "sys.settrace",
            "sys.setprofile",
        ])],
        matches: &["import sys\nsys._getframe(1)"],
        leaves: &["import sys\nsys.getsizeof(1)", "import inspect\ninspect.signature(f)"],
    },
    Rule {
        id: "PY-NAMESPACE",
        category: Introspection,
        severity: Low,
        message: "`{}` hands out all names",
        suggestion: "use a dictionary of your own",
        when: &[When::Name(&["globals", "locals", "vars"])],
        matches: &["globals()['x'] = 1"],
        leaves: &["env.globals['x']", "x = {'globals': 1}"],
    },
    Rule {
        id: "PY-DEBUGGER",
        category: Introspection,
        severity: Info,
        message: "`{}` waits for a person",
        suggestion: "remove it",
        when: &[When::Name(&["breakpoint", "pdb.set_trace", "ipdb.set_trace"])],
        matches: &["breakpoint()", "import pdb\npdb.set_trace()"],
        leaves: &["gpu.breakpoint()"],
    },
];
