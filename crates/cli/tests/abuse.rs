//! Attacks on a real server, and a real server on a degraded host.
//!
//! Attacks and the tests that cover them (`server/` is `crates/server/tests/server`, the rest is beside this
//! file):
//!
//! | attack | shown by |
//! |---|---|
//! | tenant_idor | `server/attacks.rs` ids_of_other_tenants_are_unknown, `server/admin.rs` tenants_cannot_see_each_others_executions |
//! | ssrf_provider_config | `server/attacks.rs` host_settings_are_not_request_fields: no address can be set, and nothing calls back |
//! | option_injection | `abuse/words.rs` user_words_are_never_options_or_commands, `server/attacks.rs` host_settings_are_not_request_fields |
//! | mount_option_abuse | `server/attacks.rs` host_settings_are_not_request_fields, `server/admin.rs` profile_changes_apply_from_the_next_request |
//! | upload_name_tricks | `server/attacks.rs` file_names_stay_in_the_workspace, `engine` a_million_random_paths_stay_in_the_workspace; inside the sandbox, names are resolved as the sandbox user |
//! | header_injection | `server/attacks.rs` names_cannot_inject_headers, `server/abuse.rs` paths_are_not_normalized |
//! | huge_json | `abuse/json.rs`, `server/abuse.rs` deeply_nested_bodies_are_refused, malformed_requests_are_refused |
//! | slow_loris | `abuse/crowd.rs`, `server/abuse.rs` slow_clients_are_disconnected, clients_that_do_not_read_are_disconnected |
//! | neighbor_starvation | `abuse/shares.rs`, `server/fair_shares.rs` |
//! | http2_reset_flood | `server/attacks.rs` only_http_1_is_supported |
//! | csrf_admin | `server/attacks.rs` cross_site_requests_are_refused; there are no cookies, so no CSRF token is needed |
//! | dns_rebinding_localhost | `server/abuse.rs` foreign_origins_and_hosts_are_refused |
//! | error_disclosure | `server/attacks.rs` internal_errors_are_not_exposed, `abuse/disk.rs` a_full_disk_refuses_new_work_and_heals |
//! | metrics_exposure | `server/attacks.rs` metrics_contain_no_tenant_data, `server/admin.rs` keys_are_limited_to_their_scopes_and_can_be_revoked |
//! | result_forgery | `escape/results.rs`, `providers` forged_result; the parser of guest messages is fuzzed in `guest/src/host/tests.rs` |
//! | stdin_protocol_confusion | `abuse/words.rs` protocol_bytes_in_streams_are_plain_data |
//! | replay_idempotency | `server/executions.rs` an_idempotency_key_runs_once, `store` one_of_many_concurrent_requests_begins, `server/attacks.rs` idempotency_keys_survive_a_restart |
//! | cache_poisoning | no packages are installed: `server/attacks.rs` checks that `dependencies` is refused |
//! | image_pull_abuse | no images are pulled: `server/attacks.rs` checks that every name but `host` is refused |
//! | docker_provider_flags | no such provider exists |
//! | timing_oracle | by construction: keys are compared by their whole digest, and ids of other tenants are looked up like one's own; a timing test would only measure this machine |
//! | downgrade_fail_open | `abuse/degraded.rs`, `layers.rs`, `faults.rs` |
//! | policy_really_applied | `providers/tests/conformance/endings.rs` (each limit), `server/fairness.rs` and `server/executions.rs` (quotas) |
//!
//! The audit log under attack: `store/tests/store/retention.rs`,
//! refusals_only_displace_refusals_of_their_tenant.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;
mod expect;
#[path = "abuse"]
mod suite {
    mod crowd;
    mod degraded;
    mod disk;
    mod json;
    mod shares;
    mod words;

    use crate::common::server::Server;

    /// Returns the server's memory: `VmRSS` is the current, `VmHWM` the peak value.
    fn memory(server: &Server, field: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        line.trim_matches([':', ' ', '\t', 'k', 'B']).parse::<usize>().unwrap() << 10
    }
}
