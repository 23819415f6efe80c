//! Control groups.
