//! Policies by name: those that are built in, and those that an administrator wrote.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use super::{Action, Category, Policy, rules};

/// What holds where nobody says anything.
pub const USUAL: &str = "balanced";

/// A policy as `[policies.NAME]` of `belljar.toml` gives it: what differs from the one that it extends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicySpec {
    /// The policy to begin with; `off` unless said otherwise.
    pub extends: Option<String>,
    /// For whatever nothing else is said about.
    pub default: Option<Action>,
    /// By category.
    pub categories: BTreeMap<Category, Action>,
    /// By id of a rule.
    pub rules: BTreeMap<String, Action>,
    /// Modules about which nothing is said.
    pub allow_modules: Vec<String>,
    /// Further modules that the rules `*-LISTED-MODULE` match.
    pub listed_modules: Vec<String>,
    /// Further names that the rules `*-LISTED-CALL` match.
    pub listed_calls: Vec<String>,
    /// For code that cannot be read.
    pub unread: Option<Action>,
    /// Whether `# belljar: allow RULE reason` counts.
    pub comments: Option<bool>,
}

impl PolicySpec {
    fn over(self, name: &str, base: &Policy) -> Result<Policy, PolicyError> {
        if let Some(unknown) = self.rules.keys().find(|id| rules::named(id).is_none()) {
            return Err(PolicyError::UnknownRule { policy: name.to_owned(), rule: unknown.clone() });
        }
        let mut policy = Policy { name: name.to_owned(), ..base.clone() };
        // What a policy says of a whole category is not to be undone by rules of the one that it extends.
        policy.rules.retain(|id, _| {
            rules::named(id).is_none_or(|rule| !self.categories.contains_key(&rule.category))
        });
        policy.default = self.default.unwrap_or(policy.default);
        policy.unread = self.unread.unwrap_or(policy.unread);
        policy.comments = self.comments.unwrap_or(policy.comments);
        policy.categories.extend(self.categories);
        policy.rules.extend(self.rules);
        policy.allow_modules.extend(self.allow_modules);
        policy.listed_modules.extend(self.listed_modules);
        policy.listed_calls.extend(self.listed_calls);
        Ok(policy)
    }
}

/// Why there is no such policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No policy has this name.
    #[error("unknown policy '{}'; there are {}", .given.escape_debug(), .known)]
    Unknown {
        /// What was asked for.
        given: String,
        /// All names.
        known: String,
    },
    /// No rule has this id.
    #[error("policies.{policy}: there is no rule '{}'; docs/policy.md lists them", .rule.escape_debug())]
    UnknownRule {
        /// Who speaks of it.
        policy: String,
        /// What there is not.
        rule: String,
    },
    /// What it extends is not there, or extends it.
    #[error("policies.{policy}: there is no policy '{}' to extend, or it extends this one", .base.escape_debug())]
    NoBase {
        /// The one that extends.
        policy: String,
        /// The one that it extends.
        base: String,
    },
}

/// All policies by name.
#[derive(Debug, Clone)]
pub struct Policies(BTreeMap<String, Arc<Policy>>);

impl Default for Policies {
    /// Those that are built in.
    fn default() -> Self {
        let built_in = Policy::NAMES.into_iter().filter_map(Policy::built_in);
        Self(built_in.map(|policy| (policy.name.clone(), Arc::new(policy))).collect())
    }
}

impl Policies {
    /// Those that are built in, with these added or put in their place.
    ///
    /// # Errors
    /// One extends a policy that there is not, or speaks of a rule that there is not.
    pub fn with(mut specs: BTreeMap<String, PolicySpec>) -> Result<Self, PolicyError> {
        let mut all = Self::default();
        while !specs.is_empty() {
            let ready = |(name, spec): (&String, &PolicySpec)| {
                let base = spec.extends.as_deref().unwrap_or("off");
                // One that extends its own name extends the built-in one.
                let waits = base != name && specs.contains_key(base);
                (!waits && all.0.contains_key(base)).then(|| (name.clone(), base.to_owned()))
            };
            let Some((name, base)) = specs.iter().find_map(ready) else {
                let (policy, spec) = specs.into_iter().next().unwrap_or_default();
                return Err(PolicyError::NoBase { policy, base: spec.extends.unwrap_or_default() });
            };
            let spec = specs.remove(&name).unwrap_or_default();
            let policy = spec.over(&name, &*all.named(&base)?)?;
            all.0.insert(name, Arc::new(policy));
        }
        Ok(all)
    }

    /// Finds one.
    ///
    /// # Errors
    /// Lists the names that are known.
    pub fn named(&self, name: &str) -> Result<Arc<Policy>, PolicyError> {
        self.0.get(name).cloned().ok_or_else(|| PolicyError::Unknown {
            given: name.to_owned(),
            known: self.0.keys().cloned().collect::<Vec<_>>().join(", "),
        })
    }
}
