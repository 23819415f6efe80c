//! Detection and resolution of imports: tables of cases, and hostile code.

// `cargo bolero` instruments every target of the package, so every target must link bolero.
use bolero as _;
use std::collections::BTreeSet;

use belljar_analysis::imports::{
    DetectedImports, Error, ImportLanguage, PackageRegistry, PythonVersion, Requirement, Resolver,
    ResolverSettings, SourceCode, UnresolvedReason, detect,
};
use proptest::prelude::*;

fn found_in(code: &str, language: ImportLanguage, version: &str) -> DetectedImports {
    let local = BTreeSet::from(["helpers.py".to_owned(), "lib".to_owned()]);
    let python = PythonVersion::parse(version).expect("a version in the table");
    detect(SourceCode { code, language, python, local: &local }).expect("the code is readable")
}

/// Formats imports with their lines; `?` marks optional ones.
fn shown(found: &DetectedImports) -> String {
    let shown = found.imports.iter().map(|import| {
        let version = import.version.as_ref().map(|version| format!("@{version}")).unwrap_or_default();
        format!("{}{version}{}:{}", import.name, if import.optional { "?" } else { "" }, import.line)
    });
    shown.collect::<Vec<_>>().join(" ")
}

const PYTHON: &[(&str, &str)] = &[
    ("import numpy", "numpy:1"),
    ("import numpy as np, pandas as pd", "numpy:1 pandas:1"),
    ("import os, sys\nimport json\nfrom pathlib import Path", ""),
    ("from sklearn.linear_model import LinearRegression", "sklearn.linear_model:1"),
    ("import matplotlib.pyplot as plt", "matplotlib.pyplot:1"),
    ("from . import x\nfrom .a import b\nfrom .. import c\nfrom ...d import e", ""),
    ("import helpers\nfrom lib.inner import f\nimport helpers.x", ""),
    ("def f():\n    import requests\n    return requests", "requests:2"),
    ("class A:\n    def m(self):\n        from bs4 import BeautifulSoup", "bs4:3"),
    ("async def f():\n    async with x:\n        import aiohttp", "aiohttp:3"),
    ("try:\n    import ujson\nexcept ImportError:\n    import json", "ujson?:2"),
    ("try:\n    import a1\nexcept ModuleNotFoundError:\n    a1 = None", "a1?:2"),
    ("try:\n    import a1\nexcept:\n    pass", "a1?:2"),
    ("try:\n    import a1\nexcept (ValueError, ImportError):\n    pass", "a1?:2"),
    ("try:\n    import a1\nexcept Exception as e:\n    pass", "a1?:2"),
    ("try:\n    import a1\nexcept ValueError:\n    pass", "a1:2"),
    ("try:\n    x()\nexcept ImportError:\n    import simplejson", "simplejson?:4"),
    ("try:\n    x()\nfinally:\n    import a1", "a1:4"),
    ("try:\n    import a1\nexcept ImportError:\n    pass\nimport a1", "a1:2"),
    ("from contextlib import suppress\nwith suppress(ImportError):\n    import a1", "a1?:3"),
    ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pandas", ""),
    ("import typing\nif typing.TYPE_CHECKING:\n    import pandas\nelse:\n    import numpy", "numpy:5"),
    ("if not TYPE_CHECKING:\n    import numpy", "numpy:2"),
    ("if False:\n    import numpy", ""),
    ("import sys\nif sys.version_info >= (3, 11):\n    import tomllib\nelse:\n    import tomli", ""),
    ("import sys\nif sys.version_info < (3, 13):\n    import backport", "backport:3"),
    ("import importlib\nm = importlib.import_module('yaml')", "yaml:2"),
    ("import importlib as il\nil.import_module(\"yaml\")", "yaml:2"),
    ("from importlib import import_module as im\nim('yaml.nodes')", "yaml.nodes:2"),
    ("import importlib\nimportlib.import_module(name)\nimportlib.import_module('.x', 'y')", ""),
    ("__import__('requests')", "requests:1"),
    ("__import__('os')", ""),
    ("__import__(name='requests')", "requests:1"),
    ("x = 'import numpy'\n'''\nimport pandas\n'''", ""),
    ("# import numpy", ""),
    ("f'{__import__(\"requests\")}'", "requests:1"),
    ("import numpy\ndef broken(:\n    pass\nimport pandas", "numpy:1 pandas:4"),
    ("import numpy\nx = (1, 2\nimport pandas", "numpy:1 pandas:3"),
    ("from numpy import *", "numpy:1"),
    ("from google.cloud import storage, bigquery", "google.cloud:1"),
    ("import tomllib\nimport distutils", "distutils:2"),
    ("import __main__, _thread, __future__", ""),
    ("match x:\n    case 1:\n        import a1", "a1:3"),
    ("if x: import a1\nelif y: import a2\nelse: import a3", "a1:1 a2:2 a3:3"),
    ("%matplotlib inline\nimport numpy\n!ls", "numpy:2"),
    ("\u{feff}import numpy", "numpy:1"),
    ("import numpy\r\nimport pandas\r\n", "numpy:1 pandas:2"),
    ("lambda: __import__('a1')", "a1:1"),
    ("importlib_import_module('x')\nself.import_module('y')", ""),
    ("", ""),
];

const JAVASCRIPT: &[(&str, &str)] = &[
    ("import x from 'lodash'", "lodash:1"),
    ("import 'side-effect'", "side-effect:1"),
    ("import * as a from \"@scope/pkg/deep\"", "@scope/pkg:1"),
    ("export * from 'a1'\nexport { x } from 'b1'", "a1:1 b1:2"),
    ("const _ = require('lodash/fp')", "lodash:1"),
    ("const { resolve } = require('path'); require('node:fs')", ""),
    ("const f = async () => { const x = await import('chalk') }", "chalk:1"),
    ("import(`chalk`)", "chalk:1"),
    ("import(name); require(name); require(`a${x}`)", ""),
    ("function f(require) { require('lodash') }", ""),
    ("define(['require'], function (require) { return require('lodash') })", ""),
    ("{ const require = x => x; require('a1') }\nrequire('b1')", "b1:2"),
    ("require('a1'); function require(x) {}", ""),
    (
        "import { createRequire } from 'module'\nconst require = createRequire(import.meta.url)\nrequire('lodash')",
        "lodash:3",
    ),
    ("const need = createRequire(import.meta.url); need('lodash')", "lodash:1"),
    ("try { require('fsevents') } catch {}", "fsevents?:1"),
    ("try { x() } catch { require('a1') } finally { require('b1') }", "a1?:1 b1:1"),
    ("import('a1').catch(() => null)", "a1?:1"),
    ("require.resolve('a1')", "a1:1"),
    ("import a from './a.js'; import b from '../b'; import c from '/c'; import d from '#d'", ""),
    ("import a from 'https://esm.sh/a'; import b from 'jsr:@std/b'", ""),
    ("import a from 'npm:chalk@5'; import b from 'zod@3.22.4'", "chalk@5:1 zod@3.22.4:1"),
    ("// require('a1')\n/* import 'b1' */ const s = \"require('c1')\"", ""),
    ("return require('a1')", "a1:1"),
    ("#!/usr/bin/env node\nimport a from 'a1'", "a1:2"),
    ("const el = <div>{require('a1')}</div>", "a1:1"),
    ("import a from 'a1'\nfunction (\nconst b = require('b1')", "a1:1 b1:3"),
    ("import {\n  a,\n  b\n} from 'a1'\nfunction {{{ (", "a1:1"),
    ("obj.require('a1'); new Foo(require('b1'))", "b1:1"),
    ("import { a } from 'react'\nimport { b } from 'react'", "react:1"),
    ("with (x) { require('a1') }", "a1:1"),
    ("", ""),
];

const TYPESCRIPT: &[(&str, &str)] = &[
    ("import type { A } from 'a1'", ""),
    ("import { type A, type B } from 'a1'", ""),
    ("import { type A, b } from 'a1'", "a1:1"),
    ("import {} from 'a1'", "a1:1"),
    ("export type { A } from 'a1'\nexport type * from 'b1'", ""),
    ("import fs = require('fs'); import x = require('a1')", "a1:1"),
    ("const x: import('a1').T = y as any", ""),
    ("let v = <T,>(x: T): T => x; import z from 'zod'", "zod:1"),
    ("const e = <div/>; import r from 'react'", "react:1"),
    ("enum E { A } namespace N { export const r = require('a1') }", "a1:1"),
    ("declare module 'a1' { export const x: number }", ""),
];

#[test]
fn imports_are_found() {
    let tables = [
        (ImportLanguage::Python, PYTHON),
        (ImportLanguage::JavaScript, JAVASCRIPT),
        (ImportLanguage::TypeScript, TYPESCRIPT),
    ];
    for (language, table) in tables {
        for (code, wanted) in table {
            assert_eq!(shown(&found_in(code, language, "3.12")), *wanted, "{code}");
        }
    }
}

#[test]
fn the_standard_library_depends_on_the_version() {
    let code = "import tomllib, distutils, telnetlib";
    assert_eq!(shown(&found_in(code, ImportLanguage::Python, "3.10")), "tomllib:1");
    assert_eq!(shown(&found_in(code, ImportLanguage::Python, "3.13")), "distutils:1 telnetlib:1");
    let code = "import sys\nif sys.version_info < (3, 11):\n    import tomli";
    assert_eq!(shown(&found_in(code, ImportLanguage::Python, "3.10")), "tomli:3");
}

#[test]
fn requirements_in_comments() {
    let stated = |code: &str| {
        let found = found_in(code, ImportLanguage::Python, "3.12");
        found.declared.iter().map(|one| format!("{}:{}", one.text, one.line)).collect::<Vec<_>>().join(" ")
    };
    for (code, wanted) in [
        (
            "# /// script\n# requires-python = \">=3.11\"\n# dependencies = [\n#   \"requests<3\",\n#   \"rich\",\n# ]\n# ///\nimport rich",
            "requests<3:1 rich:1",
        ),
        ("# /// script\n# dependencies = ['a']\n", ""),
        ("# /// script\n# dependencies = ['a']\n# ///\n\n# /// script\n# dependencies = ['b']\n# ///\n", ""),
        ("# /// script\n# dependencies = nonsense\n# ///\n", ""),
        ("# /// other\n# dependencies = ['a']\n# ///\n", ""),
        ("# requires: requests, numpy==1.26.4", "requests:1 numpy==1.26.4:1"),
        ("x = 1  # pip install requests 'rich>=13' -q", "requests:1 rich>=13:1"),
        ("!pip install requests\n%pip install rich", "requests:1 rich:2"),
        ("# requires: a running server", ""),
        ("# pip install git+https://example.com/x", ""),
        ("'''\n# requires: numpy\n'''", ""),
        ("# this requires: numpy", ""),
    ] {
        assert_eq!(stated(code), wanted, "{code}");
    }
}

/// Formats the resolved packages, and the unresolved names with their reasons.
fn resolved(code: &str, language: ImportLanguage, given: &[&str], settings: &ResolverSettings) -> String {
    let found = found_in(code, language, "3.12");
    let registry = language.registry();
    let given: Vec<_> =
        given.iter().map(|text| Requirement::parse(registry, text).expect("a valid requirement")).collect();
    let answer = Resolver::new(registry, settings).resolve(&found, &given);
    let packages = answer
        .packages
        .iter()
        .map(|package| format!("{}{}", package.requirement, if package.optional { "?" } else { "" }));
    let unresolved = answer.unresolved.iter().map(|one| {
        let why = match &one.why {
            UnresolvedReason::Misspelt { likely } => format!("misspelt {likely}"),
            UnresolvedReason::Covered { by } => format!("covered by {}", by.join(",")),
            other => format!("{other:?}").split([' ', '{']).next().unwrap_or_default().to_lowercase(),
        };
        format!("!{}{}={why}", one.reason.name, if one.is_fatal() { "" } else { "?" })
    });
    packages.chain(unresolved).collect::<Vec<_>>().join(" | ")
}

#[test]
fn imports_resolve_to_packages() {
    let none = ResolverSettings::default();
    for (code, given, wanted) in [
        (
            "import cv2, PIL.Image, yaml, dateutil.parser",
            &[][..],
            "opencv-python-headless | pillow | pyyaml | python-dateutil",
        ),
        ("from sklearn import svm\nimport sklearn.tree", &[], "scikit-learn"),
        ("from google.cloud import storage, bigquery", &[], "google-cloud-bigquery | google-cloud-storage"),
        ("from google.cloud import nonsense", &[], "!google.cloud=unknown"),
        ("import google.protobuf.message", &[], "protobuf"),
        ("import acme_private", &[], "!acme_private=unknown"),
        ("import reqeusts", &[], "!reqeusts=misspelt requests"),
        ("try:\n    import acme_private\nexcept ImportError:\n    pass", &[], "!acme_private?=unknown"),
        ("import requests", &["requests==2.28.0"], "requests==2.28.0"),
        ("import acme", &["acme-sdk"], "acme-sdk | !acme?=covered by acme-sdk"),
        ("", &["reqeusts"], "!reqeusts=misspelt requests"),
        ("", &["python-requests"], "!python-requests=misspelt requests"),
        ("", &["a @ https://example.com/a.whl"], "!a @ https://example.com/a.whl=direct"),
        ("", &["numpy==1", "numpy==2"], "numpy==1 | !numpy==2=conflict"),
        ("# requires: rich==13\nimport rich", &[], "rich==13"),
        ("# requires: rich==13", &["rich==12"], "rich==12"),
        ("# requires: network_of_mine", &[], "!network_of_mine=unknown"),
        ("# /// script\n# dependencies = ['acme-thing', '-r x']\n# ///", &[], "acme-thing | !-r x=invalid"),
        ("try:\n    import ujson\nexcept ImportError:\n    pass", &[], "ujson?"),
    ] {
        assert_eq!(resolved(code, ImportLanguage::Python, given, &none), wanted, "{code} {given:?}");
    }
    for (code, given, wanted) in [
        ("import a from 'react-dom/client'; require('@babel/core')", &[][..], "react-dom | @babel/core"),
        ("import a from 'npm:lodash@^4'", &[], "lodash@^4"),
        ("import a from 'npm:acme-thing@1'", &[], "acme-thing@1"),
        ("import a from 'npm:loadsh@4'", &[], "!loadsh=misspelt lodash"),
        ("import a from 'acme-thing'", &[], "!acme-thing=unknown"),
        ("", &["lodash@^4", "crossenv"], "lodash@^4 | !crossenv=misspelt cross-env"),
        ("", &["lodash@git+https://x/y"], "!lodash@git+https://x/y=direct"),
    ] {
        assert_eq!(resolved(code, ImportLanguage::JavaScript, given, &none), wanted, "{code} {given:?}");
    }
}

#[test]
fn administrator_settings_take_precedence() {
    let mut settings = ResolverSettings::default();
    settings.python.imports.insert("acme".into(), "acme-sdk>=2".into());
    settings.python.deny.insert("Paramiko".into());
    settings.python.pins.insert("numpy".into(), "==1.26.4".into());
    let check = |code, given: &[&str], settings: &ResolverSettings| {
        resolved(code, ImportLanguage::Python, given, settings)
    };
    assert_eq!(check("import acme.x", &[], &settings), "acme-sdk>=2");
    assert_eq!(check("import paramiko", &["paramiko"], &settings), "!paramiko=denied | !paramiko=denied");
    assert_eq!(check("import numpy", &[], &settings), "numpy==1.26.4");
    assert_eq!(check("", &["numpy==2.0"], &settings), "!numpy==2.0=pinned");
    settings.direct = true;
    assert_eq!(check("", &["abc @ https://x/a.whl"], &settings), "abc @ https://x/a.whl");
    settings.python.allow = BTreeSet::from(["NumPy".into(), "acme-internal".into(), "reqeusts".into()]);
    assert_eq!(
        check("import numpy, pandas, acme_internal, reqeusts", &[], &settings),
        "numpy==1.26.4 | acme-internal | reqeusts | !pandas=notallowed"
    );
    assert_eq!(PackageRegistry::Npm, ImportLanguage::TypeScript.registry());
}

/// Nests every construct that the parsers recurse on, as deep as their limits allow and beyond.
#[test]
fn hostile_nesting_does_not_crash() {
    let shapes: &[(&str, &str, &str)] = &[
        ("(", "1", ")"),
        ("[", "", "]"),
        ("{1:", "1", "}"),
        ("not ", "1", ""),
        ("-", "1", ""),
        ("lambda:", "1", ""),
        ("1 if x else ", "1", ""),
        ("a.", "b", ""),
        ("a+", "b", ""),
        ("a**", "b", ""),
        ("f(", "", ")"),
        ("await ", "x", ""),
        ("f'{", "1", "}'"),
        ("typeof ", "x", ""),
        ("!", "x", ""),
        ("x=>", "x", ""),
        ("a?b:", "c", ""),
        ("a=", "b", ""),
        ("if(x)", "y", ""),
        ("if(x){}else ", "y", ""),
        ("for(;;)", "y", ""),
        ("a:", "b", ""),
        ("new ", "x", ""),
        ("`${", "1", "}`"),
        ("<a>", "", "</a>"),
        ("{", "", "}"),
        ("function f(){", "", "}"),
        ("class A{x=", "1", "}"),
        ("async()=>", "x", ""),
        ("({a:", "1", "})"),
        ("type A=B<", "C", ">"),
        ("a<", "b", ">"),
        ("import('", "a", "')"),
    ];
    for (open, middle, close) in shapes {
        for depth in [500, 6_000, 100_000] {
            let code = format!("{}{middle}{}", open.repeat(depth), close.repeat(depth));
            for language in [ImportLanguage::Python, ImportLanguage::JavaScript, ImportLanguage::TypeScript] {
                let local = BTreeSet::new();
                let _ = detect(SourceCode {
                    code: &code,
                    language,
                    python: PythonVersion::default(),
                    local: &local,
                });
            }
        }
    }
}

/// The parser would take minutes and gigabytes for these.
#[test]
fn code_that_would_parse_endlessly_is_refused() {
    for part in ["(a,b=", "(/*)*/a=/*{*/", "(a=//x\n", "(a=async", "(a=typeof ", "(a?", "x?", "(a:"] {
        let (code, local) = (format!("{part}(").repeat(2_000), BTreeSet::new());
        let python = PythonVersion::default();
        let found =
            detect(SourceCode { code: &code, language: ImportLanguage::TypeScript, python, local: &local });
        assert!(found.is_err(), "{part}");
    }
}

fn try_all(code: &str) {
    for language in [ImportLanguage::Python, ImportLanguage::JavaScript, ImportLanguage::TypeScript] {
        let local = BTreeSet::new();
        let found = detect(SourceCode { code, language, python: PythonVersion::default(), local: &local });
        if let Ok(found) = found {
            Resolver::new(language.registry(), &ResolverSettings::default()).resolve(&found, &[]);
        }
    }
}

fn corpus() -> Vec<String> {
    [PYTHON, JAVASCRIPT, TYPESCRIPT].concat().iter().map(|(code, _)| (*code).to_owned()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        try_all(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn no_mutation_makes_it_panic(
        parts in proptest::collection::vec(proptest::sample::select(corpus()), 1..4),
        cuts in proptest::collection::vec((any::<proptest::sample::Index>(), "[(){}\\[\\]'\"`:;,.@#/\\\\ \n\u{e9}a0-]{0,3}"), 0..6),
    ) {
        let mut code: Vec<char> = parts.join("\n").chars().collect();
        for (at, put) in cuts {
            if !code.is_empty() {
                let at = at.index(code.len());
                code.splice(at..(at + 1).min(code.len()), put.chars());
            }
        }
        try_all(&code.into_iter().collect::<String>());
    }

    #[test]
    fn no_requirement_makes_it_panic(text in "\\PC{0,60}") {
        for registry in [PackageRegistry::Pypi, PackageRegistry::Npm] {
            if let Ok(requirement) = Requirement::parse(registry, &text) {
                // A requirement passed to an installer parses to the same value again and is never an option.
                let again = Requirement::parse(registry, &requirement.to_string());
                prop_assert_eq!(again.as_ref(), Ok(&requirement), "{}", text);
                prop_assert!(!requirement.to_string().starts_with('-'));
            }
        }
        let _ = belljar_analysis::imports::requirements_txt(&text);
    }
}

/// Code that does not parse is retried line by line, with the lines that follow; the total amount of parsing
/// is bounded.
#[test]
fn retries_on_broken_code_are_bounded() {
    let line = format!("import {{ {}\n", "a, ".repeat(600));
    let code = line.repeat(500);
    let local = BTreeSet::new();
    let source = SourceCode {
        code: &code,
        language: ImportLanguage::JavaScript,
        python: PythonVersion::default(),
        local: &local,
    };
    assert_eq!(detect(source), Err(Error::TooComplex));
}
