//! Reads code without running it. Nothing here touches disk, network or processes.
#![forbid(unsafe_code)]

pub mod imports;
mod lines;
mod patience;
pub mod policy;
mod room;
