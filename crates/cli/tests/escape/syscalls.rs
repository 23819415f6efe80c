//! Counts the system calls that reach the kernel: by the filter's table, and by trying every number from
//! inside.

use std::collections::BTreeSet;

use belljar_jail::seccomp::{Arch, allowed_calls};

use super::programs::{Case, Verdict, cannot_run};
use crate::common::{beside, run};

pub(crate) const CASES: &[Case] =
    &[("syscalls::the_table_is_short", table), ("syscalls::only_those_of_the_table_are_answered", tried)];

/// Maximum number of system calls that may reach the kernel.
const MOST: usize = 200;

fn table() -> Verdict {
    for arch in [Arch::X86_64, Arch::Aarch64] {
        let count = allowed_calls(arch).count();
        println!("system calls that can reach the kernel, by the table for {arch:?}: {count}");
        if count > MOST {
            return Err(format!("{count} are more than {MOST}"));
        }
    }
    Ok(())
}

/// Kernels from 6.14 on exempt these two calls of x86-64 from every filter, for the kernel's own trampolines,
/// and send a signal to any other caller. They count as reaching the kernel.
const PAST_EVERY_FILTER: &[u32] = if cfg!(target_arch = "x86_64") { &[335, 336] } else { &[] };

/// Tries every number: a call that is answered with anything but a refusal has reached the kernel.
fn tried() -> Verdict {
    let program = beside("escape/every_call.c").display().to_string();
    let answer = run([program.as_str(), "--timeout", "120s"]);
    if let Some(why) = cannot_run(&answer) {
        println!("skipped: {why}");
        return Ok(());
    }
    let lines = answer.lines();
    let numbers = lines.iter().filter_map(|line| line.strip_prefix("reached ")?.parse::<u32>().ok());
    let reached: BTreeSet<u32> = numbers.collect();
    println!("system calls that reached the kernel, by trying: {}", reached.len());
    if answer.status() != "succeeded" || reached.len() < 50 {
        return Err(format!("the numbers were not tried: {}", answer.json));
    }
    let arch = if cfg!(target_arch = "x86_64") { Arch::X86_64 } else { Arch::Aarch64 };
    let known: BTreeSet<u32> = allowed_calls(arch).map(|(_, number)| number).collect();
    let is_stranger = |number: &&u32| !PAST_EVERY_FILTER.contains(number);
    let strangers: Vec<_> = reached.difference(&known).filter(is_stranger).collect();
    if reached.len() > MOST || !strangers.is_empty() {
        return Err(format!("{} reached the kernel, not in the table: {strangers:?}", reached.len()));
    }
    Ok(())
}
