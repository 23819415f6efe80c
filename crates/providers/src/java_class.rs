//! Finds the class that `java FILE` runs: the first one that is declared at the top level of the file.

/// Returns the name of the first top-level class, with its package. Returns `None` if there is none that can be
/// told for certain: then the launcher has to decide.
pub(crate) fn main_class(code: &str) -> Option<String> {
    let mut words = Words { rest: code.as_bytes() };
    let (mut depth, mut package) = (0_usize, None);
    while let Some(word) = words.next() {
        match word {
            b"{" | b"(" | b"[" => depth += 1,
            b"}" | b")" | b"]" => depth = depth.checked_sub(1)?,
            b"package" if depth == 0 && package.is_none() => package = Some(words.until_semicolon()?),
            b"import" if depth == 0 => drop(words.until_semicolon()?),
            b"class" | b"enum" | b"interface" | b"record" if depth == 0 => {
                let name = identifier(words.next()?)?;
                return Some(package.map_or_else(|| name.clone(), |package| format!("{package}.{name}")));
            }
            // Code outside a class: an implicitly declared class, which is named after the file.
            b";" | b"=" if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

fn identifier(word: &[u8]) -> Option<String> {
    let fits = word.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$'));
    let starts = word.first().is_some_and(|byte| !byte.is_ascii_digit());
    (fits && starts).then(|| String::from_utf8_lossy(word).into_owned())
}

/// Words and signs of Java code, without comments and the content of literals.
struct Words<'a> {
    rest: &'a [u8],
}

impl<'a> Words<'a> {
    /// Returns the text up to a semicolon, without spaces.
    fn until_semicolon(&mut self) -> Option<String> {
        let mut text = String::new();
        loop {
            match self.next()? {
                b";" => return Some(text),
                b"{" | b"}" => return None,
                word => text.push_str(std::str::from_utf8(word).ok()?),
            }
        }
    }

    fn next(&mut self) -> Option<&'a [u8]> {
        self.skip_spaces_and_comments();
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | 0x80..);
        let len = match self.rest.first()? {
            b'"' if self.rest.starts_with(b"\"\"\"") => 3 + end_of(&self.rest[3..], b"\"\"\"")?,
            quote @ (b'"' | b'\'') => 1 + end_of(&self.rest[1..], &[*quote])?,
            first if is_word(first) => self.rest.iter().take_while(|byte| is_word(byte)).count(),
            _ => 1,
        };
        let (word, rest) = self.rest.split_at(len);
        self.rest = rest;
        Some(word)
    }

    fn skip_spaces_and_comments(&mut self) {
        loop {
            let start = self.rest.len();
            self.rest = self.rest.trim_ascii_start();
            if self.rest.starts_with(b"//") {
                let line = self.rest.iter().position(|byte| *byte == b'\n').unwrap_or(self.rest.len());
                self.rest = &self.rest[line..];
            } else if self.rest.starts_with(b"/*") {
                let end = self.rest[2..].windows(2).position(|two| two == b"*/");
                self.rest = end.map_or(&[], |end| &self.rest[end + 4..]);
            }
            if self.rest.len() == start {
                return;
            }
        }
    }
}

/// Returns the position after the end of a literal, whose signs may be escaped.
fn end_of(text: &[u8], quote: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at < text.len() {
        if text[at] == b'\\' {
            at += 2;
        } else if text[at..].starts_with(quote) {
            return Some(at + quote.len());
        } else {
            at += 1;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_class_of_a_file_is_found() {
        for (code, class) in [
            ("public class Main { class Inner {} }", Some("Main")),
            ("// class A {}\n/* class B {} */ import java.util.*;\nfinal class C {} class D {}", Some("C")),
            (
                "package a.b;\nimport static x.Y.class1;\n@An(\"class E {\") public enum E { A }",
                Some("a.b.E"),
            ),
            ("@interface Note {} class F {}", Some("Note")),
            ("record Point(int x, int y) {}", Some("Point")),
            ("interface I { String S = \"\"\"\n class X { \\\"\"\" \"\"\"; } class J {}", Some("I")),
            ("@A(c = '\\'') @B({1, 2}) class G {}", Some("G")),
            ("void main() { System.out.println(\"class H {}\"); }", None),
            ("String s = \"x\"; void main() {}", None),
            ("int class", None),
            ("} class K {}", None),
            ("class ü {}", None),
            ("class \"unterminated", None),
            ("", None),
        ] {
            assert_eq!(main_class(code).as_deref(), class, "{code}");
        }
    }
}
