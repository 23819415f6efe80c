//! Attacks on a real server, and a real server on a degraded host.
//!
//! Attacks and the tests that cover them (`server/` is `crates/server/tests/server`, the rest is beside this
//! file):
//!
//! | attack | shown by |
//! |---|---|
//! | tenant_idor | `server/attacks.rs` every_id_of_another_tenant_is_unknown, `server/admin.rs` two_tenants_cannot_see_each_other |
//! | ssrf_provider_config | `server/attacks.rs` what_only_the_host_decides_is_no_field: no address can be set, and nothing calls back |
//! | option_injection | `abuse/words.rs` no_word_is_an_option_or_a_command_of_ours, `server/attacks.rs` what_only_the_host_decides_is_no_field |
//! | mount_option_abuse | `server/attacks.rs` what_only_the_host_decides_is_no_field, `server/admin.rs` a_profile_counts_from_the_next_request_on |
//! | upload_name_tricks | `server/attacks.rs` file_names_stay_in_the_workspace, `engine` a_million_names_stay_below; inside the sandbox, names are resolved as the sandbox user |
//! | header_injection | `server/attacks.rs` no_name_becomes_a_header, `server/abuse.rs` paths_are_taken_as_they_are |
//! | huge_json | `abuse/json.rs`, `server/abuse.rs` what_is_too_deep_is_refused_everywhere, what_is_no_request_is_said_so |
//! | slow_loris | `abuse/crowd.rs`, `server/abuse.rs` who_is_slow_is_let_go, who_does_not_read_is_let_go |
//! | neighbor_starvation | `abuse/shares.rs`, `server/fair_shares.rs` |
//! | http2_reset_flood | `server/attacks.rs` only_one_protocol_is_spoken |
//! | csrf_admin | `server/attacks.rs` a_page_of_another_site_can_do_nothing; there are no cookies, so no CSRF token is needed |
//! | dns_rebinding_localhost | `server/abuse.rs` other_sites_and_names_are_refused |
//! | error_disclosure | `server/attacks.rs` what_fails_inside_is_not_shown, `abuse/disk.rs` a_full_disk_refuses_new_work_and_heals |
//! | metrics_exposure | `server/attacks.rs` figures_name_nobody, `server/admin.rs` keys_open_what_they_say_and_nothing_when_revoked |
//! | result_forgery | `escape/results.rs`, `providers` forged_result; the parser of guest messages is fuzzed in `guest/src/host/tests.rs` |
//! | stdin_protocol_confusion | `abuse/words.rs` bytes_of_our_protocols_are_bytes |
//! | replay_idempotency | `server/executions.rs` the_same_key_runs_once, `store` of_many_at_once_one_is_fresh, `server/attacks.rs` a_key_is_known_again_after_a_restart |
//! | cache_poisoning | no packages are installed: `server/attacks.rs` checks that `dependencies` is refused |
//! | image_pull_abuse | no images are pulled: `server/attacks.rs` checks that every name but `host` is refused |
//! | docker_provider_flags | no such provider exists |
//! | timing_oracle | by construction: keys are compared by their whole digest, and ids of other tenants are looked up like one's own; a timing test would only measure this machine |
//! | downgrade_fail_open | `abuse/degraded.rs`, `layers.rs`, `faults.rs` |
//! | policy_really_applied | `providers/tests/conformance/endings.rs` (each limit), `server/fairness.rs` and `server/executions.rs` (quotas) |
//!
//! The audit log under attack: `store/tests/store/retention.rs`,
//! refusals_of_one_push_out_their_own_and_nothing_else.
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
