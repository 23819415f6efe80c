//! Types of settings: how a value is read from a file or a variable, and how it is shown.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Display;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use belljar_engine::network::{NetworkCeiling, PrivateRanges};
use belljar_engine::quantity::{parse_bytes, parse_millis, show_bytes};
use belljar_engine::warm::WarmPoolMode;
use belljar_store::Durability;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Value;
use tracing::level_filters::LevelFilter;

use crate::env::SecretValue;

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

/// Names of a setting's values.
pub(super) trait Describe {
    /// A valid value, unless the errors of this type contain one.
    const EXAMPLE: &'static str = "";

    /// Names the type for the documentation.
    fn name() -> String;
}

/// Reads and shows values of type `T`.
pub(super) trait Kind<T>: Describe {
    /// Parses a value.
    ///
    /// # Errors
    /// States what is wrong with it.
    fn parse(raw: &Raw) -> Result<T, String>;

    /// Shows a value; nothing for an absent one.
    fn show(value: &T) -> String;
}

macro_rules! describe {
    ($({ $($generic:tt)* } $kind:ty, $name:expr, $example:expr;)+) => {
        $(impl<$($generic)*> Describe for $kind {
            const EXAMPLE: &'static str = $example;

            fn name() -> String {
                $name.to_owned()
            }
        })+
    };
}

/// A setting that may be absent.
pub(super) struct Maybe<K>(PhantomData<K>);
/// A number of bytes, written as a size.
pub(super) struct Size<const LEAST: u64 = 1>;
/// A number of bytes; the setting's name has the unit.
pub(super) struct Bytes;
/// A duration within bounds in milliseconds.
pub(super) struct Time<const LEAST: u64 = 1, const MOST: u64 = { u64::MAX }>;
/// A duration in milliseconds; the setting's name has the unit.
pub(super) struct Millis;
/// A count from 1 to `MOST`.
pub(super) struct Count<const MOST: u64 = 100_000>;
/// A share of the processor; 1.0 is one core.
pub(super) struct Cores;
/// On or off.
pub(super) struct Switch;
/// Any text.
pub(super) struct Text;
/// Text that is never shown.
pub(super) struct Secret;
/// A path, which may have to be absolute in a file.
pub(super) struct FilePath<const ABSOLUTE: bool = false>;
/// An IP address with a port.
pub(super) struct Address;
/// A URL. Errors never contain it, because it might have a password.
pub(super) struct Url;
/// One of a few names.
pub(super) struct Choice<T>(PhantomData<T>);
/// A log level.
pub(super) struct Level;
/// A list.
pub(super) struct List<T>(PhantomData<T>);
/// A list of address ranges.
pub(super) struct Ranges;
/// Structured data.
pub(super) struct Structure;

describe! {
    { K: Describe } Maybe<K>, K::name(), K::EXAMPLE;
    { const LEAST: u64 } Size<LEAST>, "size", "512M";
    {} Bytes, "bytes", "512M";
    { const LEAST: u64, const MOST: u64 } Time<LEAST, MOST>, "time", "30s";
    {} Millis, "milliseconds", "30s";
    { const MOST: u64 } Count<MOST>, "number", "16";
    {} Cores, "number of cores", "1.5";
    {} Switch, "true or false", "true";
    {} Text, "text", "";
    {} Secret, "secret", "";
    { const ABSOLUTE: bool } FilePath<ABSOLUTE>, "path", "/srv/belljar";
    {} Address, "address and port", "127.0.0.1:7117";
    {} Url, "URL", "";
    {} Level, "one of off, error, warn, info, debug, trace", "info";
    { T: Named } Choice<T>, format!("one of {}", choices::<T>()), T::ALL[0].0;
    { T } List<T>, "list", "";
    {} Ranges, "list", "";
    {} Structure, "table", "";
}

impl<T, K: Kind<T>> Kind<Option<T>> for Maybe<K> {
    fn parse(raw: &Raw) -> Result<Option<T>, String> {
        K::parse(raw).map(Some)
    }

    fn show(value: &Option<T>) -> String {
        value.as_ref().map(K::show).unwrap_or_default()
    }
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

impl<N: Number, const LEAST: u64> Kind<N> for Size<LEAST> {
    fn parse(raw: &Raw) -> Result<N, String> {
        let text = raw.text()?;
        let given = parse_bytes(&text).map_err(|_| unfit(&text, "a size"))?;
        let bytes = if LEAST == 0 && given == 0 { 0 } else { above_zero(given)? };
        if bytes < LEAST {
            return Err(format!("{} is too little; the minimum is {}", show_bytes(bytes), show_bytes(LEAST)));
        }
        N::from_u64(bytes)
    }

    fn show(value: &N) -> String {
        show_bytes(value.as_u64())
    }
}

impl<N: Number> Kind<N> for Bytes {
    fn parse(raw: &Raw) -> Result<N, String> {
        <Size as Kind<N>>::parse(raw)
    }

    fn show(value: &N) -> String {
        value.as_u64().to_string()
    }
}

/// Shows a time in the largest unit that is exact.
fn show_time(time: Duration) -> String {
    let millis = time.as_millis();
    let (unit, name) = [(3_600_000, "h"), (60_000, "m"), (1_000, "s")]
        .into_iter()
        .find(|(unit, _)| millis.is_multiple_of(*unit))
        .unwrap_or((1, "ms"));
    format!("{}{name}", millis / unit)
}

impl<const LEAST: u64, const MOST: u64> Kind<Duration> for Time<LEAST, MOST> {
    fn parse(raw: &Raw) -> Result<Duration, String> {
        let text = raw.text()?;
        let given = parse_millis(&text).map_err(|_| unfit(&text, "a time"))?;
        let [given, least, most] = [above_zero(given)?, LEAST, MOST].map(Duration::from_millis);
        if (least..=most).contains(&given) {
            return Ok(given);
        }
        Err(format!("must be between {} and {}", show_time(least), show_time(most)))
    }

    fn show(value: &Duration) -> String {
        show_time(*value)
    }
}

impl Kind<Duration> for Millis {
    fn parse(raw: &Raw) -> Result<Duration, String> {
        match raw {
            // Only a bare number in a file has the unit of the setting's name.
            Raw::Toml(Value::Integer(millis)) => above_zero(*millis).map(Duration::from_millis),
            _ => <Time as Kind<Duration>>::parse(raw),
        }
    }

    fn show(value: &Duration) -> String {
        value.as_millis().to_string()
    }
}

impl Kind<i64> for Millis {
    fn parse(raw: &Raw) -> Result<i64, String> {
        let time = <Self as Kind<Duration>>::parse(raw)?;
        i64::try_from(time.as_millis()).map_err(|_| "is too long".to_owned())
    }

    fn show(value: &i64) -> String {
        value.to_string()
    }
}

impl<N: Number, const MOST: u64> Kind<N> for Count<MOST> {
    fn parse(raw: &Raw) -> Result<N, String> {
        let text = raw.text()?;
        let count = above_zero(text.trim().parse().map_err(|_| unfit(&text, "a whole number"))?)?;
        match count {
            count if count > MOST => Err(format!("{count} is too large; the maximum is {MOST}")),
            count => N::from_u64(count),
        }
    }

    fn show(value: &N) -> String {
        value.as_u64().to_string()
    }
}

impl Kind<f64> for Cores {
    fn parse(raw: &Raw) -> Result<f64, String> {
        let text = raw.text()?;
        let cores: f64 = text.trim().parse().map_err(|_| unfit(&text, "a number"))?;
        match cores {
            cores if !cores.is_finite() => Err(unfit(&text, "a number")),
            cores if cores <= 0.0 => Err("must be above zero".to_owned()),
            cores => Ok(cores),
        }
    }

    fn show(value: &f64) -> String {
        value.to_string()
    }
}

/// In thousandths of a core.
impl Kind<u32> for Cores {
    fn parse(raw: &Raw) -> Result<u32, String> {
        let millis = <Self as Kind<f64>>::parse(raw)? * 1_000.0;
        u32::from_u64(above_zero(millis.round() as i64)?)
    }

    fn show(value: &u32) -> String {
        (f64::from(*value) / 1_000.0).to_string()
    }
}

impl Kind<bool> for Switch {
    fn parse(raw: &Raw) -> Result<bool, String> {
        let text = raw.text()?;
        text.trim().parse().map_err(|_| unfit(&text, "true or false"))
    }

    fn show(value: &bool) -> String {
        value.to_string()
    }
}

impl Kind<String> for Text {
    fn parse(raw: &Raw) -> Result<String, String> {
        raw.text()
    }

    fn show(value: &String) -> String {
        value.clone()
    }
}

impl Kind<SecretValue> for Secret {
    fn parse(raw: &Raw) -> Result<SecretValue, String> {
        raw.text().map(SecretValue::from)
    }

    fn show(_: &SecretValue) -> String {
        super::HIDDEN.to_owned()
    }
}

impl<const ABSOLUTE: bool> Kind<PathBuf> for FilePath<ABSOLUTE> {
    fn parse(raw: &Raw) -> Result<PathBuf, String> {
        let path = raw.path()?;
        // A variable may be relative to the current folder, as a flag may.
        match raw {
            Raw::Toml(_) if ABSOLUTE && path.is_relative() => Err("must be an absolute path".to_owned()),
            _ => Ok(path),
        }
    }

    fn show(value: &PathBuf) -> String {
        value.display().to_string()
    }
}

impl Kind<SocketAddr> for Address {
    fn parse(raw: &Raw) -> Result<SocketAddr, String> {
        let text = raw.text()?;
        text.parse().map_err(|_| unfit(&text, "an IP address with a port"))
    }

    fn show(value: &SocketAddr) -> String {
        value.to_string()
    }
}

impl<T: FromStr<Err = &'static str> + Display> Kind<T> for Url {
    fn parse(raw: &Raw) -> Result<T, String> {
        raw.text()?.parse().map_err(str::to_owned)
    }

    fn show(value: &T) -> String {
        value.to_string()
    }
}

impl Kind<LevelFilter> for Level {
    fn parse(raw: &Raw) -> Result<LevelFilter, String> {
        let text = raw.text()?;
        text.parse().map_err(|_| unfit(&text, "one of off, error, warn, info, debug, trace"))
    }

    fn show(value: &LevelFilter) -> String {
        value.to_string()
    }
}

/// Values that are chosen by name.
pub(super) trait Named: Copy + PartialEq + 'static {
    const ALL: &'static [(&'static str, Self)];
}

impl Named for WarmPoolMode {
    const ALL: &'static [(&'static str, Self)] =
        &[("pool", Self::Pool), ("fork", Self::Fork), ("off", Self::Off)];
}

impl Named for NetworkCeiling {
    const ALL: &'static [(&'static str, Self)] =
        &[("none", Self::None), ("names", Self::Names), ("hosts", Self::Hosts), ("full", Self::Full)];
}

impl Named for Durability {
    const ALL: &'static [(&'static str, Self)] = &[("process", Self::Process), ("power", Self::Power)];
}

fn choices<T: Named>() -> String {
    T::ALL.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

impl<T: Named> Kind<T> for Choice<T> {
    fn parse(raw: &Raw) -> Result<T, String> {
        let text = raw.text()?;
        let found = T::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, value)| *value).ok_or_else(|| unfit(&text, &format!("one of {}", choices::<T>())))
    }

    fn show(value: &T) -> String {
        let found = T::ALL.iter().find(|(_, known)| known == value);
        found.map(|(name, _)| (*name).to_owned()).unwrap_or_default()
    }
}

impl<T, C> Kind<C> for List<T>
where
    T: FromStr<Err: Display> + Display,
    C: FromIterator<T>,
    for<'a> &'a C: IntoIterator<Item = &'a T>,
{
    fn parse(raw: &Raw) -> Result<C, String> {
        raw.items()?.iter().map(|item| item.parse().map_err(|error: T::Err| error.to_string())).collect()
    }

    fn show(value: &C) -> String {
        value.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }
}

impl Kind<PrivateRanges> for Ranges {
    fn parse(raw: &Raw) -> Result<PrivateRanges, String> {
        PrivateRanges::parse(&raw.items()?)
    }

    fn show(value: &PrivateRanges) -> String {
        value.to_string()
    }
}

impl<V: DeserializeOwned + Serialize> Kind<BTreeMap<String, V>> for Structure {
    fn parse(raw: &Raw) -> Result<BTreeMap<String, V>, String> {
        raw.structure()?
            .try_into()
            .map_err(|error: toml::de::Error| error.message().escape_debug().to_string())
    }

    fn show(value: &BTreeMap<String, V>) -> String {
        match Value::try_from(value) {
            Ok(shown) if !value.is_empty() => shown.to_string(),
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text<T, K: Kind<T>>(text: &str) -> Result<T, String> {
        K::parse(&Raw::Text(text.into()))
    }

    fn toml<T, K: Kind<T>>(value: impl Into<Value>) -> Result<T, String> {
        K::parse(&Raw::Toml(value.into()))
    }

    #[test]
    fn values_have_the_forms_that_people_write() {
        assert_eq!(text::<u64, Size>("1.5G"), Ok(3 << 29));
        assert_eq!(toml::<usize, Size>(4_096), Ok(4_096));
        assert_eq!(text::<Duration, Time>("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(toml::<Duration, Millis>(500), Ok(Duration::from_millis(500)));
        assert_eq!(text::<i64, Millis>("500"), Ok(500_000), "a bare number is in seconds");
        assert_eq!(text::<u32, Cores>("2.5"), Ok(2_500));
        assert_eq!(text::<bool, Switch>("true"), Ok(true));
        assert_eq!(text::<Vec<String>, List<String>>("a, b"), Ok(vec!["a".to_owned(), "b".to_owned()]));
        let table = text::<BTreeMap<String, Vec<String>>, Structure>("{ a = [\"b\"] }").unwrap();
        assert_eq!(Structure::show(&table), "{ a = [\"b\"] }");
        assert_eq!(text::<WarmPoolMode, Choice<WarmPoolMode>>("off"), Ok(WarmPoolMode::Off));
    }

    #[test]
    fn errors_state_what_is_wrong() {
        for (error, why) in [
            (text::<u64, Size>("much").unwrap_err(), "'much' is not a size"),
            (text::<u64, Size>("0").unwrap_err(), "must be above zero"),
            (text::<u64, Size<0>>("-1").unwrap_err(), "must be above zero"),
            (text::<u64, Size<4_096>>("1k").unwrap_err(), "1 KB is too little; the minimum is 4 KB"),
            (text::<Duration, Time<1_000, 2_000>>("3s").unwrap_err(), "must be between 1s and 2s"),
            (text::<u32, Count>("100001").unwrap_err(), "100001 is too large; the maximum is 100000"),
            (toml::<u32, Count<{ u64::MAX }>>(1_i64 << 40).unwrap_err(), "1099511627776 is too large"),
            (text::<f64, Cores>("NaN").unwrap_err(), "'NaN' is not a number"),
            (text::<f64, Cores>("-1").unwrap_err(), "must be above zero"),
            (toml::<String, Text>(vec!["a"]).unwrap_err(), "must be a single value"),
            (toml::<Vec<String>, List<String>>("a").unwrap_err(), "must be a list"),
            (text::<WarmPoolMode, Choice<_>>("on").unwrap_err(), "'on' is not one of pool, fork, off"),
            (toml::<PathBuf, FilePath<true>>("here").unwrap_err(), "must be an absolute path"),
        ] {
            assert_eq!(error, why);
        }
    }
}
