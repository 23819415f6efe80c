//! GPUs that a request asks for.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// The highest number of GPUs that can be asked for.
const MAX_GPUS: u8 = 64;
const EXPECTED: &str = "\"all\" or a number of GPUs from 1 to 64";

/// GPUs for a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gpus {
    /// All GPUs of the machine.
    All,
    /// This many, at least one.
    Count(u8),
}

impl Gpus {
    fn from_number(number: u64) -> Option<Self> {
        u8::try_from(number).ok().filter(|count| (1..=MAX_GPUS).contains(count)).map(Self::Count)
    }
}

impl FromStr for Gpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Some(Self::All),
            number => number.parse().ok().and_then(Self::from_number),
        }
        .ok_or_else(|| format!("write {EXPECTED}"))
    }
}

impl Serialize for Gpus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => serializer.serialize_str("all"),
            Self::Count(count) => serializer.serialize_u8(*count),
        }
    }
}

impl<'de> Deserialize<'de> for Gpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AllOrNumber;

        impl Visitor<'_> for AllOrNumber {
            type Value = Gpus;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Gpus, E> {
                let is_all = text == "all";
                is_all.then_some(Gpus::All).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Gpus, E> {
                Gpus::from_number(number)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(number), &self))
            }
        }

        deserializer.deserialize_any(AllOrNumber)
    }
}

impl JsonSchema for Gpus {
    fn schema_name() -> Cow<'static, str> {
        "Gpus".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "GPUs: all of the machine, or this many.",
            "anyOf": [
                {"type": "string", "enum": ["all"]},
                {"type": "integer", "format": "int32", "minimum": 1, "maximum": MAX_GPUS},
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_all_or_a_number() {
        let parse = |json: &str| serde_json::from_str::<Gpus>(json).map_err(|error| error.to_string());
        assert_eq!((parse("\"all\""), parse("2")), (Ok(Gpus::All), Ok(Gpus::Count(2))));
        assert_eq!(("all".parse(), "64".parse()), (Ok(Gpus::All), Ok(Gpus::Count(64))));
        for bad in ["0", "65", "-1", "1.5", "\"2\"", "\"ALL\"", "true", "[]", "256"] {
            let error = parse(bad).unwrap_err();
            assert!(error.contains("expected \"all\" or a number of GPUs from 1 to 64"), "{bad}: {error}");
            assert!(bad.parse::<Gpus>().is_err());
        }
        assert_eq!(serde_json::to_string(&[Gpus::All, Gpus::Count(3)]).unwrap(), "[\"all\",3]");
    }
}
