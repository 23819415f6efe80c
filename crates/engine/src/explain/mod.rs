//! What happened, in words a person can act on: the one line in `error`, and findings about what the sandbox kept a
//! program from.
//!
//! What the kernel and the launcher saw is known ([`Kept`]). What a program that failed wrote about itself is its own text,
//! no more trusted than the rest of its output: it explains, it decides nothing. What is not known is not guessed.

mod calls;
mod clue;
mod error;
mod failure;
mod kept;
mod page;
mod rules;

pub(crate) use error::{error_line, signal_name, signal_number};
pub(crate) use failure::explain;
pub use failure::explain_command;
pub(crate) use kept::not_limited;
pub use kept::{Kept, RefusedCall, findings};
pub use page::page;
