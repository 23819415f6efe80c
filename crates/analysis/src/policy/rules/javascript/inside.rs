//! Runtime internals.

use super::super::{Category::*, Rule, Severity::*, When};

pub(super) static RULES: &[Rule] = &[
    Rule {
        id: "JS-PROTO",
        category: Introspection,
        severity: Medium,
        message: "`{}` changes the prototype of an object",
        suggestion: "use Object.create or a Map",
        when: &[
            When::Member(&["__proto__"]),
            When::Name(&["Object.setPrototypeOf", "Reflect.setPrototypeOf"]),
        ],
        matches: &["x.__proto__.y = 1", "Object.setPrototypeOf(a, b)"],
        leaves: &["const s = '__proto__'", "Object.getPrototypeOf(a)"],
    },
    Rule {
        id: "JS-REQUIRE-VALUE",
        category: Introspection,
        severity: Low,
        message: "`{}` is passed as a value, so its use cannot be checked",
        suggestion: "call it by name where it is needed",
        when: &[When::HandedOn(&["require", "child_process", "vm"])],
        matches: &[
            "const o = { r: require }; o.r('child_process')",
            "(r => r('child_process'))(require)",
            "for (const r of [require]) r('child_process')",
            "function f(r = require) { r('child_process') }",
            "(true ? require : 0)('child_process')",
        ],
        leaves: &[
            "if (typeof require === 'function') require('path')",
            "if (require.main === module) main()",
            "define(function (require) { use(require) })",
        ],
    },
    Rule {
        id: "JS-MAIN-MODULE",
        category: Introspection,
        severity: High,
        message: "`{}` gives access to the runtime's internal modules",
        suggestion: "use require or import",
        when: &[
            When::Member(&["mainModule"]),
            When::Name(&["module.constructor*", "module.children", "require.cache", "module.paths"]),
        ],
        matches: &["x.mainModule", "module.constructor._load('fs')", "require.cache"],
        leaves: &["const mainModule = 1"],
    },
];
