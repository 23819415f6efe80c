//! Types of settings: how a value is read from a file or a variable, and how it is shown.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Display;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use belljar_engine::network::PrivateRanges;
use belljar_engine::quantity::{parse_bytes, parse_millis, show_bytes, show_time};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Value;
use tracing::level_filters::LevelFilter;

use crate::env::SecretValue;
use crate::say;

/// A value as written in a variable or a file. It may be a secret, so it cannot be printed.
pub(super) enum Raw {
    Text(OsString),
    Toml(Value),
}

impl Raw {
    /// Returns a single value as text.
    pub(super) fn text(&self) -> Result<String, String> {
        match self {
            Self::Text(text) => text.to_str().map(str::to_owned).ok_or_else(|| "is not UTF-8".to_owned()),
            Self::Toml(Value::String(text)) => Ok(text.clone()),
            Self::Toml(value @ (Value::Integer(_) | Value::Float(_) | Value::Boolean(_))) => {
                Ok(value.to_string())
            }
            Self::Toml(_) => Err("must be a single value".to_owned()),
        }
    }

    /// Returns the items of a list; in a variable they are separated by commas.
    pub(super) fn items(&self) -> Result<Vec<String>, String> {
        match self {
            Self::Toml(Value::Array(items)) => {
                items.iter().map(|item| Self::Toml(item.clone()).text()).collect()
            }
            Self::Toml(_) => Err("must be a list".to_owned()),
            Self::Text(_) => Ok(self.text()?.split(',').map(|item| item.trim().to_owned()).collect()),
        }
    }

    /// Returns structured data; a variable has it as inline TOML.
    fn structure(&self) -> Result<Value, String> {
        match self {
            Self::Toml(value) => Ok(value.clone()),
            Self::Text(_) => {
                let table = format!("value = {}", self.text()?).parse::<toml::Table>();
                let value = table.ok().and_then(|mut table| table.remove("value"));
                value.ok_or_else(|| "is not an inline table of TOML".to_owned())
            }
        }
    }

    fn path(&self) -> Result<PathBuf, String> {
        match self {
            Self::Text(text) => Ok(text.into()),
            Self::Toml(_) => self.text().map(PathBuf::from),
        }
    }
}

type Parse<T> = dyn Fn(&Raw) -> Result<T, String> + Send + Sync;
type Show<T> = dyn Fn(&T) -> String + Send + Sync;

/// A type of settings, with values of type `T`.
pub(super) struct Kind<T> {
    /// Names the type for the documentation.
    pub(super) name: String,
    /// A valid value, unless the errors of this type contain one.
    pub(super) example: &'static str,
    parse: Box<Parse<T>>,
    show: Box<Show<T>>,
}

impl<T> Kind<T> {
    fn new(
        name: impl Into<String>,
        example: &'static str,
        parse: impl Fn(&Raw) -> Result<T, String> + Send + Sync + 'static,
        show: impl Fn(&T) -> String + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), example, parse: Box::new(parse), show: Box::new(show) }
    }

    /// Parses a value.
    ///
    /// # Errors
    /// States what is wrong with it.
    pub(super) fn parse(&self, raw: &Raw) -> Result<T, String> {
        (self.parse)(raw)
    }

    /// Shows a value; nothing for an absent one.
    pub(super) fn show(&self, value: &T) -> String {
        (self.show)(value)
    }
}

/// A value that may be absent.
pub(super) fn maybe<T: 'static>(kind: Kind<T>) -> Kind<Option<T>> {
    let Kind { name, example, parse, show } = kind;
    let show = move |value: &Option<T>| value.as_ref().map(&*show).unwrap_or_default();
    Kind::new(name, example, move |raw| parse(raw).map(Some), show)
}

/// A value that is shown as it is parsed. Errors call a valid one `what`.
fn parsed<T: FromStr + ToString + 'static>(name: &str, example: &'static str, what: &'static str) -> Kind<T> {
    let parse = move |raw: &Raw| {
        let text = raw.text()?;
        text.trim().parse().map_err(|_| unfit(&text, what))
    };
    Kind::new(name, example, parse, T::to_string)
}

/// Numbers that sizes and counts are stored in.
pub(super) trait Number: TryFrom<u64> + TryInto<u64> + Copy {
    fn from_u64(value: u64) -> Result<Self, String> {
        Self::try_from(value).map_err(|_| format!("{value} is too large"))
    }

    fn as_u64(self) -> u64 {
        self.try_into().unwrap_or_default()
    }
}

impl<N: TryFrom<u64> + TryInto<u64> + Copy> Number for N {}

fn above_zero(value: i64) -> Result<u64, String> {
    u64::try_from(value).ok().filter(|value| *value > 0).ok_or_else(|| "must be above zero".to_owned())
}

/// Names a value that does not fit.
fn unfit(text: &str, what: &str) -> String {
    format!("'{}' is not {what}", text.chars().take(80).collect::<String>().escape_debug())
}

/// A number of bytes, written as a size.
pub(super) fn size<N: Number>(least: u64) -> Kind<N> {
    let parse = move |raw: &Raw| {
        let text = raw.text()?;
        let given = parse_bytes(&text).map_err(|_| unfit(&text, "a size"))?;
        let bytes = if least == 0 && given == 0 { 0 } else { above_zero(given)? };
        if bytes < least {
            return Err(format!("{} is too little; the minimum is {}", show_bytes(bytes), show_bytes(least)));
        }
        N::from_u64(bytes)
    };
    Kind::new("size", "512M", parse, |value| show_bytes(value.as_u64()))
}

/// A size with a maximum.
pub(super) fn size_up_to(most: u64) -> Kind<u64> {
    let plain = size(1);
    let parse = move |raw: &Raw| match plain.parse(raw)? {
        bytes if bytes > most => {
            Err(format!("{} is too large; the maximum is {}", show_bytes(bytes), show_bytes(most)))
        }
        bytes => Ok(bytes),
    };
    Kind::new("size", "16M", parse, |bytes| show_bytes(*bytes))
}

/// A number of bytes; the setting's name has the unit.
pub(super) fn bytes<N: Number>() -> Kind<N> {
    Kind { name: "bytes".to_owned(), show: Box::new(|value| value.as_u64().to_string()), ..size(1) }
}

fn parse_time(raw: &Raw) -> Result<Duration, String> {
    let text = raw.text()?;
    let millis = parse_millis(&text).map_err(|_| unfit(&text, "a time"))?;
    above_zero(millis).map(Duration::from_millis)
}

/// A duration.
pub(super) fn time() -> Kind<Duration> {
    Kind::new("time", "30s", parse_time, |time| show_time(*time))
}

/// A duration within bounds.
pub(super) fn time_within(bounds: RangeInclusive<Duration>) -> Kind<Duration> {
    let parse = move |raw: &Raw| {
        let (least, most) = (show_time(*bounds.start()), show_time(*bounds.end()));
        let time = Some(parse_time(raw)?).filter(|time| bounds.contains(time));
        time.ok_or_else(|| format!("must be between {least} and {most}"))
    };
    Kind { parse: Box::new(parse), ..time() }
}

/// A duration in milliseconds; the setting's name has the unit.
pub(super) fn millis() -> Kind<Duration> {
    let parse = |raw: &Raw| match raw {
        // Only a bare number in a file has the unit of the setting's name.
        Raw::Toml(Value::Integer(millis)) => above_zero(*millis).map(Duration::from_millis),
        _ => parse_time(raw),
    };
    Kind::new("milliseconds", "30s", parse, |time| time.as_millis().to_string())
}

/// Like [`millis`], as a number.
pub(super) fn millis_number() -> Kind<i64> {
    let Kind { name, example, parse, .. } = millis();
    let parse = move |raw: &Raw| i64::try_from(parse(raw)?.as_millis()).map_err(|_| "is too long".to_owned());
    Kind::new(name, example, parse, i64::to_string)
}

/// A count from 1 to `most`.
pub(super) fn count<N: Number>(most: u64) -> Kind<N> {
    let parse = move |raw: &Raw| {
        let text = raw.text()?;
        let count = above_zero(text.trim().parse().map_err(|_| unfit(&text, "a whole number"))?)?;
        match count {
            count if count > most => Err(format!("{count} is too large; the maximum is {most}")),
            count => N::from_u64(count),
        }
    };
    Kind::new("number", "16", parse, |value| value.as_u64().to_string())
}

/// A share of the processor; 1.0 is one core.
pub(super) fn cores() -> Kind<f64> {
    let parse = |raw: &Raw| {
        let text = raw.text()?;
        match text.trim().parse::<f64>() {
            Ok(cores) if cores.is_finite() && cores > 0.0 => Ok(cores),
            Ok(cores) if cores.is_finite() => Err("must be above zero".to_owned()),
            _ => Err(unfit(&text, "a number")),
        }
    };
    Kind::new("number of cores", "1.5", parse, f64::to_string)
}

/// A share of the processor, in thousandths of a core.
pub(super) fn cpu_millis() -> Kind<u32> {
    let Kind { name, example, parse, .. } = cores();
    let parse = move |raw: &Raw| u32::from_u64(above_zero((parse(raw)? * 1_000.0).round() as i64)?);
    Kind::new(name, example, parse, |millis| (f64::from(*millis) / 1_000.0).to_string())
}

/// On or off.
pub(super) fn switch() -> Kind<bool> {
    parsed("true or false", "true", "true or false")
}

/// Any text.
pub(super) fn text() -> Kind<String> {
    Kind::new("text", "", Raw::text, String::clone)
}

/// Text that is never shown.
pub(super) fn secret() -> Kind<SecretValue> {
    Kind::new("secret", "", |raw| raw.text().map(SecretValue::from), |_| super::HIDDEN.to_owned())
}

/// A path.
pub(super) fn path() -> Kind<PathBuf> {
    Kind::new("path", "/srv/belljar", Raw::path, |path| path.display().to_string())
}

/// A path that has to be absolute in a file. A variable may be relative to the current folder, as a flag may.
pub(super) fn absolute_path() -> Kind<PathBuf> {
    let parse = |raw: &Raw| match (raw, raw.path()?) {
        (Raw::Toml(_), path) if path.is_relative() => Err("must be an absolute path".to_owned()),
        (_, path) => Ok(path),
    };
    Kind { parse: Box::new(parse), ..path() }
}

/// An IP address with a port.
pub(super) fn address() -> Kind<SocketAddr> {
    parsed("address and port", "127.0.0.1:7117", "an IP address with a port")
}

/// A URL. Errors never contain it, because it might have a password.
pub(super) fn url<T: FromStr<Err = &'static str> + ToString + 'static>() -> Kind<T> {
    Kind::new("URL", "", |raw| raw.text()?.parse().map_err(str::to_owned), T::to_string)
}

/// A log level.
pub(super) fn level() -> Kind<LevelFilter> {
    const LEVELS: &str = "one of off, error, warn, info, debug, trace";
    parsed(LEVELS, "info", LEVELS)
}

/// One of a few values, by name.
pub(super) fn choice<T: Copy + PartialEq + Sync>(all: &'static [(&'static str, T)]) -> Kind<T> {
    let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
    let what = format!("one of {}", names.join(", "));
    let name = what.clone();
    let parse = move |raw: &Raw| {
        let text = raw.text()?;
        let found = all.iter().find(|(name, _)| *name == text);
        found.map(|(_, value)| *value).ok_or_else(|| unfit(&text, &what))
    };
    let show = |value: &T| {
        let found = all.iter().find(|(_, known)| known == value);
        found.map(|(name, _)| (*name).to_owned()).unwrap_or_default()
    };
    Kind::new(name, names[0], parse, show)
}

/// A list.
pub(super) fn list<T, C>() -> Kind<C>
where
    T: FromStr<Err: Display> + Display,
    C: FromIterator<T>,
    for<'a> &'a C: IntoIterator<Item = &'a T>,
{
    let parse = |raw: &Raw| {
        raw.items()?.iter().map(|item| item.parse().map_err(|error: T::Err| error.to_string())).collect()
    };
    let show = |value: &C| value.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    Kind::new("list", "", parse, show)
}

/// A list of address ranges.
pub(super) fn ranges() -> Kind<PrivateRanges> {
    Kind::new("list", "", |raw| PrivateRanges::parse(&raw.items()?), PrivateRanges::to_string)
}

/// A table of values by name.
pub(super) fn table<V: DeserializeOwned + Serialize>() -> Kind<BTreeMap<String, V>> {
    let parse = |raw: &Raw| {
        let parsed = raw.structure()?.try_into();
        parsed.map_err(|error: toml::de::Error| say::printable(error.message()))
    };
    let show = |value: &BTreeMap<String, V>| match Value::try_from(value) {
        Ok(shown) if !value.is_empty() => shown.to_string(),
        _ => String::new(),
    };
    Kind::new("table", "", parse, show)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_text<T>(kind: Kind<T>, text: &str) -> Result<T, String> {
        kind.parse(&Raw::Text(text.into()))
    }

    fn from_toml<T>(kind: Kind<T>, value: impl Into<Value>) -> Result<T, String> {
        kind.parse(&Raw::Toml(value.into()))
    }

    const ON_OFF: &[(&str, bool)] = &[("on", true), ("off", false)];

    #[test]
    fn values_have_the_forms_that_people_write() {
        assert_eq!(from_text(size::<u64>(1), "1.5G"), Ok(3 << 29));
        assert_eq!(from_toml(size::<usize>(1), 4_096), Ok(4_096));
        assert_eq!(from_text(time(), "2m"), Ok(Duration::from_secs(120)));
        assert_eq!(from_toml(millis(), 500), Ok(Duration::from_millis(500)));
        assert_eq!(from_text(millis_number(), "500"), Ok(500_000), "a bare number is in seconds");
        assert_eq!(from_text(cpu_millis(), "2.5"), Ok(2_500));
        assert_eq!(from_text(switch(), "true"), Ok(true));
        assert_eq!(from_text(list::<String, Vec<_>>(), "a, b"), Ok(vec!["a".to_owned(), "b".to_owned()]));
        let pairs = from_text(table::<Vec<String>>(), "{ a = [\"b\"] }").unwrap();
        assert_eq!(table().show(&pairs), "{ a = [\"b\"] }");
        assert_eq!(from_text(choice(ON_OFF), "off"), Ok(false));
    }

    #[test]
    fn errors_state_what_is_wrong() {
        let [second, two] = [1, 2].map(Duration::from_secs);
        for (error, why) in [
            (from_text(size::<u64>(1), "much").unwrap_err(), "'much' is not a size"),
            (from_text(size::<u64>(1), "0").unwrap_err(), "must be above zero"),
            (from_text(size::<u64>(0), "-1").unwrap_err(), "must be above zero"),
            (from_text(size::<u64>(4_096), "1k").unwrap_err(), "1 KB is too little; the minimum is 4 KB"),
            (from_text(time_within(second..=two), "3s").unwrap_err(), "must be between 1s and 2s"),
            (
                from_text(count::<u32>(100_000), "100001").unwrap_err(),
                "100001 is too large; the maximum is 100000",
            ),
            (from_toml(count::<u32>(u64::MAX), 1_i64 << 40).unwrap_err(), "1099511627776 is too large"),
            (from_text(cores(), "NaN").unwrap_err(), "'NaN' is not a number"),
            (from_text(cores(), "-1").unwrap_err(), "must be above zero"),
            (from_toml(text(), vec!["a"]).unwrap_err(), "must be a single value"),
            (from_toml(list::<String, Vec<_>>(), "a").unwrap_err(), "must be a list"),
            (from_text(choice(ON_OFF), "maybe").unwrap_err(), "'maybe' is not one of on, off"),
            (from_toml(absolute_path(), "here").unwrap_err(), "must be an absolute path"),
        ] {
            assert_eq!(error, why);
        }
    }
}
