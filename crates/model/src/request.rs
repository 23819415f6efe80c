//! The request object, shared by the command line, HTTP, MCP and the Python package. Unknown fields are
//! refused by name.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::json_text::Arguments;
use crate::limits::LimitsSpec;

/// A program to run: `language` and `code`, or `command`.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Request {
    /// Language of the code: python, javascript, bash and so on.
    pub language: Option<String>,
    /// Source code.
    pub code: Option<String>,
    /// Source code in base64, instead of `code`.
    pub code_base64: Option<String>,
    /// Program and arguments to run, instead of `language` and `code`.
    pub command: Option<Vec<String>>,
    /// Working directory; default `/workspace`.
    pub workdir: Option<String>,
    /// Arguments for the function `main`, whose return value becomes the result's `result`.
    pub arguments: Option<Arguments>,
    /// Standard input.
    pub stdin: Option<String>,
    /// Standard input in base64, instead of `stdin`.
    pub stdin_base64: Option<String>,
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Files to create in the workspace.
    pub files: Vec<FileSpec>,
    /// Packages to install.
    pub dependencies: Dependencies,
    /// Resource limits; absent ones come from the profile.
    pub limits: LimitsSpec,
    /// Network access; the profile's by default.
    pub network: Option<NetworkSpec>,
    /// Name of the profile.
    pub profile: Option<String>,
    /// Name of the policy: off, audit, balanced, strict, ragflow, or one from the configuration. The policies
    /// of the profile and of the tenant apply as well.
    pub policy: Option<String>,
    /// Name of the provider that runs it.
    pub provider: Option<String>,
    /// Name of the image.
    pub image: Option<String>,
    /// Isolation layers that must be enforced, or nothing runs.
    pub require: Vec<String>,
    /// Values echoed in the result. Lists can be filtered by them.
    pub metadata: Map<String, Value>,
    /// Whether to wait for the end; `false` answers 202 with the id at once. Only a server can do that.
    pub wait: Option<bool>,
}

/// A file to create in the workspace.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "File", extend("required" = ["path"]))]
pub struct FileSpec {
    /// Path relative to the workspace.
    pub path: String,
    /// Content of the file as text.
    pub content: Option<String>,
    /// Content of the file in base64, instead of `content`.
    pub content_base64: Option<String>,
    /// Permission bits in octal.
    #[schemars(example = &"0644")]
    pub mode: Option<String>,
}

/// Packages needed by the code.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Dependencies {
    /// Whether to detect packages from imports in the code and from requirement files.
    pub detect: Option<bool>,
    /// Packages from the registry of the code's language. The prefixes `npm:` and `pypi:` name another
    /// registry.
    pub packages: Vec<String>,
}

/// Network access: a mode by itself, such as `"internet"`, or an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NetworkSpec {
    /// Access mode: none, hosts, internet or full.
    pub mode: String,
    /// Allowed hosts, for the mode `hosts`.
    pub hosts: Vec<String>,
}

impl NetworkSpec {
    /// The modes that need no hosts, and can be written as plain strings.
    pub const PLAIN_MODES: [&'static str; 3] = ["none", "internet", "full"];

    /// Creates a mode without hosts.
    pub fn plain(mode: &str) -> Self {
        Self { mode: mode.to_owned(), hosts: Vec::new() }
    }
}

/// Network access as an object.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("required" = ["mode"]))]
struct NetworkObject {
    /// Access mode: `none`; `hosts`; `internet`, which is public addresses only; or `full`, which is the
    /// host's own network.
    mode: String,
    /// Allowed hosts, for the mode `hosts`.
    hosts: Vec<String>,
}

impl<'de> Deserialize<'de> for NetworkSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ModeOrObject;

        impl<'de> Visitor<'de> for ModeOrObject {
            type Value = NetworkSpec;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a network mode, or an object with mode and hosts")
            }

            fn visit_str<E: de::Error>(self, mode: &str) -> Result<NetworkSpec, E> {
                Ok(NetworkSpec::plain(mode))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<NetworkSpec, A::Error> {
                let NetworkObject { mode, hosts } =
                    NetworkObject::deserialize(MapAccessDeserializer::new(map))?;
                Ok(NetworkSpec { mode, hosts })
            }
        }

        deserializer.deserialize_any(ModeOrObject)
    }
}

impl JsonSchema for NetworkSpec {
    fn schema_name() -> Cow<'static, str> {
        "Network".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Network access: a mode by itself, or an object.",
            "anyOf": [{"type": "string", "enum": Self::PLAIN_MODES}, NetworkObject::json_schema(generator)],
        })
    }
}
