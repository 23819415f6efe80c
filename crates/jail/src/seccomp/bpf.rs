//! Compiles rules to classic BPF.
//!
//! Jumps in classic BPF only go forward, by at most 255 instructions. The program is therefore written from
//! its end to its beginning: when a jump is emitted its targets already exist, and a target that is out of
//! reach gets a relay jump right behind the jump.
//!
//! Numbers are looked up in a balanced tree over ranges with the same target. It is short to load and
//! shallow, which matters twice: after loading, the kernel runs the program once for every number it knows,
//! to find those that are allowed whatever their arguments, and later lets these pass without running it.

use libc::sock_filter;

use super::checks::{Check, DecisionTree};

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const GOTO: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const IF_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;

/// Offsets in `seccomp_data`; the low half of an argument comes first on little-endian machines.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const fn low_half(argument: u8) -> u32 {
    16 + 8 * argument as u32
}

/// Maximum distance of a target: the limit of a jump, less the relay jumps that the other target may still
/// need.
const MAX_DISTANCE: usize = 250;
/// Maximum number of single values excluded from a range before a new range is started.
const MAX_EXCEPTIONS: usize = 3;

/// The target of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JumpTarget {
    /// A verdict: the value that the program returns.
    Verdict(u32),
    /// An instruction that is already emitted, counted from the end of the program.
    Label(usize),
}

impl JumpTarget {
    pub(super) const ALLOW: JumpTarget = JumpTarget::Verdict(libc::SECCOMP_RET_ALLOW);
    /// The notification listener answers.
    const NOTIFY: JumpTarget = JumpTarget::Verdict(libc::SECCOMP_RET_USER_NOTIF);

    pub(super) fn errno(errno: i32) -> JumpTarget {
        JumpTarget::Verdict(libc::SECCOMP_RET_ERRNO | (errno as u32 & libc::SECCOMP_RET_DATA))
    }
}

/// A range of values with one target, with a few exceptions.
struct ValueRange {
    start: u32,
    target: JumpTarget,
    exceptions: Vec<(u32, JumpTarget)>,
}

/// Writes a program backwards.
#[derive(Default)]
pub(super) struct Assembler {
    backwards: Vec<sock_filter>,
    /// For each target, the emitted instruction nearest to the front that leads to it.
    nearest: Vec<(JumpTarget, usize)>,
    blocks: Vec<(Check, JumpTarget)>,
    /// Whether denials with EPERM are notifications.
    notifies: bool,
}

impl Assembler {
    pub(super) fn new(tells: bool) -> Self {
        Self { notifies: tells, ..Self::default() }
    }

    /// Returns the target of a denial. A specific errno is one that programs handle, and needs no
    /// notification.
    pub(super) fn denial(&self, errno: i32) -> JumpTarget {
        if self.notifies && errno == libc::EPERM { JumpTarget::NOTIFY } else { JumpTarget::errno(errno) }
    }

    /// Returns the block of a check; calls with the same check share it.
    pub(super) fn block(&mut self, check: Check) -> JumpTarget {
        if let Some((_, target)) = self.blocks.iter().find(|(known, _)| *known == check) {
            return *target;
        }
        let target = self.tree(&check.tree());
        self.blocks.push((check, target));
        target
    }

    /// Returns the whole program: the architecture check, then the search for the number. `actions` starts at
    /// 0 and ascends; each target applies up to the next start.
    pub(super) fn finish(mut self, audit_arch: u32, actions: &[(u32, JumpTarget)]) -> Vec<sock_filter> {
        let search = self.search(actions);
        self.fall_through_to(search);
        let native = self.emit(LOAD, NUMBER);
        let foreign = JumpTarget::Verdict(libc::SECCOMP_RET_KILL_PROCESS);
        self.branch(IF_EQUAL, audit_arch, JumpTarget::Label(native), foreign);
        self.emit(LOAD, ARCH);
        self.backwards.reverse();
        self.backwards
    }

    fn tree(&mut self, tree: &DecisionTree) -> JumpTarget {
        match tree {
            DecisionTree::Allow => JumpTarget::ALLOW,
            DecisionTree::Deny(errno) => self.denial(*errno),
            DecisionTree::Notify => JumpTarget::NOTIFY,
            DecisionTree::Load(argument, mask, then) => {
                let then = self.tree(then);
                self.fall_through_to(then);
                if *mask != u32::MAX {
                    self.emit(AND, *mask);
                }
                JumpTarget::Label(self.emit(LOAD, low_half(*argument)))
            }
            DecisionTree::AnyBit(bits, then, otherwise) => {
                let (then, otherwise) = (self.tree(then), self.tree(otherwise));
                self.branch(IF_ANY_BIT, *bits, then, otherwise)
            }
            DecisionTree::OneOf(values, then, otherwise) => {
                let (then, otherwise) = (self.tree(then), self.tree(otherwise));
                self.search(&membership_ranges(values, then, otherwise))
            }
        }
    }

    /// Emits the search for the range that contains a value.
    fn search(&mut self, actions: &[(u32, JumpTarget)]) -> JumpTarget {
        let mut ranges = actions.to_vec();
        ranges.dedup_by_key(|(_, target)| *target);
        self.binary_search(&extract_exceptions(&ranges))
    }

    fn binary_search(&mut self, spans: &[ValueRange]) -> JumpTarget {
        if let [span] = spans {
            return span.exceptions.iter().rev().fold(span.target, |otherwise, (value, target)| {
                self.branch(IF_EQUAL, *value, *target, otherwise)
            });
        }
        let (low, high) = spans.split_at(spans.len() / 2);
        let start = high[0].start;
        let high = self.binary_search(high);
        let low = self.binary_search(low);
        self.branch(IF_AT_LEAST, start, high, low)
    }

    fn branch(&mut self, test: u16, operand: u32, then: JumpTarget, otherwise: JumpTarget) -> JumpTarget {
        let (then, otherwise) = (self.reach(then), self.reach(otherwise));
        let here = self.backwards.len();
        let jump = |to: usize| u8::try_from(here - to - 1).expect("`reach` keeps targets near");
        let (jt, jf) = (jump(then), jump(otherwise));
        self.backwards.push(sock_filter { code: test, jt, jf, k: operand });
        JumpTarget::Label(here)
    }

    /// Returns an instruction within reach of the next jump that leads to `target`.
    fn reach(&mut self, target: JumpTarget) -> usize {
        let known = self.nearest.iter().position(|(known, _)| *known == target);
        let position = match (known, target) {
            (Some(index), _) => Some(self.nearest[index].1),
            (None, JumpTarget::Label(position)) => Some(position),
            (None, JumpTarget::Verdict(_)) => None,
        };
        if let Some(position) = position.filter(|position| self.backwards.len() - position <= MAX_DISTANCE) {
            return position;
        }
        let stone = match target {
            JumpTarget::Verdict(value) => self.emit(RETURN, value),
            JumpTarget::Label(position) => self.emit(GOTO, (self.backwards.len() - position - 1) as u32),
        };
        match known {
            Some(index) => self.nearest[index].1 = stone,
            None => self.nearest.push((target, stone)),
        }
        stone
    }

    /// Makes sure that the instruction emitted next falls through to `target`.
    fn fall_through_to(&mut self, target: JumpTarget) {
        let next = self.backwards.len().wrapping_sub(1);
        match target {
            JumpTarget::Label(position) if position == next => {}
            JumpTarget::Label(position) => {
                self.emit(GOTO, (next - position) as u32);
            }
            JumpTarget::Verdict(value) => {
                self.emit(RETURN, value);
            }
        }
    }

    fn emit(&mut self, code: u16, k: u32) -> usize {
        self.backwards.push(sock_filter { code, jt: 0, jf: 0, k });
        self.backwards.len() - 1
    }
}

/// Returns the ranges of "one of these values, or not".
fn membership_ranges(values: &[u32], then: JumpTarget, otherwise: JumpTarget) -> Vec<(u32, JumpTarget)> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let mut ranges = Vec::new();
    let mut next = Some(0);
    for value in sorted {
        if next != Some(value) {
            ranges.extend(next.map(|gap| (gap, otherwise)));
        }
        ranges.push((value, then));
        next = value.checked_add(1);
    }
    ranges.extend(next.map(|gap| (gap, otherwise)));
    ranges
}

/// Extracts single values from ranges, so that each takes one comparison instead of two.
fn extract_exceptions(ranges: &[(u32, JumpTarget)]) -> Vec<ValueRange> {
    let mut spans: Vec<ValueRange> = Vec::new();
    let mut rest = ranges;
    while let [(start, target), tail @ ..] = rest {
        let mut span = ValueRange { start: *start, target: *target, exceptions: Vec::new() };
        rest = tail;
        while let [(value, other), (next, back), tail @ ..] = rest
            && *next == value + 1
            && *back == span.target
            && span.exceptions.len() < MAX_EXCEPTIONS
        {
            span.exceptions.push((*value, *other));
            rest = tail;
        }
        spans.push(span);
    }
    spans
}
