//! Audited actions: administrative ones, whose outcome is written to the audit log.

use std::future::Future;
use std::sync::Arc;

use belljar_store::{AuditEntry, AuditOutcome, Store, Timestamp};

use crate::app_state::AppState;
use crate::authentication::Caller;
use crate::error::Error;
use crate::uncancellable::run_uncancellable;

/// Maximum length of a target in characters, below the limit of the audit log. No valid name is longer.
const MAX_TARGET_CHARS: usize = 200;

/// An action for the audit log.
#[derive(Debug)]
pub(crate) struct AuditedAction {
    caller: Caller,
    action: String,
    target: Option<String>,
    request_id: Option<String>,
}

impl AuditedAction {
    pub(crate) fn new(caller: &Caller, action: &str, target: &str, request_id: Option<String>) -> Self {
        let target = Some(target.chars().take(MAX_TARGET_CHARS).collect());
        Self { caller: caller.clone(), action: action.to_owned(), target, request_id }
    }

    /// Runs the action and writes its outcome, even if the client disconnects in between.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        state: &Arc<AppState>,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let state = Arc::clone(state);
        run_uncancellable(async move {
            let done = work.await;
            // The cached callers may be outdated now.
            state.authenticator.clear_cache();
            if let Err(error) = state.update_other_tenants().await {
                tracing::warn!(%error, "cannot count tenants; fair shares are unchanged");
            }
            state.connection_handles.recheck_keys();
            let (outcome, detail) = match &done {
                Ok(_) => (AuditOutcome::Done, None),
                Err(error) => (AuditOutcome::Failed, Some(error.code().as_word())),
            };
            self.write_entry(&state.store, outcome, detail).await?;
            done
        })
        .await
    }

    /// Writes that the action was refused.
    pub(crate) async fn record_refusal(self, store: &Store) -> Result<(), Error> {
        self.write_entry(store, AuditOutcome::Refused, None).await
    }

    async fn write_entry(
        self,
        store: &Store,
        outcome: AuditOutcome,
        detail: Option<String>,
    ) -> Result<(), Error> {
        let Self { caller, action, target, request_id } = self;
        let (at, actor, tenant) = (Timestamp::now(), caller.actor, Some(caller.tenant.to_string()));
        tracing::info!(%actor, %action, on = target.as_deref(), %outcome, "administration");
        let entry = AuditEntry { at, actor, tenant, action, target, outcome, request_id, detail };
        Ok(store.audit(entry).await?)
    }
}
