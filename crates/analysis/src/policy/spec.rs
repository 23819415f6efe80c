//! Policies by name: the built-in ones and those that an administrator defines.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use super::{Action, Category, Policy, rules};

/// The default policy.
pub const DEFAULT_POLICY: &str = "balanced";

/// A policy in `[policies.NAME]` of `belljar.toml`: its differences from the policy that it extends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicySpec {
    /// Policy to extend; `off` by default.
    pub extends: Option<String>,
    /// Action where nothing more specific applies.
    pub default: Option<Action>,
    /// Actions by category.
    pub categories: BTreeMap<Category, Action>,
    /// Actions by rule id.
    pub rules: BTreeMap<String, Action>,
    /// Modules that are always allowed.
    pub allow_modules: Vec<String>,
    /// Additional modules that the rules `*-LISTED-MODULE` match.
    pub listed_modules: Vec<String>,
    /// Additional names that the rules `*-LISTED-CALL` match.
    pub listed_calls: Vec<String>,
    /// Action for code that cannot be analyzed.
    pub unread: Option<Action>,
    /// Whether `# belljar: allow RULE reason` suppresses findings.
    pub comments: Option<bool>,
}

impl PolicySpec {
    fn extend(self, name: &str, base: &Policy) -> Result<Policy, PolicyError> {
        if let Some(unknown) = self.rules.keys().find(|id| rules::find_rule(id).is_none()) {
            return Err(PolicyError::UnknownRule { policy: name.to_owned(), rule: unknown.clone() });
        }
        let mut policy = Policy { name: name.to_owned(), ..base.clone() };
        // An action for a whole category overrides the base policy's rules of that category.
        policy.rules.retain(|id, _| {
            rules::find_rule(id).is_none_or(|rule| !self.categories.contains_key(&rule.category))
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

/// Why a policy cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No policy has this name.
    #[error("unknown policy '{}'; known: {}", .given.escape_debug(), .known)]
    Unknown {
        /// The requested name.
        given: String,
        /// All names.
        known: String,
    },
    /// No rule has this id.
    #[error("policies.{policy}: unknown rule '{}'; docs/policy.md lists all rules", .rule.escape_debug())]
    UnknownRule {
        /// The policy that names the rule.
        policy: String,
        /// The unknown rule.
        rule: String,
    },
    /// The base policy does not exist, or extends this one.
    #[error(
        "policies.{policy}: cannot extend '{}': it is unknown, or it extends this policy",
        .base.escape_debug()
    )]
    UnknownBase {
        /// The extending policy.
        policy: String,
        /// The policy to extend.
        base: String,
    },
}

/// All policies, by name.
#[derive(Debug, Clone)]
pub struct Policies(BTreeMap<String, Arc<Policy>>);

impl Default for Policies {
    /// Returns the built-in policies.
    fn default() -> Self {
        let built_in = Policy::NAMES.into_iter().filter_map(Policy::built_in);
        Self(built_in.map(|policy| (policy.name.clone(), Arc::new(policy))).collect())
    }
}

impl Policies {
    /// Returns the built-in policies with `specs` added; a spec may replace a built-in policy.
    ///
    /// # Errors
    /// A spec extends an unknown policy, or names an unknown rule.
    pub fn with(mut specs: BTreeMap<String, PolicySpec>) -> Result<Self, PolicyError> {
        let mut all = Self::default();
        while !specs.is_empty() {
            let ready = |(name, spec): (&String, &PolicySpec)| {
                let base = spec.extends.as_deref().unwrap_or("off");
                // A policy that extends its own name extends the built-in one.
                let waits = base != name && specs.contains_key(base);
                (!waits && all.0.contains_key(base)).then(|| (name.clone(), base.to_owned()))
            };
            let Some((name, base)) = specs.iter().find_map(ready) else {
                let (policy, spec) = specs.into_iter().next().unwrap_or_default();
                return Err(PolicyError::UnknownBase { policy, base: spec.extends.unwrap_or_default() });
            };
            let spec = specs.remove(&name).unwrap_or_default();
            let policy = spec.extend(&name, &*all.get(&base)?)?;
            all.0.insert(name, Arc::new(policy));
        }
        Ok(all)
    }

    /// Returns a policy.
    ///
    /// # Errors
    /// The policy is unknown; the error lists the known names.
    pub fn get(&self, name: &str) -> Result<Arc<Policy>, PolicyError> {
        self.0.get(name).cloned().ok_or_else(|| PolicyError::Unknown {
            given: name.to_owned(),
            known: self.0.keys().cloned().collect::<Vec<_>>().join(", "),
        })
    }
}
