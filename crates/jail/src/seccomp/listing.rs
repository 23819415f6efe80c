//! The filter in the format of container runtimes, which compile filters themselves: a call, conditions on
//! its arguments, and the result. Calls that match no entry are EPERM.
//!
//! Such entries cannot express "none of these", so a few calls that the filter denies with another errno are
//! EPERM here: sockets of other families, and unknown options of `prctl`.

use super::checks::DecisionTree;
use super::policy::{self, SyscallRule};
use super::{Arch, NATIVE_ARCH};

/// The result of a call whose arguments meet all conditions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListingEntry {
    /// Name of the call.
    pub name: &'static str,
    /// Errno that the caller gets; `None` if the kernel performs the call.
    pub errno: Option<i32>,
    /// Conditions, each on a different argument.
    pub conditions: Vec<Condition>,
}

/// A condition: a masked argument has a certain value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    /// Index of the argument, from 0.
    pub argument: u8,
    /// Bits that are compared.
    pub mask: u32,
    /// Required value of these bits.
    pub value: u32,
}

/// Returns the entries for programs on this machine.
#[must_use]
pub fn listing() -> Vec<ListingEntry> {
    listing_for(NATIVE_ARCH)
}

/// Returns libseccomp's name of this machine's architecture.
#[must_use]
pub fn scmp_arch() -> &'static str {
    match NATIVE_ARCH {
        Arch::X86_64 => "SCMP_ARCH_X86_64",
        Arch::Aarch64 => "SCMP_ARCH_AARCH64",
    }
}

pub(super) fn listing_for(arch: Arch) -> Vec<ListingEntry> {
    let policy = policy::by_name();
    let mut entries = Vec::new();
    for (name, _) in arch.numbers() {
        match policy.get(name) {
            None | Some(SyscallRule::Errno(libc::EPERM)) => {}
            Some(SyscallRule::Allow) => {
                entries.push(ListingEntry { name, errno: None, conditions: Vec::new() })
            }
            Some(SyscallRule::Errno(errno)) => {
                entries.push(ListingEntry { name, errno: Some(*errno), conditions: Vec::new() });
            }
            Some(SyscallRule::Check(check)) => DecisionPath::new(name).follow(&check.tree(), &mut entries),
        }
    }
    entries
}

/// A path through the decision tree of a check.
#[derive(Debug, Clone)]
struct DecisionPath {
    name: &'static str,
    loaded: (u8, u32),
    conditions: Vec<Condition>,
    /// Whether a condition failed on this path that no entry can express.
    is_inexpressible: bool,
}

impl DecisionPath {
    fn new(name: &'static str) -> Self {
        Self { name, loaded: (0, 0), conditions: Vec::new(), is_inexpressible: false }
    }

    fn follow(&self, tree: &DecisionTree, entries: &mut Vec<ListingEntry>) {
        let (_, mask) = self.loaded;
        match tree {
            DecisionTree::Load(argument, mask, then) => {
                DecisionPath { loaded: (*argument, *mask), ..self.clone() }.follow(then, entries);
            }
            DecisionTree::AnyBit(bits, then, otherwise) => {
                let bits = bits & mask;
                let each = (0..u32::BITS).map(|at| 1 << at).filter(|bit| bits & bit != 0);
                each.for_each(|bit| self.with(bit, bit).follow(then, entries));
                self.with(bits, 0).follow(otherwise, entries);
            }
            DecisionTree::OneOf(values, then, otherwise) => {
                values.iter().for_each(|value| self.with(mask, *value).follow(then, entries));
                DecisionPath { is_inexpressible: true, ..self.clone() }.follow(otherwise, entries);
            }
            // The default, or the result of a negative condition only.
            DecisionTree::Deny(libc::EPERM) | DecisionTree::Notify => {}
            _ if self.is_inexpressible => {}
            DecisionTree::Allow => entries.push(self.clone().entry(None)),
            DecisionTree::Deny(errno) => entries.push(self.clone().entry(Some(*errno))),
        }
    }

    fn with(&self, mask: u32, value: u32) -> Self {
        let condition = Condition { argument: self.loaded.0, mask, value };
        let conditions = self.conditions.iter().copied().chain([condition]).collect();
        DecisionPath { conditions, is_inexpressible: false, ..self.clone() }
    }

    fn entry(self, errno: Option<i32>) -> ListingEntry {
        ListingEntry { name: self.name, errno, conditions: self.conditions }
    }
}
