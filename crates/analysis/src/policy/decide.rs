//! Policies: which action to take for a finding. A policy is data and knows no language.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Category, PolicyFinding, PolicyRule, positions, rules::Subject};

/// Action for something that a rule matched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Allow it silently.
    Allow,
    /// Warn if the run's settings will make it fail.
    WarnIfBlocked,
    /// Warn.
    Warn,
    /// Refuse to run the code.
    Refuse,
}

/// Rules for judging code. The most specific entry applies: an allowed module, a rule, its category, the
/// default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// Name of the policy.
    pub name: String,
    /// Action where nothing more specific applies.
    pub default: Action,
    /// Actions by category.
    pub categories: BTreeMap<Category, Action>,
    /// Actions by rule id.
    pub rules: BTreeMap<String, Action>,
    /// Modules that are allowed, whatever the rules say.
    pub allow_modules: Vec<String>,
    /// Additional modules that the rules `*-LISTED-MODULE` match.
    pub listed_modules: Vec<String>,
    /// Additional names that the rules `*-LISTED-CALL` match.
    pub listed_calls: Vec<String>,
    /// Action for code that cannot be analyzed: too long, nested too deeply, or invalid.
    pub unread: Action,
    /// Whether `# belljar: allow RULE reason` suppresses findings.
    pub comments: bool,
}

impl Default for Policy {
    /// Returns the policy `off`, which allows everything.
    fn default() -> Self {
        Self {
            name: "off".to_owned(),
            default: Action::Allow,
            categories: BTreeMap::new(),
            rules: BTreeMap::new(),
            allow_modules: Vec::new(),
            listed_modules: Vec::new(),
            listed_calls: Vec::new(),
            unread: Action::Allow,
            comments: false,
        }
    }
}

/// Network access of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NetworkAccess {
    /// No network.
    #[default]
    None,
    /// Some or all of the network.
    Open,
}

/// Settings of the run that affect what will fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunContext {
    /// Network access.
    pub network: NetworkAccess,
    /// Absolute paths of writable directories.
    pub writable: Vec<String>,
    /// Absolute paths of read-only directories and files, possibly inside writable ones.
    pub read_only: Vec<String>,
}

impl Default for RunContext {
    fn default() -> Self {
        let writable = ["/workspace", "/tmp", "/home/sandbox", "/dev", "/proc/self", "/run/belljar"];
        Self {
            network: NetworkAccess::None,
            writable: writable.map(str::to_owned).to_vec(),
            read_only: Vec::new(),
        }
    }
}

impl RunContext {
    /// Returns why these settings will make it fail.
    fn blocked_reason(&self, category: Category, subject: &Subject) -> Option<&'static str> {
        match category {
            Category::Network if self.network == NetworkAccess::None => Some("this run has no network"),
            Category::Filesystem => {
                let path = subject.path.as_deref().filter(|path| path.starts_with('/'))?;
                // The innermost directory decides.
                let nearest = |folders: &[String]| {
                    folders.iter().filter_map(|folder| path_length_if_inside(folder, path)).max()
                };
                (nearest(&self.writable) <= nearest(&self.read_only)).then_some("this run cannot write there")
            }
            _ => None,
        }
    }
}

/// Returns the length of a directory's path if it contains `path`.
fn path_length_if_inside(folder: &str, path: &str) -> Option<usize> {
    let rest = path.strip_prefix(folder)?;
    (rest.is_empty() || rest.starts_with('/') || folder.ends_with('/')).then_some(folder.len())
}

impl Policy {
    /// Names of the built-in policies.
    pub const NAMES: [&'static str; 5] = ["off", "audit", "balanced", "strict", "ragflow"];

    /// Returns a built-in policy.
    pub fn built_in(name: &str) -> Option<Self> {
        match name {
            "off" => Some(Self::default()),
            "audit" => Some(Self::audit()),
            "balanced" => Some(Self::balanced()),
            "strict" => Some(Self::strict()),
            "ragflow" => Some(Self::ragflow()),
            _ => None,
        }
    }

    /// Reports everything, refuses nothing.
    fn audit() -> Self {
        let name = "audit".to_owned();
        Self { name, default: Action::Warn, unread: Action::Warn, ..Self::default() }
    }

    /// Refuses obvious attacks; warns where the run's settings will make a call fail.
    fn balanced() -> Self {
        let categories = [
            (Category::DestructiveCommand, Action::Refuse),
            (Category::Network, Action::WarnIfBlocked),
            (Category::Filesystem, Action::WarnIfBlocked),
        ];
        let (name, categories) = ("balanced".to_owned(), categories.into());
        Self { name, categories, unread: Action::Warn, ..Self::default() }
    }

    /// Refuses processes, network access, native and dynamic code.
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
        // The text passed to these is also analyzed, so harmless uses may pass.
        let rules = [("PY-FRAME-EVAL".to_owned(), Action::Warn)].into();
        let (name, default, unread) = ("strict".to_owned(), Action::Warn, Action::Refuse);
        Self { name, default, categories, rules, unread, ..Self::default() }
    }

    /// Refuses what RAGFlow's lists contain, on resolved names.
    fn ragflow() -> Self {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let rules = "PY-LISTED-MODULE PY-LISTED-CALL JS-LISTED-MODULE JS-LISTED-CALL";
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
            unread: Action::Refuse,
            ..Self::default()
        }
    }

    /// Returns whether the policy allows everything, so that nothing needs to be analyzed.
    pub fn allows_everything(&self) -> bool {
        let says = |action: &Action| *action != Action::Allow;
        let named = [&self.default, &self.unread];
        !named.into_iter().chain(self.categories.values()).chain(self.rules.values()).any(says)
    }

    /// Returns whether the policy refuses code that matches the rule.
    pub(crate) fn refuses(&self, rule: &PolicyRule) -> bool {
        let nothing = Subject { kind: "", name: String::new(), path: None };
        self.action_for(rule, &nothing).0 == Action::Refuse
    }

    fn action_for(&self, rule: &PolicyRule, subject: &Subject) -> (Action, String) {
        let name = &self.name;
        if let Some(module) = self.allow_modules.iter().find(|module| subject.belongs_to(module)) {
            return (Action::Allow, format!("{name}: allow_modules contains '{module}'"));
        }
        if let Some(action) = self.rules.get(rule.id) {
            return (*action, format!("{name}: rules.{} = {}", rule.id, action.as_str()));
        }
        if rule.reports_unread_code() {
            return (self.unread, format!("{name}: unread = {}", self.unread.as_str()));
        }
        if let Some(action) = self.categories.get(&rule.category) {
            return (*action, format!("{name}: categories.{} = {}", rule.category.as_str(), action.as_str()));
        }
        (self.default, format!("{name}: default = {}", self.default.as_str()))
    }
}

impl Action {
    fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::WarnIfBlocked => "warn_if_blocked",
            Self::Warn => "warn",
            Self::Refuse => "refuse",
        }
    }
}

/// A policy's decision about something that a rule matched.
#[derive(Debug)]
pub(crate) struct Decision {
    pub(crate) refuses: bool,
    decided_by: String,
    blocked: Option<&'static str>,
}

impl Decision {
    /// Applies a policy; returns `None` if nothing is to be reported.
    pub(crate) fn decide(
        policy: &Policy,
        rule: &PolicyRule,
        subject: &Subject,
        context: &RunContext,
    ) -> Option<Self> {
        let (action, decided_by) = policy.action_for(rule, subject);
        let blocked = context.blocked_reason(rule.category, subject);
        let said = match action {
            Action::Allow => false,
            Action::WarnIfBlocked => blocked.is_some(),
            Action::Warn | Action::Refuse => true,
        };
        said.then_some(Self { refuses: action == Action::Refuse, decided_by, blocked })
    }

    /// Builds the finding, with a line and column if there are any.
    pub(crate) fn finding(
        self,
        rule: &'static PolicyRule,
        subject: &Subject,
        place: Option<(u32, u32)>,
    ) -> PolicyFinding {
        let name = positions::sanitize_name(&subject.name);
        let mut message = rule.message.replace("{}", &name);
        if let Some(why) = self.blocked {
            message = format!("{message}; {why}");
        }
        PolicyFinding {
            rule: rule.id,
            category: rule.category,
            severity: rule.severity,
            message,
            line: place.map(|(line, _)| line),
            column: place.map(|(_, column)| column),
            suggestion: rule.suggestion_for(self.refuses).to_owned(),
            decided_by: self.decided_by,
            refused: self.refuses,
            subject: format!("{} '{name}'", subject.kind),
        }
    }
}
