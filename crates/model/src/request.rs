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

use crate::gpus::Gpus;
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
    /// GPUs of the machine: "all", or a number. Only provider `docker` has them, if its setting `gpus` allows them.
    pub gpus: Option<Gpus>,
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
    /// Inputs of the same program, only for `POST /v1/executions`: the program is read, checked and prepared once, and
    /// runs once for each of them.
    pub inputs: Option<Vec<Input>>,
    /// With `inputs`: at most this many run at the same time.
    #[schemars(range(min = 1))]
    pub jobs: Option<u32>,
    /// Whether to wait for the end; `false` answers 202 with the id at once. Only a server can do that.
    pub wait: Option<bool>,
}

impl Request {
    /// Returns the size of its code, standard input and files, in bytes.
    pub fn size(&self) -> usize {
        let texts = [&self.code, &self.code_base64, &self.stdin, &self.stdin_base64];
        let texts: usize = texts.into_iter().flatten().map(String::len).sum();
        texts + self.files.iter().map(FileSpec::size).sum::<usize>()
    }
}

/// An input of a program: what differs from one of its executions to the next.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Input {
    /// Arguments for the function `main`, in place of those of the request.
    pub arguments: Option<Arguments>,
    /// Standard input, in place of that of the request.
    pub stdin: Option<String>,
    /// Standard input in base64, instead of `stdin`.
    pub stdin_base64: Option<String>,
    /// Files in addition to those of the request. One with the same path takes its place.
    pub files: Vec<FileSpec>,
    /// Environment variables in addition to those of the request. One with the same name takes its place.
    pub env: BTreeMap<String, String>,
}

impl Input {
    /// Returns the size of its texts and files, in bytes.
    pub fn size(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let arguments = self.arguments.iter().flat_map(|all| all.iter());
        let arguments: usize = arguments.map(|(name, value)| name.len() + value.as_str().len()).sum();
        let env: usize = self.env.iter().map(|(name, value)| name.len() + value.len()).sum();
        let files: usize = self.files.iter().map(FileSpec::size).sum();
        arguments + text(&self.stdin) + text(&self.stdin_base64) + files + env
    }
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

impl FileSpec {
    /// Returns the size of its path and content, in bytes.
    fn size(&self) -> usize {
        let contents = [&self.content, &self.content_base64];
        self.path.len() + contents.into_iter().flatten().map(String::len).sum::<usize>()
    }
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
