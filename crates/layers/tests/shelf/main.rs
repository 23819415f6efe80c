//! The shelf, on a real disk and with real processes.

mod archives;
mod common;
mod hostile;
mod keeping;
mod processes;
mod publishing;
mod tampering;
