//! Policies: what is done about a finding. A policy is data; nothing here knows a language.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Category, Finding, Rule, rules::Subject};

/// What is done about something that a rule found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Nothing.
    Allow,
    /// It is said where this run's settings will make it fail.
    WarnIfBlocked,
    /// It is said.
    Warn,
    /// The code does not run.
    Refuse,
}

/// How code is judged. The nearest word counts: an allowed module, a rule, its category, the default.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// For whatever nothing else is said about.
    pub default: Action,
    /// By category.
    pub categories: BTreeMap<Category, Action>,
    /// By id of a rule.
    pub rules: BTreeMap<String, Action>,
    /// Modules about which nothing is said, whatever the rules say.
    pub allow_modules: Vec<String>,
    /// Further modules that the rules `*-LISTED-MODULE` match.
    pub listed_modules: Vec<String>,
    /// Further names that the rules `*-LISTED-CALL` match.
    pub listed_calls: Vec<String>,
    /// Whether `# belljar: allow RULE reason` counts.
    pub comments: bool,
}

impl Default for Policy {
    /// Allows everything and says nothing.
    fn default() -> Self {
        Self {
            name: "off".to_owned(),
            default: Action::Allow,
            categories: BTreeMap::new(),
            rules: BTreeMap::new(),
            allow_modules: Vec::new(),
            listed_modules: Vec::new(),
            listed_calls: Vec::new(),
            comments: false,
        }
    }
}

/// No policy has this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownPolicy(pub String);

impl std::fmt::Display for UnknownPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unknown policy '{}'; there are {}", self.0.escape_debug(), Policy::NAMES.join(", "))
    }
}

impl std::error::Error for UnknownPolicy {}

/// What a run may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Network {
    /// Nothing.
    #[default]
    None,
    /// Some or all.
    Open,
}

/// Settings of the run that is to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    /// What it may reach.
    pub network: Network,
    /// Absolute folders in which it may write.
    pub writable: Vec<String>,
}

impl Default for Context {
    fn default() -> Self {
        let writable = ["/workspace", "/tmp", "/home/sandbox", "/dev", "/proc/self", "/run/belljar"];
        Self { network: Network::None, writable: writable.map(str::to_owned).to_vec() }
    }
}

impl Context {
    /// Why these settings will make it fail.
    fn blocks(&self, category: Category, subject: &Subject) -> Option<&'static str> {
        match category {
            Category::Network if self.network == Network::None => Some("this run has no network"),
            Category::Filesystem => {
                let path = subject.path.as_deref().filter(|path| path.starts_with('/'))?;
                let inside = |folder: &String| {
                    path.strip_prefix(folder.as_str())
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                };
                (!self.writable.iter().any(inside)).then_some("this run cannot write there")
            }
            _ => None,
        }
    }
}

impl Policy {
    /// Those that are built in.
    pub const NAMES: [&'static str; 5] = ["off", "audit", "balanced", "strict", "ragflow"];

    /// Finds one that is built in.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn named(name: &str) -> Result<Self, UnknownPolicy> {
        match name {
            "off" => Ok(Self::default()),
            "audit" => Ok(Self { name: name.to_owned(), default: Action::Warn, ..Self::default() }),
            "balanced" => Ok(Self::balanced()),
            "strict" => Ok(Self::strict()),
            "ragflow" => Ok(Self::ragflow()),
            other => Err(UnknownPolicy(other.to_owned())),
        }
    }

    /// Refuses plain attacks; warns of what this run's settings will make fail.
    fn balanced() -> Self {
        let categories = [
            (Category::DestructiveCommand, Action::Refuse),
            (Category::Network, Action::WarnIfBlocked),
            (Category::Filesystem, Action::WarnIfBlocked),
        ];
        Self { name: "balanced".to_owned(), categories: categories.into(), ..Self::default() }
    }

    /// Refuses processes, network, native and dynamic code.
    fn strict() -> Self {
        use Category as C;
        let refused = [
            C::Process,
            C::Network,
            C::Native,
            C::CodeExecution,
            C::Obfuscation,
            C::Introspection,
            C::DestructiveCommand,
        ];
        let categories = refused.map(|category| (category, Action::Refuse)).into();
        let rules = ["PY-UNREAD", "JS-UNREAD", "SH-UNREAD"];
        let rules = rules.map(|rule| (rule.to_owned(), Action::Refuse)).into();
        Self { name: "strict".to_owned(), default: Action::Warn, categories, rules, ..Self::default() }
    }

    /// RAGFlow's lists, on resolved names.
    fn ragflow() -> Self {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let rules = "PY-LISTED-MODULE PY-LISTED-CALL JS-LISTED-MODULE JS-LISTED-CALL PY-UNREAD JS-UNREAD";
        Self {
            name: "ragflow".to_owned(),
            rules: words(rules).into_iter().map(|rule| (rule, Action::Refuse)).collect(),
            listed_modules: words(
                "os subprocess sys shutil socket ctypes pickle threading multiprocessing asyncio http.client \
                 ftplib telnetlib builtins child_process fs worker_threads",
            ),
            listed_calls: words(
                "eval exec open __import__ compile input getattr setattr globals locals Function \
                 process.binding os.system os.popen os.remove os.rename os.rmdir os.chdir os.chmod os.chown",
            ),
            ..Self::default()
        }
    }

    /// Whether nothing that could be found would be said.
    pub(crate) fn reads_nothing(&self) -> bool {
        let says = |action: &Action| *action != Action::Allow;
        !says(&self.default) && !self.categories.values().chain(self.rules.values()).any(says)
    }

    /// Whether it stops code in which the rule finds something.
    pub(crate) fn refuses(&self, rule: &Rule) -> bool {
        let nothing = Subject { kind: "", name: String::new(), path: None };
        self.action(rule, &nothing).0 == Action::Refuse
    }

    fn action(&self, rule: &Rule, subject: &Subject) -> (Action, String) {
        let name = &self.name;
        if let Some(module) = self.allow_modules.iter().find(|module| subject.belongs_to(module)) {
            return (Action::Allow, format!("{name}: allow_modules has '{module}'"));
        }
        if let Some(action) = self.rules.get(rule.id) {
            return (*action, format!("{name}: rules.{} = {}", rule.id, action.word()));
        }
        if let Some(action) = self.categories.get(&rule.category) {
            return (*action, format!("{name}: categories.{} = {}", rule.category.word(), action.word()));
        }
        (self.default, format!("{name}: default = {}", self.default.word()))
    }
}

impl Action {
    fn word(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::WarnIfBlocked => "warn_if_blocked",
            Self::Warn => "warn",
            Self::Refuse => "refuse",
        }
    }
}

/// Applies a policy to what a rule found.
pub(crate) fn decide(
    rule: &'static Rule,
    subject: &Subject,
    (line, column): (u32, u32),
    policy: &Policy,
    context: &Context,
    comment: impl FnOnce() -> bool,
) -> Option<Finding> {
    let (action, decided_by) = policy.action(rule, subject);
    let blocked = context.blocks(rule.category, subject);
    let said = match action {
        Action::Allow => false,
        Action::WarnIfBlocked => blocked.is_some(),
        Action::Warn | Action::Refuse => true,
    };
    if !said || (policy.comments && comment()) {
        return None;
    }
    let mut message = rule.message.replace("{}", &subject.name);
    if let Some(why) = blocked {
        message = format!("{message}; {why}");
    }
    Some(Finding {
        rule: rule.id,
        category: rule.category,
        severity: rule.severity,
        message,
        line,
        column,
        suggestion: rule.suggestion.to_owned(),
        decided_by,
        refused: action == Action::Refuse,
        subject: format!("{} '{}'", subject.kind, subject.name),
    })
}
