//! Finds imports in Python code.

use std::collections::BTreeSet;

use ruff_python_ast::visitor::{Visitor, walk_expr, walk_stmt};
use ruff_python_ast::{
    ElifElseClause, ExceptHandler, Expr, ExprCall, Stmt, StmtIf, StmtImport, StmtImportFrom, StmtTry,
    UnaryOp, WithItem,
};
use ruff_python_parser::{Mode, ParseOptions, parse_unchecked};
use ruff_text_size::{Ranged, TextSize};

use super::{DetectedImports, Import, ImportOrigin, PythonVersion, SourceCode, comments};
use crate::budget::Budget;
use crate::line_index::LineIndex;

/// Exceptions whose handlers make the import in their `try` block optional.
const IMPORT_ERROR_CLASSES: [&str; 4] = ["ImportError", "ModuleNotFoundError", "Exception", "BaseException"];

pub(super) fn find_imports(source: &SourceCode<'_>, budget: &Budget) -> DetectedImports {
    // Parsing costs one step per byte.
    budget.spend(source.code.len());
    // IPython mode also accepts the `!pip` and `%magic` lines of notebooks.
    let parsed = parse_unchecked(source.code, ParseOptions::from(Mode::Ipython));
    let lines = LineIndex::new(source.code);
    let declared = comments::declared_requirements(source.code, parsed.tokens(), &lines);
    let broken = parsed.has_syntax_errors();
    let mut finder = PythonImportVisitor {
        budget,
        local: local_modules(source.local),
        version: source.python,
        lines,
        imports: Vec::new(),
        optional_depth: 0,
        importlib_names: BTreeSet::from(["importlib".to_owned()]),
        import_function_names: BTreeSet::from(["__import__".to_owned()]),
    };
    if let Some(module) = parsed.try_into_module() {
        finder.visit_body(module.suite());
    }
    DetectedImports { imports: finder.imports, declared, broken }
}

/// Returns the module names of local files: `helpers.py` and `lib` can be imported as `helpers` and `lib`.
fn local_modules(files: &BTreeSet<String>) -> BTreeSet<&str> {
    files.iter().map(|name| name.split('.').next().unwrap_or(name)).collect()
}

struct PythonImportVisitor<'a> {
    budget: &'a Budget,
    local: BTreeSet<&'a str>,
    version: PythonVersion,
    lines: LineIndex,
    imports: Vec<Import>,
    /// Number of enclosing blocks that catch a failed import.
    optional_depth: u32,
    /// Names bound to `importlib`.
    importlib_names: BTreeSet<String>,
    /// Names bound to `import_module` or `__import__`.
    import_function_names: BTreeSet<String>,
}

impl PythonImportVisitor<'_> {
    fn add(&mut self, name: &str, members: Vec<String>, at: TextSize, how: ImportOrigin) {
        let top = name.split('.').next().unwrap_or(name);
        if !is_dotted_name(name) || self.local.contains(top) || self.version.has(top) {
            return;
        }
        let (line, optional) = (self.lines.line_of(at.to_usize()), self.optional_depth > 0);
        self.imports.push(Import { name: name.to_owned(), members, version: None, line, optional, how });
    }

    fn import(&mut self, statement: &StmtImport) {
        for alias in &statement.names {
            if alias.name.as_str() == "importlib" {
                self.importlib_names.extend(alias.asname.as_ref().map(|name| name.to_string()));
            }
            self.add(&alias.name, Vec::new(), alias.start(), ImportOrigin::Import);
        }
    }

    fn import_from(&mut self, statement: &StmtImportFrom) {
        let Some(module) = statement.module.as_ref().filter(|_| statement.level == 0) else { return };
        if module.as_str() == "importlib" {
            let aliases = statement.names.iter().filter(|alias| alias.name.as_str() == "import_module");
            self.import_function_names
                .extend(aliases.map(|alias| alias.asname.as_ref().unwrap_or(&alias.name).to_string()));
        }
        let members = statement.names.iter().map(|alias| alias.name.to_string()).filter(|name| name != "*");
        self.add(module, members.collect(), statement.start(), ImportOrigin::Import);
    }

    /// Adds the import of `importlib.import_module("x")`, also under other names.
    fn call(&mut self, call: &ExprCall) {
        let imports = match call.func.as_ref() {
            Expr::Name(name) => self.import_function_names.contains(name.id.as_str()),
            Expr::Attribute(attribute) => {
                let of = attribute.value.as_name_expr().map(|name| name.id.as_str());
                match attribute.attr.as_str() {
                    "import_module" | "__import__" => {
                        of.is_some_and(|of| self.importlib_names.contains(of) || of == "builtins")
                    }
                    _ => false,
                }
            }
            _ => false,
        };
        let name = call.arguments.find_argument_value("name", 0).and_then(Expr::as_string_literal_expr);
        if let Some(name) = name.filter(|_| imports) {
            self.add(name.value.to_str(), Vec::new(), call.start(), ImportOrigin::Dynamic);
        }
    }

    fn visit_try(&mut self, statement: &StmtTry) {
        let forgiving = u32::from(statement.handlers.iter().any(catches_import_error));
        self.optional_depth += forgiving;
        self.visit_body(&statement.body);
        // A fallback is only needed where the first choice is missing.
        for handler in &statement.handlers {
            self.visit_except_handler(handler);
        }
        self.visit_body(&statement.orelse);
        self.optional_depth -= forgiving;
        self.visit_body(&statement.finalbody);
    }

    /// Visits an `if`, except branches only for type checkers or for other Python versions.
    fn visit_if(&mut self, statement: &StmtIf) {
        self.visit_expr(&statement.test);
        let mut runs = self.evaluate_condition(&statement.test);
        if runs != Some(false) {
            self.visit_body(&statement.body);
        }
        for ElifElseClause { test, body, .. } in &statement.elif_else_clauses {
            if runs == Some(true) {
                return;
            }
            runs = test.as_ref().map_or(Some(true), |test| self.evaluate_condition(test));
            test.iter().for_each(|test| self.visit_expr(test));
            if runs != Some(false) {
                self.visit_body(body);
            }
        }
    }

    /// Evaluates a condition, or returns `None` if its value is not certain.
    fn evaluate_condition(&self, test: &Expr) -> Option<bool> {
        match test {
            Expr::Name(name) if name.id.as_str() == "TYPE_CHECKING" => Some(false),
            Expr::Attribute(attribute) if attribute.attr.as_str() == "TYPE_CHECKING" => Some(false),
            Expr::BooleanLiteral(literal) => Some(literal.value),
            Expr::UnaryOp(not) if not.op == UnaryOp::Not => {
                self.evaluate_condition(&not.operand).map(|truth| !truth)
            }
            Expr::Compare(compare) => match (&*compare.ops, &*compare.comparators) {
                ([op], [Expr::Tuple(bound)]) if is_version_info(&compare.left) => {
                    compare_version(self.version, *op, &bound.elts)
                }
                _ => None,
            },
            _ => None,
        }
    }
}

impl<'b> Visitor<'b> for PythonImportVisitor<'_> {
    fn visit_stmt(&mut self, statement: &'b Stmt) {
        if !self.budget.spend(1) {
            return;
        }
        match statement {
            Stmt::Import(import) => self.import(import),
            Stmt::ImportFrom(import) => self.import_from(import),
            Stmt::Try(attempt) => self.visit_try(attempt),
            Stmt::If(choice) => self.visit_if(choice),
            Stmt::With(with) if with.items.iter().any(suppresses_import_error) => {
                self.optional_depth += 1;
                walk_stmt(self, statement);
                self.optional_depth -= 1;
            }
            _ => walk_stmt(self, statement),
        }
    }

    fn visit_expr(&mut self, expression: &'b Expr) {
        if !self.budget.spend(1) {
            return;
        }
        if let Expr::Call(call) = expression {
            self.call(call);
        }
        walk_expr(self, expression);
    }
}

fn catches_import_error(handler: &ExceptHandler) -> bool {
    let ExceptHandler::ExceptHandler(handler) = handler;
    handler.type_.as_deref().is_none_or(is_import_error_class)
}

fn is_import_error_class(caught: &Expr) -> bool {
    match caught {
        Expr::Name(name) => IMPORT_ERROR_CLASSES.contains(&name.id.as_str()),
        Expr::Attribute(attribute) => IMPORT_ERROR_CLASSES.contains(&attribute.attr.as_str()),
        Expr::Tuple(tuple) => {
            tuple.elts.iter().any(|one| matches!(one, Expr::Name(_)) && is_import_error_class(one))
        }
        _ => false,
    }
}

/// Returns whether the item is `contextlib.suppress(ImportError)` or similar.
fn suppresses_import_error(item: &WithItem) -> bool {
    let Expr::Call(call) = &item.context_expr else { return false };
    let named = match call.func.as_ref() {
        Expr::Name(name) => name.id.as_str() == "suppress",
        Expr::Attribute(attribute) => attribute.attr.as_str() == "suppress",
        _ => false,
    };
    named && call.arguments.args.iter().any(is_import_error_class)
}

fn is_version_info(expression: &Expr) -> bool {
    match expression {
        Expr::Attribute(attribute) => attribute.attr.as_str() == "version_info",
        Expr::Name(name) => name.id.as_str() == "version_info",
        _ => false,
    }
}

/// Evaluates `sys.version_info >= (3, 11)`. Comparisons with patch releases or for equality are uncertain.
fn compare_version(version: PythonVersion, op: ruff_python_ast::CmpOp, bound: &[Expr]) -> Option<bool> {
    use ruff_python_ast::CmpOp;
    let mut numbers = bound.iter().map(|part| part.as_number_literal_expr()?.value.as_int()?.as_u8());
    let bound = match (numbers.next(), numbers.next(), numbers.next()) {
        (Some(Some(major)), None, None) => (major, 0),
        (Some(Some(major)), Some(Some(minor)), None) => (major, minor),
        _ => return None,
    };
    let ours = (3, version.minor());
    match op {
        // `sys.version_info` also has a patch number, so it is never equal to the bound but above it.
        CmpOp::Lt | CmpOp::LtE => Some(ours < bound),
        CmpOp::Gt | CmpOp::GtE => Some(ours >= bound),
        _ => None,
    }
}

/// Returns whether an import statement could contain this name. A string literal may contain anything.
fn is_dotted_name(name: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|first: char| first == '_' || first.is_alphabetic())
            && part.chars().all(|c| c == '_' || c.is_alphanumeric())
    };
    name.len() <= 256 && name.split('.').all(part)
}
