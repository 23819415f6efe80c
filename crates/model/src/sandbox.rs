//! Requests for long-lived sandboxes.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::gpus::Gpus;
use crate::limits::LimitsSpec;
use crate::request::{Dependencies, NetworkSpec};

/// Action when a sandbox was not used for its timeout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// Close the sandbox.
    #[default]
    Kill,
    /// Pause the sandbox; it can be resumed.
    Pause,
}

/// Where the disk of a sandbox is: its workspace, `/tmp`, `/dev/shm` and home.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiskStorage {
    /// In memory, as a part of the sandbox's memory.
    #[default]
    Memory,
    /// In a file of the server, as a file system of its own.
    File,
}

/// Whether programs may change the system part of the file tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RootAccess {
    /// The root is read-only, and everybody is an ordinary user.
    #[default]
    ReadOnly,
    /// The sandbox has a copy of its image that it can change, and programs run as a root user without rights
    /// outside.
    Writable,
}

/// Smallest size of a disk in a file, in bytes.
pub const MIN_DISK_FILE_BYTES: u64 = 16 << 20;

/// Lifecycle state of a live sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SandboxPhase {
    /// The sandbox accepts operations.
    Running,
    /// All processes are frozen until it is resumed.
    Paused,
    /// The sandbox and everything in it is gone.
    Ended,
}

/// A sandbox to create. All fields are optional; unknown fields are refused by name.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "NewSandbox")]
pub struct SandboxRequest {
    /// Name of the image.
    pub image: Option<String>,
    /// Name of the profile.
    pub profile: Option<String>,
    /// Name of the provider.
    pub provider: Option<String>,
    /// Limits of the whole sandbox. `timeout_ms` is the default timeout of a command.
    pub limits: LimitsSpec,
    /// Whether programs may change the system part of the file tree; default no.
    pub root: RootAccess,
    /// Where its disk is; the server's setting `disk_storage` by default.
    pub disk_storage: Option<DiskStorage>,
    /// Network access; the profile's by default.
    pub network: Option<NetworkSpec>,
    /// GPUs of the machine: "all", or a number. Only provider `docker` has them, if its setting `gpus` allows them.
    pub gpus: Option<Gpus>,
    /// Environment variables of every command.
    pub env: BTreeMap<String, String>,
    /// Isolation layers that must be enforced, or nothing runs.
    pub require: Vec<String>,
    /// Values echoed in responses. Lists can be filtered by them.
    pub metadata: Map<String, Value>,
    /// How long the sandbox may be unused, in milliseconds; default one hour. Calls, open streams and running
    /// commands are use.
    #[schemars(range(min = 1))]
    pub timeout_ms: Option<i64>,
    /// Life in milliseconds from its creation, used or not; by default the longest that the server allows.
    #[schemars(range(min = 1))]
    pub life_ms: Option<i64>,
    /// Action when it was not used for `timeout_ms`. At the end of its life it is closed.
    pub on_timeout: OnTimeout,
    /// Volumes of the tenant, and host folders that the administrator allows.
    pub volumes: Vec<VolumeSpec>,
    /// Id of a snapshot whose files the workspace starts with.
    pub snapshot: Option<String>,
    /// Name of the policy for everything that runs in the sandbox.
    pub policy: Option<String>,
    /// Packages to install at the start. Executions add the packages that they import.
    pub dependencies: Dependencies,
}

/// A volume or host folder mounted in a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "VolumeMount", extend("required" = ["path"]))]
pub struct VolumeSpec {
    /// Name of the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Configured name of the host folder, instead of a volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Absolute path of the mount in the sandbox.
    pub path: String,
    /// Whether the mount is read-only.
    pub read_only: bool,
}
