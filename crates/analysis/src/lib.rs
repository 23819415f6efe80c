//! Analyzes code without running it. Nothing here touches disk, network or processes.
//!
//! It is a function over bytes in memory, with bounds that no input can exceed: `parse_limits` bounds what
//! parsers are given (stack, depth, panics), and `budget` counts their steps. Rules, policies and tables of
//! names are data.
#![forbid(unsafe_code)]

mod budget;
pub mod imports;
mod line_index;
mod parse_limits;
pub mod policy;
