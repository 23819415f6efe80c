//! The set of providers, and the selection of one for each request.
//!
//! ```text
//! request, else profile, else tenant, else the default ──▶ by name, or `auto`: the strongest ──▶ itself, or a fallback
//! ```
//!
//! The provider is selected before admission, because its capabilities decide what can be admitted, and it
//! stays with the admitted request. `auto` selects among the providers that passed their last self-test: one
//! with a kernel of its own before all others, then the one with the most layers. A provider without a
//! strength is never selected by `auto`.
//!
//! A run or sandbox that a provider cannot set up goes to the first of its fallbacks that can serve it, at once,
//! because nothing of it ran. A provider that failed five times in a row is not tried for ten seconds; then one request
//! may try it. Its fallbacks take over meanwhile. There are none unless an administrator names some.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use tokio::sync::watch;

use crate::provider::{Capabilities, Capability, Provider, ProviderError};
use crate::{Error, catalog};

/// Provider name that selects the strongest healthy provider.
pub const AUTO: &str = "auto";
/// Number of consecutive failures after which a provider is not tried for a while.
const MAX_FAILURES: u32 = 5;
/// How long a failing provider is not tried; then one request may try it.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// A provider and its fallbacks, as an administrator configures them.
#[derive(Debug, Clone)]
pub struct ProviderWithFallbacks {
    /// The provider.
    pub provider: Arc<dyn Provider>,
    /// Names of the providers that take over while it fails, in order.
    pub fallbacks: Vec<String>,
}

impl ProviderWithFallbacks {
    /// A provider without fallbacks.
    pub fn without_fallbacks(provider: Arc<dyn Provider>) -> Self {
        Self { provider, fallbacks: Vec::new() }
    }
}

/// A provider of the set, with its capabilities and health.
#[derive(Debug)]
pub struct ProviderEntry {
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) capabilities: Capabilities,
    health: Mutex<HealthRecord>,
    /// Dropped with the last request that uses this entry.
    in_use: watch::Sender<()>,
}

/// Recent failures of a provider and the result of its last self-test.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HealthRecord {
    /// Number of failures since the last success.
    pub failures: u32,
    /// The last failure.
    pub last_error: String,
    /// Result of the last self-test, if there was one.
    pub self_test: Option<Result<(), String>>,
    /// When a request last tried it, while it is failing.
    last_try: Option<Instant>,
}

/// The provider selected for a request.
#[derive(Debug, Clone)]
pub struct SelectedProvider {
    pub(crate) entry: Arc<ProviderEntry>,
    /// The failing provider that it replaces, if it is a fallback.
    pub(crate) instead_of: Option<&'static str>,
    /// The other providers, to name those that support a missing capability.
    others: Weak<ProviderTable>,
}

impl SelectedProvider {
    pub(crate) fn capabilities(&self) -> &Capabilities {
        &self.entry.capabilities
    }

    /// Returns the fallbacks that may take over a request that this provider cannot set up, in order. A fallback
    /// has none itself.
    pub(crate) fn fallbacks(&self) -> Vec<Self> {
        let Some(table) = self.others.upgrade().filter(|_| self.instead_of.is_none()) else {
            return Vec::new();
        };
        let name = self.entry.provider.name();
        let names = table.fallbacks.get(name).into_iter().flatten();
        let entries = names.filter_map(|name| table.find(name).ok()).filter(|entry| entry.is_healthy());
        entries
            .map(|entry| Self { entry, instead_of: Some(name), others: Weak::clone(&self.others) })
            .collect()
    }

    /// Refuses a request that needs an unsupported capability, and names the providers that support it.
    pub(crate) fn require_capability(&self, what: Capability, field: &'static str) -> Result<(), Error> {
        if what.is_supported_by(self.capabilities()) {
            return Ok(());
        }
        let table = self.others.upgrade();
        let entries = table.iter().flat_map(|table| table.entries.values());
        let able: Vec<_> = entries
            .filter(|entry| what.is_supported_by(&entry.capabilities))
            .map(|entry| entry.provider.name())
            .collect();
        let able = if able.is_empty() { "no configured provider".to_owned() } else { able.join(", ") };
        let (name, lack) = what.name_and_lack();
        let message = format!(
            "provider '{}' {lack} (it does not support '{name}'; supported by: {able})",
            self.entry.provider.name()
        );
        Err(Error::Unsupported { field, message })
    }
}

/// The configured providers. They can be replaced at run time; admitted requests keep the provider they were
/// admitted for.
#[derive(Debug)]
pub struct ProviderSet(RwLock<Arc<ProviderTable>>);

/// A checked set of providers that can replace the current one.
#[derive(Debug)]
pub struct StagedProviders(ProviderTable);

/// A replaced provider, which gets no new requests.
#[derive(Debug)]
pub struct RetiredProvider {
    provider: Arc<dyn Provider>,
    in_use: watch::Receiver<()>,
}

impl RetiredProvider {
    /// Waits for the last request that uses the provider, then shuts it down.
    pub async fn shut_down(mut self) {
        // Nothing is ever sent: an error means that the entry was dropped.
        while self.in_use.changed().await.is_ok() {}
        self.provider.shut_down().await;
    }
}

#[derive(Debug, Default)]
struct ProviderTable {
    entries: BTreeMap<&'static str, Arc<ProviderEntry>>,
    fallbacks: BTreeMap<&'static str, Vec<String>>,
    default_name: String,
    /// All kinds that can be configured, to suggest the right spelling.
    kinds: Vec<&'static str>,
}

impl ProviderSet {
    /// Creates a set of one provider, which serves every request.
    pub fn single(provider: Arc<dyn Provider>) -> Self {
        let (default_name, entry) = (provider.name(), ProviderEntry::new(provider));
        let entries = BTreeMap::from([(default_name, Arc::new(entry))]);
        let table =
            ProviderTable { entries, default_name: default_name.to_owned(), ..ProviderTable::default() };
        Self(RwLock::new(Arc::new(table)))
    }

    /// Creates a set of providers. `default_name` serves requests that name none; `kinds` are all kinds that can be
    /// configured.
    ///
    /// # Errors
    /// Fails if a name is not that of a provider.
    pub fn new(
        members: Vec<ProviderWithFallbacks>,
        default_name: &str,
        kinds: Vec<&'static str>,
    ) -> Result<Self, Error> {
        let empty = ProviderTable { kinds, ..ProviderTable::default() };
        Ok(Self(RwLock::new(Arc::new(ProviderTable::new(members, default_name, Some(&empty))?))))
    }

    /// Prepares a replacement set. A provider that is already in the current set keeps its entry and health.
    ///
    /// # Errors
    /// Fails if a name is not that of a provider.
    pub fn stage(
        &self,
        members: Vec<ProviderWithFallbacks>,
        default_name: &str,
    ) -> Result<StagedProviders, Error> {
        Ok(StagedProviders(ProviderTable::new(members, default_name, Some(&self.current()))?))
    }

    /// Replaces the current set and returns the providers to shut down.
    pub fn replace(&self, StagedProviders(table): StagedProviders) -> Vec<RetiredProvider> {
        let table = Arc::new(table);
        let before = {
            let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *current, Arc::clone(&table))
        };
        let stays =
            |entry: &&Arc<ProviderEntry>| table.entries.values().any(|other| Arc::ptr_eq(entry, other));
        let gone = before.entries.values().filter(|entry| !stays(entry));
        gone.map(|entry| RetiredProvider {
            provider: Arc::clone(&entry.provider),
            in_use: entry.in_use.subscribe(),
        })
        .collect()
    }

    /// Selects the provider with this name, or the default one.
    pub(crate) fn choose(&self, name: Option<&str>) -> Result<SelectedProvider, Error> {
        self.current().choose(name, Instant::now())
    }

    /// Checks that a provider has this name, or that `auto` has a candidate.
    ///
    /// # Errors
    /// Fails if there is no such provider.
    pub fn check(&self, name: &str) -> Result<(), Error> {
        self.current().check_name(name)
    }

    /// Returns the providers that `auto` may select, which need periodic self-tests.
    pub fn candidates(&self) -> Vec<Arc<ProviderEntry>> {
        let able = |entry: &Arc<ProviderEntry>| entry.capabilities.strength.is_some();
        self.entries().into_iter().filter(able).collect()
    }

    /// Returns the default provider, healthy or not.
    pub(crate) fn default_entry(&self) -> Option<Arc<ProviderEntry>> {
        let table = self.current();
        table.find(&table.default_name).ok().or_else(|| table.entries.values().next().cloned())
    }

    /// Returns all providers, ordered by name.
    pub fn entries(&self) -> Vec<Arc<ProviderEntry>> {
        self.current().entries.values().cloned().collect()
    }

    fn current(&self) -> Arc<ProviderTable> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ProviderTable {
    fn new(
        members: Vec<ProviderWithFallbacks>,
        default_name: &str,
        before: Option<&Self>,
    ) -> Result<Self, Error> {
        let kinds = before.map(|before| before.kinds.clone()).unwrap_or_default();
        let mut table = Self { default_name: default_name.to_owned(), kinds, ..Self::default() };
        for ProviderWithFallbacks { provider, fallbacks } in members {
            let name = provider.name();
            let known =
                before.and_then(|before| before.entries.get(name)).filter(|entry| entry.wraps(&provider));
            table
                .entries
                .insert(name, known.cloned().unwrap_or_else(|| Arc::new(ProviderEntry::new(provider))));
            table.fallbacks.insert(name, fallbacks);
        }
        table.check_name(default_name)?;
        for name in table.fallbacks.values().flatten() {
            match name.as_str() {
                AUTO => return Err(Error::invalid("instead", "must name providers, not 'auto'")),
                name => table.check_name(name)?,
            }
        }
        Ok(table)
    }

    /// Checks that a name is that of a provider, healthy or not.
    fn check_name(&self, name: &str) -> Result<(), Error> {
        let able = |entry: &Arc<ProviderEntry>| entry.capabilities.strength.is_some();
        if name == AUTO && self.entries.values().any(able) {
            return Ok(());
        }
        self.find(name).map(drop)
    }

    fn find(&self, name: &str) -> Result<Arc<ProviderEntry>, Error> {
        if name == AUTO {
            let eligible = self.entries.values().filter(|entry| entry.capabilities.strength.is_some());
            // Among equals, the first name in order wins.
            let strongest = eligible
                .rev()
                .filter(|entry| entry.is_healthy())
                .max_by_key(|entry| entry.capabilities.strength);
            return strongest.cloned().ok_or_else(|| {
                let advice = "name one, or see: belljar provider list";
                Error::invalid(
                    "provider",
                    format!("none of the providers that 'auto' could select passes its self-test; {advice}"),
                )
            });
        }
        self.entries.get(name).cloned().ok_or_else(|| self.unknown_name(name))
    }

    /// Returns the error for a name that is not configured, or not known at all.
    fn unknown_name(&self, name: &str) -> Error {
        let configured = self.entries.keys().copied().collect::<Vec<_>>().join(", ");
        let what = match name {
            name if self.kinds.is_empty() || self.kinds.contains(&name) => {
                format!("'{}' is not configured", name.escape_debug())
            }
            name => catalog::unknown_provider_message(name, &self.kinds),
        };
        Error::Unsupported { field: "provider", message: format!("{what}; configured: {configured}") }
    }

    fn choose(self: &Arc<Self>, name: Option<&str>, now: Instant) -> Result<SelectedProvider, Error> {
        let table = Arc::downgrade(self);
        let first = self.find(name.unwrap_or(&self.default_name))?;
        if first.admit_try(now) {
            return Ok(SelectedProvider { entry: first, instead_of: None, others: table });
        }
        let others = self.fallbacks.get(first.provider.name()).into_iter().flatten();
        let mut others = others.filter_map(|name| self.find(name).ok());
        match others.find(|entry| entry.admit_try(now)) {
            Some(entry) => {
                Ok(SelectedProvider { entry, instead_of: Some(first.provider.name()), others: table })
            }
            None => Err(first.backoff_error(now).into()),
        }
    }
}

impl ProviderEntry {
    fn new(provider: Arc<dyn Provider>) -> Self {
        let (capabilities, life) = (provider.capabilities(), watch::Sender::new(()));
        Self { provider, capabilities, health: Mutex::default(), in_use: life }
    }

    fn wraps(&self, provider: &Arc<dyn Provider>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.provider), Arc::as_ptr(provider))
    }

    /// Returns the name of the provider.
    pub fn name(&self) -> &'static str {
        self.provider.name()
    }

    /// Returns the capabilities of the provider.
    pub fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Returns the current health of the provider.
    pub fn health_snapshot(&self) -> HealthRecord {
        self.lock_health().clone()
    }

    /// Runs the provider's self-test until `timeout` completes. `auto` does not select a provider that
    /// failed it.
    pub async fn run_self_test(&self, timeout: impl Future<Output = ()>) -> Result<(), String> {
        let (test, timeout) = (pin!(self.provider.self_test()), pin!(timeout));
        let result = match select(test, timeout).await {
            Either::Left((result, _)) => result.map_err(|error| error.to_string()),
            Either::Right(_) => Err("the provider did not answer in time".to_owned()),
        };
        self.lock_health().self_test = Some(result.clone());
        result
    }

    /// Returns whether `auto` may select the provider.
    fn is_healthy(&self) -> bool {
        let health = self.lock_health();
        health.failures < MAX_FAILURES && !matches!(health.self_test, Some(Err(_)))
    }

    /// Returns whether a request may use the provider now. A failing provider gets one request per retry
    /// interval.
    fn admit_try(&self, now: Instant) -> bool {
        let mut health = self.lock_health();
        if health.failures < MAX_FAILURES {
            return true;
        }
        let rested =
            health.last_try.is_none_or(|tried| now.saturating_duration_since(tried) >= RETRY_INTERVAL);
        if rested {
            health.last_try = Some(now);
        }
        rested
    }

    /// Records the result of a request. Errors that are the request's fault do not count as failures.
    pub(crate) fn record_result(&self, error: Option<&ProviderError>) {
        match error {
            None => {
                let mut health = self.lock_health();
                *health = HealthRecord { self_test: health.self_test.take(), ..HealthRecord::default() };
            }
            Some(error @ (ProviderError::Setup { .. } | ProviderError::Lost { .. })) => {
                let mut health = self.lock_health();
                health.failures = health.failures.saturating_add(1);
                health.last_error = error.to_string();
                health.last_try = Some(Instant::now());
            }
            Some(_) => {}
        }
    }

    fn backoff_error(&self, now: Instant) -> ProviderError {
        let health = self.lock_health();
        let since = health.last_try.map_or(RETRY_INTERVAL, |tried| now.saturating_duration_since(tried));
        let wait = RETRY_INTERVAL.saturating_sub(since).as_secs() + 1;
        ProviderError::Setup {
            step: format!(
                "provider '{}' has failed {} times in a row",
                self.provider.name(),
                health.failures
            ),
            cause: format!("{}; the next try is in {wait} s", health.last_error),
        }
    }

    fn lock_health(&self) -> MutexGuard<'_, HealthRecord> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[path = "provider_set_tests.rs"]
mod tests;
