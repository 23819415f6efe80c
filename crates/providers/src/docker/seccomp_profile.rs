//! The seccomp filter in Docker's JSON format, generated from the jail's table.

use belljar_jail::seccomp::listing::{Condition, ListingEntry, listing, scmp_arch};
use serde_json::{Value, json};

/// EPERM's number.
const EPERM: i32 = 1;

/// System calls that the guest needs before it runs anything: it confines itself further, which denies these
/// calls to programs.
const GUEST_SYSCALLS: [&str; 4] =
    ["landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "seccomp"];

/// Returns the profile for this machine's architecture.
pub(super) fn profile_json() -> String {
    let ours = json!({ "names": GUEST_SYSCALLS, "action": "SCMP_ACT_ALLOW", "args": [] });
    let listing = listing();
    let programs = listing.iter().filter(|entry| !GUEST_SYSCALLS.contains(&entry.name)).map(syscall);
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": EPERM,
        "architectures": [scmp_arch()],
        "syscalls": programs.chain([ours]).collect::<Vec<_>>(),
    })
    .to_string()
}

fn syscall(entry: &ListingEntry) -> Value {
    let mut syscall = json!({
        "names": [entry.name],
        "action": if entry.errno.is_some() { "SCMP_ACT_ERRNO" } else { "SCMP_ACT_ALLOW" },
        "args": entry.conditions.iter().map(argument).collect::<Vec<_>>(),
    });
    if let Some(errno) = entry.errno {
        syscall["errnoRet"] = errno.into();
    }
    syscall
}

fn argument(condition: &Condition) -> Value {
    json!({
        "index": condition.argument,
        "value": condition.mask,
        "valueTwo": condition.value,
        "op": "SCMP_CMP_MASKED_EQ",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_calls_are_denied_by_default() {
        let profile: Value = serde_json::from_str(&profile_json()).unwrap();
        assert_eq!(
            (&profile["defaultAction"], &profile["defaultErrnoRet"]),
            (&json!("SCMP_ACT_ERRNO"), &json!(1))
        );
        let calls = profile["syscalls"].as_array().unwrap();
        let named = |name: &str| calls.iter().filter(|call| call["names"][0] == name).collect::<Vec<_>>();
        assert!(named("ptrace").is_empty() && named("bpf").is_empty() && named("mount").is_empty());
        assert_eq!(named("clone3")[0]["errnoRet"], 38);
        // Namespaces: none of these flag bits may be set.
        let clone = named("clone")[0];
        assert_eq!(
            (&clone["args"][0]["op"], &clone["args"][0]["valueTwo"]),
            (&json!("SCMP_CMP_MASKED_EQ"), &json!(0))
        );
    }
}
