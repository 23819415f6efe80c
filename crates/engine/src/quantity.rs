//! Sizes and durations as people write them: `512M`, `1.5G`, `30s`, `2m`.

use std::time::Duration;

/// Parses a size such as `512M`, `100k`, `1GiB` or `4096` (bytes). Prefixes are powers of 1024.
///
/// # Errors
/// Shows an example of a valid size.
pub fn parse_bytes(text: &str) -> Result<i64, String> {
    let (number, unit) = split(text);
    let factor = match unit.to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 1_u64,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => return Err(format!("'{text}' is not a size; write for example 512M or 1G")),
    };
    scale(number, factor as f64)
        .ok_or_else(|| format!("'{text}' is not a size; write for example 512M or 1G"))
}

/// Parses a duration such as `30s`, `500ms`, `2m` or `1h` into milliseconds; a bare number is seconds.
///
/// # Errors
/// Shows an example of a valid duration.
pub fn parse_millis(text: &str) -> Result<i64, String> {
    let (number, unit) = split(text);
    let factor = match unit {
        "ms" => 1.0,
        "" | "s" => 1_000.0,
        "m" | "min" => 60_000.0,
        "h" => 3_600_000.0,
        _ => return Err(format!("'{text}' is not a time; write for example 30s, 500ms or 2m")),
    };
    scale(number, factor).ok_or_else(|| format!("'{text}' is not a time; write for example 30s, 500ms or 2m"))
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    (text[..end].trim(), text[end..].trim())
}

fn scale(number: &str, factor: f64) -> Option<i64> {
    let value: f64 = number.parse().ok()?;
    let scaled = (value * factor).round();
    // The bound is far above every ceiling, so the result is exact enough to be used or refused.
    (scaled.is_finite() && scaled.abs() < 1e18).then_some(scaled as i64)
}

/// Formats bytes, e.g. `536870912` as `512 MB`; without decimals only if exact.
pub fn show_bytes(bytes: u64) -> String {
    for (unit, name) in [(1_u64 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB")] {
        if bytes >= unit {
            let value = bytes as f64 / unit as f64;
            return if bytes.is_multiple_of(unit) {
                format!("{value:.0} {name}")
            } else {
                format!("{value:.1} {name}")
            };
        }
    }
    format!("{bytes} bytes")
}

/// Formats a duration, e.g. `30 s`, `1.5 s`, `250 ms`.
pub fn show_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    if millis < 1_000 {
        format!("{millis} ms")
    } else if millis.is_multiple_of(1_000) {
        format!("{} s", millis / 1_000)
    } else {
        format!("{:.1} s", duration.as_secs_f64())
    }
}

/// Formats a time as settings are written, in the largest unit that is exact, e.g. `24h`, `5m`, `1500ms`.
pub fn show_time(time: Duration) -> String {
    let millis = time.as_millis();
    let (unit, name) = [(3_600_000, "h"), (60_000, "m"), (1_000, "s")]
        .into_iter()
        .find(|(unit, _)| millis.is_multiple_of(*unit))
        .unwrap_or((1, "ms"));
    format!("{}{name}", millis / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_bytes("512M"), Ok(512 << 20));
        assert_eq!(parse_bytes("1.5GiB"), Ok(3 << 29));
        assert_eq!(parse_bytes("100kb"), Ok(100 << 10));
        assert_eq!(parse_bytes("7"), Ok(7));
        assert_eq!(parse_bytes("-1"), Ok(-1));
        for bad in ["", "M", "1X", "1e99", "NaN", "inf", "1 2M"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(parse_millis("30s"), Ok(30_000));
        assert_eq!(parse_millis("250ms"), Ok(250));
        assert_eq!(parse_millis("60"), Ok(60_000));
        assert_eq!(parse_millis("1.5m"), Ok(90_000));
        assert!(parse_millis("soon").is_err());
    }

    #[test]
    fn formatting() {
        assert_eq!(show_bytes(512 << 20), "512 MB");
        assert_eq!(show_bytes(1_500_000), "1.4 MB");
        assert_eq!(show_duration(Duration::from_millis(30_000)), "30 s");
    }
}
