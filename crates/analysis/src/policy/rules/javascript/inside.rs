//! The runtime's inside, and what hides.

use super::super::{Category::*, Rule, Severity::*, When};

pub(super) static RULES: &[Rule] = &[
    Rule {
        id: "JS-PROTO",
        category: Introspection,
        severity: Medium,
        message: "`.{}` changes what every object is",
        suggestion: "use Object.create or a Map",
        when: &[
            When::Member(&["__proto__"]),
            When::Name(&["Object.setPrototypeOf", "Reflect.setPrototypeOf"]),
        ],
        matches: &["x.__proto__.y = 1", "Object.setPrototypeOf(a, b)"],
        leaves: &["const s = '__proto__'", "Object.getPrototypeOf(a)"],
    },
    Rule {
        id: "JS-MAIN-MODULE",
        category: Introspection,
        severity: High,
        message: "`.{}` leads to the runtime's own modules",
        suggestion: "use require or import",
        when: &[
            When::Member(&["mainModule"]),
            When::Name(&["module.constructor*", "module.children", "require.cache", "module.paths"]),
        ],
        matches: &["x.mainModule", "module.constructor._load('fs')", "require.cache"],
        leaves: &["const mainModule = 1"],
    },
];
