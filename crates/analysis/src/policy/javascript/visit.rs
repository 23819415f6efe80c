//! Visits the syntax tree: reports facts and binds names.

use std::cell::Cell;
use std::collections::HashMap;

use oxc_ast::ast::{
    AssignmentExpression, AssignmentTarget, CallExpression, CatchParameter, Class, ComputedMemberExpression,
    ExportAllDeclaration, ExportFromDeclaration, Expression, FormalParameter, Function, IdentifierReference,
    ImportDeclaration, ImportDeclarationSpecifier, ImportExpression, NewExpression, Statement,
    StaticMemberExpression, TSImportEqualsDeclaration, TSModuleReference, UnaryExpression, UnaryOperator,
    VariableDeclarator, WhileStatement,
};
use oxc_ast_visit::{Visit, walk};
use oxc_syntax::scope::{ScopeFlags, ScopeId};

use super::super::fact::{CodePattern, FactKind};
use super::JavaScriptAnalyzer;
use super::fold::{JavaScriptValue, MAX_PATTERN_DEPTH, canonical, member, strip_node_prefix};

impl JavaScriptAnalyzer {
    /// Rebinds a name in the innermost scope that has it.
    fn assign(&mut self, name: &str, value: JavaScriptValue) {
        let budget = &self.allowance.budget;
        let mut scopes = self.scopes.iter_mut().rev().take_while(|_| budget.spend(1));
        match scopes.find(|scope| scope.contains_key(name)) {
            Some(scope) => {
                scope.insert(name.to_owned(), value);
                self.generation += 1;
            }
            None => self.bind(name, value),
        }
    }
}

impl<'a> Visit<'a> for JavaScriptAnalyzer {
    fn visit_statement(&mut self, statement: &Statement<'a>) {
        if self.allowance.budget.spend(1) {
            walk::walk_statement(self, statement);
        }
    }

    fn visit_expression(&mut self, expression: &Expression<'a>) {
        if self.allowance.budget.spend(1) {
            walk::walk_expression(self, expression);
        }
    }

    fn enter_scope(&mut self, _: ScopeFlags, _: &Cell<Option<ScopeId>>) {
        self.scopes.push(HashMap::new());
    }

    fn leave_scope(&mut self) {
        self.scopes.pop();
    }

    fn visit_function(&mut self, function: &Function<'a>, flags: ScopeFlags) {
        if let Some(name) = &function.id {
            self.bind(name.name.as_str(), JavaScriptValue::Unknown);
        }
        walk::walk_function(self, function, flags);
    }

    fn visit_class(&mut self, class: &Class<'a>) {
        if let Some(name) = &class.id {
            self.bind(name.name.as_str(), JavaScriptValue::Unknown);
        }
        walk::walk_class(self, class);
    }

    fn visit_formal_parameter(&mut self, parameter: &FormalParameter<'a>) {
        self.bind_pattern(&parameter.pattern, &JavaScriptValue::Unknown, MAX_PATTERN_DEPTH);
        walk::walk_formal_parameter(self, parameter);
    }

    fn visit_catch_parameter(&mut self, parameter: &CatchParameter<'a>) {
        self.bind_pattern(&parameter.pattern, &JavaScriptValue::Unknown, MAX_PATTERN_DEPTH);
        walk::walk_catch_parameter(self, parameter);
    }

    fn visit_variable_declarator(&mut self, declarator: &VariableDeclarator<'a>) {
        walk::walk_variable_declarator(self, declarator);
        let value = declarator.init.as_ref().map_or(JavaScriptValue::Unknown, |init| self.value(init));
        self.bind_pattern(&declarator.id, &value, MAX_PATTERN_DEPTH);
    }

    fn visit_assignment_expression(&mut self, assignment: &AssignmentExpression<'a>) {
        walk::walk_assignment_expression(self, assignment);
        if let AssignmentTarget::AssignmentTargetIdentifier(name) = &assignment.left {
            let value = self.value(&assignment.right);
            self.assign(name.name.as_str(), value);
        }
    }

    fn visit_import_declaration(&mut self, import: &ImportDeclaration<'a>) {
        if import.import_kind.is_type() {
            return;
        }
        let name = strip_node_prefix(import.source.value.as_str());
        self.report(import.span.start, FactKind::Import(name.clone()));
        for specifier in import.specifiers.iter().flatten() {
            let (local, path) = match specifier {
                ImportDeclarationSpecifier::ImportSpecifier(one) => {
                    (&one.local, canonical(format!("{name}.{}", one.imported.name())))
                }
                ImportDeclarationSpecifier::ImportDefaultSpecifier(whole) => (&whole.local, name.clone()),
                ImportDeclarationSpecifier::ImportNamespaceSpecifier(whole) => (&whole.local, name.clone()),
            };
            self.bind(local.name.as_str(), JavaScriptValue::Path(path));
        }
    }

    fn visit_export_all_declaration(&mut self, export: &ExportAllDeclaration<'a>) {
        self.report(export.span.start, FactKind::Import(strip_node_prefix(export.source.value.as_str())));
    }

    fn visit_export_from_declaration(&mut self, export: &ExportFromDeclaration<'a>) {
        if export.export_kind.is_type() {
            return;
        }
        let name = strip_node_prefix(export.source.value.as_str());
        self.report(export.span.start, FactKind::Import(name.clone()));
        for specifier in &export.specifiers {
            let path = canonical(format!("{name}.{}", specifier.local.name()));
            self.report_use(JavaScriptValue::Path(path), export.span.start);
        }
    }

    /// Handles `import x = require("…")`.
    fn visit_ts_import_equals_declaration(&mut self, import: &TSImportEqualsDeclaration<'a>) {
        if let TSModuleReference::ExternalModuleReference(from) = &import.module_reference {
            let name = strip_node_prefix(from.expression.value.as_str());
            self.report(import.span.start, FactKind::Import(name.clone()));
            self.bind(import.id.name.as_str(), JavaScriptValue::Path(name));
        }
    }

    /// Skips `typeof require`, which does not pass the value on.
    fn visit_unary_expression(&mut self, unary: &UnaryExpression<'a>) {
        if !(unary.operator == UnaryOperator::Typeof && matches!(unary.argument, Expression::Identifier(_))) {
            walk::walk_unary_expression(self, unary);
        }
    }

    fn visit_import_expression(&mut self, import: &ImportExpression<'a>) {
        match self.text(&import.source) {
            Some(name) => {
                self.report(import.span.start, FactKind::Import(strip_node_prefix(&name)));
                if !matches!(import.source, Expression::StringLiteral(_) | Expression::Identifier(_)) {
                    self.report(
                        import.span.start,
                        FactKind::Pattern(CodePattern::AssembledName(String::clone(&name))),
                    );
                }
            }
            None => self.report(import.span.start, FactKind::Pattern(CodePattern::UnknownCode("import()"))),
        }
        walk::walk_import_expression(self, import);
    }

    fn visit_call_expression(&mut self, call: &CallExpression<'a>) {
        self.visit_callee(&call.callee, &call.arguments);
        self.visit_arguments(&call.arguments);
    }

    fn visit_new_expression(&mut self, new: &NewExpression<'a>) {
        self.visit_callee(&new.callee, &new.arguments);
        self.visit_arguments(&new.arguments);
    }

    fn visit_static_member_expression(&mut self, access: &StaticMemberExpression<'a>) {
        let name = access.property.name.as_str();
        self.report_special_property(access);
        let value = member(self.value(&access.object), name);
        let known = matches!(value, JavaScriptValue::Path(_));
        self.report_use(value, access.span.start);
        if known { self.visit_inner_calls(&access.object) } else { self.visit_expression(&access.object) }
    }

    fn visit_computed_member_expression(&mut self, access: &ComputedMemberExpression<'a>) {
        if let Some(name) = self.text(&access.expression) {
            let value = member(self.value(&access.object), &name);
            self.report_use(value, access.span.start);
        }
        self.visit_inner_calls(&access.object);
        self.visit_expression(&access.expression);
    }

    fn visit_identifier_reference(&mut self, name: &IdentifierReference<'a>) {
        let value = self.lookup(name.name.as_str());
        self.report_use(value, name.span.start);
    }

    fn visit_while_statement(&mut self, statement: &WhileStatement<'a>) {
        let before = self.forks;
        walk::walk_while_statement(self, statement);
        let endless = matches!(&statement.test, Expression::BooleanLiteral(literal) if literal.value);
        if endless && self.forks > before {
            self.report(statement.span.start, FactKind::Pattern(CodePattern::ForkBomb));
        }
    }
}
