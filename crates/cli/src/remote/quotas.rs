//! Quotas of a tenant as typed, and as sent.

use std::str::FromStr;

use belljar_engine::quantity::parse_bytes;
use clap::Args;
use serde_json::{Map, Value, json};

/// Quotas as typed. Those that are not named stay as they are.
#[derive(Debug, Args)]
pub(super) struct QuotaArgs {
    /// Maximum number of concurrent executions; 'none' removes the quota
    #[arg(long, value_name = "N|none", value_parser = parse::<u32>, allow_hyphen_values = true)]
    concurrency: Option<QuotaValue>,
    /// Maximum number of live sandboxes; 'none' removes the quota
    #[arg(long, value_name = "N|none", value_parser = parse::<u32>, allow_hyphen_values = true)]
    sandboxes: Option<QuotaValue>,
    /// CPU time per day; 'none' removes the quota
    #[arg(long, value_name = "SECONDS|none", value_parser = parse::<u64>, allow_hyphen_values = true)]
    cpu_seconds_per_day: Option<QuotaValue>,
    /// Memory limits of running executions and sandboxes together, such as 8G; 'none' removes the quota
    #[arg(long, value_name = "SIZE|none", value_parser = parse_size, allow_hyphen_values = true)]
    memory: Option<QuotaValue>,
    /// Size of all volumes and snapshots together, such as 20G; 'none' is the server's default
    #[arg(long, value_name = "SIZE|none", value_parser = parse_size, allow_hyphen_values = true)]
    disk: Option<QuotaValue>,
}

/// A quota, or the word that removes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QuotaValue {
    Limit(u64),
    Removed,
}

impl QuotaValue {
    fn json(self) -> Value {
        match self {
            Self::Limit(limit) => json!(limit),
            Self::Removed => Value::Null,
        }
    }
}

impl QuotaArgs {
    /// Returns the named quotas as an object; null removes one.
    pub(super) fn changes(&self) -> Map<String, Value> {
        let named = [
            ("concurrency", self.concurrency),
            ("sandboxes", self.sandboxes),
            ("cpu_seconds_per_day", self.cpu_seconds_per_day),
            ("memory_bytes", self.memory),
            ("disk_bytes", self.disk),
        ];
        named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.json()))).collect()
    }
}

fn is_removal(text: &str) -> bool {
    ["none", "unlimited"].contains(&text)
}

fn parse<T: FromStr + Into<u64>>(text: &str) -> Result<QuotaValue, String> {
    if is_removal(text) {
        return Ok(QuotaValue::Removed);
    }
    let number = text.parse::<T>().map_err(|_| "use a number of zero or more, or 'none'".to_owned())?;
    Ok(QuotaValue::Limit(number.into()))
}

fn parse_size(text: &str) -> Result<QuotaValue, String> {
    if is_removal(text) {
        return Ok(QuotaValue::Removed);
    }
    let bytes = parse_bytes(text).map_err(|error| format!("{error}, or 'none'"))?;
    u64::try_from(bytes).map(QuotaValue::Limit).map_err(|_| "a size cannot be negative".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_numbers_sizes_or_the_word_none() {
        assert_eq!(parse::<u32>("4"), Ok(QuotaValue::Limit(4)));
        assert_eq!(parse::<u64>("none"), Ok(QuotaValue::Removed));
        assert_eq!(parse_size("2G"), Ok(QuotaValue::Limit(2 << 30)));
        assert_eq!(parse_size("unlimited"), Ok(QuotaValue::Removed));
        for bad in ["", "-1", "4294967296", "1.5", "null"] {
            assert!(parse::<u32>(bad).is_err(), "{bad}");
        }
        assert!(parse_size("-1").is_err() && parse_size("much").is_err());
    }
}
