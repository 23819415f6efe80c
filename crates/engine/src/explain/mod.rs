//! Explains an execution in words a person can act on: the one-line `error`, and findings about what the
//! sandbox denied.
//!
//! ```text
//! refused call ─▶ launcher: notes its name, answers EPERM ─▶ Denials ─▶ denials.rs ─▶ Outcome::findings
//! stderr of a failed program, the settings of its plan ───────────────▶ failure.rs ─▶ Outcome::findings
//! ```
//!
//! Facts come from the kernel and the launcher ([`Denials`]). Standard error of a failed program is tenant
//! data, no more trusted than its other output: it is used to explain a failure and decides nothing. Unknown
//! causes are not guessed.

mod artifacts;
mod clue;
mod denials;
mod error;
mod failure;
mod page;
mod rules;
mod syscalls;

pub use artifacts::artifact_findings;
pub use belljar_model::denial::{Denials, DeniedSyscall};
pub use denials::denial_findings;
pub(crate) use denials::missing_limits;
pub(crate) use error::{error_line, signal_name, signal_number};
pub use failure::explain_command;
pub(crate) use failure::explain_failure;
pub use page::findings_page;
