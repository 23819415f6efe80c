//! Packages made available to runs, without an install at each of them.
//!
//! - [`shelf`]: layers on disk. What is on the shelf is whole, verified and never changes.

pub mod shelf;
