//! Room for parsers. They recurse, and so does what walks and drops their trees: a hundred thousand brackets would end the
//! process. Every level of a tree needs at least one character that can nest, so counting these bounds the depth without
//! understanding the code, whatever it hides in strings and comments. There is stack for that many and no more: that of
//! whoever asks where it is enough, as it is for most code, and one made for the purpose where it is not.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Deepest tree that is parsed. Code of some 300 KB has as many such characters.
const MAX_LEVELS: usize = 50_000;

/// The deepest brackets. Parsers try what is in brackets as one thing first and as another second, so that their time can
/// grow much faster than the depth.
const MAX_DEPTH: usize = 200;

/// Enough for a level of every construct that the tests and the example nest; no exact measure.
const BYTES_A_LEVEL: usize = if cfg!(debug_assertions) { 40_000 } else { 5_000 };

/// What everything else takes.
const BASE: usize = 512 << 10;

/// The JavaScript parser reads what is in brackets as an arrow function first and as an expression second: time and memory grow
/// with the square of how deep such brackets nest. So many may be in a file; it is then a matter of a second and 150 MB.
const MAX_GROUPS: usize = 1_000;

/// Misplaced words at each of which the Python parser begins anew; with every two or three of them it takes twice as long.
const MAX_TRIES: usize = 16;

/// The deepest `case` of a shell script, with each of which its parser takes four times as long.
const MAX_CASES: usize = 6;

/// The deepest round brackets of a shell script, each of which its parser tries as arithmetic and as a script.
const MAX_SUBSHELLS: usize = 16;

/// Words before a bracket that begins an expression instead of a call.
const BEFORE_GROUPS: [&[u8]; 13] = [
    b"async", b"await", b"case", b"default", b"delete", b"do", b"else", b"in", b"of", b"return", b"typeof",
    b"void", b"yield",
];

/// Why code is not parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// It nests too deep.
    Deep,
    /// The parser broke.
    Broke,
}

/// Runs `work`, which parses this code, with as much stack as that can take.
pub(crate) fn with_room<T>(code: &str, work: impl FnOnce() -> T) -> Result<T, Unfit> {
    let levels = levels(code.as_bytes());
    if levels > MAX_LEVELS || depth(code.as_bytes()) > MAX_DEPTH {
        return Err(Unfit::Deep);
    }
    let stack = BASE + levels * BYTES_A_LEVEL;
    // A mistake in a parser is no reason to take everybody down; nothing that it worked on is used again.
    catch_unwind(AssertUnwindSafe(|| stacker::maybe_grow(stack, stack, work))).map_err(|_| Unfit::Broke)
}

/// How deep brackets nest, as if none were in a string.
fn depth(code: &[u8]) -> usize {
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

/// Whether so many brackets may begin arrow functions that parsing would take too long.
pub(crate) fn is_endless(code: &str) -> bool {
    let code = code.as_bytes();
    let opens = (0..code.len()).filter(|at| code[*at] == b'(');
    opens.filter(|at| begins_group(&code[..*at])).nth(MAX_GROUPS).is_some()
}

/// Whether `<` opens so often without an end that TypeScript's parser, which tries each as a bracket, would take too long.
pub(crate) fn is_endless_typescript(code: &str) -> bool {
    let step = |depth: usize, byte| match byte {
        b'<' => depth + 1,
        b'>' => depth.saturating_sub(1),
        _ => depth,
    };
    let mut depth = 0;
    code.bytes().any(|byte| {
        depth = step(depth, byte);
        depth > MAX_DEPTH
    })
}

/// Whether `async` stands so often before a bracket, where it cannot, that the Python parser, which then tries again, would
/// take too long.
pub(crate) fn is_endless_python(code: &str) -> bool {
    let misplaced = |(at, _): &(usize, &str)| code[at + 5..].trim_start().starts_with(['(', '[', '{']);
    code.match_indices("async").filter(misplaced).nth(MAX_TRIES).is_some()
}

/// Whether `case` or round brackets nest so deep that the shell's parser, which tries again at each that does not end, would
/// take too long.
pub(crate) fn is_endless_shell(code: &str) -> bool {
    let words = code.split(|c: char| !c.is_ascii_alphanumeric());
    deepest(words, "case", "esac") > MAX_CASES || deepest(code.bytes(), b'(', b')') > MAX_SUBSHELLS
}

/// How deep `open` nests.
fn deepest<T: PartialEq>(parts: impl Iterator<Item = T>, open: T, close: T) -> usize {
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
