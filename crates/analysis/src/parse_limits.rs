//! Limits on what parsers are given. Parsers recurse, and so does code that walks and drops their trees: a
//! hundred thousand brackets would overflow the stack and end the process. Every level of a tree needs at
//! least one character that can nest, so counting these bounds the depth without understanding the code,
//! whatever it hides in strings and comments. Parsing gets stack for that many levels and no more: the
//! caller's own stack if it suffices, as it does for most code, else a separately allocated one.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Deepest tree that is parsed. Reached by code of about 300 KB.
const MAX_LEVELS: usize = 50_000;

/// Deepest brackets. Parsers may try the content of brackets in one way and then in another, so their time
/// can grow much faster than the depth.
const MAX_BRACKET_DEPTH: usize = 200;

/// Enough for one level of every construct that the tests and the example nest; not an exact measure.
const STACK_BYTES_PER_LEVEL: usize = if cfg!(debug_assertions) { 40_000 } else { 5_000 };

/// Stack for everything except nesting.
const BASE_STACK_BYTES: usize = 512 << 10;

/// Maximum number of brackets that could begin an arrow function. The JavaScript parser reads such brackets
/// as an arrow function first and as an expression second: time and memory grow with the square of their
/// nesting depth. This many cost about a second and 150 MB.
const MAX_ARROW_CANDIDATES: usize = 1_000;

/// Maximum number of misplaced words at which the Python parser backtracks; every two or three of them double
/// its time.
const MAX_PYTHON_RETRIES: usize = 16;

/// Deepest nesting of `case` in a shell script; each level quadruples the parser's time.
const MAX_CASE_DEPTH: usize = 6;

/// Deepest parentheses of a shell script; the parser tries each as arithmetic and as a script.
const MAX_PAREN_DEPTH: usize = 16;

/// Words before a bracket that begins an expression rather than a call.
const WORDS_BEFORE_GROUPS: [&[u8]; 13] = [
    b"async", b"await", b"case", b"default", b"delete", b"do", b"else", b"in", b"of", b"return", b"typeof",
    b"void", b"yield",
];

/// Why code is not parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParseRefusal {
    /// The code nests too deep.
    TooDeep,
    /// The parser panicked.
    ParserPanicked,
}

/// Runs `work`, which parses `code`, with enough stack for its nesting.
pub(crate) fn with_stack_for<T>(code: &str, work: impl FnOnce() -> T) -> Result<T, ParseRefusal> {
    let levels = max_tree_depth(code.as_bytes());
    if levels > MAX_LEVELS || bracket_depth(code.as_bytes()) > MAX_BRACKET_DEPTH {
        return Err(ParseRefusal::TooDeep);
    }
    let stack = BASE_STACK_BYTES + levels * STACK_BYTES_PER_LEVEL;
    // A bug in a parser must not take down the whole process; nothing that it worked on is used again.
    catch_unwind(AssertUnwindSafe(|| stacker::maybe_grow(stack, stack, work)))
        .map_err(|_| ParseRefusal::ParserPanicked)
}

/// Returns how deep brackets nest, including brackets in strings.
fn bracket_depth(code: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0_usize);
    for byte in code {
        match byte {
            b'(' | b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Returns whether so many brackets may begin arrow functions that parsing would take too long.
pub(crate) fn exceeds_javascript_limits(code: &str) -> bool {
    let code = code.as_bytes();
    let opens = (0..code.len()).filter(|at| code[*at] == b'(');
    opens.filter(|at| begins_group(&code[..*at])).nth(MAX_ARROW_CANDIDATES).is_some()
}

/// Returns whether unclosed `<` nest so deep that TypeScript's parser, which tries each as a bracket, would
/// take too long.
pub(crate) fn exceeds_typescript_limits(code: &str) -> bool {
    let step = |depth: usize, byte| match byte {
        b'<' => depth + 1,
        b'>' => depth.saturating_sub(1),
        _ => depth,
    };
    let mut depth = 0;
    code.bytes().any(|byte| {
        depth = step(depth, byte);
        depth > MAX_BRACKET_DEPTH
    })
}

/// Returns whether `async` precedes a bracket, where it is misplaced, so often that the backtracking Python
/// parser would take too long.
pub(crate) fn exceeds_python_limits(code: &str) -> bool {
    let misplaced = |(at, _): &(usize, &str)| code[at + 5..].trim_start().starts_with(['(', '[', '{']);
    code.match_indices("async").filter(misplaced).nth(MAX_PYTHON_RETRIES).is_some()
}

/// Returns whether `case` or parentheses nest so deep that the shell parser, which backtracks at each
/// unclosed one, would take too long.
pub(crate) fn exceeds_shell_limits(code: &str) -> bool {
    let words = code.split(|c: char| !c.is_ascii_alphanumeric());
    nesting_depth(words, "case", "esac") > MAX_CASE_DEPTH
        || nesting_depth(code.bytes(), b'(', b')') > MAX_PAREN_DEPTH
}

/// Returns how deep `open` nests.
fn nesting_depth<T: PartialEq>(parts: impl Iterator<Item = T>, open: T, close: T) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0_usize);
    for part in parts {
        if part == open {
            depth += 1;
        } else if part == close {
            depth = depth.saturating_sub(1);
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// Returns whether a bracket after `before` does not begin a call. A comment may come in between, so its end
/// and a newline also count.
fn begins_group(before: &[u8]) -> bool {
    let front = before.trim_ascii_end();
    if before[front.len()..].contains(&b'\n') {
        return true;
    }
    match front.last() {
        None => true,
        Some(last) if last.is_ascii_alphanumeric() => {
            WORDS_BEFORE_GROUPS.iter().any(|word| front.ends_with(word))
        }
        Some(last) => !matches!(last, b'_' | b'$' | b')' | b']'),
    }
}

/// Returns an upper bound of the nesting depth: signs other than separators and closing ones, and words after
/// words.
fn max_tree_depth(code: &[u8]) -> usize {
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
                // `not (`, `typeof"x"`: a word before a sign can be a level by itself.
                levels +=
                    1 + usize::from(after_word && matches!(byte, b'(' | b'[' | b'{' | b'"' | b'\'' | b'`'));
                (in_word, after_word) = (false, false);
            }
        }
    }
    levels
}
