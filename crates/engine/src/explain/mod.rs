//! Explains an execution in words a person can act on: the one-line `error`, and findings about what the
//! sandbox denied.
//!
//! Facts come from the kernel and the launcher ([`Kept`]). Standard error of a failed program is tenant data,
//! no more trusted than its other output: it is used to explain a failure and decides nothing. Unknown causes
//! are not guessed.

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
