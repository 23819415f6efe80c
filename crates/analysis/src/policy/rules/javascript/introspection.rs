//! Runtime internals.

use super::super::{Category::*, Matcher, PolicyRule, Severity::*};

pub(super) static RULES: &[PolicyRule] = &[
    PolicyRule {
        id: "JS-PROTO",
        category: Introspection,
        severity: Medium,
        message: "`{}` changes the prototype of an object",
        suggestion: "use Object.create or a Map",
        matchers: &[
            Matcher::Member(&["__proto__"]),
            Matcher::Name(&["Object.setPrototypeOf", "Reflect.setPrototypeOf"]),
        ],
        matches: &["x.__proto__.y = 1", "Object.setPrototypeOf(a, b)"],
        non_matches: &["const s = '__proto__'", "Object.getPrototypeOf(a)"],
    },
    PolicyRule {
        id: "JS-REQUIRE-VALUE",
        category: Introspection,
        severity: Low,
        message: "`{}` is passed as a value, so its use cannot be checked",
        suggestion: "call it by name where it is needed",
        matchers: &[Matcher::PassedAsValue(&["require", "child_process", "vm"])],
        matches: &[
            "const o = { r: require }; o.r('child_process')",
            "(r => r('child_process'))(require)",
            "for (const r of [require]) r('child_process')",
            "function f(r = require) { r('child_process') }",
            "(true ? require : 0)('child_process')",
        ],
        non_matches: &[
            "if (typeof require === 'function') require('path')",
            "if (require.main === module) main()",
            "define(function (require) { use(require) })",
        ],
    },
    PolicyRule {
        id: "JS-MAIN-MODULE",
        category: Introspection,
        severity: High,
        message: "`{}` gives access to the runtime's internal modules",
        suggestion: "use require or import",
        matchers: &[
            Matcher::Member(&["mainModule"]),
            Matcher::Name(&["module.constructor*", "module.children", "require.cache", "module.paths"]),
        ],
        matches: &["x.mainModule", "module.constructor._load('fs')", "require.cache"],
        non_matches: &["const mainModule = 1"],
    },
];
