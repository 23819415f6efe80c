//! Analyzes Python: resolves names through imports, assignments and scopes, on ruff's syntax tree.
//!
//! Function bodies are analyzed after the enclosing module, as they would run, so they see names that are
//! bound later in it.

mod fold;
mod scope;

use ruff_python_ast::visitor::{Visitor, walk_expr, walk_stmt};
use ruff_python_ast::{self as ast, Expr, Stmt};
use ruff_python_parser::{Mode, ParseOptions, parse_unchecked};
use ruff_text_size::Ranged;

pub(crate) use self::scope::INTERNAL_ATTRIBUTES;
use self::scope::{PythonScopes, PythonValue};
use super::PolicyLanguage;
use super::analyze::{self, AnalysisBudget};
use super::fact::{CodeFact, CodePattern, FactKind};
use super::shell;

/// Returns the facts about Python code.
pub(crate) fn facts(code: &str, allowance: AnalysisBudget) -> Vec<CodeFact> {
    let parsed = parse_unchecked(code, ParseOptions::from(Mode::Ipython));
    let scopes = PythonScopes::new(allowance.budget.clone());
    let mut reader = PythonAnalyzer { facts: Vec::new(), scopes, pending_functions: Vec::new(), allowance };
    if let Some(error) = parsed.errors().first() {
        let why = error.error.to_string();
        reader.report(error.location.start().to_usize(), FactKind::Pattern(CodePattern::SyntaxError(why)));
    }
    if let ast::Mod::Module(module) = parsed.syntax() {
        reader.body(&module.body);
    }
    while let Some((body, scope)) = reader.pending_functions.pop() {
        reader.scopes.enter(scope);
        reader.body(body);
    }
    reader.facts
}

/// Calls whose first argument is a shell command.
const SHELL_FUNCTIONS: &[&str] =
    &["os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"];
const PROCESS_FUNCTIONS: &[&str] = &[
    "subprocess.run",
    "subprocess.Popen",
    "subprocess.call",
    "subprocess.check_call",
    "subprocess.check_output",
];

struct PythonAnalyzer<'a> {
    facts: Vec<CodeFact>,
    scopes: PythonScopes,
    pending_functions: Vec<(&'a [Stmt], usize)>,
    allowance: AnalysisBudget,
}

impl<'a> PythonAnalyzer<'a> {
    fn report(&mut self, at: usize, kind: FactKind) {
        // Facts lost to an exhausted budget are reported once, for the whole program.
        if !self.allowance.budget.spend_bytes(kind.stored_bytes()) {
            return;
        }
        self.facts.push(CodeFact { at, language: PolicyLanguage::Python, kind });
    }

    fn analyze_shell(&mut self, command: &str, at: usize) {
        self.facts.extend(analyze::analyze_nested(command, PolicyLanguage::Shell, at, &self.allowance));
    }

    fn body(&mut self, body: &'a [Stmt]) {
        for statement in body {
            self.visit_stmt(statement);
        }
    }

    fn import(&mut self, statement: &ast::StmtImport) {
        for alias in &statement.names {
            let module = alias.name.as_str();
            self.report(alias.start().to_usize(), FactKind::Import(module.to_owned()));
            let (name, path) = match &alias.asname {
                Some(name) => (name.as_str(), module),
                None => {
                    let top = module.split('.').next().unwrap_or(module);
                    (top, top)
                }
            };
            self.bind_import(name, path, alias.start().to_usize());
        }
    }

    fn import_from(&mut self, statement: &ast::StmtImportFrom) {
        let module = statement.module.as_ref().map_or("", |name| name.as_str());
        let foreign = statement.level == 0;
        if foreign {
            self.report(statement.start().to_usize(), FactKind::Import(module.to_owned()));
        }
        for alias in &statement.names {
            let name = alias.name.as_str();
            let local = alias.asname.as_ref().map_or(name, |name| name.as_str());
            match (foreign, name) {
                (true, "*") => self.scopes.import_all(module),
                (true, _) => {
                    let path = scope::canonical(&format!("{module}.{name}"));
                    self.bind_import(local, &path, alias.start().to_usize());
                }
                (false, _) => self.scopes.bind(local, PythonValue::Unknown),
            }
        }
    }

    /// Binds an imported name. A name that a function declares global is also reported as a value, because
    /// its uses elsewhere are not tracked.
    fn bind_import(&mut self, name: &str, path: &str, at: usize) {
        if self.scopes.is_global(name) {
            self.report(at, FactKind::Name { path: path.to_owned(), arguments: None });
        }
        self.scopes.bind(name, PythonValue::Path(path.to_owned()));
    }

    /// Binds all names of a target; only a plain name gets the value.
    fn bind(&mut self, target: &'a Expr, value: &PythonValue) {
        match target {
            Expr::Name(name) => self.scopes.bind(name.id.as_str(), value.clone()),
            Expr::Tuple(ast::ExprTuple { elts, .. }) | Expr::List(ast::ExprList { elts, .. }) => {
                for element in elts {
                    self.bind(element, &PythonValue::Unknown);
                }
            }
            Expr::Starred(starred) => self.bind(&starred.value, &PythonValue::Unknown),
            other => self.visit_expr(other),
        }
    }

    fn assign(&mut self, targets: &'a [Expr], value: &'a Expr) {
        self.visit_expr(value);
        for target in targets {
            match (target, value) {
                (Expr::Tuple(left), Expr::Tuple(right)) if left.elts.len() == right.elts.len() => {
                    for (target, value) in left.elts.iter().zip(&right.elts) {
                        let value = fold::value(value, &self.scopes);
                        self.bind(target, &value);
                    }
                }
                _ => {
                    let value = fold::value(value, &self.scopes);
                    self.bind(target, &value);
                }
            }
        }
    }

    fn enter_function(&mut self, parameters: Option<&'a ast::Parameters>) -> usize {
        let names = parameters.into_iter().flat_map(ast::Parameters::iter).map(|p| p.name().as_str());
        self.scopes.add_function_scope(names)
    }

    fn defaults(&mut self, parameters: &'a ast::Parameters) {
        for default in parameters.iter_non_variadic_params().filter_map(|p| p.default.as_deref()) {
            self.visit_expr(default);
        }
    }

    fn call(&mut self, call: &'a ast::ExprCall) {
        let at = call.func.start().to_usize();
        // `getattr(os, "fork", None)` is resolved here, and `hasattr` does not pass its argument on.
        let followed = fold::is_attribute_lookup(call, &self.scopes);
        match fold::value(&call.func, &self.scopes) {
            PythonValue::Path(path) => {
                self.report_call(&path, call, at);
                self.visit_inner_calls(&call.func);
            }
            _ => match &*call.func {
                Expr::Attribute(attribute) => {
                    self.report_unknown_method(attribute.attr.as_str(), call, at);
                    self.visit_expr(&attribute.value);
                }
                other => self.visit_expr(other),
            },
        }
        for argument in call.arguments.args.iter().skip(usize::from(followed)) {
            self.visit_expr(argument);
        }
        for keyword in &call.arguments.keywords {
            self.visit_expr(&keyword.value);
        }
    }

    /// Reports a method of an unknown object. `eval` and `query` of data frames take expressions as text,
    /// unlike `model.eval()` and `session.query(User)`; no ordinary expression contains `__`.
    fn report_unknown_method(&mut self, name: &str, call: &ast::ExprCall, at: usize) {
        if matches!(name, "eval" | "query") {
            let Some(first) = call.arguments.args.first() else { return };
            let text = fold::arguments(&call.arguments, &self.scopes).swap_remove(0);
            if text.as_ref().is_some_and(|text| text.contains("__")) {
                self.report(at, FactKind::Name { path: "eval".to_owned(), arguments: Some(Vec::new()) });
            }
            if text.is_none() && !matches!(first, Expr::FString(_) | Expr::BinOp(_)) {
                return;
            }
        }
        self.report(at, FactKind::Member(name.to_owned()));
    }

    fn report_call(&mut self, path: &str, call: &'a ast::ExprCall, at: usize) {
        let arguments = fold::arguments(&call.arguments, &self.scopes);
        let first = arguments.first().cloned().flatten();
        if matches!(path, "__import__" | "importlib.import_module") {
            match &first {
                Some(module) => self.report(at, FactKind::Import(module.clone())),
                None => self.report(at, FactKind::Pattern(CodePattern::UnknownCode("__import__"))),
            }
        }
        if path == "pandas.eval" {
            self.report_unknown_method("eval", call, at);
        }
        if let (true, Some(Some(name))) = (path == "getattr", arguments.get(1))
            && INTERNAL_ATTRIBUTES.contains(&name.as_str())
        {
            self.report(at, FactKind::Member(name.clone()));
        }
        if let Some(name) = fold::assembled_name(call, &self.scopes) {
            self.report(at, FactKind::Pattern(CodePattern::AssembledName(name)));
        }
        if let (Some(command), true) = (first, runs_shell(path, &arguments)) {
            self.analyze_shell(&command, at);
        }
        if let Some(words) = fold::command_words(call, path, PROCESS_FUNCTIONS, &self.scopes) {
            self.facts.extend(shell::program_facts(words, at, &self.allowance));
        }
        self.report(at, FactKind::Name { path: path.to_owned(), arguments: Some(arguments) });
    }

    /// Visits calls inside a resolved name.
    fn visit_inner_calls(&mut self, func: &'a Expr) {
        match func {
            Expr::Attribute(attribute) => self.visit_inner_value(&attribute.value),
            Expr::Call(call) => self.call(call),
            Expr::Subscript(subscript) => {
                self.visit_inner_value(&subscript.value);
                self.visit_expr(&subscript.slice);
            }
            _ => {}
        }
    }

    fn visit_inner_value(&mut self, value: &'a Expr) {
        match value {
            Expr::Attribute(_) | Expr::Call(_) | Expr::Subscript(_) => self.visit_inner_calls(value),
            Expr::Name(_) => {}
            other => self.visit_expr(other),
        }
    }

    /// Reports a name that is not called but passed as a value, possibly to be called elsewhere.
    fn report_use(&mut self, expr: &'a Expr) {
        let at = expr.start().to_usize();
        if let Expr::Attribute(attribute) = expr
            && INTERNAL_ATTRIBUTES.contains(&attribute.attr.as_str())
        {
            self.report(at, FactKind::Member(attribute.attr.to_string()));
        }
        match fold::value(expr, &self.scopes) {
            PythonValue::Path(path) => {
                if fold::is_subscript(expr) {
                    self.report(at, FactKind::Pattern(CodePattern::AssembledName(path.clone())));
                }
                self.report(at, FactKind::Name { path, arguments: None });
                self.visit_inner_calls(expr);
            }
            _ => walk_expr(self, expr),
        }
    }

    /// Detects `while True: os.fork()`.
    fn report_fork_loop(&mut self, statement: &'a ast::StmtWhile) {
        let endless = match &*statement.test {
            Expr::BooleanLiteral(literal) => literal.value,
            Expr::NumberLiteral(literal) => {
                !matches!(&literal.value, ast::Number::Int(n) if n.as_u8() == Some(0))
            }
            _ => false,
        };
        let forks = |statement: &Stmt| {
            let call = match statement {
                Stmt::Expr(expr) => &expr.value,
                Stmt::Assign(assign) => &assign.value,
                _ => return false,
            };
            matches!(&**call, Expr::Call(call)
                if fold::value(&call.func, &self.scopes) == PythonValue::Path("os.fork".to_owned()))
        };
        let leaves = |s: &Stmt| matches!(s, Stmt::Break(_) | Stmt::Return(_) | Stmt::If(_) | Stmt::Try(_));
        if endless && statement.body.iter().any(forks) && !statement.body.iter().any(leaves) {
            self.report(statement.start().to_usize(), FactKind::Pattern(CodePattern::ForkBomb));
        }
    }
}

fn runs_shell(path: &str, arguments: &[Option<String>]) -> bool {
    let asks = |argument: &Option<String>| argument.as_deref() == Some("shell=True");
    SHELL_FUNCTIONS.contains(&path) || (PROCESS_FUNCTIONS.contains(&path) && arguments.iter().any(asks))
}

impl<'a> Visitor<'a> for PythonAnalyzer<'a> {
    fn visit_stmt(&mut self, statement: &'a Stmt) {
        if !self.allowance.budget.spend(1) {
            return;
        }
        match statement {
            Stmt::Import(import) => self.import(import),
            Stmt::ImportFrom(import) => self.import_from(import),
            Stmt::Assign(assign) => self.assign(&assign.targets, &assign.value),
            Stmt::AnnAssign(ast::StmtAnnAssign { target, value: Some(value), .. }) => {
                self.assign(std::slice::from_ref(&**target), value);
            }
            Stmt::AugAssign(assign) => {
                self.visit_expr(&assign.value);
                if let Expr::Name(name) = &*assign.target {
                    let name = name.id.as_str();
                    let value = fold::fold_append(name, assign, &mut self.scopes);
                    self.scopes.rebind(name, value);
                }
            }
            Stmt::FunctionDef(def) => {
                self.scopes.bind(def.name.as_str(), PythonValue::Unknown);
                def.decorator_list.iter().for_each(|decorator| self.visit_decorator(decorator));
                self.defaults(&def.parameters);
                let scope = self.enter_function(Some(&def.parameters));
                self.pending_functions.push((&def.body, scope));
            }
            Stmt::ClassDef(def) => {
                self.scopes.bind(def.name.as_str(), PythonValue::Unknown);
                let outer = self.scopes.enter_class();
                walk_stmt(self, statement);
                self.scopes.enter(outer);
            }
            Stmt::For(for_loop) => {
                self.bind(&for_loop.target, &PythonValue::Unknown);
                walk_stmt(self, statement);
            }
            Stmt::While(while_loop) => {
                self.report_fork_loop(while_loop);
                walk_stmt(self, statement);
            }
            Stmt::With(with) => {
                for item in &with.items {
                    self.visit_expr(&item.context_expr);
                    if let Some(target) = item.optional_vars.as_deref() {
                        let value = fold::value(&item.context_expr, &self.scopes);
                        self.bind(target, &value);
                    }
                }
                self.body(&with.body);
            }
            Stmt::Global(global) => self.scopes.declare_global(global.names.iter().map(|name| name.as_str())),
            Stmt::Delete(delete) => {
                let parts = delete.targets.iter().filter(|target| !matches!(target, Expr::Name(_)));
                parts.for_each(|target| self.visit_expr(target));
            }
            Stmt::IpyEscapeCommand(line) => {
                let at = line.start().to_usize();
                self.analyze_shell(&line.value, at);
            }
            _ => walk_stmt(self, statement),
        }
    }

    // Annotations do nothing at run time.
    fn visit_annotation(&mut self, _: &'a Expr) {}

    fn visit_expr(&mut self, expr: &'a Expr) {
        if !self.allowance.budget.spend(1) {
            return;
        }
        match expr {
            Expr::Call(call) => self.call(call),
            Expr::Name(_) | Expr::Attribute(_) | Expr::Subscript(_) => self.report_use(expr),
            Expr::Named(named) => {
                self.assign(std::slice::from_ref(&*named.target), &named.value);
            }
            Expr::Lambda(lambda) => {
                let outer = self.scopes.current();
                let scope = self.enter_function(lambda.parameters.as_deref());
                self.scopes.enter(scope);
                self.visit_expr(&lambda.body);
                self.scopes.enter(outer);
            }
            Expr::ListComp(_) | Expr::SetComp(_) | Expr::DictComp(_) | Expr::Generator(_) => {
                let outer = self.scopes.current();
                let scope = self.enter_function(None);
                self.scopes.enter(scope);
                for generator in generators(expr) {
                    self.bind(&generator.target, &PythonValue::Unknown);
                }
                walk_expr(self, expr);
                self.scopes.enter(outer);
            }
            _ => walk_expr(self, expr),
        }
    }
}

fn generators(expr: &Expr) -> &[ast::Comprehension] {
    match expr {
        Expr::ListComp(comprehension) => &comprehension.generators,
        Expr::SetComp(comprehension) => &comprehension.generators,
        Expr::DictComp(comprehension) => &comprehension.generators,
        Expr::Generator(comprehension) => &comprehension.generators,
        _ => &[],
    }
}
