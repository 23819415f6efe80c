//! Room for parsers. They recurse, and so does what walks and drops their trees: a hundred thousand brackets would end the
//! process. Every level of a tree needs at least one character that can nest, so counting these bounds the depth without
//! understanding the code, whatever it hides in strings and comments; a thread has stack for that many and no more.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::Error;

/// Deepest tree that is parsed. Code of some 300 KB has as many such characters.
const MAX_LEVELS: usize = 50_000;

/// Enough for a level of every construct that the tests and the example nest; no exact measure.
const BYTES_A_LEVEL: usize = if cfg!(debug_assertions) { 40_000 } else { 5_000 };

/// What everything else takes.
const BASE: usize = 1 << 20;

/// Code with fewer levels and bytes is parsed on the spot: no parser can take long over it, and a thread would.
const FEW_LEVELS: usize = 1_000;
const FEW_BYTES: usize = 16 << 10;

/// The JavaScript parser reads what is in brackets as an arrow function first and as an expression second: time and memory grow
/// with the square of how deep such brackets nest. So many may be in a file; it is then a matter of a second and 150 MB.
const MAX_GROUPS: usize = 1_000;

/// Words before a bracket that begins an expression instead of a call.
const BEFORE_GROUPS: [&[u8]; 13] = [
    b"async", b"await", b"case", b"default", b"delete", b"do", b"else", b"in", b"of", b"return", b"typeof",
    b"void", b"yield",
];

/// No parser can be interrupted, so it is left to itself after this time.
const PATIENCE: Duration = Duration::from_secs(2);

/// So many may be left to themselves at one time; then no code is searched until one of them ends.
const MAX_ABANDONED: usize = 2;

static ABANDONED: AtomicUsize = AtomicUsize::new(0);

/// Runs `work` with as much stack as parsing this code can take, and no longer than [`PATIENCE`].
pub(super) fn with_room<T: Send + 'static>(
    code: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let levels = levels(code.as_bytes());
    if levels > MAX_LEVELS {
        return Err(Error::TooIntricate);
    }
    if ABANDONED.load(Ordering::Relaxed) >= MAX_ABANDONED {
        return Err(Error::Unreadable);
    }
    let (tell, told) = mpsc::channel();
    let stack = BASE + levels * BYTES_A_LEVEL;
    let thread = thread::Builder::new().stack_size(stack).spawn(move || {
        if tell.send(work()).is_err() {
            ABANDONED.fetch_sub(1, Ordering::Relaxed);
        }
    });
    thread.map_err(|_| Error::Unreadable)?;
    told.recv_timeout(PATIENCE).map_err(|error| match error {
        RecvTimeoutError::Disconnected => Error::Unreadable,
        RecvTimeoutError::Timeout => {
            ABANDONED.fetch_add(1, Ordering::Relaxed);
            Error::TooIntricate
        }
    })
}

/// Runs `work` on the spot, where the code is small.
pub(super) fn on_the_spot<T>(code: &str, work: impl FnOnce() -> T) -> Option<Result<T, Error>> {
    let levels = if code.len() > FEW_BYTES { usize::MAX } else { levels(code.as_bytes()) };
    if levels > FEW_LEVELS {
        return None;
    }
    let stack = BASE + levels * BYTES_A_LEVEL;
    // A parser that gives up must not take a server's task along; nothing of ours is half done when it does.
    let done = catch_unwind(AssertUnwindSafe(|| stacker::maybe_grow(stack, stack, work)));
    Some(done.map_err(|_| Error::Unreadable))
}

/// Whether so many brackets may begin arrow functions that parsing would take too long.
pub(super) fn is_endless(code: &str) -> bool {
    let code = code.as_bytes();
    let opens = (0..code.len()).filter(|at| code[*at] == b'(');
    opens.filter(|at| begins_group(&code[..*at])).nth(MAX_GROUPS).is_some()
}

/// Whether a bracket after this is no call's. A comment may stand between, so its end and a new line count too.
fn begins_group(before: &[u8]) -> bool {
    let front = before.trim_ascii_end();
    if before[front.len()..].contains(&b'\n') {
        return true;
    }
    match front.last() {
        None => true,
        Some(last) if last.is_ascii_alphanumeric() => BEFORE_GROUPS.iter().any(|word| front.ends_with(word)),
        Some(last) => !matches!(last, b'_' | b'$' | b')' | b']'),
    }
}

/// An upper bound of how deep the code nests: signs other than separators and closing ones, and words before words.
fn levels(code: &[u8]) -> usize {
    let mut levels = 0;
    let mut after_word = false;
    let mut in_word = false;
    for byte in code {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'$' | 0x80.. => {
                levels += usize::from(after_word && !in_word);
                (in_word, after_word) = (true, true);
            }
            b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c => in_word = false,
            b',' | b';' | b')' | b']' | b'}' => (in_word, after_word) = (false, false),
            _ => {
                // `not (`, `typeof"x"`: a word before a sign can be a level of its own.
                levels +=
                    1 + usize::from(after_word && matches!(byte, b'(' | b'[' | b'{' | b'"' | b'\'' | b'`'));
                (in_word, after_word) = (false, false);
            }
        }
    }
    levels
}

/// Line numbers of offsets.
pub(super) struct Lines(Vec<usize>);

impl Lines {
    pub(super) fn of(code: &str) -> Self {
        let ends = code.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self(ends.map(|(offset, _)| offset).collect())
    }

    /// From 1.
    pub(super) fn at(&self, offset: usize) -> u32 {
        let before = self.0.partition_point(|end| *end < offset);
        u32::try_from(before + 1).unwrap_or(u32::MAX)
    }
}
