//! Formats figures for people.

/// Shown in place of a missing figure.
pub(crate) const NONE: &str = "–";

/// Formats a ratio to bare: `1/54` when faster, `1.06×` when slower or about equal.
pub(crate) fn ratio(ratio: f64) -> String {
    let times = 1.0 / ratio;
    match ratio {
        _ if times >= 9.95 => format!("1/{times:.0}"),
        _ if times >= 1.05 => format!("1/{times:.1}"),
        _ if ratio < 9.995 => format!("{ratio:.2}×"),
        _ => format!("{ratio:.1}×"),
    }
}

/// Formats milliseconds with about three digits; more would be noise.
pub(crate) fn millis(millis: f64) -> String {
    match millis {
        _ if millis < 0.9995 => format!("{millis:.3} ms"),
        _ if millis < 99.995 => format!("{millis:.2} ms"),
        _ => format!("{millis:.0} ms"),
    }
}

pub(crate) fn rate(per_second: f64) -> String {
    if per_second < 99.95 { format!("{per_second:.1}/s") } else { format!("{per_second:.0}/s") }
}

pub(crate) fn percent(share: f64) -> String {
    // Round down: 100% must mean all of them.
    format!("{}%", (share * 100.0).floor())
}

/// Formats a list: `a`, `a and b`, `a, b and c`.
pub(crate) fn listed<T: AsRef<str>>(items: &[T]) -> String {
    let items: Vec<&str> = items.iter().map(AsRef::as_ref).collect();
    match items.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Wraps text into lines of at most `width` characters, indenting all but the first.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    const INDENT: &str = "  ";
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split_whitespace() {
        if !line.trim().is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::replace(&mut line, INDENT.to_owned()));
        }
        if !line.is_empty() && line != INDENT {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios() {
        for (value, expected) in [
            (1.0 / 54.2, "1/54"),
            (1.0 / 1400.0, "1/1400"),
            (1.0 / 9.99, "1/10"),
            (1.0 / 6.8, "1/6.8"),
            (0.9, "1/1.1"),
            (0.98, "0.98×"),
            (1.0, "1.00×"),
            (1.0649, "1.06×"),
            (9.999, "10.0×"),
            (26.34, "26.3×"),
        ] {
            assert_eq!(ratio(value), expected, "{value}");
        }
    }

    #[test]
    fn times_and_rates() {
        assert_eq!((millis(0.1234), millis(0.9999)), ("0.123 ms".to_owned(), "1.00 ms".to_owned()));
        assert_eq!((millis(13.046), millis(231.4)), ("13.05 ms".to_owned(), "231 ms".to_owned()));
        assert_eq!(
            (rate(5.94), rate(99.97), rate(1209.2)),
            ("5.9/s".into(), "100/s".into(), "1209/s".into())
        );
        assert_eq!((percent(1.0), percent(0.999), percent(0.0)), ("100%".into(), "99%".into(), "0%".into()));
    }

    #[test]
    fn lists_and_lines() {
        assert_eq!(listed(&["a"; 0]), "");
        assert_eq!((listed(&["a"]), listed(&["a", "b", "c"])), ("a".to_owned(), "a, b and c".to_owned()));
        assert_eq!(wrapped("one two three", 7), "one two\n  three");
        assert_eq!(wrapped("unbreakable a b", 5), "unbreakable\n  a b");
    }
}
