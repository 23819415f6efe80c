//! Reads code without running it. Nothing here touches disk, network or processes.
#![forbid(unsafe_code)]

pub mod imports;
pub mod policy;
