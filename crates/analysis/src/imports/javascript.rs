//! Finds imports in JavaScript and TypeScript code.

use std::collections::BTreeSet;

use oxc_allocator::Allocator;
use oxc_ast::ast::{
    BindingIdentifier, BindingPattern, CallExpression, ExportAllDeclaration, ExportFromDeclaration,
    Expression, Function, ImportDeclaration, ImportDeclarationSpecifier, ImportExpression, Program,
    Statement, StringLiteral, TSImportEqualsDeclaration, TSModuleReference, TryStatement, VariableDeclarator,
};
use oxc_ast_visit::{Visit, walk};
use oxc_parser::{ParseOptions, Parser};
use oxc_span::SourceType;
use oxc_syntax::scope::{ScopeFlags, ScopeId};

use super::specifier::package_of;
use super::{DetectedImports, Import, ImportLanguage, ImportOrigin};
use crate::budget::Budget;
use crate::line_index::LineIndex;

/// Maximum number of lines that are parsed separately if the code as a whole cannot be parsed.
const MAX_PARSED_LINES: usize = 500;

/// Maximum number of lines of one import statement.
const MAX_STATEMENT_LINES: usize = 40;

pub(super) fn find_imports(code: &str, language: ImportLanguage, budget: &Budget) -> DetectedImports {
    let ways = match language {
        ImportLanguage::TypeScript => [SourceType::ts(), SourceType::tsx()],
        _ => [SourceType::jsx(), SourceType::cjs().with_jsx(true)],
    };
    for way in ways {
        if let Some((imports, broken)) = parse_imports(code, way, 1, budget) {
            return DetectedImports { imports, broken, ..DetectedImports::default() };
        }
    }
    DetectedImports {
        imports: find_by_line(code, ways[0], budget),
        broken: true,
        ..DetectedImports::default()
    }
}

/// Returns the imports and whether there were syntax errors, or `None` if the parser gave up.
fn parse_imports(
    code: &str,
    way: SourceType,
    first_line: u32,
    budget: &Budget,
) -> Option<(Vec<Import>, bool)> {
    // Parsing costs one step per byte, and so does every further attempt.
    if !budget.spend(code.len()) {
        return None;
    }
    let allocator = Allocator::default();
    let options = ParseOptions { allow_return_outside_function: true, ..ParseOptions::default() };
    let parsed = Parser::new(&allocator, code, way).with_options(options).parse();
    (!parsed.panicked).then(|| {
        let broken = !parsed.diagnostics.is_empty();
        (JavaScriptImportVisitor::new(code, first_line, budget).collect_imports(&parsed.program), broken)
    })
}

/// Finds imports in single lines and in statements that begin on them.
fn find_by_line(code: &str, way: SourceType, budget: &Budget) -> Vec<Import> {
    let lines: Vec<&str> = code.lines().collect();
    let mut imports = Vec::new();
    let told = |line: &&str| ["import", "require", "export"].iter().any(|word| line.contains(word));
    let begin = (0..lines.len()).filter(|at| told(&lines[*at])).take(MAX_PARSED_LINES);
    for at in begin {
        if budget.is_spent() {
            break;
        }
        let first_line = u32::try_from(at + 1).unwrap_or(u32::MAX);
        let opens =
            lines[at].trim_start().starts_with("import") || lines[at].trim_start().starts_with("export");
        let longest = if opens { MAX_STATEMENT_LINES.min(lines.len() - at) } else { 1 };
        let found = (1..=longest)
            .find_map(|length| parse_imports(&lines[at..at + length].join("\n"), way, first_line, budget));
        imports.extend(found.map(|(imports, _)| imports).unwrap_or_default());
    }
    imports
}

struct JavaScriptImportVisitor<'b> {
    budget: &'b Budget,
    lines: LineIndex,
    first_line: u32,
    imports: Vec<Import>,
    /// Scopes from the outermost to the current one.
    scopes: Vec<RequireScope>,
    /// Calls of `require` that count unless a later declaration shadows `require`; each scope owns the tail
    /// of this list.
    pending_requires: Vec<Import>,
    /// Number of enclosing blocks that catch a failed import.
    optional_depth: u32,
    /// Names bound to results of `createRequire`.
    require_names: BTreeSet<String>,
}

#[derive(Default)]
struct RequireScope {
    /// Whether `require` is redeclared in this scope.
    shadowed: bool,
    /// Index of its first entry in `required`.
    first_required: usize,
}

impl<'b> JavaScriptImportVisitor<'b> {
    fn new(code: &str, first_line: u32, budget: &'b Budget) -> Self {
        Self {
            budget,
            lines: LineIndex::new(code),
            first_line,
            imports: Vec::new(),
            scopes: vec![RequireScope::default()],
            pending_requires: Vec::new(),
            optional_depth: 0,
            require_names: BTreeSet::new(),
        }
    }

    fn collect_imports(mut self, program: &Program<'_>) -> Vec<Import> {
        self.visit_program(program);
        self.leave_scope();
        self.imports.append(&mut self.pending_requires);
        self.imports
    }

    fn parse_specifier(&self, specifier: &str, at: u32, how: ImportOrigin) -> Option<Import> {
        let (name, version) = package_of(specifier)?;
        let line = self.lines.line_of(at as usize) + self.first_line - 1;
        Some(Import {
            name: name.to_owned(),
            members: Vec::new(),
            version: version.map(str::to_owned),
            line,
            optional: self.optional_depth > 0,
            how,
        })
    }

    fn add(&mut self, source: &StringLiteral<'_>, at: u32, how: ImportOrigin) {
        self.imports.extend(self.parse_specifier(source.value.as_str(), at, how));
    }

    /// Handles `require("x")` and `require.resolve("x")`.
    fn require(&mut self, call: &CallExpression<'_>) {
        let callee = match &call.callee {
            Expression::StaticMemberExpression(member) if member.property.name == "resolve" => &member.object,
            callee => callee,
        };
        let (Expression::Identifier(callee), Some(argument)) = (callee, call.arguments.first()) else {
            return;
        };
        let made = self.require_names.contains(callee.name.as_str());
        if callee.name != "require" && !made {
            return;
        }
        let Some(specifier) = argument.as_expression().and_then(literal_text) else { return };
        let import = self.parse_specifier(specifier, call.span.start, ImportOrigin::Require);
        if made { self.imports.extend(import) } else { self.pending_requires.extend(import) }
    }

    fn shadow(&mut self, name: &str) {
        if name == "require"
            && let Some(scope) = self.scopes.last_mut()
        {
            scope.shadowed = true;
        }
    }
}

impl<'a> Visit<'a> for JavaScriptImportVisitor<'_> {
    fn visit_statement(&mut self, statement: &Statement<'a>) {
        if self.budget.spend(1) {
            walk::walk_statement(self, statement);
        }
    }

    fn visit_expression(&mut self, expression: &Expression<'a>) {
        if self.budget.spend(1) {
            walk::walk_expression(self, expression);
        }
    }

    fn enter_scope(&mut self, _: ScopeFlags, _: &std::cell::Cell<Option<ScopeId>>) {
        self.scopes.push(RequireScope { shadowed: false, first_required: self.pending_requires.len() });
    }

    fn leave_scope(&mut self) {
        if let Some(scope) = self.scopes.pop().filter(|scope| scope.shadowed) {
            self.pending_requires.truncate(scope.first_required);
        }
    }

    fn visit_binding_identifier(&mut self, name: &BindingIdentifier<'a>) {
        self.shadow(name.name.as_str());
    }

    fn visit_function(&mut self, function: &Function<'a>, flags: ScopeFlags) {
        if function.is_declaration() {
            function.id.iter().for_each(|id| self.shadow(id.name.as_str()));
        }
        walk::walk_function(self, function, flags);
    }

    fn visit_variable_declarator(&mut self, variable: &VariableDeclarator<'a>) {
        match (&variable.id, variable.init.as_ref().filter(|init| is_create_require(init))) {
            (BindingPattern::BindingIdentifier(id), Some(_)) => {
                self.require_names.insert(id.name.to_string());
            }
            _ => walk::walk_variable_declarator(self, variable),
        }
    }

    fn visit_import_declaration(&mut self, import: &ImportDeclaration<'a>) {
        let specifiers = import.specifiers.as_ref().map_or(&[][..], |all| all.as_slice());
        for specifier in specifiers {
            self.shadow(specifier.local().name.as_str());
        }
        let is_type = |specifier: &ImportDeclarationSpecifier<'_>| match specifier {
            ImportDeclarationSpecifier::ImportSpecifier(specifier) => specifier.import_kind.is_type(),
            _ => false,
        };
        let only_types = !specifiers.is_empty() && specifiers.iter().all(is_type);
        if !import.import_kind.is_type() && !only_types {
            self.add(&import.source, import.span.start, ImportOrigin::Import);
        }
    }

    fn visit_export_from_declaration(&mut self, export: &ExportFromDeclaration<'a>) {
        let only_types =
            !export.specifiers.is_empty() && export.specifiers.iter().all(|one| one.export_kind.is_type());
        if !export.export_kind.is_type() && !only_types {
            self.add(&export.source, export.span.start, ImportOrigin::Reexport);
        }
    }

    fn visit_export_all_declaration(&mut self, export: &ExportAllDeclaration<'a>) {
        if !export.export_kind.is_type() {
            self.add(&export.source, export.span.start, ImportOrigin::Reexport);
        }
    }

    fn visit_ts_import_equals_declaration(&mut self, import: &TSImportEqualsDeclaration<'a>) {
        if let TSModuleReference::ExternalModuleReference(module) = &import.module_reference
            && !import.import_kind.is_type()
        {
            self.add(&module.expression, import.span.start, ImportOrigin::Require);
        }
    }

    fn visit_import_expression(&mut self, import: &ImportExpression<'a>) {
        if let Some(specifier) = literal_text(&import.source) {
            self.imports.extend(self.parse_specifier(specifier, import.span.start, ImportOrigin::Dynamic));
        }
        walk::walk_import_expression(self, import);
    }

    fn visit_call_expression(&mut self, call: &CallExpression<'a>) {
        self.require(call);
        // `import("x").catch(…)` handles the absence of `x`.
        let caught = matches!(&call.callee, Expression::StaticMemberExpression(member)
            if member.property.name == "catch" && !call.arguments.is_empty());
        self.optional_depth += u32::from(caught);
        self.visit_expression(&call.callee);
        self.optional_depth -= u32::from(caught);
        for argument in &call.arguments {
            self.visit_argument(argument);
        }
    }

    fn visit_try_statement(&mut self, attempt: &TryStatement<'a>) {
        let forgiving = u32::from(attempt.handler.is_some());
        self.optional_depth += forgiving;
        self.visit_block_statement(&attempt.block);
        // A fallback is only needed where the first choice is missing.
        attempt.handler.iter().for_each(|handler| self.visit_catch_clause(handler));
        self.optional_depth -= forgiving;
        attempt.finalizer.iter().for_each(|block| self.visit_block_statement(block));
    }
}

/// Returns whether this is a call of `createRequire`.
fn is_create_require(init: &Expression<'_>) -> bool {
    let Expression::CallExpression(call) = init else { return false };
    match &call.callee {
        Expression::Identifier(name) => name.name == "createRequire",
        Expression::StaticMemberExpression(member) => member.property.name == "createRequire",
        _ => false,
    }
}

/// Returns the text of a string literal, or of a template literal without expressions.
fn literal_text<'a>(expression: &'a Expression<'_>) -> Option<&'a str> {
    match expression {
        Expression::StringLiteral(literal) => Some(literal.value.as_str()),
        Expression::TemplateLiteral(template) if template.expressions.is_empty() => {
            template.quasis.first()?.value.cooked.as_ref().map(|text| text.as_str())
        }
        _ => None,
    }
}
