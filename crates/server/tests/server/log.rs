//! Captures the log of all tests in this binary.

use std::fmt::{Debug, Write};
use std::sync::{Mutex, MutexGuard, Once};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::set_global_default;
use tracing::{Event, Metadata, Subscriber};

static LOG: Mutex<String> = Mutex::new(String::new());
static LISTENING: Once = Once::new();

pub(crate) fn listen() {
    LISTENING.call_once(|| set_global_default(Ear).unwrap());
}

pub(crate) fn heard() -> MutexGuard<'static, String> {
    LOG.lock().unwrap()
}

struct Ear;

struct Words<'a>(&'a mut String);

impl Visit for Words<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}

impl Subscriber for Ear {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        span.record(&mut Words(&mut heard()));
        Id::from_u64(1)
    }
    fn record(&self, _span: &Id, values: &Record<'_>) {
        values.record(&mut Words(&mut heard()));
    }
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut Words(&mut heard()));
    }
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}
