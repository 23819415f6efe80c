//! The store as its callers see it: real files, real threads, real deaths.

mod common;
mod migration;
