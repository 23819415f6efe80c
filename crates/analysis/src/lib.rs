//! Analyzes code without running it. Nothing here touches disk, network or processes.
#![forbid(unsafe_code)]

mod budget;
pub mod imports;
mod line_index;
mod parse_limits;
pub mod policy;
