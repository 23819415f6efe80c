//! Reads code before it runs. Nothing here executes anything, or touches disk, network or processes.

pub mod policy;
